"""Online objectives of 2025 and 2026 in plain floats, of batches as in `online.py`. Shares no code with `posttrain`.

Rows have more: `frozen`, the logprobs of stopped gradients; `scores`, one per reward, None where one does not apply.
"""

import math
from itertools import combinations, pairwise
from statistics import mean, pstdev, stdev

from tests.references.online import branches, clipped, compared, completions, normalised, ratio


def advantages(batch, of_group):
    """One advantage per row by its identity, of a function from the rewards of a group to their advantages."""
    found = {}
    for group in compared(batch):
        for c, advantage in zip(group, of_group([c["reward"] for c in group]), strict=True):
            found[id(c)] = advantage
    return found


def grpo(batch):
    return advantages(batch, lambda rewards: [normalised(rewards, r, 1e-4) for r in rewards])


def by_row(batch, of_row):
    return -mean(of_row(c) for c in completions(batch))


def surrogate(batch, found, low=0.2, high=0.2):
    return by_row(batch, lambda c: mean(clipped(ratio(t), found[id(c)], low, high) for t in c["tokens"]))


def cispo(batch, *, low, high):
    found = grpo(batch)
    tokens = [(c, t, f) for c in completions(batch) for t, f in zip(c["tokens"], c["frozen"], strict=True)]
    weights = [min(max(math.exp(f - t[1]), 1 - low), 1 + high) for _, t, f in tokens]
    return -mean(w * found[id(c)] * t[0] for w, (c, t, _) in zip(weights, tokens, strict=True))


def divergence(kind, p, q):
    if kind == "tv":
        return abs(p - q)
    p = min(p, 1 - 1e-7)  # the tests' logprobs may be above 0
    return sum(a * math.log(a / b) for a, b in ((q, p), (1 - q, 1 - p)))


def dppo(batch, *, low, high, kind):
    found = grpo(batch)

    def of_token(t, a):
        p, q = math.exp(t[0]), math.exp(t[1])
        far = divergence(kind, p, q)
        if (a > 0 and p > q and far > high) or (a < 0 and p < q and far > low):
            return 0.0
        return p / q * a

    return by_row(batch, lambda c: mean(of_token(t, found[id(c)]) for t in c["tokens"]))


def gdpo(batch, *, weights, epsilon=1e-4):
    total = {id(c): 0.0 for c in completions(batch)}
    for group in compared(batch):
        for k, weight in enumerate(weights):
            known = [c["scores"][k] for c in group if c["scores"][k] is not None]
            for c in group:
                if c["scores"][k] is not None:
                    total[id(c)] += weight * normalised(known, c["scores"][k], epsilon)
    spread = stdev(total.values())
    return surrogate(batch, {row: value / (spread + epsilon) for row, value in total.items()})


def maxrl(batch, *, longest, low=0.2, high=0.2):
    def of_group(rewards):
        usual = mean(rewards)
        return [(r - usual) / usual if usual > 0 else 0.0 for r in rewards]

    found = advantages(batch, of_group)
    total = sum(clipped(ratio(t), found[id(c)], low, high) for c in completions(batch) for t in c["tokens"])
    return -total / (len(completions(batch)) * longest)


def pass_at_k(batch, *, k, right_from):
    """By going through all sets, where the library counts them."""

    def of_group(rewards):
        rows = range(len(rewards))
        solved = {chosen: any(rewards[i] >= right_from for i in chosen) for chosen in combinations(rows, k)}
        usual, spread = mean(solved.values()), pstdev(solved.values())
        of_row = [mean(value for chosen, value in solved.items() if i in chosen) for i in rows]
        return [(value - usual) / spread if spread else 0.0 for value in of_row]

    return surrogate(batch, advantages(batch, of_group))


def sapo(batch, *, tau_positive, tau_negative):
    found = grpo(batch)

    def gate(w, a):
        tau = tau_positive if a > 0 else tau_negative
        return 4 / (tau * (1 + math.exp(-tau * (w - 1)))) * a

    return by_row(batch, lambda c: mean(gate(ratio(t), found[id(c)]) for t in c["tokens"]))


