"""Which checkpoint is the best, and when a run has stopped getting better."""

import math
from functools import partial
from types import SimpleNamespace

import pytest

from posttrain.bindings.heldout import (
    HeldOut,
    HeldOutReward,
    chosen_by,
    goodness,
    held_out,
    heldout_metrics,
    past_budget,
    weighed,
)
from posttrain.runs.training import patience
from posttrain.types import Score, StopReason, Trajectory, Turn
from tests.groups import group_of


def rows(*gold: float) -> list[dict[str, float]]:
    return [row for value in gold for row in ({"loss": 1.0}, {"evaluation/gold": value, "evaluation/reward": -value})]


@pytest.mark.parametrize(
    ("gold", "least", "past"),
    [
        ((1.0, 2.0, 1.5), 1, True),
        ((1.0, 2.0, 3.0), 1, False),
        ((2.0, 2.0), 1, True),  # no better
        ((1.0, 2.0, 3.0, 2.5), 2, False),  # of the last two one was
        ((1.0, 3.0, 2.0, 2.5), 2, True),
        ((1.0, 3.0, 2.0), 2, False),
        ((3.0,), 1, False),
        ((3.0, 1.0, 0.5), 0, False),
        ((), 1, False),
    ],
)
def test_a_run_is_past_its_best_when_its_last_evaluations_were_no_better(gold, least, past):
    assert bool(patience(least, goodness)(rows(*gold))) is past


def test_gold_goes_before_accuracy_and_that_before_reward():
    all_three = {"evaluation/reward": 1.0, "evaluation/accuracy": 0.5, "evaluation/gold": -2.0}
    assert goodness(all_three) == -2.0
    assert goodness({name: all_three[name] for name in list(all_three)[:2]}) == 0.5
    assert goodness({"evaluation/reward": 1.0}) == 1.0 and goodness({"loss": 1.0}) is None


@pytest.mark.parametrize(
    ("row", "budget", "past"),
    [
        ({"evaluation/kl": 2.5}, 2.0, True),
        ({"evaluation/kl": 2.0}, 2.0, False),  # all of it may be spent
        ({"evaluation/kl": 2.5}, 0.0, False),  # there is none
        ({"loss": 1.0}, 2.0, False),  # nothing was held out then
    ],
)
def test_what_is_past_the_budget_is_not_good_however_high_its_reward(row, budget, past):
    assert past_budget(row, budget) is past
    found = goodness(row | {"evaluation/reward": 9.0}, budget)
    assert found is None if past else found == 9.0


def test_tasks_with_an_answer_that_no_reward_applies_to_are_left_out_and_counted():
    none = Score.not_applicable()
    ended = Trajectory((Turn((1,), (2,), (-1.0,), StopReason.STOP, ""),))

    def group(rewards, mine, gold):
        scores = tuple({"mine": m, "gold": g} for m, g in zip(mine, gold, strict=True))
        return group_of([ended, ended], rewards, scores=scores)

    groups = [
        group((1.0, 0.0), (Score(1.0), Score(0.0)), (Score(3.0), Score(1.0))),
        group((1.0, math.nan), (Score(1.0), none), (none, Score(9.0))),
        group((0.0, 0.0), (Score(0.0),) * 2, (Score(4.0),) * 2),
    ]
    setup = SimpleNamespace(heldout_environment=SimpleNamespace(outcome_of=lambda groups: ""), gold={"gold": 1.0})
    found = heldout_metrics(setup, groups)  # type: ignore[arg-type]
    assert found["evaluation/reward"] == 0.25 and found["evaluation/gold"] == 3.0
    assert found["evaluation/lost"] == pytest.approx(1 / 3) and found["evaluation/reward_se"] == pytest.approx(0.25)
    assert weighed({"a": Score(2.0), "b": none}, {"a": 0.5, "b": 4.0}) == 1.0 and math.isnan(
        weighed({"b": none}, {"b": 1})
    )
    assert not {"evaluation/reward"} & heldout_metrics(setup, groups[1:2]).keys()  # type: ignore[arg-type]


def test_checkpoints_are_not_compared_by_an_accuracy_that_may_vanish():
    first = {"evaluation/accuracy": 0.9, "evaluation/reward": 0.9}
    later = {"evaluation/reward": 5.0}
    by = ("gold", "reward")
    assert (goodness(first, by=by), goodness(later, by=by)) == (0.9, 5.0)
    ends = patience(1, partial(goodness, by=by))
    assert ends([first, later, first]) and not ends([later, first, later | {"evaluation/reward": 6}])


def test_where_gold_is_read_it_alone_chooses_also_where_it_is_missing():
    judge = SimpleNamespace(reward=SimpleNamespace(certain=True))
    by = chosen_by(SimpleNamespace(heldout_environment=judge, gold={"gold": 1.0}))  # type: ignore[arg-type]
    lost = {"evaluation/reward": 9.0, "evaluation/accuracy": 0.9}  # the gold reward applied to no answer
    assert goodness(lost, by=by) is None and goodness(lost | {"evaluation/gold": -2.0}, by=by) == -2.0
    assert goodness(lost, by=chosen_by(SimpleNamespace(heldout_environment=judge, gold={}))) == 0.9  # type: ignore[arg-type]


def test_what_a_run_found_is_of_one_kind_before_and_after():
    first = {"evaluation/accuracy": 0.5, "evaluation/accuracy_low": 0.4, "evaluation/accuracy_high": 0.6}
    both = first | {"evaluation/reward": 0.75}
    assert held_out([both, {"loss": 1.0}, both]) == (HeldOut(0.5, (0.4, 0.6)),) * 2
    later = {"evaluation/reward": 5.0, "evaluation/reward_se": 0.1}
    assert held_out([both, later]) == (HeldOutReward(0.75, None, None, None), HeldOutReward(5.0, 0.1, None, None))
    assert held_out([{"loss": 1.0}]) == (None, None)
