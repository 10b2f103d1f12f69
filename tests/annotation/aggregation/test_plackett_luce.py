"""The best strengths and weights are where the posterior, read in plain floats, is highest; planted ones are found."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from posttrain.annotation.aggregation import KAPPA, SIGMA, fit_rankings, majority, plackett_luce
from posttrain.annotation.rankings import agree
from posttrain.types import Ranking
from tests.annotation.said import planted, rankings, right
from tests.references.annotation import log_plackett_luce, log_prior

STEP = 1e-4


def posterior(said, strengths, weights):
    rows = [(r.annotator, [[(r.item, one) for one in tier] for tier in r.tiers]) for r in said]
    return log_plackett_luce(rows, strengths, weights) + log_prior(strengths, weights, SIGMA, KAPPA)


@given(said=rankings())
def test_no_other_strengths_are_likelier(said):
    found = fit_rankings(said)
    strengths = {(item, one): s for item, mine in found.strengths.items() for one, s in mine.items()}
    weights = dict(found.weights)
    best = posterior(said, strengths, weights)
    for key in strengths:
        for step in (STEP, -STEP):
            assert posterior(said, strengths | {key: strengths[key] + step}, weights) <= best + 1e-8
    names = list(weights)
    for one, other in pairwise(names):
        for step in (STEP, -STEP):
            moved = weights | {one: weights[one] + step, other: weights[other] - step}
            assert posterior(said, strengths, moved) <= best + 1e-8
    assert math.isclose(sum(weights.values()), len(weights))


@pytest.mark.parametrize("seed", range(3))
def test_planted_strengths_are_found_within_the_errors_that_are_stated(seed):
    _, truth = planted((1,) * 10, items=6, size=5, each=10, seed=seed)
    many = [  # 40 times as much said by the same ten
        Ranking(r.item, r.annotator, r.groups)
        for turn in range(40)
        for r in planted_again(truth, 10, seed=100 * seed + turn)
    ]
    found = fit_rankings(many)
    gaps = [
        (found.strengths[item][i] - true[i]) / found.errors[item][i]
        for item, true in truth.items()
        for i in range(len(true))
    ]
    assert 0.6 < np.sqrt(np.mean(np.square(gaps))) < 1.5 and max(map(abs, gaps)) < 4
    assert max(found.errors[item][i] for item in truth for i in range(5)) < 0.15


def planted_again(truth, people, seed):
    draws = np.random.default_rng(seed)
    for item, strengths in truth.items():
        for person in range(people):
            order = np.argsort(-(strengths + draws.gumbel(size=len(strengths))))
            yield Ranking(item, f"person {person}", tuple((int(one),) for one in order))


@pytest.mark.parametrize("seed", range(3))
def test_annotators_are_weighed_and_the_order_is_better_for_it(seed):
    said, truth = planted((3, 3, 3, 0, 0, 0, 0, -1), seed=seed)
    weights = fit_rankings(said).weights
    assert min(weights[f"person {i}"] for i in range(3)) > 1.5
    assert abs(weights["person 4"]) < 0.5 and weights["person 7"] < 0
    assert right(agree(said, plackett_luce(said)), truth) > right(agree(said, majority(said)), truth) + 0.05


def test_odds_are_of_the_strengths():
    belief = plackett_luce([Ranking("x", "a", ((1,), (0,), (2,)))])["x"]
    s = belief.strengths
    for (i, j), odds in belief.odds.items():
        assert odds.first == pytest.approx(math.exp(s[i]) / (math.exp(s[i]) + math.exp(s[j])))
        assert odds.neither == 0
    assert s[1] > s[0] > s[2] and sum(s.values()) == pytest.approx(0)


def test_nothing_to_compare():
    assert plackett_luce([Ranking("x", "a", ((0,),))])["x"].odds == {}
