"""From spans of text to rewards of tokens: where process rewards are paid."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from posttrain.data.chat import ChatFormat
from posttrain.types import Span, Trajectory


def step_rewards(trajectory: Trajectory, spans: Sequence[Span], chat: ChatFormat) -> dict[int, float]:
    """What spans pay at which of the sampled tokens of a trajectory, counted over all its turns from 0.

    A span is paid at the last token that it overlaps; several that end at one token are added up. One that ends in text
    which was given, and not sampled, is paid at no token.
    """
    firsts = [0, *accumulate(len(turn.token_ids) for turn in trajectory.turns)]
    ends = {number: _ends(trajectory, number, chat) for number in sorted({span.turn for span in spans})}
    found: dict[int, float] = {}
    for span in spans:
        given, of_turn = ends[span.turn]
        if span.end > given:
            token = firsts[span.turn] + bisect_left(of_turn, span.end - given)
            found[token] = found.get(token, 0.0) + span.value
    return dict(sorted(found.items()))


def _ends(trajectory: Trajectory, number: int, chat: ChatFormat) -> tuple[int, list[int]]:
    """How many characters of a turn's text were given, and where in the rest its tokens end."""
    turn = trajectory.turns[number]
    ends = chat.ends_of(turn.token_ids)
    return len(turn.text) - ends[-1], ends
