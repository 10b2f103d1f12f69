"""Process rewards: spans of text to per-token rewards."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from posttrain.data.chat import ChatFormat
from posttrain.types import Span, Trajectory


def step_rewards(trajectory: Trajectory, spans: Sequence[Span], chat: ChatFormat) -> dict[int, float]:
    """Rewards of spans by index of the sampled token, counted over all turns of a trajectory from 0.

    A span's reward is at the last token that it overlaps; those of one token are summed. A span that ends in
    given, not sampled, text has no token, nor has one of a turn that is not learned.
    """
    firsts = [0, *accumulate(len(turn.token_ids) * turn.learned for turn in trajectory.turns)]
    ends = {number: chat.ends_of(trajectory.turns[number].token_ids) for number in {span.turn for span in spans}}
    found: dict[int, float] = {}
    for span in spans:
        turn, of_turn = trajectory.turns[span.turn], ends[span.turn]
        given = len(turn.text) - of_turn[-1]  # characters of the turn's text
        if span.end > given and turn.learned:
            token = firsts[span.turn] + bisect_left(of_turn, span.end - given)
            found[token] = found.get(token, 0.0) + span.value
    return dict(sorted(found.items()))
