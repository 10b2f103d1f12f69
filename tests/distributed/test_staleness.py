"""Steps that are sampled ahead on a cluster: ages, what is trained on after a stop, and failures."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

pytest.importorskip("ray")

from posttrain import algorithms
from posttrain.bindings.cluster_options import ONE_PROCESS, AsyncOptions, check_cluster
from posttrain.errors import PosttrainError, UserError
from posttrain.recipes import rl
from posttrain.recipes.rl import RL
from posttrain.runs import read_run
from posttrain.training import checkpoint
from tests.distributed.test_recipes import curve, folder, grpo, options, processes, same  # noqa: F401
from tests.recipes.folders import model_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

AHEAD = AsyncOptions(trainers=1, samplers=2, max_staleness=2)


def write_tasks(folder, count):  # noqa: F811
    """Prompts that are all different, so that a prompt says which draw it was in."""
    rows = [{"prompt": f"{i}?", "answer": ""} for i in range(count)]
    (folder / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "many.jsonl")


def prompts_of(run):
    """Of each step the prompts that were trained on."""
    found = {}
    for sample in read_run(run).samples:
        found.setdefault(sample["step"], []).append(sample["prompt"])
    return [found[step] for step in sorted(found)]


@pytest.mark.parametrize("in_flight", [False, True])
def test_no_token_is_older_than_allowed_and_no_prompt_is_trained_on_twice(
    in_flight,
    folder,  # noqa: F811
    tmp_path,
    shared_processes,
):
    """The run is stopped and goes on; what was sampled ahead of the stop is sampled again."""
    ahead = replace(AHEAD, in_flight_updates=in_flight)
    dataset = write_tasks(folder, 4 * 8)
    run = grpo(folder, dataset=dataset, steps=5)(ahead, output=tmp_path / "run", quiet=True).run
    grpo(folder, dataset=dataset, steps=8)(ahead, resume=run, quiet=True)
    rows = read_run(run).metrics
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert all(0 <= row["staleness/mean"] <= row["staleness/max"] <= 2 for row in rows)
    assert rows[0]["staleness/max"] == rows[5]["staleness/max"] == 0 and max(r["staleness/max"] for r in rows) >= 1
    assert all(0 < row["importance/mean"] <= row["importance/max"] <= 2 for row in rows)
    trained = [prompt for of_step in prompts_of(run) for prompt in of_step]
    assert len(trained) == len({*map(str, trained)}) == 4 * 8
    state = checkpoint.latest(run / "checkpoints").state
    assert (state["draws"], state["used_ahead"]) == (8, [])
    works = {(span.process.split()[0], span.work) for span in read_run(run).timeline}
    assert works >= {("trainers", "training"), ("sampler", "sampling"), ("sampler", "weights")}


def test_groups_are_trained_as_they_finish_and_the_old_are_dropped(folder, tmp_path, shared_processes):  # noqa: F811
    """One prompt's reward takes longer than all steps; the run is stopped and goes on."""
    ahead = replace(AHEAD, in_flight_updates=True, evict_stale=True)
    rows = [{"prompt": f"{i}?", "answer": "slow" if i == 3 else ""} for i in range(60)]
    (folder / "slow.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "slow.py").write_text(
        "import asyncio\n\nasync def score(completion: str, answer: str) -> float:\n"
        "    await asyncio.sleep(600 if answer else 0)\n    return len(completion) / 10\n"
    )
    changes = {"dataset": str(folder / "slow.jsonl"), "reward": f"{folder / 'slow.py'}:score"}
    run = grpo(folder, steps=5, **changes)(ahead, output=tmp_path / "run", quiet=True).run
    with pytest.raises(UserError, match=r"cluster.evict_stale"):
        grpo(folder, steps=8, **changes)(replace(ahead, evict_stale=False), resume=run, quiet=True)
    grpo(folder, steps=8, **changes)(ahead, resume=run, quiet=True)
    rows = read_run(run).metrics
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert all(0 <= row["staleness/mean"] <= row["staleness/max"] <= 2 for row in rows)
    trained = [prompt for of_step in prompts_of(run) for prompt in of_step]
    assert len(trained) == len({*map(str, trained)}) == 4 * 8
    assert not any("'3?'" in str(prompt) for prompt in trained)
    state = checkpoint.latest(run / "checkpoints").state
    told = len(trained) + sum(row["groups/evicted"] for row in rows)
    assert state["draws"] + len(state["used_ahead"]) == told > len(trained)


def test_a_staleness_of_one_is_one_in_every_step_but_the_first(folder, tmp_path, shared_processes):  # noqa: F811
    run = grpo(folder, steps=5)(replace(AHEAD, max_staleness=1), output=tmp_path / "run", quiet=True).run
    assert [row["staleness/mean"] for row in read_run(run).metrics] == [0, 1, 1, 1, 1]


def test_a_run_that_samples_in_turn_goes_on_on_a_cluster(folder, tmp_path, shared_processes):  # noqa: F811
    """Versions of weights count the updates of a learner there, not the steps of a run."""
    one = AsyncOptions(trainers=1, samplers=1)
    whole = grpo(folder, steps=4, updates_per_step=2)(one, output=tmp_path / "whole", quiet=True).run
    part = grpo(folder, steps=3, updates_per_step=2)(one, output=tmp_path / "part", quiet=True).run
    grpo(folder, steps=4, updates_per_step=2)(one, resume=part, quiet=True)
    assert curve(whole) == curve(part) and same(whole, part) and "staleness/mean" not in read_run(part).metrics[0]


