import dataclasses
import doctest

import pytest

from posttrain import algorithms
from posttrain.algorithms.algorithm import OnlineAlgorithm
from posttrain.errors import UserError


def test_an_unknown_name_gives_the_nearest_one():
    with pytest.raises(UserError, match="unknown algorithm 'grop'; did you mean 'grpo'"):
        algorithms.get("grop")


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_every_algorithm_is_a_frozen_dataclass_with_the_whole_interface(name):
    algorithm = algorithms.get(name)()
    assert isinstance(algorithm, OnlineAlgorithm)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(algorithm, dataclasses.fields(algorithm)[0].name, 0.5)


def test_docstring_examples_run():
    results = doctest.testmod(algorithms)
    assert results.failed == 0 and results.attempted > 0
