"""How many tokens an episode may have after its prompt; by hand, with one token for each letter."""

from dataclasses import dataclass

import pytest

from posttrain.bindings.episode_length import episode_length
from posttrain.data import ChatFormat
from posttrain.environments import Environment
from posttrain.environments.env import SingleTurn
from posttrain.types import Message
from tests.data.families import of_family

CHAT = ChatFormat(of_family("smollm2"))
HISTORY = [Message("user", "a"), Message("assistant", "b")]
AROUND = len(CHAT.followup_ids(HISTORY, [Message("user", "")], stopped=True))
"""Tokens between two turns of the policy where the environment says nothing."""


@dataclass(frozen=True)
class Game(Environment):
    """Three turns, or as many as are given."""

    shown: tuple[tuple[str, ...], ...] = ()
    max_turns: int = 3

    def demonstrations(self, seed):
        return [[Message(("user", "assistant")[at % 2], text) for at, text in enumerate(game)] for game in self.shown]


def tokens(*shown, turns=3):
    return episode_length(Game(shown, turns), CHAT, 10, 0).tokens


def test_an_answer_of_one_turn_is_as_long_as_it_may_be():
    found = episode_length(SingleTurn(), CHAT, 64, 0)
    assert (found.tokens, found.counted) == (64, "completions taken to be as long as they may be, 64")


def test_what_the_environment_says_is_as_long_as_in_its_demonstrations():
    """4 and 2 letters between turns, on average 3; the prompt and the policy's words do not count."""
    assert tokens(("question", "c", "defg", "hhhh", "ij", "k")) == 3 * 10 + 2 * (AROUND + 3)
    assert tokens(("q", "c", "defg", "h"), ("q", "c", "d", "h")) == 3 * 10 + 2 * (AROUND + 3)  # 2.5, rounded up
    assert tokens(("q", "c", "defg", "h"), turns=6) == 6 * 10 + 5 * (AROUND + 4)


@pytest.mark.parametrize("shown", [(), (("q", "c"),), (("q",),)])
def test_where_no_demonstration_says_so_it_is_not_counted(shown):
    found = episode_length(Game(shown), CHAT, 10, 0)
    assert found.tokens == 30 and found.counted.endswith("what the environment says is not counted")
