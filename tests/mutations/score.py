"""Faults of scoring given completions: rows that change places, what a model wrote shown raw, words that go astray."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("data/completions.py", old, new, "recipes/test_score.py")
        for old, new in [
            ("tasks_of([row for row, _, _ in read])", "tasks_of([row for row, _, _ in read[::-1]])"),
            ('row.fields.get("answer") or None', 'row.fields.get("answer")'),
            ("match.start() - 1 for", "match.start() for"),
            ("begins and begins[0].start() == 0", "False"),
            (')[-1].role == "assistant":', ")[-1].role:"),
            ('["messages"])[:-1]', '["messages"])'),
            ('    fields.pop("completion", None)\n', ""),
            ('fields.pop("messages", None)', 'fields.get("messages", None)'),
            ('StopReason(row.fields["stop_reason"])', "StopReason.STOP"),
        ]
    ),
    *(
        Mutation("recipes/score.py", old, new, "recipes/test_score.py")
        for old, new in [
            ('printable(" ".join(text.split()))', '" ".join(text.split())'),
            ("if len(text) <= WIDTH", "if True"),
            ("(_cell(row.id), name", "(row.id, name"),
            ("[len(rows) : len(rows) + AT_A_TIME]", "[:AT_A_TIME]"),
            ("environment.total(s)", "sum(one.value for one in s.values())"),
            ("fmean(row.scores[name].unparsed for", "sum(row.scores[name].unparsed for"),
            ("    check_reward_models(config.reward_model,", "    (config.reward_model,"),
        ]
    ),
]
