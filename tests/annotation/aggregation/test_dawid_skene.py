"""Annotators whose errors are planted, and invariances."""

import pytest

from posttrain.annotation.aggregation import dawid_skene, majority
from posttrain.annotation.agreement import annotators, shares
from posttrain.annotation.rankings import agree
from posttrain.types import Ranking
from tests.annotation.said import mistaken, planted, right


@pytest.mark.parametrize("seed", range(3))
def test_it_beats_majority_where_most_annotators_guess(seed):
    said, truth = planted((3, 3, 3, 0, 0, 0, 0, -1), seed=seed)
    by_votes, weighed = (right(agree(said, way(said)), truth) for way in (majority, dawid_skene))
    assert weighed > by_votes + 0.05


@pytest.mark.parametrize("seed", range(3))
def test_planted_error_rates_are_found_and_weighed(seed):
    rates = (0.05, 0.1, 0.1, 0.15, 0.45, 0.5, 0.8)
    said, truth = mistaken(rates, seed=seed)
    by_votes, weighed = (agree(said, way(said)) for way in (majority, dawid_skene))
    assert right(weighed, truth) > 0.93 and right(weighed, truth) > right(by_votes, truth) + 0.05
    found = annotators([shares(said, weighed, dawid_skene)])
    told = {one.annotator: one for one in found}
    for person, rate in enumerate(rates):  # each has judged some 285 items; the consensus is nearly the truth
        one = told[f"person {person}"]
        assert one.agreement == pytest.approx(1 - rate, abs=0.1) and one.noisy == (rate > 0.4)


def test_which_of_two_is_called_the_first_does_not_matter():
    said, _ = planted((3, 3, 0, 0), items=10, size=3, each=3)

    def turned(ranking):
        if ranking.item in some:
            return ranking
        return Ranking(ranking.item, ranking.annotator, tuple(tuple(2 - c for c in g) for g in ranking.groups))

    some = {f"item {number}" for number in (0, 1, 4, 7)}
    before, after = dawid_skene(said), dawid_skene([turned(ranking) for ranking in said])
    for item, belief in before.items():
        for (i, j), odds in belief.odds.items():
            other = after[item].odds[i, j] if item in some else after[item].odds[2 - j, 2 - i][::-1]
            assert other == pytest.approx(odds, abs=1e-6)


def test_the_two_who_agree_everywhere_are_believed_against_one():
    said = []
    for number in range(8):
        order = ((0,), (1,)) if number % 2 else ((1,), (0,))
        said += [Ranking(number, who, order) for who in ("a", "b")] + [Ranking(number, "c", order[::-1])]
    alone = [Ranking("only c", "c", ((0,), (1,)))]
    odds = dawid_skene(said + alone)["only c"].odds[0, 1]
    assert odds.second > 0.9  # c says the opposite of what is right


def test_ties_are_an_outcome_of_their_own():
    said = [Ranking(n, who, ((0, 1),) if n % 2 else ((0,), (1,))) for n in range(6) for who in "abc"]
    found = dawid_skene(said)
    assert found[1].odds[0, 1].neither > 0.9 and found[0].odds[0, 1].first > 0.9


def test_nothing_to_compare():
    assert dawid_skene([Ranking("x", "a", ((0,),))])["x"].odds == {}
