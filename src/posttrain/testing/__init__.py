"""Conformance kits: each checks that an object keeps the rules of its interface, and raises `ConformanceError` if not.

    from posttrain.testing import check_environment

    def test_my_environment():
        check_environment(MyEnvironment(), tasks)

A `ConformanceError` is an `AssertionError` with one line per violation.
"""

from posttrain.testing.algorithms import check_algorithm
from posttrain.testing.conformance import ConformanceError
from posttrain.testing.environments import ScriptedSeat, check_environment
from posttrain.testing.learners import check_learner
from posttrain.testing.rewards import check_gold, check_reward
from posttrain.testing.trl_dump import record_rollouts

__all__ = [
    "ConformanceError",
    "ScriptedSeat",
    "check_algorithm",
    "check_environment",
    "check_gold",
    "check_learner",
    "check_reward",
    "record_rollouts",
]
