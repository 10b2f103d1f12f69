import math

import pytest

from posttrain.episodes.metrics import rollout_metrics
from posttrain.types import Group, Score, StopReason, Trajectory, Turn
from tests.groups import group_of


def turn(token_ids, reason=StopReason.STOP) -> Turn:
    return Turn((7, 7, 7, 7, 7, 7, 7), tuple(token_ids), (-1.0,) * len(token_ids), reason, "")


def group(rewards, scores, *trajectories) -> Group:
    return group_of(trajectories, rewards, scores=scores)


def test_by_hand():
    first = group(
        [1.5, 0.5],
        [{"right": Score(1.0), "tags": Score(0.5)}, {"right": Score(0.0, unparsed=True), "tags": Score(0.5)}],
        Trajectory((turn([1, 2, 3, 4, 1, 2, 3, 4]),)),  # 4-grams: 1234 2341 3412 4123 1234: one of five stood before
        Trajectory((turn([1, 2, 3], StopReason.LENGTH),)),
    )
    second = group(
        [0.0, 2.0],
        [{"right": Score(0.9), "tags": Score(0.0)}, {"right": Score(1.0), "tags": Score(1.0)}],
        Trajectory((turn([5, 5, 5, 5, 5, 5], StopReason.CONTEXT),)),  # 5555 three times: two of three stood before
        Trajectory((turn([1, 2]), turn([3, 4, 5]))),
    )
    assert rollout_metrics([first, second], "right") == pytest.approx({
        "reward/mean": 1.0,
        "reward/std": (2 * (0.25 + 1) / 4) ** 0.5,
        "reward/right": 2.9 / 4,
        "reward/tags": 0.5,
        "accuracy": 0.5,  # 0.9 is not solved
        "unparsed": 0.25,
        "length/mean": 22 / 4,  # what was sampled, not what was shown
        "length/max": 8,
        "length/truncated": 0.5,
        "repetition": (1 / 5 + 0 + 2 / 3 + 0) / 4,
        "tokens": 22,
        "distinct/2": (4 / 9 + 4 / 8) / 2,
        "formatting": 0.0,
        "refusals": 0.0,
        "reward/length_correlation": 1.5 / (2.5 * 13) ** 0.5,
        "turns": 5 / 4,
    })  # fmt: skip


def test_without_an_outcome_nothing_is_said_to_be_solved():
    one = group([2.0], [{"learned": Score(2.0)}], Trajectory((turn([1, 2]),)))
    found = rollout_metrics([one], "")
    assert found["reward/learned"] == 2.0 and not {"accuracy", "unparsed"} & found.keys()


def test_an_answer_that_is_wrong_was_found():
    wrong = group([0.0], [{"right": Score(0.0)}], Trajectory((turn([1, 2]),)))
    assert rollout_metrics([wrong], "right")["unparsed"] == 0


def test_repetition_is_within_a_completion_and_not_of_what_it_was_shown():
    same = group([1.0], [{"right": Score(1.0)}], Trajectory((turn([1, 2, 3, 4, 5]),)))
    assert rollout_metrics([same, same], "right")["repetition"] == 0


def test_what_is_lost_or_does_not_apply_is_in_no_mean():
    none = Score.not_applicable()
    one = group(
        [1.0, math.nan, 0.5],
        [{"right": Score(1.0), "tags": none}, {"right": none, "tags": none}, {"right": Score(0.0), "tags": Score(0.5)}],
        *(Trajectory((turn(range(length)),)) for length in (1, 2, 3)),
    )
    found = rollout_metrics([one], "right")
    assert found == found | {"reward/mean": 0.75, "lost": pytest.approx(1 / 3), "reward/right": 0.5, "reward/tags": 0.5}
    assert found["not_applicable/right"] == pytest.approx(1 / 3) and found["not_applicable/tags"] == pytest.approx(
        2 / 3
    )
    assert found["accuracy"] == 0.5 and found["tokens"] == 6 and "reward/length_correlation" not in found
    nothing = rollout_metrics([group([math.nan], [{"right": none}], Trajectory((turn([1, 2]),)))], "right")
    assert nothing["lost"] == 1 and not {"reward/mean", "reward/right", "accuracy", "unparsed"} & nothing.keys()


def test_what_a_reward_measures_beside_its_scores_is_averaged_under_its_name():
    scores = [{"right": Score(1.0, metrics={"swapped": 0.5})}, {"right": Score(0.0, metrics={"swapped": 1.0})}]
    found = rollout_metrics([group([1.0, 0.0], scores, *(Trajectory((turn([1]),)) for _ in range(2)))], "right")
    assert found["reward/right/swapped"] == 0.75 and found["reward/right"] == 0.5


def test_rewards_of_several_seats_are_told_apart():
    one = Trajectory((turn([1]),))
    rewards, seats = (1.0, -1.0, 1.0, -1.0, math.nan, 3.0), ("a", "b") * 3
    groups = [group_of([one] * 6, rewards, seats=seats, episodes=[0, 0, 1, 1, 2, 2])]
    found = rollout_metrics(groups, "")
    assert {k: v for k, v in found.items() if k.startswith("seats/")} == {
        "seats/a/reward": 1.0,
        "seats/b/reward": 1 / 3,
    }
    alone = rollout_metrics([group_of([one] * 2, [1.0, 0.0], seats=["a", "a"])], "")
    assert not [name for name in alone if name.startswith("seats/")]