def test_evaluations_are_of_the_weights_of_their_step(folder, tmp_path, shared_processes):  # noqa: F811
    """Greedy rewards of a policy that is not trained (learning rate 0) equal those of the run in one process."""
    (folder / "heldout.jsonl").write_text(json.dumps({"prompt": "20?", "answer": ""}) + "\n")
    held = {"eval_dataset": str(folder / "heldout.jsonl"), "eval_every": 1, "eval_samples": 2, "lr": 1e-9}
    here = grpo(folder, steps=3, **held)(output=tmp_path / "here", quiet=True).run
    there = grpo(folder, steps=3, **held)(AHEAD, output=tmp_path / "there", quiet=True).run
    found = [[row["evaluation/reward"] for row in read_run(run).metrics] for run in (here, there)]
    assert len(found[0]) == 4 and found[0] == pytest.approx(found[1], abs=1e-6)


def test_dynamic_sampling_draws_each_batch_of_prompts_once(folder, tmp_path, shared_processes):  # noqa: F811
    """Refills of one step take other draws than the step that is sampled beside it."""
    (folder / "even.py").write_text("def score(completion: str) -> float:\n    return len(completion) % 3 == 0\n")
    config = RL(**options(folder, dataset=write_tasks(folder, 160), reward=f"{folder / 'even.py'}:score", steps=4))
    config = replace(config, algorithm="dapo", max_refills=3)
    run = rl.run(config, algorithms.online("dapo")(), AHEAD, output=tmp_path / "run", quiet=True).run
    trained = [prompt for of_step in prompts_of(run) for prompt in of_step]
    assert len(trained) == len({*map(str, trained)}) > 4 * 4
    state = checkpoint.latest(run / "checkpoints").state
    assert 4 * (state["draws"] + len(state["used_ahead"])) == len(trained)


def test_a_reward_that_fails_ends_the_run_with_what_was_trained(folder, tmp_path, shared_processes):  # noqa: F811
    counted = folder / "count"
    (folder / "breaks.py").write_text(
        f"import pathlib\nfile = pathlib.Path({str(counted)!r})\n\n"
        "def score(completion: str) -> float:\n"
        "    with file.open('a') as out:\n        out.write('x')\n"
        "    if file.stat().st_size > 64:\n        raise OSError('gone')\n    return len(completion) / 10\n"
    )
    with pytest.raises(PosttrainError, match="gone"):
        grpo(folder, reward=f"{folder / 'breaks.py'}:score", steps=9)(AHEAD, output=tmp_path / "run", quiet=True)
    saved = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert saved is None or 1 <= saved.step <= 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_staleness": 2}, "`max_staleness` needs trainer processes"),
        ({"trainers": 1, "max_staleness": -1}, "`max_staleness` must be 0 or more"),
        ({"trainers": 1, "in_flight_updates": True}, "needs `max_staleness` above 0"),
        ({"trainers": 1, "max_staleness": 1, "evict_stale": True}, "`evict_stale` needs `in_flight_updates` \\(with"),
        ({"trainers": 1, "evict_stale": True}, "`in_flight_updates` \\(with `max_staleness` above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(changes, says):
    with pytest.raises(UserError, match=says):
        check_cluster(replace(ONE_PROCESS, **changes), "embedded")


def test_in_flight_updates_need_the_embedded_engine():
    with pytest.raises(UserError, match="needs the embedded engine; got `engine` vllm"):
        check_cluster(AsyncOptions(trainers=1, max_staleness=1, in_flight_updates=True), "vllm")


def test_a_run_without_importance_weights_is_refused(folder):  # noqa: F811
    with pytest.raises(UserError, match="pass `tis_cap=2`"):
        grpo(folder, tis_cap=0.0)(AHEAD)


def test_schedules_that_mean_nothing_ahead_are_refused(folder):  # noqa: F811
    with pytest.raises(UserError, match=r"`max_staleness` samples the next step .* leave out `schedule=.pipelined.`"):
        grpo(folder, schedule="pipelined")(AHEAD)
    with pytest.raises(UserError, match=r"`evict_stale` samples continuously; leave out `schedule=.lockstep.`"):
        grpo(folder, schedule="lockstep")(replace(AHEAD, in_flight_updates=True, evict_stale=True))


def test_a_signal_to_its_group_ends_a_run_that_samples_ahead(tmp_path):
    """A reward hangs in a thread of a coming step. Ray's processes do not get the signal, and go with the command."""
    model_folder(tmp_path / "model")
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"prompt": "1?", "answer": ""}) + "\n")
    (tmp_path / "scorer.py").write_text(
        "import time, pathlib\n\ndef score(completion: str) -> float:\n"
        "    if pathlib.Path('hang').exists():\n        time.sleep(300)\n    return len(completion) / 100\n"
    )
    words = ["rl", "--dataset", "tasks.jsonl", "--model", "model", "--reward", "scorer.py:score", "--steps", "100000"]
    words += ["--prompts-per-step", "1", "--max-new-tokens", "8", "--precision", "float32", "--output", "run"]
    command = [sys.executable, "-m", "posttrain", *words, "--trainers", "1", "--max-staleness", "2"]
    environment = os.environ | {"POSTTRAIN_TEST": str(tmp_path)}
    with open(tmp_path / "said", "w") as said:
        run = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=said, stderr=said, process_group=0)
    metrics = tmp_path / "run/metrics.jsonl"
    deadline = time.monotonic() + 400
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 2):
        assert run.poll() is None and time.monotonic() < deadline, (tmp_path / "said").read_text()
        time.sleep(0.1)
    (tmp_path / "hang").touch()
    time.sleep(2)
    os.killpg(run.pid, signal.SIGTERM)
    assert run.wait(60) == 143, (tmp_path / "said").read_text()  # the reward hangs for 300
    assert checkpoint.latest(tmp_path / "run/checkpoints").step >= 2
    deadline = time.monotonic() + 90
    while processes(f"POSTTRAIN_TEST={tmp_path}"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
