"""A process reward: every line of arithmetic is paid where it ends, not the whole answer at its end.

    posttrain rl --dataset gym:chain_sum --process-rewards --reward "gym=1.0 examples/process_reward.py:right_lines=0.5"

A `Span` says which characters of which turn are a step, and what the step earns. The total of the score is its value
plus its spans: here the share of lines that are right, so that more lines earn nothing more.
"""

import re

from posttrain.rewards import reward_function
from posttrain.types import Episode, Score, Span

LINE = re.compile(r"^ *(-?\d{1,9}) *([+-]) *(\d{1,9}) *= *(-?\d{1,9}) *$", re.MULTILINE)


@reward_function(bounds=(0, 1))
def right_lines(episode: Episode) -> Score:
    """Pay each line `a + b = c` its part of 1 if it is right, and 0 if it is wrong."""
    found = [(turn, line) for turn, text in enumerate(episode.turn_texts()) for line in LINE.finditer(text)]
    spans: list[Span] = []
    for turn, line in found:
        a, sign, b, c = line.groups()
        right = int(a) + int(sign + b) == int(c)
        spans.append(Span(turn, *line.span(), right / len(found)))
    return Score(0.0, explanation=f"{len(found)} lines", spans=tuple(spans))
