"""Process rewards in plain floats, read from DeepSeekMath (arXiv 2402.03300, section 4.1.3). No torch.

A row is {"reward", "steps": {token: what is paid}, "length"}; a group is a list of rows.
"""

from math import exp, log
from statistics import mean, stdev


def from_here(values: list[float]) -> list[float]:
    return [sum(values[t:]) for t in range(len(values))]


def normalised(values: list[float], epsilon: float) -> list[float]:
    if len(set(values)) < 2:
        return [0.0] * len(values)
    return [(value - mean(values)) / (stdev(values) + epsilon) for value in values]


def grpo(groups: list[list[dict]], epsilon: float = 1e-4, compare=normalised) -> list[float]:
    """The advantage of each token: of the steps that end at it or later, and of the outcome."""
    found = []
    for group in groups:
        steps = [(i, token, paid) for i, row in enumerate(group) for token, paid in row["steps"].items()]
        scaled = compare([paid for *_, paid in steps], epsilon)
        by_end = {(i, token): value for (i, token, _), value in zip(steps, scaled, strict=True)}
        left = [round(row["reward"] - sum(row["steps"].values()), 12) for row in group]
        for i, (row, outcome) in enumerate(zip(group, compare(left, epsilon), strict=True)):
            for t in range(row["length"]):
                ahead = [value for (number, end), value in by_end.items() if number == i and end >= t]
                found.append(outcome + sum(ahead))
    return found


def gae(row: dict, values: list[float], gamma: float, lam: float) -> list[float]:
    """Advantages of the tokens of a row, each summed up from its own definition."""
    paid = [row["steps"].get(t, 0.0) for t in range(row["length"])]
    paid[-1] += row["reward"] - sum(row["steps"].values())
    ahead = [*values[1:], 0.0]
    deltas = [r + gamma * later - now for r, now, later in zip(paid, values, ahead, strict=True)]
    return [sum((gamma * lam) ** (u - t) * deltas[u] for u in range(t, row["length"])) for t in range(row["length"])]


def correctness(logit: float, right: float) -> float:
    """Binary cross-entropy of one step, from the probability that it is right; `right` may be a probability too."""
    probability = 1 / (1 + exp(-logit))
    told = [(right, probability), (1 - right, 1 - probability)]
    return -sum(weight * log(one) for weight, one in told if weight)


def softmin(steps: list[float], temperature: float) -> list[float]:
    """What PURE pays each step (arXiv 2504.15275): its reward 2p - 1 by its share of exp(-r / T)."""
    rewards = [p - (1 - p) for p in steps]
    total = sum(exp(-r / temperature) for r in rewards)
    return [r * exp(-r / temperature) / total for r in rewards]
