"""Faults of showing data: a mask that is off, a text that a terminal obeys, rows that are counted wrong."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("recipes/data_show/__init__.py", old, new, "recipes/test_data_show.py")
        for old, new in [
            ('context - (layout == "rl")', "context"),
            ("min(config.max_tokens, context", "max(config.max_tokens, context"),
            ("size <= most if", "size < most if"),
            ("sum(one.learned) * fit", "sum(one.learned)"),
            ("kept += any(fits)", "kept += 1"),
            ("len({item.says for item in items})", "len({item.prompt for item in items})"),
            ("sum(one in met for one in held)", "len(set(held) & met)" + " + 1"),
            ("len(held) - len(set(held))", "len(set(held))"),
            ('line.partition(": ")', 'line.partition(":")'),
            ("range(config.first, config.first + config.rows)", "range(config.first - 1, config.first + config.rows)"),
        ]
    ),
    *(
        Mutation("recipes/data_show/items.py", old, new, "recipes/test_data_show.py")
        for old, new in [
            (
                "(*[False] * len(example.prefix), *example.learned)",
                "(*example.learned, *[False] * len(example.prefix))",
            ),
            ('("chosen", "rejected") if', '("rejected", "chosen") if'),
            ('"good" if one.good', '"bad" if one.good'),
            ('"####" not in answer', "True"),
            ("or layout_of(row) is not None", ""),
            ("or helpsteer", ""),
        ]
    ),
    *(
        Mutation("recipes/data_show/result.py", old, new, "recipes/test_data_show.py")
        for old, new in [
            ('printable(" ".join(one.answer.split()))', '" ".join(one.answer.split())'),
            ("(length - 1) // width for", "length // width for"),
            ("step * BINS >= longest", "step * BINS > longest * 2"),
            ("skip_special_tokens=False", "skip_special_tokens=True"),
        ]
    ),
    *(
        Mutation("report/masked_text.py", old, new, "recipes/test_data_show.py")
        for old, new in [
            ("printable(text).split", "text.split"),
            ("(LEARNED, _LEARNED) if learned", "(LEARNED, _LEARNED) if not learned"),
            ("[last] if last else []", "[last]"),
            ("max(round(width * n / most), n > 0)", "round(width * n)"),
        ]
    ),
]
