import dataclasses

import pytest

from posttrain import algorithms
from posttrain.algorithms.algorithm import OnlineAlgorithm, PreferenceAlgorithm, SupervisedAlgorithm, UnpairedAlgorithm
from posttrain.errors import UserError


def test_an_unknown_name_gives_the_nearest_one():
    with pytest.raises(UserError, match="unknown algorithm 'grop'; did you mean 'grpo'"):
        algorithms.get("grop")


def test_an_algorithm_of_another_command_names_that_command():
    with pytest.raises(UserError, match='posttrain preference `algorithm="dpo"`'):
        algorithms.online("dpo")
    with pytest.raises(UserError, match='posttrain rl `algorithm="grpo"`'):
        algorithms.preference("grpo")
    with pytest.raises(UserError, match='posttrain sft `algorithm="dft"`'):
        algorithms.online("dft")
    with pytest.raises(UserError, match=r"did you mean 'dpop'\? There are: dpo, .*tdpo$"):
        algorithms.preference("dop")


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_every_algorithm_is_a_frozen_dataclass_with_the_whole_interface(name):
    algorithm = algorithms.get(name)()
    kinds = {"online": OnlineAlgorithm, "preference": (PreferenceAlgorithm, UnpairedAlgorithm)}
    kinds["supervised"] = SupervisedAlgorithm
    assert isinstance(algorithm, kinds[algorithm.family])
    families = {"online": algorithms.ONLINE, "preference": algorithms.PREFERENCE, "supervised": algorithms.SUPERVISED}
    assert families[algorithm.family][name]() == algorithm
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.family = 0.5
