"""Environments: how an episode is played and scored."""

from posttrain.environments.env import Environment, Seat, need_seats, trained_seats
from posttrain.environments.scored import ScoredEnvironment
from posttrain.environments.single_turn import SingleTurn

__all__ = [
    "Environment",
    "ScoredEnvironment",
    "Seat",
    "SingleTurn",
    "need_seats",
    "trained_seats",
]
