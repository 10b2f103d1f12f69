"""What a reward model learns by, and how it is judged, in plain floats. Shares no code with `posttrain`."""

import math


def logistic(x):
    return 1 / (1 + math.exp(-x))


def ranking_loss(units, *, smoothing, margin, centring):
    """The mean over prompts of the mean over their pairs of the mean over heads.

    A unit is (pairs, bag); a pair is (chosen's scores, rejected's scores, strength), one score for each head.
    """
    total = 0.0
    for pairs, bag in units:
        for chosen, rejected, strength in pairs:
            heads = len(chosen)
            for r, s, times in zip(chosen, rejected, bag or [1.0] * heads, strict=True):
                h = r - s - margin * strength
                cost = -(1 - smoothing) * math.log(logistic(h)) - smoothing * math.log(logistic(-h))
                total += times * (cost + centring * (r + s) ** 2) / heads / len(pairs) / len(units)
    return total


def pearson(a, b):
    n = len(a)
    mean_a, mean_b = sum(a) / n, sum(b) / n
    covariance = sum(x * y for x, y in zip(a, b, strict=True)) / n - mean_a * mean_b
    variance_a, variance_b = (sum(x * x for x in v) / n - m * m for v, m in ((a, mean_a), (b, mean_b)))
    return covariance / math.sqrt(variance_a) / math.sqrt(variance_b)


def odin(pairs, tokens, rows, weight):
    """Chen et al. 2024: pairs are ((quality, length) of chosen, the same of rejected); tokens in the same order."""
    ranked = sum(-math.log(logistic(c[0] + c[1] - r[0] - r[1])) for c, r in pairs) / len(pairs)
    flat = [score for pair in pairs for score in pair]
    apart = abs(pearson([q for q, _ in flat], tokens)) - pearson([n for _, n in flat], tokens)
    angle = abs(sum(x * y for x, y in zip(*rows, strict=True)))
    angle /= math.sqrt(sum(x * x for x in rows[0])) * math.sqrt(sum(y * y for y in rows[1]))
    return ranked + weight * (apart + angle)
