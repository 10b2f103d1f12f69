"""The recipes that sample, on processes of a cluster: the same runs as in one process."""

import copy
import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from posttrain import algorithms
from posttrain.bindings.backend import connect
from posttrain.bindings.cluster_options import (
    ONE_PROCESS,
    ClusterOptions,
    TrainerOptions,
    check_cluster,
    engine_may_differ,
    starting,
)
from posttrain.errors import CheckpointError, ProcessLost, UserError
from posttrain.recipes import online_preference, preference, reward_model, rl, sft
from posttrain.recipes.online_preference import OnlinePreference
from posttrain.recipes.preference import Preferences
from posttrain.recipes.reward_model import Scoring
from posttrain.recipes.rl import RL
from posttrain.recipes.sft import SFT
from posttrain.runs import read_run
from posttrain.runs.resuming import restarted
from posttrain.training import checkpoint
from tests.distributed.fakes import pids
from tests.distributed.sockets import Watch
from tests.recipes.conftest import folder  # noqa: F401  a fixture
from tests.recipes.folders import model_folder
from tests.recipes.test_self_play import DUEL

pytest.importorskip("ray")

from posttrain.distributed import trainers
from posttrain.distributed.cluster import connect as connect_ray

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


def pairs(folder):  # noqa: F811
    """Reference logprobs are precomputed, and pairs held out."""
    rows = [{"prompt": f"{i}?", "chosen": f"yes {i}", "rejected": "no" * (i % 3 + 1)} for i in range(12)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = {"pairs_per_step": 4, "steps": 3, "lr": 1e-2, "eval_share": 0.2, "precision": "float32"}
    config = Preferences(dataset=str(folder / "pairs.jsonl"), model=str(folder / "model"), **more)
    return partial(preference.run, config, algorithms.get("dpo")())


def scored(folder):  # noqa: F811
    """An ensemble, calibrated on held-out pairs."""
    rows = [{"prompt": f"{i}?", "chosen": f"yes {i}", "rejected": "no" * (i % 3 + 1)} for i in range(12)]
    (folder / "scored.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = {"pairs_per_step": 4, "steps": 3, "lr": 1e-2, "eval_share": 0.2, "precision": "float32", "ensemble": 2}
    return partial(reward_model.run, Scoring(dataset=str(folder / "scored.jsonl"), model=str(folder / "model"), **more))


def demonstrations(folder):  # noqa: F811
    rows = [{"prompt": f"{i}?", "completion": "yes " * (i % 4 + 1)} for i in range(12)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = {"examples_per_step": 5, "steps": 3, "microbatch_tokens": 128, "lora_rank": 2, "lora_dropout": 0.5}
    dataset = str(folder / "rows.jsonl")
    config = SFT(dataset=dataset, model=str(folder / "model"), eval_share=0.2, precision="float32", **more)
    return partial(sft.run, config)


def grpo(folder, **more):  # noqa: F811
    common = {"steps": 3, "save_every": 1}
    return partial(rl.run, RL(**options(folder, **(common | more))), algorithms.get("grpo")())


def duel(folder):  # noqa: F811
    """Two seats and several turns."""
    (folder / "duel.py").write_text(DUEL)
    return grpo(folder, environment=f"{folder / 'duel.py'}:Duel", reward="", dataset="")


@pytest.fixture(scope="module")
def run_of(shared, folder, tmp_path_factory):  # noqa: F811
    """The directory of a finished run of a job, in this process or on shared ones; several tests read it."""
    found = {}

    def of(job, cluster=ONE_PROCESS):
        if (job, cluster) not in found:
            with shared.used():
                output = tmp_path_factory.mktemp("runs") / job.__name__
                found[job, cluster] = job(folder)(cluster, output=output, quiet=True).run
        return found[job, cluster]

    return of


@pytest.mark.parametrize("job", [ppo, dpo, duel, pairs, scored, demonstrations])
def test_one_trainer_and_one_sampler_equal_one_process_to_the_last_bit(job, run_of):
    here, there = run_of(job), run_of(job, ONE if job in (ppo, dpo, duel) else TrainerOptions(trainers=1))
    assert curve(here) == curve(there) and len(curve(here)) >= 3
    assert same(here, there)
    assert read_run(there).config["cluster"]["trainers"] == 1 and "cluster" not in read_run(here).config


SHARDED = replace(TWO, fsdp=True)


@pytest.mark.parametrize(
    ("job", "several"),
    [
        (grpo, TWO),
        (pairs, TrainerOptions(trainers=2)),
        (grpo, SHARDED),
        (scored, TrainerOptions(trainers=2, fsdp=True)),
    ],
    ids=["grpo", "pairs", "sharded", "scored"],
)
def test_several_differ_by_rounding_alone_and_repeat_themselves(job, several, run_of, folder, tmp_path, shared):  # noqa: F811
    here, first = run_of(job), run_of(job, several)
    with shared.used():
        second = job(folder)(several, output=tmp_path / "second", quiet=True).run
    assert curve(first) == curve(second) and same(first, second)
    for row, other in zip(curve(here), curve(first), strict=True):
        assert row.keys() == other.keys()
        assert all(abs(row[k] - other[k]) <= 1e-4 * max(1, abs(row[k])) for k in row), (row, other)


def test_a_reward_model_of_a_trainer_is_saved_as_that_of_one_process(run_of):
    """Its calibration, and what it pads with, are added where the pairs are."""
    here, there = (
        checkpoint.latest(run_of(scored, options) / "checkpoints").path
        for options in (ONE_PROCESS, TrainerOptions(trainers=1))
    )
    for name in ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"):
        assert (here / name).read_bytes() == (there / name).read_bytes(), name
    assert json.loads((there / "config.json").read_text())["reward_zeros"] != [0.0, 0.0]


def test_a_run_goes_on_on_another_number_of_processes(run_of, folder, tmp_path, shared_processes):  # noqa: F811
    part = grpo(folder, steps=2)(ONE, output=tmp_path / "part", quiet=True).run
    grpo(folder)(resume=part, quiet=True)
    assert curve(run_of(grpo)) == curve(part) and same(run_of(grpo), part)


PATIENCE = {signal.SIGKILL: 60.0, signal.SIGSTOP: 15.0}  # seconds; one that is dead is noticed at once


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_run_that_loses_a_trainer_goes_on_to_the_same_bits(sign, folder, tmp_path, shared, run_of, monkeypatch):  # noqa: F811
    """The trainers are its own, and those of the run that is left alone are others."""
    whole = run_of(grpo, TWO)
    ranks, lost = [], []

    class Watched(trainers.RankActors):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            ranks.append(self)

    def disturbed(self, batch, loss):
        """Disturbs the second rank in an update, once."""
        if len(ranks) == 1 and len(read_run(tmp_path / "lost").metrics) == 1:
            lost.append(pids(ranks[0])[1])
            os.kill(lost[0], sign)
        return forward_backward(self, batch, loss)

    forward_backward = trainers.LearnerGroup.forward_backward
    monkeypatch.setattr(trainers.LearnerGroup, "forward_backward", disturbed)
    monkeypatch.setattr(trainers, "RankActors", Watched)
    cluster = replace(TWO, cluster_timeout=PATIENCE[sign])
    monkeypatch.setattr(trainers, "SLOWER_S", 2.0)
    with shared.shared_samplers():
        run = grpo(folder)(cluster, output=tmp_path / "lost", quiet=True).run
    assert len(ranks) == 2 and curve(run) == curve(whole) and same(run, whole)
    assert not os.path.exists(f"/proc/{lost[0]}")


learner_of = rl._learner  # in the processes of the cluster, too: nothing is replaced there


def with_a_full_disk(config, algorithm, teacher, policy, ranks):
    """Rank 0 has no space left for the weights of a second checkpoint, while a file says so."""

    def save(where):
        if where.parent.joinpath("step-000001").exists() and where.parents[1].joinpath("full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        saved(where)

    saved = policy.save
    return learner_of(config, algorithm, teacher, SimpleNamespace(model=policy.model, save=save), ranks)


def test_a_disk_that_is_full_for_rank_0_ends_the_run_which_goes_on_later(folder, run_of, tmp_path, shared, monkeypatch):  # noqa: F811
    monkeypatch.setattr(rl, "_learner", with_a_full_disk)
    whole, run = run_of(grpo, TWO), tmp_path / "run"

    def fill(session):
        (run / "full").touch()

    callback = type("Fills", (), {"on_run_start": staticmethod(fill)})()
    with shared.used():
        with pytest.raises(CheckpointError, match=r"checkpoint of step 2 not saved in .*: no space left"):
            grpo(folder)(TWO, output=run, quiet=True, callbacks=[callback])
        assert [path.name for path in sorted((run / "checkpoints").iterdir())] == ["step-000001"]
        (run / "full").unlink()
        grpo(folder)(TWO, resume=run, quiet=True)
    assert curve(run) == curve(whole) and same(run, whole)


def with_a_slow_rank(config, algorithm, teacher, policy, ranks):
    """Rank 1 takes longer by a part of a second for each micro-batch."""

    def passes(rows):
        for row in type(ranks).passes(ranks, rows):
            time.sleep(0.25 * ranks.rank)
            yield row

    slow = copy.copy(ranks)
    slow.passes = passes
    return learner_of(config, algorithm, teacher, policy, slow)


def test_a_slow_rank_changes_no_bit_and_is_named(folder, run_of, tmp_path, shared, monkeypatch):  # noqa: F811
    whole = run_of(grpo, TWO)
    monkeypatch.setattr(rl, "_learner", with_a_slow_rank)
    with shared.used():
        run = grpo(folder)(TWO, output=tmp_path / "slow", quiet=True).run
    assert curve(run) == curve(whole) and same(run, whole)
    for row in read_run(run).metrics:
        assert row["cluster/slowest_trainer"] == 1 and 0.25 <= row["cluster/trainer_wait_seconds"] < row["seconds/step"]
    logs = {file.name for file in (run / "logs").iterdir()}
    assert logs == {"trainer-0.log", "trainer-1.log", "sampler-0.log", "sampler-1.log"}


def test_a_run_that_loses_trainers_again_and_again_ends():
    calls = []

    @restarted
    def run(**where):
        calls.append(where.get("resume"))
        error = ProcessLost("gone")
        error.run, error.step = Path("there"), 3
        raise error

    with pytest.raises(ProcessLost):
        run(output=Path("there"), quiet=True)
    assert calls == [None, Path("there"), Path("there")]


def test_processes_that_are_lost_while_they_start_are_started_again():
    asked = []

    @restarted
    def run(**where):
        asked.append(where.get("resume"))
        if len(asked) == 3:
            return "done"
        error = ProcessLost("gone")
        if len(asked) == 1:
            error.run, error.step = Path("there"), 3
        raise error

    assert run(quiet=True) == "done" and asked == [None, Path("there"), Path("there")]


def test_a_resumed_run_that_loses_processes_while_they_start_is_started_again():
    asked = []

    @restarted
    def run(**where):
        asked.append(where.get("resume"))
        if len(asked) == 1:
            raise ProcessLost("gone")
        return "done"

    assert run(quiet=True, resume=Path("there")) == "done" and asked == [Path("there")] * 2


def test_a_run_that_loses_a_trainer_before_its_first_checkpoint_ends():
    with pytest.raises(ProcessLost):
        restarted(lambda: (_ for _ in ()).throw(ProcessLost("gone")))()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"trainers": -1}, "`trainers` must be 0 or more"),
        ({"trainers": 1, "samplers": 0}, "`samplers` must be 1 or more"),
        ({"samplers": 2}, "`samplers` needs trainer processes: pass `trainers=1`"),
        ({"trainers": 1, "cluster_timeout": 0.0}, "`cluster_timeout` must be above 0"),
        ({"trainer_gpus": 0.0}, "`trainer_gpus` needs trainer processes"),
        ({"trainers": 1, "sampler_gpus": 2.0}, "`sampler_gpus` must be 0 to 1; got 2.0"),
        ({"trainers": 1, "trainer_memory_gb": -1.0}, "`trainer_memory_gb` must be 0 or more; got -1.0"),
        ({"trainers": 1, "sampler_memory_gb": math.inf}, "`sampler_memory_gb` must be 0 or more; got inf"),
        ({"trainers": 1, "trainer_gpus": -0.5}, "`trainer_gpus` must be 0 to 1"),
        ({"trainers": 2, "trainer_gpus": 0.5}, "`trainer_gpus=0.5` needs `trainers=1`"),
        ({"fsdp_replicas": 2}, "`fsdp_replicas` needs trainer processes"),
        ({"trainers": 4, "fsdp": True, "fsdp_replicas": 0}, "`fsdp_replicas` must be 1 or more"),
        ({"trainers": 4, "fsdp_replicas": 2}, "`fsdp_replicas` needs `fsdp`"),
        ({"trainers": 4, "fsdp_offload": True}, "`fsdp_offload` needs `fsdp`"),
        ({"trainers": 3, "fsdp": True, "fsdp_replicas": 2}, "`fsdp_replicas=2` must divide `trainers`"),
        ({"trainers": 2, "fsdp": True, "fsdp_replicas": 2}, "at least two of them for each replica; got `trainers=2`"),
    ],
)
def test_options_that_make_no_sense_are_refused(changes, says):
    with pytest.raises(UserError, match=says):
        check_cluster(replace(ONE_PROCESS, **changes), "embedded")


