"""Processes of a cluster that compute on a GPU."""

import pytest

from posttrain.bindings.cluster_options import ClusterOptions
from tests.distributed.test_recipes import curve, grpo, run_of  # noqa: F401  a fixture
from tests.recipes.conftest import folder  # noqa: F401  a fixture

pytest.importorskip("ray")

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_trainer_and_a_sampler_share_a_gpu_and_learn_as_one_process(folder, tmp_path, run_of, cluster):  # noqa: F811
    options = ClusterOptions(trainers=1, trainer_gpus=0.5, samplers=1, sampler_gpus=0.5)
    found = grpo(folder)(options, output=tmp_path / "run", quiet=True).run
    for there, here in zip(curve(found), curve(run_of(grpo)), strict=True):
        assert there == pytest.approx(here, rel=1e-3, abs=1e-4)
