"""VLLM as the engine of samplers in processes. Needs vLLM (`make test-vllm`); skipped without it."""

import os
import signal
import threading
import time

import pytest

pytest.importorskip("vllm")
pytest.importorskip("ray")

from posttrain.algorithms.grpo import GRPO
from posttrain.distributed import samplers
from posttrain.recipes import rl
from posttrain.runs import read_run
from posttrain.setup.cluster_options import AsyncOptions
from tests.rollouts.test_vllm import BRIEF

pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("staleness", [0, 1])
def test_weights_reach_every_sampler_in_every_step_and_a_lost_one_is_replaced(staleness, tmp_path, monkeypatch):
    """One sampler is killed in the third step."""
    (tmp_path / "brief.py").write_text(BRIEF)
    config = rl.RL(
        dataset="gym:chain_sum",
        reward=f"{tmp_path / 'brief.py'}:brief",
        engine="vllm",
        cache_gb=0.3,
        steps=5,
        prompts_per_step=4,
        completions_per_prompt=4,
        max_new_tokens=24,
        lr=1e-4,  # so large that an update that does not arrive shows in the logprobs
        microbatch_tokens=768,
        save_every=100,
    )
    groups = []

    class Watched(samplers.SamplerGroup):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            groups.append(self)

    def kill():
        while len(read_run(tmp_path / "run").metrics if (tmp_path / "run/config.toml").exists() else []) < 2:
            time.sleep(0.2)
        os.kill(groups[0].actors.whereabouts()[1].pid, signal.SIGKILL)

    monkeypatch.setattr(samplers, "SamplerGroup", Watched)
    threading.Thread(target=kill, daemon=True).start()
    cluster = AsyncOptions(trainers=1, samplers=2, max_staleness=staleness)
    run = rl.run(config, GRPO(kl_coefficient=0.0), cluster, output=tmp_path / "run", quiet=True).run
    rows = read_run(run).metrics
    gaps = [row.get("logprob_gap/mean") for row in rows]  # None where no answer had an advantage
    print(gaps, [row.get("logprob_gap/max") for row in rows], [row["cluster/sync_seconds"] for row in rows])
    assert any(gap is not None for gap in gaps)
    assert len(rows) == 5 and rows[-1]["cluster/samplers_replaced"] >= 1
    ages = [row.get("staleness/max", 0.0) for row in rows]
    assert max(ages) == staleness
    for gap, age in zip(gaps, ages, strict=True):
        if age == 0 and gap is not None:  # the sampler's rounding alone
            assert gap < 0.2
