"""Faults of agreement item by item, and of statistics that are kept up to date."""

from tests.mutations import Mutation

SHARES = "annotation/test_item_shares.py"
KEPT = "annotation/store/test_project_statistics.py"
COUNTED = "annotation/store/test_work.py"
TALKING = "annotation/store/test_conversations.py"
RULINGS = "annotation/store/test_rulings.py"

MUTATIONS = [
    *(
        Mutation("annotation/item_shares.py", old, new, SHARES)
        for old, new in [
            ("(1 + outcome * order[pair]) / 2", "(1 - outcome * order[pair]) / 2"),
            ("fewer[pair][outcome] -= 1", "pass"),
            ("judged - named, failed", "judged, failed"),
            ("failed - Counter(ranking.failed)", "failed"),
            ("and neither <= max(first, second)", "and neither < max(first, second)"),
            ("and neither <= max(first, second)", ""),
            ("2 * failed.get(one, 0) > judged[one], -wins", "2 * failed.get(one, 0) >= judged[one], -wins"),
            ("judged[one], -wins[one])", "judged[one], wins[one])"),
            ("wins[pair[1]] -= verdict", "pass"),
            ("if (level[a] < level[b] if verdict > 0 else level[b] < level[a])", ""),
            ("if fixed is not None else _without(", "if fixed is not None else together or _without("),
            ("        if len(rankings) < 2:\n            continue\n", ""),
            ("votes - Counter([value])", "votes"),
            ("others[0][1] == most", "False"),
        ]
    ),
    *(
        Mutation("annotation/store/project_statistics.py", old, new, KEPT)
        for old, new in [
            ("Judgement.id > self._judgement, here", "here"),
            ("            changed.add(row.item_id)\n        query", "        query"),
            ("            changed.add(row.item_id)\n        return", "        return"),
            ("            self._ruling = row.id\n", "            self._ruling = row.id + 1\n"),
            ("            self._judgement = row.id\n", "            self._judgement = row.id + 1\n"),
            ("+ 0 == self.number", "+ 0 > 0"),
            (" or self._decided(connection):", ":"),
            ("REST * spent if spent > FREE else 0.0", "0.0"),
        ]
    ),
    *(
        Mutation("annotation/store/project_statistics.py", old, new, COUNTED)
        for old, new in [
            ('if before and "choices" in row.answer else', "if before else"),
            ("kind.same(said.answer, state.expected)", "True"),
            ("kind.same(said.answer, state.first[name].answer)", "True"),
            ("if (mine := seconds.get(name, [])) or skipped", "if (mine := seconds.get(name, [])) or True"),
        ]
    ),
    *(
        Mutation("annotation/store/project_statistics.py", old, new, TALKING)
        for old, new in [
            ("spent + row.seconds", "row.seconds"),
            (", ~Assignment.judgements.any())", ")"),
            ('Assignment.state == "skipped", ', ""),
        ]
    ),
    *(
        Mutation("annotation/store/project_statistics.py", old, new, RULINGS)
        for old, new in [
            (" and state.agreement < 1", ""),
            ("key=lambda one: (bool(one.decided), one.agreement)", "key=lambda one: one.agreement"),
            ("key=lambda one: (bool(one.decided), one.agreement)", "key=lambda one: bool(one.decided)"),
            ("majority_shares(rankings, decided)", "majority_shares(rankings)"),
            ("*([kind.verdict(ruling[0])] if ruling else [])", ""),
            ("        if kind.alike is None:\n", "        if True:\n"),
            ("        state.agreement = kind.alike(", "        kind.alike("),
        ]
    ),
]  # fmt: skip
