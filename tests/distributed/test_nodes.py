"""A run on a cluster of two nodes, which runs already, and one of which is lost: both on this machine."""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from posttrain.bindings.cluster_options import ClusterOptions
from tests.distributed.test_recipes import curve, grpo, run_of, same  # noqa: F401  a fixture
from tests.recipes.conftest import SCORER, folder  # noqa: F401  a fixture

pytest.importorskip("ray")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SPLIT = ClusterOptions(trainers=2, trainer_cpus=1.5, samplers=1, sampler_cpus=0.5)
QUICK = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
HELD = (
    SCORER
    + '''
import os, time
from pathlib import Path


at_once = score


def score(completion: str) -> float:
    """The same, and from the second step on only when somebody says so."""
    rows = Path("run/metrics.jsonl")
    while rows.exists() and rows.read_bytes().count(b"\\n") == 1 and not os.path.exists("go"):
        time.sleep(0.05)
    return at_once(completion)
'''
)


@pytest.fixture
def nodes(monkeypatch) -> Iterator[Any]:
    """A cluster of nodes that only this machine can reach; the first has two CPUs."""
    monkeypatch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)  # see `connect`
    head = {"num_cpus": 2, "include_dashboard": False, "_system_config": QUICK}
    found = importlib.import_module("ray.cluster_utils").Cluster(initialize_head=True, head_node_args=head)
    yield found
    found.shutdown()


def processes_of(node) -> list[psutil.Process]:
    """The raylet of a node, and all that it has started."""
    raylet = next(each.process.pid for each in node.all_processes["raylet"])
    with contextlib.suppress(psutil.NoSuchProcess):
        return [psutil.Process(raylet), *psutil.Process(raylet).children(recursive=True)]
    return []


def kinds(processes):
    """Which of the run's actors are among processes."""
    lines = {" ".join(process.cmdline()) for process in processes}
    return {kind for kind in ("Rank", "Sampler") if any(line.startswith(f"ray::{kind}") for line in lines)}


def test_a_run_that_loses_a_node_goes_on_on_another_one_to_the_same_bits(folder, run_of, tmp_path, nodes):  # noqa: F811
    """The command has another node, and another cluster than this process."""
    second = nodes.add_node(num_cpus=2)  # none of them has room for two trainers
    whole = run_of(grpo, SPLIT)
    (tmp_path / "held.py").write_text(HELD)
    command = [sys.executable, "-m", "posttrain", "rl", "--config", str(whole / "config.toml"), "--address", "auto"]
    command += ["--output", "run", "--reward", "held.py:score", "--cluster-timeout", "60", "--quiet"]
    environment = {"RAY_ADDRESS": nodes.address, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    with open(tmp_path / "said", "w") as said:
        run = subprocess.Popen(command, cwd=tmp_path, env=os.environ | environment, stdout=said, stderr=said)
    try:
        while run.poll() is None and not (tmp_path / "run/checkpoints/step-000001").exists():  # after its row
            time.sleep(0.1)
        assert run.poll() is None, (tmp_path / "said").read_text()
        lost = processes_of(second)
        assert "Rank" in kinds(lost) & kinds(processes_of(nodes.head_node))
        for process in lost:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        nodes.add_node(num_cpus=2)
        (tmp_path / "go").touch()
        assert run.wait(300) == 0, (tmp_path / "said").read_text()
    finally:
        run.kill()
    assert curve(tmp_path / "run") == curve(whole) and same(tmp_path / "run", whole)
    logs = {file.name for file in (tmp_path / "run/logs").iterdir()}
    assert logs == {"trainer-0.log", "trainer-1.log", "sampler-0.log"}
