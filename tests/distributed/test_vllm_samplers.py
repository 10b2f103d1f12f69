"""VLLM as the engine of samplers in processes. Needs vLLM (`make test-vllm`); skipped without it."""

import os
import signal
import threading
import time

import pytest

pytest.importorskip("vllm")
pytest.importorskip("ray")

from posttrain.algorithms.grpo import GRPO
from posttrain.bindings.cluster_options import AsyncOptions
from posttrain.distributed import samplers
from posttrain.models.load import locate
from posttrain.recipes import rl
from posttrain.runs import read_run
from tests.distributed.fakes import pids
from tests.engine.test_vllm import BRIEF, served

pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]


def config_of(folder, **more):
    (folder / "brief.py").write_text(BRIEF)
    return rl.RL(
        dataset="gym:chain_sum",
        reward=f"{folder / 'brief.py'}:brief",
        cache_gb=0.3,
        prompts_per_step=4,
        completions_per_prompt=4,
        max_new_tokens=24,
        lr=1e-4,  # so large that an update that does not arrive shows in the logprobs
        microbatch_tokens=768,
        save_every=100,
        **more,
    )


@pytest.fixture
def one_is_killed(tmp_path, monkeypatch):
    """The second sampler is killed in the third step of the run in this folder."""
    groups = []

    class Watched(samplers.SamplerGroup):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            groups.append(self)

    def kill():
        while len(read_run(tmp_path / "run").metrics if (tmp_path / "run/config.toml").exists() else []) < 2:
            time.sleep(0.2)
        os.kill(pids(groups[0])[1], signal.SIGKILL)

    monkeypatch.setattr(samplers, "SamplerGroup", Watched)
    threading.Thread(target=kill, daemon=True).start()


def rows_of(run):
    """The steps of a run, and the mean gap of logprobs in each; None where no answer had an advantage."""
    rows = read_run(run).metrics
    gaps = [row.get("logprob_gap/mean") for row in rows]
    print(gaps, [row.get("logprob_gap/max") for row in rows], [row["cluster/sync_seconds"] for row in rows])
    assert any(gap is not None for gap in gaps)
    assert rows[-1]["cluster/samplers_replaced"] >= 1
    return rows, gaps


@pytest.mark.parametrize("staleness", [0, 1])
def test_weights_reach_every_sampler_in_every_step_and_a_lost_one_is_replaced(staleness, tmp_path, one_is_killed):
    config = config_of(tmp_path, engine="vllm", steps=5)
    cluster = AsyncOptions(trainers=1, samplers=2, max_staleness=staleness)
    rows, gaps = rows_of(rl.run(config, GRPO(kl_coefficient=0.0), cluster, output=tmp_path / "run", quiet=True).run)
    assert len(rows) == 5
    ages = [row.get("staleness/max", 0.0) for row in rows]
    assert max(ages) == staleness
    for gap, age in zip(gaps, ages, strict=True):
        if age == 0 and gap is not None:  # the sampler's rounding alone
            assert gap < 0.2


def test_each_sampler_has_a_server_of_its_own(tmp_path, one_is_killed):
    """What replaces the lost one sends its weights to the same server again."""
    options = ("--logprobs-mode", "processed_logprobs", "--dtype", "bfloat16", "--max-model-len", 512)
    with served(locate(rl.RL.model), *options) as one, served(locate(rl.RL.model), *options) as other:
        config = config_of(tmp_path, engine=f"{one} {other}", precision="bfloat16", steps=4)
        cluster = AsyncOptions(trainers=1, samplers=2)
        rows, gaps = rows_of(rl.run(config, GRPO(kl_coefficient=0.0), cluster, output=tmp_path / "run", quiet=True).run)
    assert len(rows) == 4 and all(gap is None or gap < 0.2 for gap in gaps)
    assert all(row["cluster/tokens_per_second/sampler0"] > 0 for row in rows)
