"""The recipes that sample, on processes of a cluster: the same runs as in one process."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from posttrain import algorithms
from posttrain.errors import ProcessLost, UserError
from posttrain.recipes import online_preference, preference, rl, sft
from posttrain.recipes.online_preference import OnlinePreference
from posttrain.recipes.preference import Preferences
from posttrain.recipes.rl import RL
from posttrain.recipes.sft import SFT
from posttrain.runs import read_run
from posttrain.session.restarts import restarted
from posttrain.setup.cluster_options import ONE_PROCESS, ClusterOptions, TrainerOptions, check_cluster
from posttrain.training import checkpoint
from tests.recipes.conftest import folder  # noqa: F401  a fixture
from tests.recipes.folders import model_folder
from tests.recipes.test_self_play import DUEL

pytest.importorskip("ray")

from posttrain.distributed import trainers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ONE = ClusterOptions(trainers=1, samplers=1)
TWO = ClusterOptions(trainers=2, samplers=2)
TIMED = ("seconds/", "tokens_per_second", "memory_gb", "cluster/")


def curve(run):
    """The metrics of a run that do not depend on the clock."""
    return [{k: v for k, v in row.items() if not k.startswith(TIMED)} for row in read_run(run).metrics]


def weights(run):
    """All float32 weights of the last checkpoint."""
    found = checkpoint.latest(run / "checkpoints").path
    return {
        (file.name, name): value
        for file in sorted(found.glob("*masters.safetensors"))
        for name, value in checkpoint.load_tensors(file).items()
    }


def same(one, other):
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def options(folder, **changes):  # noqa: F811
    common = {"prompts_per_step": 4, "completions_per_prompt": 4, "max_new_tokens": 8, "microbatch_tokens": 128}
    common |= {"lr": 1e-2, "warmup_steps": 0, "precision": "float32", "reward": f"{folder / 'scorer.py'}:score"}
    return {"dataset": str(folder / "tasks.jsonl"), "model": str(folder / "model"), **common, **changes}


def ppo(folder):  # noqa: F811
    """An own critic, a reference that is renewed, an adapter that all are about, and held-out tasks."""
    more = {"algorithm": "ppo-penalty", "steps": 3, "updates_per_step": 2, "critic": "own", "ref_sync_every": 1}
    (folder / "heldout.jsonl").write_text(json.dumps({"prompt": "20?", "answer": ""}) + "\n")
    held = {"eval_dataset": str(folder / "heldout.jsonl"), "eval_every": 2, "eval_samples": 1}
    return partial(rl.run, RL(**options(folder, lora_rank=2, **more, **held)), algorithms.get("ppo-penalty")())


def dpo(folder):  # noqa: F811
    more = {"rounds": 3, "updates_per_round": 2, "pairs_per_step": 4}
    return partial(online_preference.run, OnlinePreference(**options(folder, **more)), algorithms.get("dpo")())


def sharded(folder):  # noqa: F811
    return grpo(folder)


def pairs(folder):  # noqa: F811
    """Reference logprobs are precomputed, and pairs held out."""
    rows = [{"prompt": f"{i}?", "chosen": f"yes {i}", "rejected": "no" * (i % 3 + 1)} for i in range(12)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = {"pairs_per_step": 4, "steps": 3, "lr": 1e-2, "eval_share": 0.2, "precision": "float32"}
    config = Preferences(dataset=str(folder / "pairs.jsonl"), model=str(folder / "model"), **more)
    return partial(preference.run, config, algorithms.get("dpo")())


def demonstrations(folder):  # noqa: F811
    rows = [{"prompt": f"{i}?", "completion": "yes " * (i % 4 + 1)} for i in range(12)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = {"examples_per_step": 5, "steps": 3, "microbatch_tokens": 128, "lora_rank": 2, "lora_dropout": 0.5}
    dataset = str(folder / "rows.jsonl")
    config = SFT(dataset=dataset, model=str(folder / "model"), eval_share=0.2, precision="float32", **more)
    return partial(sft.run, config)


def grpo(folder, **more):  # noqa: F811
    return partial(rl.run, RL(**options(folder, **({"steps": 3} | more))), algorithms.get("grpo")())


def duel(folder):  # noqa: F811
    """Two seats and several turns."""
    (folder / "duel.py").write_text(DUEL)
    return grpo(folder, environment=f"{folder / 'duel.py'}:Duel", reward="", dataset="")


@pytest.mark.parametrize("job", [ppo, dpo, duel, pairs, demonstrations])
def test_one_trainer_and_one_sampler_equal_one_process_to_the_last_bit(job, folder, tmp_path, cluster):  # noqa: F811
    run = job(folder)
    here = run(output=tmp_path / "here", quiet=True).run
    cluster = ONE if job in (ppo, dpo, duel) else TrainerOptions(trainers=1)
    there = run(cluster, output=tmp_path / "there", quiet=True).run
    assert curve(here) == curve(there) and len(curve(here)) >= 3
    assert same(here, there)
    assert read_run(there).config["cluster"]["trainers"] == 1 and "cluster" not in read_run(here).config


@pytest.mark.parametrize("job", [grpo, pairs, sharded])
def test_several_differ_by_rounding_alone_and_repeat_themselves(job, folder, tmp_path, cluster):  # noqa: F811
    run = job(folder)
    here = run(output=tmp_path / "here", quiet=True).run
    cluster = {grpo: TWO, sharded: replace(TWO, fsdp=True)}.get(job, TrainerOptions(trainers=2))
    first, second = (run(cluster, output=tmp_path / name, quiet=True).run for name in ("first", "second"))
    assert curve(first) == curve(second) and same(first, second)
    for row, other in zip(curve(here), curve(first), strict=True):
        assert row.keys() == other.keys()
        assert all(abs(row[k] - other[k]) <= 1e-4 * max(1, abs(row[k])) for k in row), (row, other)


def test_a_run_goes_on_on_another_number_of_processes(folder, tmp_path, cluster):  # noqa: F811
    whole = grpo(folder, steps=3)(output=tmp_path / "whole", quiet=True).run
    part = grpo(folder, steps=2)(ONE, output=tmp_path / "part", quiet=True).run
    grpo(folder, steps=3)(resume=part, quiet=True)
    assert curve(whole) == curve(part) and same(whole, part)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_run_that_loses_a_trainer_goes_on_to_the_same_bits(sign, folder, tmp_path, cluster, monkeypatch):  # noqa: F811
    whole = grpo(folder, steps=4, save_every=1)(TWO, output=tmp_path / "whole", quiet=True).run
    ranks, lost = [], []

    class Watched(trainers.RankActors):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            ranks.append(self)

    def disturbed(self, batch, loss):
        """Disturbs the second rank in an update, once."""
        if len(ranks) == 1 and len(read_run(tmp_path / "lost").metrics) == 2:
            lost.append(ranks[0]._actors.whereabouts()[1].pid)
            os.kill(lost[0], sign)
        return forward_backward(self, batch, loss)

    forward_backward = trainers.LearnerGroup.forward_backward
    monkeypatch.setattr(trainers.LearnerGroup, "forward_backward", disturbed)
    monkeypatch.setattr(trainers, "RankActors", Watched)
    cluster = replace(TWO, cluster_timeout=10.0)
    monkeypatch.setattr(trainers, "SLOWER_S", 5.0)
    run = grpo(folder, steps=4, save_every=1)(cluster, output=tmp_path / "lost", quiet=True).run
    assert len(ranks) == 2 and curve(run) == curve(whole) and same(run, whole)
    assert not os.path.exists(f"/proc/{lost[0]}")


def test_a_run_that_loses_trainers_again_and_again_ends():
    calls = []

    def run(where):
        calls.append(where.get("resume"))
        error = ProcessLost("gone")
        error.run, error.step = Path("there"), 3
        raise error

    with pytest.raises(ProcessLost):
        restarted(run, {"output": Path("there"), "quiet": True})
    assert calls == [None, Path("there"), Path("there")]


def test_processes_that_are_lost_while_they_start_are_started_again():
    asked = []

    def run(where):
        asked.append(where.get("resume"))
        if len(asked) == 3:
            return "done"
        error = ProcessLost("gone")
        if len(asked) == 1:
            error.run, error.step = Path("there"), 3
        raise error

    assert restarted(run, {"quiet": True}) == "done" and asked == [None, Path("there"), Path("there")]


def test_a_resumed_run_that_loses_processes_while_they_start_is_started_again():
    asked = []

    def run(where):
        asked.append(where.get("resume"))
        if len(asked) == 1:
            raise ProcessLost("gone")
        return "done"

    assert restarted(run, {"quiet": True, "resume": Path("there")}) == "done" and asked == [Path("there")] * 2


def test_a_run_that_loses_a_trainer_before_its_first_checkpoint_ends():
    with pytest.raises(ProcessLost):
        restarted(lambda where: (_ for _ in ()).throw(ProcessLost("gone")), {})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"trainers": -1}, "--trainers must be 0 or more"),
        ({"trainers": 1, "samplers": 0}, "--samplers must be 1 or more"),
        ({"samplers": 2}, "--samplers needs trainer processes: pass --trainers"),
        ({"trainers": 1, "cluster_timeout": 0.0}, "--cluster-timeout must be above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(changes, says):
    with pytest.raises(UserError, match=says):
        check_cluster(replace(ONE_PROCESS, **changes), "embedded")


def test_a_server_as_engine_is_refused():
    with pytest.raises(UserError, match="is a server, and samplers are processes of the cluster"):
        check_cluster(ONE, "http://localhost:8000")


def processes(marker):
    """Pids whose command line or environment has the marker."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if marker.encode() in file.read():
                    found.append(int(pid))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_is_stopped(sign, tmp_path):
    """By Ctrl-C it is saved, and goes on to the end."""
    model_folder(tmp_path / "model")
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"prompt": "1?", "answer": ""}) + "\n")
    (tmp_path / "scorer.py").write_text("def score(completion: str) -> float:\n    return len(completion) / 100\n")
    words = ["rl", "--dataset", "tasks.jsonl", "--model", "model", "--reward", "scorer.py:score", "--steps", "100000"]
    words += ["--prompts-per-step", "1", "--max-new-tokens", "8", "--precision", "float32", "--output", "run"]
    command = [sys.executable, "-m", "posttrain", *words, "--trainers", "1", "--samplers", "1"]
    marker = f"POSTTRAIN_TEST={tmp_path}"
    environment = os.environ | {"POSTTRAIN_TEST": str(tmp_path)}
    with open(tmp_path / "said", "w") as said:
        run = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=said, stderr=said)
    metrics = tmp_path / "run/metrics.jsonl"
    for _ in range(1200):
        if metrics.exists() and metrics.read_bytes().count(b"\n") >= 2:
            break
        time.sleep(0.1)
    else:
        run.kill()
        raise AssertionError((tmp_path / "said").read_text())
    assert len(processes(marker)) > 3
    run.send_signal(sign)
    code = run.wait(60)
    assert code == (130 if sign == signal.SIGINT else -signal.SIGKILL)
    for _ in range(900):
        if not processes(marker):
            break
        time.sleep(0.1)
    assert processes(marker) == []
    if sign == signal.SIGINT:
        assert checkpoint.latest(tmp_path / "run/checkpoints").step >= 2
