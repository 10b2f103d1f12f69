"""Faults of counting: a wrong share, a wrong unit of the interval, a reward that counts as the outcome."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation("evaluation/accuracy.py", old, new, "evaluation/test_accuracy.py")
    for old, new in [
        ("fmean(group.rewards)", "max(group.rewards)"),
        ("any(map(math.isnan, group.rewards))", "all(map(math.isnan, group.rewards))"),
        (">= SOLVED", "> 0"),
        (
            "for g in groups if all(scores[outcome].applicable",
            "for g in groups if any(scores[outcome].applicable",
        ),
        ("    if not groups:\n", "    if False:\n"),
        ("rates = [solved / size for size, solved", "rates = [float(solved > 0) for size, solved"),
        ("scores[outcome] for scores", "next(iter(scores.values())) for scores"),
        ("if single else mean_interval(rates)", "if True else mean_interval(rates)"),
        ("if single else mean_interval(rates)", "if False else mean_interval(rates)"),
        ("is not StopReason.STOP", "is StopReason.LENGTH"),
        ("len(trajectory.logprobs)", "len(trajectory.token_ids)"),
        ("range(most.bit_length()) if 2**i <= most", "range(1, most.bit_length()) if 2**i <= most"),
        ("pass_at_k(*count, k)", "1 - (1 - count[1] / count[0]) ** k"),
        ("score.unparsed for scores", "score.value == 0 for scores"),
        ("greedy=temperature == 0)", "greedy=temperature == 1)"),
        ("        seed=seed,\n", "        seed=0,\n"),
        ("if temperature == 0 and samples_per_task != 1:", "if False:"),
        ("    if not tasks:\n", "    if False:\n"),
    ]
] + [
    Mutation("setup/heldout.py", old, new, "setup/test_heldout.py")
    for old, new in [
        ("if not any(map(math.isnan, each))", "if True"),
        ("if not by_task:", "if False:"),
        ("if scores[name].applicable]", "]"),
        ("return sum(found) if found else math.nan", "return sum(found)"),
        ("lost / len(groups)", "lost"),
    ]
]
