"""Outcomes of environments as rewards: reward of each seat, and task success."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from posttrain.rewards.reward import EpisodeReward
from posttrain.types import Episode, Score, SeatScores

_SILENT = "the environment does not say"


@dataclass(frozen=True)
class Earned(EpisodeReward):
    """The environment's reward of each seat, from its `Outcome`. It applies to the seats that are named."""

    name: str = "environment"
    bounds: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    async def score_episodes(self, episodes: Sequence[Episode]) -> list[SeatScores]:
        """By seat."""
        return [{seat: Score(value) for seat, value in e.outcome.rewards.items()} for e in episodes]


@dataclass(frozen=True)
class Solved(EpisodeReward):
    """Task success as reported by the environment's `Outcome`: 1 if solved, else 0."""

    name: str = "solved"
    role: ClassVar[str] = "verifier"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    async def score_episodes(self, episodes: Sequence[Episode]) -> list[Score]:
        """It does not apply if the environment does not report it."""
        return [_solved(episode.outcome.solved) for episode in episodes]


def _solved(solved: bool | None) -> Score:
    return Score.not_applicable(_SILENT) if solved is None else Score(float(solved))
