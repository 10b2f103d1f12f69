"""Accuracies, costs and gains of every way to choose among answers, by hand."""

from dataclasses import replace

import pytest

from posttrain.evaluation.voting import Answered
from posttrain.evaluation.ways import points
from posttrain.statistics import mean_interval, paired_difference_interval


def answered(letters, tokens=10, scores=()):
    return Answered([*letters], [letter == "7" for letter in letters], [tokens] * len(letters), scores)


def found(problems, **others):
    return {(point.way, point.samples): point for point in points(problems, **others)}


def test_every_way_by_hand():
    problems = [answered("7773"), answered("3775", tokens=20), answered("3337")]
    by = found(problems)
    assert {way for way, _ in by} == {"one sample", "majority", "oracle", "majority, until settled"}
    one = by["one sample", 1]
    assert (one.accuracy, one.tokens, one.over_one) == (pytest.approx(0.5), pytest.approx(40 / 3), 0.0)
    four = by["majority", 4]
    assert (four.accuracy, four.tokens) == (pytest.approx(2 / 3), pytest.approx(160 / 3))
    assert four.ci95 == mean_interval([1.0, 1.0, 0.0])
    assert four.over_one == pytest.approx(1 / 6)
    assert four.over_one_ci95 == paired_difference_interval([0.75, 0.5, 0.25], [1.0, 1.0, 0.0])
    assert by["oracle", 4].accuracy == 1.0


def test_scores_choose_where_there_are_any():
    problems = [answered("7333", scores=(0.9, 0.1, 0.1, 0.1)), answered("3577", scores=(0.1, 0.9, 0.2, 0.8))]
    by = found(problems)
    ways = ("majority", "weighted", "best", "oracle")
    assert [by[way, 4].accuracy for way in ways] == [0.5, 1.0, 0.5, 1.0]


def test_only_ways_that_ask_a_reward_model_pay_for_what_it_reads():
    problem = Answered([*"7333"], [True, False, False, False], [10] * 4, (0.9, 0.1, 0.1, 0.1), [200] * 4)
    by = found([problem])
    assert [by[way, 4].tokens for way in ("majority", "oracle", "weighted", "best")] == [40, 40, 840, 840]
    assert by["one sample", 1].tokens == 10


def test_samples_are_spent_where_they_help():
    problems = [answered("77777777"), answered("73735777")]
    by = found(problems)
    settled = next(point for (way, _), point in by.items() if way == "majority, until settled")
    assert (settled.samples, settled.tokens) == (6.0, 60.0)  # 4 and 8
    assert ("majority, by difficulty", 8.0) not in by and not any(way.endswith("by bins") for way, _ in by)
    wide = found([answered("7" * 16), answered("73" * 8)])
    assert wide["majority, by difficulty", 8.0].tokens == 80.0
    assert any(way == "majority, by bins" for way, _ in wide)


def test_searches_stand_beside_and_choose_by_weighted_votes():
    problems = [answered("7733", scores=(0.1,) * 4), answered("3333", scores=(0.1,) * 4)]
    search = [[replace(answered("73", scores=(0.2, 0.1)), tokens=[15.0] * 2, read=[100.0] * 2)] * 2]
    point = found(problems, searched={"beam search": search})["beam search", 2.0]
    assert (point.accuracy, point.over_one, point.tokens) == (1.0, 0.75, 230.0)
    assert point.over_one_ci95 == paired_difference_interval([0.5, 0.0], [1.0, 1.0])
