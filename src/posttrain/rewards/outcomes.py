"""Outcomes of environments as rewards: reward of each seat, and task success."""

import math
from dataclasses import dataclass

from posttrain.rewards.reward import EpisodeReward
from posttrain.types import Episode, Score, SeatScores


@dataclass(frozen=True)
class Earned(EpisodeReward):
    """The environment's reward of each seat, from its `Outcome`. It applies to the seats that are named."""

    name: str = "environment"
    bounds = (-math.inf, math.inf)

    def _score_one(self, episode: Episode) -> SeatScores:
        return {seat: Score(value) for seat, value in episode.outcome.rewards.items()}


@dataclass(frozen=True)
class Solved(EpisodeReward):
    """Task success as reported by the environment's `Outcome`: 1 if solved, else 0. It applies if that is reported."""

    name: str = "solved"
    role = "verifier"
    bounds = (0.0, 1.0)

    def _score_one(self, episode: Episode) -> Score:
        solved = episode.outcome.solved
        return Score.not_applicable("the environment does not say") if solved is None else Score(float(solved))
