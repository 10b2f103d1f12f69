"""Diversity of reasoning steps."""

import re
from dataclasses import dataclass
from typing import ClassVar

from posttrain.errors import UserError
from posttrain.rewards.reward import EpisodeReward
from posttrain.rewards.verifiers.extraction import reasoning
from posttrain.types import Episode, Score

_END_OF_STEP = re.compile(r"[\n;]|(?<=[.!?])\s|,\s")
_BULLET = re.compile(r"^[ \t]*(?:\d+[.)]|[-*•])[ \t]+", re.MULTILINE)
_NUMBERING = re.compile(r"^step\s*\d+\s*[:.)-]\s*")
_PUNCTUATION_AT_ENDS = " \t.,:;!?"


@dataclass(frozen=True)
class StepDiversity(EpisodeReward):
    """The share of reasoning steps that are distinct, from 0 to 1.

        value = distinct steps / max(steps, min_steps)

    Steps are the parts of the reasoning (before `</think>`; the whole completion where there is no such tag) between
    line ends, semicolons, commas and ends of sentences. Two steps are the same if they differ only in case, white
    space, numbering and final punctuation. No step: 0.

    Args:
        min_steps: reasoning with fewer steps cannot earn the whole value. Without it, one step would.
    """

    min_steps: int = 2
    name: str = "steps"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if self.min_steps < 1:
            raise UserError(f"steps needs min_steps of at least 1; got {self.min_steps}")

    def _score_one(self, episode: Episode) -> Score:
        steps = steps_of(reasoning(episode.completion))
        distinct = len(set(steps))
        return Score(distinct / max(len(steps), self.min_steps), explanation=f"{distinct} of {len(steps)} distinct")


def steps_of(text: str) -> list[str]:
    """The steps of a reasoning text, in the form in which they are compared.

    Example:
        >>> steps_of("Step 1: 12+7=19, 19-5=14. Check:  14+5=19.")
        ['12+7=19', '19-5=14', 'check: 14+5=19']
    """
    parts = (" ".join(part.split()).lower() for part in _END_OF_STEP.split(_BULLET.sub("", text)))
    steps = (_NUMBERING.sub("", part).strip(_PUNCTUATION_AT_ENDS) for part in parts)
    return [step for step in steps if step]
