"""The example environment conforms, can be lost and won, and what it demonstrates is possible."""

import asyncio
import sys
from pathlib import Path

import pytest

from posttrain.environments.user_methods import load_environment
from posttrain.testing import ScriptedSeat, check_environment

FILE = Path(__file__).parents[2] / "examples" / "guess_number.py"


@pytest.fixture
def game():
    yield load_environment(f"{FILE}:GuessNumber", "size=20 ranges=3 max_turns=5")
    sys.modules.pop("guess_number", None)


def played(game, secret, *replies, low=1):
    every = [t for split in ("train", "heldout") for t in game.tasks(split, 0)]
    (task,) = (t for t in every if (t.answer, t.metadata["low"]) == (secret, low))
    seat = ScriptedSeat(replies, max_turns=game.max_turns)
    return asyncio.run(game.play(task, {"policy": seat}, 0)), [told[-1].content for told in seat.told[1:]]


def test_it_conforms(game):
    check_environment(game)


def test_every_secret_of_a_range_is_in_one_split_and_splits_depend_on_the_seed(game):
    train, heldout = ([(t.metadata["low"], t.answer) for t in game.tasks(split, 1)] for split in ("train", "heldout"))
    every = [(low, secret) for low in (1, 5, 9) for secret in range(low, low + 20)]
    assert sorted(train + heldout) == every and len(train) == 30
    assert [(t.metadata["low"], t.answer) for t in game.tasks("train", 2)] != train
    assert {secret for _, secret in train} & {secret for _, secret in heldout}
    (first,) = (t for t in game.tasks("train", 1) + game.tasks("heldout", 1) if (t.metadata["low"], t.answer) == (5, 9))
    assert "a number from 5 to 24. You have 5 guesses" in first.prompt[0].content


def test_a_game_is_won_by_the_secret_and_told_higher_or_lower(game):
    outcome, told = played(game, 7, "3", "no", "0", "21", " 7 ")
    assert told == ["Higher.", *["That is no such number."] * 3]
    assert (outcome.rewards, outcome.solved, outcome.metrics) == ({"policy": 1.0}, True, {"guesses": 5})
    outcome, told = played(game, 7, "8", "9", "20", "1", "6")
    assert told == ["Lower.", "Lower.", "Lower.", "Higher."]
    assert (outcome.rewards, outcome.solved) == ({"policy": 0.0}, False)
    _, told = played(game, 7, "4", "5", "24", "25", "6", low=5)
    assert told == ["That is no such number.", "Higher.", "Lower.", "That is no such number."]


def test_what_it_demonstrates_never_contradicts_what_was_said(game):
    games = game.demonstrations(3)
    assert len(games) == 30 and games == game.demonstrations(3) != game.demonstrations(4)
    for task, said in zip(game.tasks("train", 3), games, strict=True):
        low, guesses = task.metadata["low"], [int(m.content) for m in said if m.role == "assistant"]
        high = low + 19
        assert 1 <= len(guesses) <= 5
        for guess, told in zip(guesses, [m.content for m in said[2::2]], strict=False):
            assert low <= guess <= high
            low, high = (guess + 1, high) if told == "Higher." else (low, guess - 1)
        assert low <= guesses[-1] <= high and (guesses[-1] == task.answer or len(guesses) == 5)
