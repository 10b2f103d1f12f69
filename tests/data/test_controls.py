"""Controls: what is shuffled, what stays, and that every order is as likely."""

from collections import Counter

from posttrain.data import controls
from posttrain.types import Message, Preference, Score, Trajectory
from tests.groups import group_of


def group(rewards, **more):
    trajectories = [Trajectory(()) for _ in rewards]
    return group_of(trajectories, rewards, scores=[{"right": Score(reward)} for reward in rewards], **more)


def test_rewards_move_with_their_scores_and_rows_stay():
    of = group([0.0, 1.0, 2.0])
    found = controls.rewards_permuted(of, 5)
    assert sorted(found.rewards) == [0.0, 1.0, 2.0]
    assert [row.scores["right"].value for row in found.rows] == list(found.rewards)
    assert [row.episode for row in found.rows] == [0, 1, 2] and found.task is of.task
    assert controls.rewards_permuted(of, 5) == found


def test_every_order_is_as_likely():
    """6 orders of 3 rewards, 3,000 draws: each 500 times with a standard deviation of 20."""
    orders = Counter(controls.rewards_permuted(group([0.0, 1.0, 2.0]), seed).rewards for seed in range(3000))
    assert len(orders) == 6 and all(420 < count < 580 for count in orders.values())


def test_the_rewards_of_an_episode_stay_together_and_with_their_seat():
    of = group([1.0, -1.0, 2.0, -2.0, 3.0, -3.0], seats="ab" * 3, episodes=[0, 0, 1, 1, 2, 2])
    moved = 0
    for seed in range(20):
        rewards = controls.rewards_permuted(of, seed).rewards
        assert [a + b for a, b in zip(rewards[::2], rewards[1::2], strict=True)] == [0.0] * 3
        assert sorted(rewards[::2]) == [1.0, 2.0, 3.0]
        moved += rewards != of.rewards
    assert moved > 10


def test_answers_are_permuted_among_prompts():
    rows = [(Message("system", "s"), Message("user", f"q{i}"), Message("assistant", f"a{i}")) for i in range(9)]
    found = controls.answers_permuted(rows, 0)
    assert [one[:2] for one in found] == [one[:2] for one in rows]
    assert sorted(one[2].content for one in found) == sorted(one[2].content for one in rows)
    assert sum(one[2] == own[2] for one, own in zip(found, rows, strict=True)) < 4
    assert found == controls.answers_permuted(rows, 0) != controls.answers_permuted(rows, 1)


def test_pairs_are_swapped_half_of_the_time():
    """Of 1,000 pairs 500 with a standard deviation of 16; each one still has both of its responses."""
    pairs = [(Preference((Message("user", "q"),), "good", "bad", strength=2.0),) for _ in range(1000)]
    found = [pair for (pair,) in controls.pairs_swapped(pairs, 0)]
    assert {(pair.chosen, pair.rejected, pair.strength) for pair in found} == {
        ("good", "bad", 2.0),
        ("bad", "good", 2.0),
    }
    assert 420 < sum(pair.chosen == "bad" for pair in found) < 580
