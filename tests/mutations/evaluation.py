"""Faults of counting: a wrong share, a wrong unit of the interval, a reward that counts as the outcome."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation("evaluation/accuracy.py", old, new, "evaluation/test_accuracy.py")
    for old, new in [
        ("fmean(group.rewards)", "max(group.rewards)"),
        ("any(map(math.isnan, group.rewards))", "all(map(math.isnan, group.rewards))"),
        (">= SOLVED", "> 0"),
        (
            "[group for group in groups if all(scores[outcome].applicable",
            "[group for group in groups if any(scores[outcome].applicable",
        ),
        ("    if not groups:\n", "    if False:\n"),
        ("rates = [count / len(scores) for count, scores", "rates = [float(count > 0) for count, scores"),
        ("scores[outcome] for scores", "next(iter(scores.values())) for scores"),
        ("if max(map(len, judged)) == 1 else mean_interval(rates)", "if True else mean_interval(rates)"),
        ("if max(map(len, judged)) == 1 else mean_interval(rates)", "if False else mean_interval(rates)"),
        ("is not StopReason.STOP", "is StopReason.LENGTH"),
        ("len(trajectory.logprobs)", "len(trajectory.token_ids)"),
        ("range(most.bit_length()) if 2**i <= most", "range(1, most.bit_length()) if 2**i <= most"),
        ("pass_at_k(len(scores), count, k)", "1 - (1 - count / len(scores)) ** k"),
        ("score.unparsed for scores", "score.value == 0 for scores"),
        ("greedy=temperature == 0)", "greedy=temperature == 1)"),
        ("Sampling(max_new_tokens, temperature)", "Sampling(max_new_tokens)"),
        ("        seed=seed,\n", "        seed=0,\n"),
        ("if temperature == 0 and samples_per_task != 1:", "if False:"),
        ("    if not tasks:\n", "    if False:\n"),
    ]
] + [
    Mutation("evaluation/heldout.py", old, new, "evaluation/test_heldout.py")
    for old, new in [
        ("if not any(map(math.isnan, each))", "if True"),
        ("if not by_task:", "if False:"),
        ("if scores[name].applicable]", "]"),
        ("return sum(found) if found else math.nan", "return sum(found)"),
        ("lost / len(groups)", "lost"),
    ]
]
