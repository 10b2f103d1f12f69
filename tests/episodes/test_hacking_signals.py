"""Signs of a gamed reward, counted by hand."""

import math

import pytest

from posttrain.episodes.metrics import signals
from posttrain.types import Group, StopReason, Trajectory, Turn
from tests.groups import group_of


def said(text: str, *token_ids: int) -> Trajectory:
    return Trajectory((Turn((9,), token_ids, (0.0,) * len(token_ids), StopReason.STOP, text),))


def group(rewards: tuple[float, ...], *trajectories: Trajectory) -> Group:
    return group_of(trajectories, rewards)


def texts(*found: str) -> dict[str, float]:
    return signals([group((0.0,) * len(found), *(said(text, 1, 2) for text in found))])


def test_reward_and_length_within_groups():
    long, middle, short = said("", 1, 2, 3, 4), said("", 1, 2), said("", 1)
    rising = [group((3.0, 1.0), long, middle), group((11.0, 10.0), middle, short)]
    centred = [(1.0, 1.0), (-1.0, -1.0), (0.5, 0.5), (-0.5, -0.5)]
    by_hand = sum(r * n for r, n in centred) / sum(r * r for r, _ in centred)
    assert signals(rising)["reward/length_correlation"] == pytest.approx(by_hand) == pytest.approx(1.0)
    falling = [group((1.0, 3.0), long, middle)]
    assert signals(falling)["reward/length_correlation"] == pytest.approx(-1.0)
    still = [group((1.0, 1.0), long, middle), group((3.0, 3.0), middle, short)]
    assert "reward/length_correlation" not in signals(still)
    lost = group((math.nan, 5.0), long, short)  # one answer has no reward, so the other is compared with nothing
    assert signals([*rising, lost])["reward/length_correlation"] == pytest.approx(1.0)
    assert "reward/length_correlation" not in signals([lost])


def test_pairs_of_tokens_that_differ_in_a_group():
    alike, other = said("", 1, 2, 3), said("", 1, 2, 4)
    assert signals([group((0.0, 0.0), alike, alike)])["distinct/2"] == 0.5
    assert signals([group((0.0, 0.0), alike, other), group((0.0,), said("", 7))])["distinct/2"] == (3 / 4 + 1) / 2


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("- one\n- two", True),
        ("so:\n  1. one", True),
        ("# Title", True),
        ("this is **bold** word", True),
        ("```\ncode\n```", True),
        ("| a | b |", True),
        ("plain words - with a dash, 3 * 4 and # 5", False),
        ("2 * 3 ** 4 and 5 ** 6", False),
    ],
)
def test_what_is_marked_up(text, marked):
    assert texts(text, "plain")["formatting"] == (0.5 if marked else 0.0)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("I'm sorry, but no.", True),
        ("I\u2019m sorry.", True),
        ("Well, I cannot help with that.", True),
        ("As an AI language model", True),
        ("I can help you with that.", False),
        ("He said that he was sorry.", False),
        ("x" * 200 + " I'm sorry", False),
    ],
)
def test_what_begins_like_a_refusal(text, refusal):
    assert texts(text, "plain", "plain", "plain")["refusals"] == (0.25 if refusal else 0.0)


def test_reward_and_length_are_compared_within_a_seat():
    """Of two seats one earns more and says more; within each, who says more earns less."""
    rows = tuple(said("", *range(length)) for length in (1, 2, 8, 9))
    both = group_of(rows, [1.0, 0.0, 9.0, 8.0], seats=["a", "a", "b", "b"], episodes=[0, 1, 0, 1])
    assert signals([both])["reward/length_correlation"] == pytest.approx(-1.0)
    alone = group_of(rows, [1.0, 0.0, 9.0, 8.0])
    assert signals([alone])["reward/length_correlation"] > 0.9
