"""Rankings to test with: drawn by hypothesis, and by annotators whose errors are planted."""

import numpy as np
from hypothesis import strategies as st

from posttrain.types import Ranking

SEED = [  # three completions, three annotators, of whom one dissents
    Ranking("hot", "H1", ((1,), (0,), (2,))),
    Ranking("hot", "H2", ((1,), (0,), (2,))),
    Ranking("hot", "H3", ((2,), (0,), (1,))),
]


@st.composite
def tiers(draw, completions):
    """Any way to put completions into groups, best first."""
    order = draw(st.permutations(completions))
    groups = [[order[0]]]
    cuts = draw(st.lists(st.booleans(), min_size=len(order) - 1, max_size=len(order) - 1))
    for one, apart in zip(order[1:], cuts, strict=True):
        if apart:
            groups.append([one])
        else:
            groups[-1].append(one)
    return tuple(map(tuple, groups))


@st.composite
def rankings(draw, most_items=2, most_people=4, most=4, fails=True):
    """What some people say of some items; nobody twice of one."""
    found = []
    for item in range(draw(st.integers(1, most_items))):
        size = draw(st.integers(1, most))
        for person in range(draw(st.integers(1, most_people))):
            groups = draw(tiers(range(size)))
            failed = groups[-1] if fails and draw(st.booleans()) else ()
            found.append(Ranking(f"item {item}", f"person {person}", groups[:-1] if failed else groups, failed))
    return found


def planted(weights, *, items=60, size=4, each=5, seed=0):
    """Items whose completions have true strengths, each ranked by `each` annotators as Plackett and Luce have it.

    An annotator sees strengths times their weight: 0 ranks at random, below 0 the other way round. Returns the rankings
    and the strengths of each item's completions.
    """
    draws = np.random.default_rng(seed)
    found, truth = [], {}
    for number in range(items):
        strengths = draws.normal(size=size)
        truth[f"item {number}"] = strengths - strengths.mean()
        for person in sorted(draws.choice(len(weights), each, replace=False)):
            order = np.argsort(-(weights[person] * strengths + draws.gumbel(size=size)))
            found.append(Ranking(f"item {number}", f"person {person}", tuple((int(one),) for one in order)))
    return found, truth


def mistaken(rates, *, items=400, each=5, seed=0):
    """Items of two completions of which one is better, each judged by `each` annotators who err as often as told.

    Returns the rankings, and strengths of each item's completions, as `planted` does.
    """
    draws = np.random.default_rng(seed)
    found, truth = [], {}
    for number in range(items):
        better = int(draws.integers(2))
        truth[f"item {number}"] = np.array([1.0, -1.0] if better == 0 else [-1.0, 1.0])
        for person in sorted(draws.choice(len(rates), each, replace=False)):
            first = 1 - better if draws.random() < rates[person] else better
            found.append(Ranking(f"item {number}", f"person {person}", ((first,), (1 - first,))))
    return found, truth


def right(agreed, truth):
    """The share of all pairs that a consensus orders as the truth does; a tie counts half."""
    scores = []
    for one in agreed:
        place = {completion: level for level, group in enumerate(one.order) for completion in group}
        strengths = truth[one.item]
        scores += [
            (1 + np.sign((place[j] - place[i]) * (strengths[i] - strengths[j]))) / 2
            for i in range(len(strengths))
            for j in range(i)
        ]
    return float(np.mean(scores))