def gmpo(batch, *, low, high):
    found = grpo(batch)

    def of_row(c):
        total = 0.0
        for part in branches(c):
            sign = math.copysign(1.0, found[id(c)])
            logs = [t[0] - t[1] for t in part]
            kept = [sign * min(sign * x, sign * min(max(x, -low), high)) for x in logs]
            total += len(part) / len(c["tokens"]) * found[id(c)] * math.prod(map(math.exp, kept)) ** (1 / len(part))
        return total

    return by_row(batch, of_row)


def covariances(batch):
    """The covariance of each token, by its row and place."""
    found = grpo(batch)
    tokens = [(c, n, found[id(c)], t[1]) for c in completions(batch) for n, t in enumerate(c["tokens"])]
    usual, likely = mean(t[2] for t in tokens), mean(t[3] for t in tokens)
    return {(id(c), n): (a - usual) * (logprob - likely) for c, n, a, logprob in tokens}


def clip_cov(batch, *, low, high):
    """Where all tokens of the band are chosen."""
    found, out = grpo(batch), {place for place, value in covariances(batch).items() if low <= value <= high}
    return by_row(
        batch,
        lambda c: mean(
            0.0 if (id(c), n) in out else clipped(ratio(t), found[id(c)], 0.2, 0.2) for n, t in enumerate(c["tokens"])
        ),
    )


def kl_cov(batch, *, share, beta):
    found, order = grpo(batch), covariances(batch)
    chosen = set(sorted(order, key=order.get, reverse=True)[: max(1, int(share * len(order)))])
    chosen = {(row, n) for row, n in chosen if found[row]}

    def of_token(c, n, t):
        back = math.exp(t[1]) / math.exp(t[0])
        return ratio(t) * found[id(c)] - ((id(c), n) in chosen) * beta * (back - math.log(back) - 1)

    return by_row(batch, lambda c: mean(of_token(c, n, t) for n, t in enumerate(c["tokens"])))


def importance(logs, level, *, low, high, masked):
    """The weights of one sequence's tokens, from the logs of their ratios."""
    ratios = [math.exp(value) for value in logs]
    if level != "token":
        whole = math.prod(ratios)
        ratios = [whole ** (1 / len(ratios)) if level == "mean" else whole] * len(ratios)
    return [w if low <= w <= high else 0.0 if masked else min(max(w, low), high) for w in ratios]


def others(group, of):
    """What the others of a group have on average, by row."""
    return {id(c): mean(of(d) for d in group if d is not c) for c in group}


def by_token(batch, found, low=0.2, high=0.2):
    """The surrogate of advantages by row and token, averaged over all tokens."""
    terms = [
        clipped(ratio(t), found[id(c)][n], low, high) for c in completions(batch) for n, t in enumerate(c["tokens"])
    ]
    return -mean(terms)


def prime(batch, *, beta, low=0.2, high=0.2):
    found = {}
    for group in compared(batch):
        implicit = {id(c): [beta * (p - t[2]) for p, t in zip(c["prm"], c["tokens"], strict=True)] for c in group}
        process = others(group, lambda c, implicit=implicit: mean(implicit[id(c)]))
        outcome = others(group, lambda c: c["reward"])
        for c in group:
            own = [reward - process[id(c)] for reward in implicit[id(c)]]
            found[id(c)] = [sum(own[n:]) + c["reward"] - outcome[id(c)] for n in range(len(own))]
    return by_token(batch, found, low, high)


def pav(batch, *, weight):
    found = {}
    for group in compared(batch):
        outcome = others(group, lambda c: c["reward"])
        for c in group:
            last = max(c["steps"])
            begins = {step: c["worth"][n] for n, step in reversed(list(enumerate(c["steps"])))}
            begins[last + 1] = c["reward"]
            after = dict(pairwise(sorted(begins)))
            found[id(c)] = [
                c["reward"] - outcome[id(c)] + weight * (begins[after[step]] - begins[step]) for step in c["steps"]
            ]
    return by_token(batch, found)


def implicit_reward_loss(rows, *, beta):
    """Of rows of (logprobs, reference, label): the cross entropy of each."""
    found = []
    for logprobs, reference, label in rows:
        right = 1 / (1 + math.exp(-beta * sum(a - b for a, b in zip(logprobs, reference, strict=True))))
        found.append(-label * math.log(right) - (1 - label) * math.log(1 - right))
    return found
