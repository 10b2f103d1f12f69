"""Environments: what a task looks like to whoever answers it, and what the answer is worth."""

from posttrain.environments.env import Environment, Seat, need_seats
from posttrain.environments.single_turn import SingleTurn
from posttrain.environments.testing import ScriptedSeat, check_environment

__all__ = ["Environment", "ScriptedSeat", "Seat", "SingleTurn", "check_environment", "need_seats"]
