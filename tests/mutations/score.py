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
            ("environment.total(s)", "sum(one.value for one in s.values())"),
            ("_mean(score.unparsed for", "_mean(not score.unparsed for"),
            ("if row.scores[name].applicable]", "]"),
            ("score.total if score.applicable else None", "score.total"),
            ("    check_reward_models(config.reward_model,", "    (config.reward_model,"),
        ]
    ),
    *(
        Mutation(file, old, new, "rewards/test_check.py test_bad_input.py")
        for file, old, new in [
            ("rewards/check.py", "[await _failure(reward, episode) for episode in silent]", '["no"] * len(silent)'),
            ("rewards/check.py", "if isinstance(reward, ReadsAnswers):", "if False:"),
            ("rewards/combine.py", 'next((why for why in row if why), "")', "row[0]"),
            ("rewards/verifiers/math.py", "if large := too_large(gold):", "if large := None:"),
            ("rewards/verifiers/math.py", "for gold in _golds(task) if reasons[gold]", "for gold in _golds(task)[:1]"),
            ("setup/sampling.py", "    if found:\n        number, why", "    if False:\n        number, why"),
            (
                "setup/sampling.py",
                "enumerate(finish(rewards.unreadable(tasks)), 1)",
                "enumerate(finish(rewards.unreadable(tasks)))",
            ),
            ("setup/sampling.py", "refuse_unreadable(each, heldout,", "(each, heldout,"),
            ("setup/sampling.py", "refuse_unreadable(each, tasks,", "(each, tasks,"),
            ("setup/sampling.py", "None if config.eval_every else gold", "None"),
            ("setup/sampling.py", "None if config.eval_every else gold", "gold"),
            ("recipes/evaluate/__init__.py", "    refuse_unreadable(environment.reward,", "    (environment.reward,"),
            ("recipes/score.py", "        refuse_unreadable(rewards", "        (rewards"),
        ]
    ),
]