@pytest.mark.parametrize(("trainers", "gpus"), [(1, 0.5), (2, 1.0), (2, 0.0), (2, None)])
def test_gpus_of_trainers(trainers, gpus, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    check_cluster(replace(ONE_PROCESS, trainers=trainers, trainer_gpus=gpus, sampler_gpus=0.5))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sampler_gpus": 1.0}, r"reserve 2 GPUs, and this machine has 1; pass a smaller `sampler_gpus`, or 0"),
        ({"trainer_gpus": 1.0, "sampler_gpus": 0.5}, "reserve 2 GPUs, and this machine has 1; .* `trainer_gpus`"),
        ({"sampler_memory_gb": 4.0}, r"reserve 8 GB of memory, and this machine has 7.5; .* `sampler_memory_gb`"),
        ({"sampler_memory_gb": 3.0, "scorers": 2, "scorer_memory_gb": 1.0}, "reserve 8 GB of memory, "),
    ],
)
def test_what_this_machine_does_not_have_is_refused_before_anything_starts(changes, says, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("posttrain.bindings.cluster_options.total_bytes", lambda: 7_500_000_000)
    options = replace(ONE_PROCESS, trainers=1, samplers=2, **changes)
    with pytest.raises(UserError, match=says):
        check_cluster(options)
    check_cluster(replace(options, address="auto"))  # other machines have what they have


@pytest.mark.parametrize("address", ["10.0.0.1", "", "head:", "ray://head", "head:6379/x", "http://head:1", "a b:1"])
def test_an_address_without_a_port_is_refused(address):
    with pytest.raises(UserError, match=r"`address` is local, auto, HOST:PORT or ray://HOST:PORT; got '"):
        check_cluster(replace(ONE_PROCESS, trainers=1, address=address))


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379", "ray-head.default:6379", "ray://[fd00::1]:10001"])
def test_addresses_of_clusters(address):
    check_cluster(replace(ONE_PROCESS, trainers=1, address=address))


def test_what_starts_is_said_each_time_before_a_cluster_is_connected_to(monkeypatch, cluster):
    said, asked = [], []
    monkeypatch.setattr("posttrain.runs.resuming.announce", lambda text, quiet: said.append((text, quiet)))

    @restarted
    def run(**where):
        asked.append(where)
        with monkeypatch.context() as patch, ExitStack() as stack:
            patch.setattr("posttrain.distributed.cluster.connect", lambda address, cpus, begins: begins())
            connect(options, stack)
        if len(asked) == 1:
            raise ProcessLost("gone")
        return "done"

    options = replace(ONE_PROCESS, trainers=1, samplers=2, scorers=1)
    starts = starting(options)
    assert starts == "starting 1 trainer, 2 samplers, 1 scorer in a Ray cluster on this machine"
    assert starting(replace(options, address="auto")).endswith(" on the Ray cluster auto")
    assert starting(ONE_PROCESS) == ""
    run(resume=Path("there"))
    assert said.count((starts, False)) == 2 and said[0] == (starts, False)
    run(resume=Path("there"), quiet=True)
    assert said[-1] == (starts, True)
    assert not connect_ray(begins=lambda: said.append("connected already")) and said[-1] == (starts, True)


def test_servers_may_be_others_when_a_run_is_resumed():
    assert engine_may_differ("http://a:8000 http://b:8000") == ("engine",)
    assert engine_may_differ("vllm") == engine_may_differ("embedded") == ()


def test_each_sampler_needs_a_server():
    check_cluster(ONE, "http://localhost:8000")
    check_cluster(ONE_PROCESS, "http://localhost:8000")
    with pytest.raises(UserError, match="`engine` names 2 servers; pass as many `samplers`"):
        check_cluster(ONE, "http://localhost:8000 http://localhost:8001")
    for wrong in ("http://a:8000,http://b:8000", "http://a:8000 http://a:8000/", "embedded http://a:8000"):
        with pytest.raises(UserError, match="all different and separated by spaces"):
            check_cluster(replace(ONE, samplers=2), wrong)


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


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Two runs by the command line that got a signal in training, by the signal; and what was seen of them.

    They start at once, for a start takes long.
    """
    found = {
        sign: SimpleNamespace(folder=tmp_path_factory.mktemp(sign.name)) for sign in (signal.SIGINT, signal.SIGKILL)
    }
    words = ["rl", "--dataset", "tasks.jsonl", "--model", "model", "--reward", "scorer.py:score", "--steps", "100000"]
    words += ["--prompts-per-step", "1", "--max-new-tokens", "8", "--precision", "float32", "--output", "run"]
    for sign, each in found.items():
        trainers = "2" if sign == signal.SIGKILL else "1"  # two have sockets of gloo
        command = [sys.executable, "-m", "posttrain", *words, "--trainers", trainers, "--samplers", "1"]
        model_folder(each.folder / "model")
        (each.folder / "tasks.jsonl").write_text(json.dumps({"prompt": "1?", "answer": ""}) + "\n")
        (each.folder / "scorer.py").write_text(
            "def score(completion: str) -> float:\n    return len(completion) / 100\n"
        )
        environment = os.environ | {"POSTTRAIN_TEST": str(each.folder)}
        with open(each.folder / "said", "w") as said:
            each.run = subprocess.Popen(command, cwd=each.folder, env=environment, stdout=said, stderr=said)
        each.watch = Watch(each.run.pid)
    for sign, each in found.items():
        metrics = each.folder / "run/metrics.jsonl"
        until = time.monotonic() + 400
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 2):
            assert each.run.poll() is None and time.monotonic() < until, (each.folder / "said").read_text()
            for other in found.values():
                other.watch.look()
            time.sleep(0.03)
        each.watch.look()
        each.processes = processes(f"POSTTRAIN_TEST={each.folder}")
        each.run.send_signal(sign)
    yield found
    for each in found.values():
        each.run.kill()


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_is_stopped(sign, stopped):
    """By Ctrl-C it is saved."""
    found = stopped[sign]
    assert len(found.processes) > 3
    assert found.run.wait(60) == (130 if sign == signal.SIGINT else -signal.SIGKILL)
    marker = f"POSTTRAIN_TEST={found.folder}"
    for _ in range(900):
        if not processes(marker):
            break
        time.sleep(0.1)
    assert processes(marker) == []
    if sign == signal.SIGINT:
        assert checkpoint.latest(found.folder / "run/checkpoints").step >= 2


def test_no_socket_of_a_local_cluster_can_be_reached_from_outside(stopped):
    """A cluster with all kinds of processes; nothing is asked of the outside either."""
    for each in stopped.values():
        assert not each.watch.outside
        assert "127.0.0.1" in each.watch.ends and each.watch.ends <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
