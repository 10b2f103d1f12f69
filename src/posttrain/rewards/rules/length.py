"""Soft length rewards: a limit with a ramp, and a target with slopes.

A reward sees words, not tokens, so how length is counted is an argument: words by default; a caller that has a
tokenizer passes `lambda text: len(tokenizer.encode(text))`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from posttrain.errors import UserError
from posttrain.rewards.reward import EpisodeReward
from posttrain.types import Episode, Score


def count_words(text: str) -> int:
    """Words between white space."""
    return len(text.split())


@dataclass(frozen=True)
class SoftOverlong(EpisodeReward):
    """DAPO's soft overlong punishment, from -1 to 0.

        value = 0                                  if |y| <= L_max - L_cache
                ((L_max - L_cache) - |y|) / L_cache    if L_max - L_cache < |y| <= L_max
                -1                                 if L_max < |y|

    Yu et al. 2025, eq. 13 (arXiv 2503.14476), which uses L_max = 20480 and L_cache = 4096 tokens.

    Args:
        limit: L_max, in what `count` counts.
        buffer: L_cache, the length of the ramp before the limit.
        count: the length |y| of a completion.
    """

    limit: int = 512
    buffer: int = 128
    count: Callable[[str], int] = count_words
    name: str = "length"
    bounds: ClassVar[tuple[float, float]] = (-1.0, 0.0)

    def __post_init__(self) -> None:
        if not 0 < self.buffer <= self.limit:
            raise UserError(
                f"length needs 0 < buffer <= limit; got buffer={self.buffer}, limit={self.limit}. "
                "The penalty begins at limit - buffer and is whole at limit"
            )

    def _score_one(self, episode: Episode) -> Score:
        length = self.count(episode.completion)
        over = length - (self.limit - self.buffer)
        return Score(-min(max(over / self.buffer, 0.0), 1.0) + 0.0, explanation=f"length {length}")


@dataclass(frozen=True)
class LengthTarget(EpisodeReward):
    """Distance of the completion's length from a target, as a penalty from -1 to 0.

        value = -min(1, | |y| - target | / target)

    Args:
        target: the wanted length, in what `count` counts.
        count: the length |y| of a completion.
    """

    target: int = 256
    count: Callable[[str], int] = count_words
    name: str = "length_target"
    bounds: ClassVar[tuple[float, float]] = (-1.0, 0.0)

    def __post_init__(self) -> None:
        if self.target <= 0:
            raise UserError(f"length_target needs a target above 0; got {self.target}")

    def _score_one(self, episode: Episode) -> Score:
        length = self.count(episode.completion)
        return Score(-min(abs(length - self.target) / self.target, 1.0) + 0.0, explanation=f"length {length}")
