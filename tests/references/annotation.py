"""Consensus and agreement in plain floats, from the equations; nothing here is posttrain's."""

import math
from itertools import combinations, permutations


def davidson(gap, nu):
    """P(first better), P(neither), P(second better)."""
    up, down = math.exp(gap / 2), math.exp(-gap / 2)
    z = up + down + nu
    return up / z, nu / z, down / z


def log_davidson(votes, strengths, weights, nu):
    """The sum over (completion, completion, annotator, outcome) of log P; a strength is keyed by completion."""
    return sum(
        math.log(davidson(weights[who] * (strengths[i] - strengths[j]), nu)[1 - outcome])
        for i, j, who, outcome in votes
    )


def log_plackett_luce(rankings, strengths, weights):
    """The sum over (annotator, tiers) of log P: every member of a tier is drawn from all that its tier began with."""
    total = 0.0
    for who, tiers in rankings:
        left = [one for tier in tiers for one in tier]
        for tier in tiers:
            pot = sum(math.exp(weights[who] * strengths[one]) for one in left)
            total += sum(weights[who] * strengths[one] - math.log(pot) for one in tier)
            left = [one for one in left if one not in tier]
    return total


def log_prior(strengths, weights, sigma, kappa):
    spread = sum(s * s for s in strengths.values()) / (2 * sigma**2)
    return -spread - sum((a - 1) ** 2 for a in weights.values()) / (2 * kappa**2)


def kendall_w(tables):
    """By the variance of rank sums over the largest it could be, from every annotator's tiers."""
    ranks = []
    for tiers in tables:
        row, place = {}, 0
        for tier in tiers:
            for one in tier:
                row[one] = place + sum(range(1, len(tier) + 1)) / len(tier)
            place += len(tier)
        ranks.append(row)
    sums = [sum(row[one] for row in ranks) for one in ranks[0]]
    mean = sum(sums) / len(sums)
    m, n = len(ranks), len(sums)
    ties = sum(len(t) ** 3 - len(t) for tiers in tables for t in tiers)
    return 12 * sum((s - mean) ** 2 for s in sums) / (m**2 * (n**3 - n) - m * ties)


def ordinal_alpha(units):
    """Krippendorff's alpha from pairs of values: `units` has the values of each unit, those with two or more count."""
    units = [values for values in units if len(values) > 1]
    every = [value for values in units for value in values]
    count = {value: every.count(value) for value in every}

    def distance(c, k):
        low, high = min(c, k), max(c, k)
        between = sum(n for value, n in count.items() if low <= value <= high)
        return (between - (count[c] + count[k]) / 2) ** 2

    observed = sum(
        sum(distance(a, b) for a, b in permutations(values, 2)) / (len(values) - 1) for values in units
    ) / len(every)
    expected = sum(distance(a, b) for a, b in permutations(every, 2)) / (len(every) * (len(every) - 1))
    return 1 - observed / expected


def majority_order(tables):
    """The order in which more prefer each completion to every later one than not, and as many as tie them, if any."""
    ones = sorted(one for tier in tables[0] for one in tier)
    place = [{one: level for level, tier in enumerate(tiers) for one in tier} for tiers in tables]
    for order in permutations(ones):
        for a, b in combinations(order, 2):
            over, under = sum(p[a] < p[b] for p in place), sum(p[a] > p[b] for p in place)
            if over <= under or over < len(place) - over - under:
                break
        else:
            return [[one] for one in order]
    return None


def nominal_alpha(units):
    """The same where two values are as different as any other two: observed over expected disagreement of pairs."""
    units = [values for values in units if len(values) > 1]
    every = [value for values in units for value in values]
    n = len(every)
    observed = sum(
        sum(a != b for i, a in enumerate(values) for j, b in enumerate(values) if i != j) / (len(values) - 1)
        for values in units
    )
    expected = sum(a != b for i, a in enumerate(every) for j, b in enumerate(every) if i != j) / (n - 1)
    return 1 - observed / expected
