"""Environments: how an episode is played and scored."""

from posttrain.environments.env import Environment, Seat, SingleTurn, trained_seats
from posttrain.environments.scored import ScoredEnvironment

__all__ = ["Environment", "ScoredEnvironment", "Seat", "SingleTurn", "trained_seats"]
