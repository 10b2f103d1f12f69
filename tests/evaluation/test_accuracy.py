"""Counting what was solved: by hand, and through a scripted engine."""

import math
from dataclasses import replace

import pytest

from posttrain.errors import RewardError
from posttrain.evaluation.accuracy import Examination, difference, numbers, pass_at_interval, summarize
from posttrain.statistics import mean_interval, wilson_interval
from posttrain.types import Group, Score, StopReason, Trajectory, Turn
from tests.groups import group_of, with_rows


def completion(length: int, reason: StopReason = StopReason.STOP) -> Trajectory:
    return Trajectory((Turn((1, 2, 3), tuple(range(length)), (-1.0,) * length, reason, ""),))


def group(*values: float, unparsed=(), cut=(), lengths=None) -> Group:
    """A group whose outcome has these values; `format` is another reward that must not count."""
    sizes = lengths or [4] * len(values)
    trajectories = tuple(completion(n, StopReason.LENGTH if i in cut else StopReason.STOP) for i, n in enumerate(sizes))
    scores = tuple({"format": Score(1.0), "right": Score(v, unparsed=i in unparsed)} for i, v in enumerate(values))
    return group_of(trajectories, [v + 1 for v in values], scores=scores)


def test_by_hand():
    groups = [
        group(1, 0, 1, 0),
        group(0, 0, 0, 0, unparsed=(0, 1)),
        group(1, 1, 1, 0.99, cut=(3,), lengths=[2, 2, 2, 14]),
    ]
    found = summarize(groups, "right", greedy=False)
    assert found.rates == (0.5, 0.0, 0.75)  # 0.99 is not solved
    assert found.measure == "accuracy"
    assert found.accuracy == pytest.approx(1.25 / 3)
    assert (found.n, found.samples_per_task) == (3, 4)
    # of 4 samples with c solved, pass@2 = 1 - C(4-c, 2)/6: 5/6 for 2, 0 for 0, 1 for 3
    assert found.pass_at == pytest.approx({1: 1.25 / 3, 2: (5 / 6 + 0 + 1) / 3, 4: 2 / 3})
    assert found.unparsed == pytest.approx(2 / 12)
    assert found.truncated == pytest.approx(1 / 12)
    assert found.mean_tokens == pytest.approx((8 * 4 + 2 + 2 + 2 + 14) / 12)
    assert found.ci95 == mean_interval([0.5, 0.0, 0.75])  # over tasks: samples of one task are not independent
    assert found.groups == tuple(groups)


def test_groups_that_lost_episodes_count_as_much_as_others():
    found = summarize([group(1, 0, 1, 0), group(0, 1)], "right", greedy=False)
    assert (found.rates, found.samples_per_task) == ((0.5, 0.5), 2)
    assert found.pass_at == pytest.approx({1: 0.5, 2: (5 / 6 + 1) / 2})
    alone = summarize([group(1), group(0, 1)], "right", greedy=False)
    assert alone.ci95 == mean_interval([1.0, 0.5])  # an interval of a rate is of one answer per task
    assert summarize([group(1, 0, 1), group(0, 1)], "", greedy=False).samples_per_task == 2


def test_tasks_that_the_outcome_does_not_apply_to_are_in_no_denominator():
    none = Score.not_applicable()
    lost = group_of([completion(9)] * 2, [1.0, 1.0], scores=[{"right": Score(1.0)}, {"right": none}])
    found = summarize([group(1, 0), lost, group(1, 1)], "right", greedy=False)
    assert (found.n, found.rates, found.mean_tokens) == (2, (0.5, 1.0), 4)
    with pytest.raises(RewardError, match="'right' applies to the answers of none of the 1 tasks"):
        summarize([lost], "right", greedy=False)


def test_one_answer_per_task_has_the_interval_of_a_rate():
    found = summarize([group(1), group(0), group(1), group(1)], "right", greedy=True)
    assert (found.accuracy, found.pass_at, found.greedy) == (0.75, {1: 0.75}, True)
    assert found.ci95 == wilson_interval(3, 4)


def test_pass_at_goes_up_to_the_number_of_samples():
    assert list(summarize([group(*[0] * 6)], "right", greedy=False).pass_at) == [1, 2, 4]


def test_a_completion_cut_by_the_context_is_truncated_too():
    full = group_of([completion(2, StopReason.CONTEXT)], [0.0], scores=[{"right": Score(0.0)}])
    found = summarize([full], "right", greedy=False)
    assert found.truncated == 1


def test_without_an_outcome_the_mean_reward_is_told_with_its_interval():
    groups = [with_rows(group(1, 0), reward=rewards) for rewards in ((1.0, 3.0), (5.0, 7.0), (8.0, 8.0))]
    found = summarize(groups, "", greedy=False)
    assert (found.measure, found.accuracy, found.rates, found.pass_at) == ("reward", 16 / 3, (2.0, 6.0, 8.0), {})
    half = 1.959964 * math.sqrt(28 / 3 / 3)  # squares of -10/3, 2/3 and 8/3 are 56/3 in all, over n - 1 = 2
    assert found.ci95 == pytest.approx((16 / 3 - half, 16 / 3 + half))
    assert numbers(found)["reward"] == 16 / 3 and "accuracy" not in numbers(found)
    exam = Examination("a model", sampled=summarize(groups, "right", greedy=False))
    assert (exam.headline.measure, exam.headline.accuracy) == ("accuracy", 0.5)
    again = exam.judged_by("")
    assert again.headline.ci95 == pytest.approx((1.876, 8.790), abs=1e-3) and again.headline.n == 3
    assert again.metrics()["sampled/reward"] == 16 / 3 and "sampled/accuracy" not in again.metrics()
    more = Examination("b", sampled=replace(again.sampled, rates=(3.0, 7.0, 12.0)))
    value, interval, n = more.over(again)["sampled"]  # gains of 1, 1 and 4
    assert (value, n) == (2.0, 3) and interval == pytest.approx((2 - 1.959964, 2 + 1.959964))
    with pytest.raises(ValueError, match="the same tasks"):
        again.over(exam)


def test_without_an_outcome_a_task_with_one_answer_that_no_reward_applies_to_is_left_out():
    lost = with_rows(group(1, 0), reward=[1.0, math.nan])
    found = summarize([with_rows(group(1, 0), reward=[2.0, 4.0]), lost], "", greedy=False)
    assert (found.n, found.rates, found.accuracy) == (1, (3.0,), 3.0)
    with pytest.raises(RewardError, match="no reward applies to the answers of any of the 1 tasks"):
        summarize([lost], "", greedy=False)


def test_a_lost_sample_leaves_its_task_out_of_a_pass_at_that_was_asked_for():
    found = summarize([group(1, 0, 0, 0), group(0, 1, 0)], "right", greedy=False, ks=(3, 4))
    # of 4 samples with one right, pass@3 = 3/4; of 3, 1
    assert found.pass_at == pytest.approx({1: (1 / 4 + 1 / 3) / 2, 2: (1 / 2 + 2 / 3) / 2, 3: (3 / 4 + 1) / 2, 4: 1.0})
    assert pass_at_interval(found, 4) == mean_interval([1.0])
    assert pass_at_interval(found, 3) == pytest.approx(mean_interval([0.75, 1.0]))
    assert difference(found, found, 4).n == 1 and difference(found, found, 3).n == 2
