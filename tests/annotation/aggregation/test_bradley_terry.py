"""The best strengths, weights and ties are where the posterior, read in plain floats, is flat and highest."""

import math
from itertools import pairwise

import pytest
from hypothesis import given

from posttrain.annotation.aggregation import KAPPA, SIGMA, bradley_terry, fit_comparisons, majority
from posttrain.annotation.rankings import agree, votes_of
from posttrain.types import Ranking
from tests.annotation.said import planted, rankings, right
from tests.references.annotation import davidson, log_davidson, log_prior

STEP = 1e-4


def posterior(votes, strengths, weights, nu):
    """With one tie and one other outcome between equals added, where there are ties."""
    rows = [((v.item, v.first), (v.item, v.second), v.annotator, v.outcome) for v in votes]
    total = log_davidson(rows, strengths, weights, nu) + log_prior(strengths, weights, SIGMA, KAPPA)
    return total + (math.log(nu / (2 + nu)) + math.log(2 / (2 + nu)) if nu else 0.0)


@given(said=rankings())
def test_no_other_strengths_are_likelier(said):
    votes = list(votes_of(said))
    if not votes:
        return
    found = fit_comparisons(votes)
    strengths = {(item, one): s for item, mine in found.strengths.items() for one, s in mine.items()}
    weights, nu = dict(found.weights), math.exp(found.extra[0]) if len(found.extra) else 0.0
    assert (nu > 0) == any(vote.outcome == 0 for vote in votes)
    best = posterior(votes, strengths, weights, nu)
    for key in strengths:
        for step in (STEP, -STEP):
            assert posterior(votes, strengths | {key: strengths[key] + step}, weights, nu) <= best + 1e-8
    names = list(weights)
    for one, other in pairwise(names):  # their mean stays 1
        for step in (STEP, -STEP):
            moved = weights | {one: weights[one] + step, other: weights[other] - step}
            assert posterior(votes, strengths, moved, nu) <= best + 1e-8
    if nu:
        for factor in (1 + STEP, 1 - STEP):
            assert posterior(votes, strengths, weights, nu * factor) <= best + 1e-8
    assert math.isclose(sum(weights.values()), len(weights))


def test_odds_are_those_of_the_average_annotator():
    said = [Ranking("x", who, order) for who, order in (("a", ((0,), (1,))), ("b", ((0, 1),)), ("c", ((0,), (1,))))]
    belief = bradley_terry(said)["x"]
    nu = math.exp(fit_comparisons(list(votes_of(said))).extra[0])
    expected = davidson(belief.strengths[0] - belief.strengths[1], nu)
    assert belief.odds[0, 1] == pytest.approx(expected) and expected[0] > expected[2]


@pytest.mark.parametrize("seed", range(3))
def test_annotators_are_weighed_and_the_order_is_better_for_it(seed):
    said, truth = planted((3, 3, 3, 0, 0, 0, 0, -1), seed=seed)
    weights = fit_comparisons(list(votes_of(said))).weights
    good, guessing, against = [weights[f"person {i}"] for i in range(3)], weights["person 4"], weights["person 7"]
    assert min(good) > 1.5 and abs(guessing) < 0.5 and against < 0
    assert right(agree(said, bradley_terry(said)), truth) > right(agree(said, majority(said)), truth) + 0.05


def test_with_many_votes_the_strengths_and_their_errors_are_right():
    # of 400 comparisons the first won 300: s_0 - s_1 = log 3; its variance 1 / (400 * 3/4 * 1/4), the prior adds little
    said = [Ranking("x", who, ((0,), (1,)) if who % 4 else ((1,), (0,))) for who in range(400)]
    votes = [vote._replace(annotator="all") for vote in votes_of(said)]
    found = fit_comparisons(votes)
    assert found.strengths["x"][0] - found.strengths["x"][1] == pytest.approx(math.log(3), abs=0.01)
    assert found.errors["x"][0] == pytest.approx(math.sqrt(1 / 75) / 2, rel=0.01)
    assert found.weights == {"all": 1.0}


def test_nothing_to_compare():
    assert bradley_terry([Ranking("x", "a", ((0,),))])["x"].odds == {}
