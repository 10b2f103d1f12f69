"""`posttrain verify` on a cluster: the item holds for a right one, and finds one that is wrong."""

import sys

import pytest

pytest.importorskip("ray")

from posttrain.bindings.cluster_options import ClusterOptions
from posttrain.distributed import samplers, trainers
from posttrain.recipes.verify import Verify, subject_of
from posttrain.recipes.verify.engines import processes
from tests.recipes.folders import model_folder

module = sys.modules[processes.__module__]  # the package has an item of the same name

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    folder = model_folder(tmp_path_factory.mktemp("verify") / "model")
    return subject_of(Verify(model=str(folder), precision="float32", max_new_tokens=6))


@pytest.mark.parametrize("count", [1, 2])
def test_processes_compute_what_one_does(count, subject, shared_processes):
    item = processes(subject, ClusterOptions(trainers=count, samplers=count))
    assert item.passed, item.line()
    assert item.bound == (0.0 if count == 1 else 1e-4)
    assert f"{count} trainers and {count} samplers" in item.detail and "of 6 samples 6 are the same" in item.detail


def test_weights_that_do_not_arrive_are_found(subject, cluster, monkeypatch):  # shared ones have had weights
    monkeypatch.setattr(samplers.SamplerGroup, "update", lambda self, places=None: None)
    monkeypatch.setattr(module, "RATE", 1e-2)
    item = processes(subject, ClusterOptions(trainers=1, samplers=1))
    assert not item.passed and item.measured == 0


def test_trainers_that_leave_out_rows_are_found(subject, shared_processes, monkeypatch):
    forward_backward = trainers.LearnerGroup.forward_backward

    def half(self, batch, loss):
        return forward_backward(self, batch.chosen(range(len(batch.examples) // 2)), loss)

    monkeypatch.setattr(trainers.LearnerGroup, "forward_backward", half)
    item = processes(subject, ClusterOptions(trainers=2, samplers=1))
    assert not item.passed and item.measured > item.bound
