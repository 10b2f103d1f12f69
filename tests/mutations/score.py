"""Faults of judging given completions: gold answers that nothing reads, and what is said of them."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation(file, old, new, "rewards/test_check.py test_bad_input.py")
        for file, old, new in [
            ("rewards/check.py", "[await _failure(reward, episode) for episode in silent]", '["no"] * len(silent)'),
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
        ]
    ),
]
