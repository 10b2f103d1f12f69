"""Environments: how an episode is played and scored."""

from posttrain.environments.env import Environment, Seat, need_seats, trained_seats
from posttrain.environments.scored import ScoredEnvironment
from posttrain.environments.single_turn import SingleTurn
from posttrain.environments.testing import ScriptedSeat, check_environment

__all__ = [
    "Environment",
    "ScoredEnvironment",
    "ScriptedSeat",
    "Seat",
    "SingleTurn",
    "check_environment",
    "need_seats",
    "trained_seats",
]
