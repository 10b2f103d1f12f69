"""Controls: the same training data with labels that say nothing, from which a run must not learn.

Each keeps what is said, how often each label occurs, and its own draw by a seed; only which label stands where is
random. What a run gains in spite of it is no effect of its rewards.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from posttrain.types import Group, Message, Preference

SHUFFLED = "this is a control, and no result: shuffled are"


def rewards_permuted(group: Group, seed: int) -> Group:
    """A group whose rewards, with the scores they are of, are permuted among the rows of each seat.

    Seats with as many rows are permuted alike, so that the rewards of an episode of a game stay together.
    """
    rows = list(group.rows)
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row.seat, []).append(place)
    for mine in places.values():
        for place, other in zip(mine, Random(seed).sample(mine, len(mine)), strict=True):
            earned = group.rows[other]
            rows[place] = replace(group.rows[place], reward=earned.reward, scores=earned.scores)
    return replace(group, rows=tuple(rows))


def answers_permuted(conversations: Sequence[tuple[Message, ...]], seed: int) -> list[tuple[Message, ...]]:
    """Demonstrations whose answers, all from the first one on, are permuted among the prompts."""
    starts = [[message.role for message in one].index("assistant") for one in conversations]
    order = Random(seed).sample(range(len(starts)), len(starts))
    return [
        conversations[place][:start] + conversations[other][starts[other] :]
        for (place, start), other in zip(enumerate(starts), order, strict=True)
    ]


def pairs_swapped(rankings: Sequence[tuple[Preference, ...]], seed: int) -> list[tuple[Preference, ...]]:
    """Preference pairs of which each is swapped, chosen for rejected, at random half of the time."""
    draws = Random(seed)
    return [tuple(_swapped(pair) if draws.random() < 0.5 else pair for pair in ranking) for ranking in rankings]


def _swapped(pair: Preference) -> Preference:
    calls = {"chosen_calls": pair.rejected_calls, "rejected_calls": pair.chosen_calls}
    return replace(pair, chosen=pair.rejected, rejected=pair.chosen, **calls)
