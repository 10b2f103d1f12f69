"""A run of the real command, killed with SIGKILL at a random step and resumed, equals one that never was."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.recipes.folders import model_folder

STEPS = 6
OF_THE_MACHINE = ("seconds/", "tokens_per_second", "memory_gb")
QUESTIONS = ["2+2?", "Name a colour.", "Why?", "And then?", "Who said so?"]


@pytest.fixture
def options(tmp_path):
    model_folder(tmp_path / "model")
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps({"prompt": q, "answer": ""}) + "\n" for q in QUESTIONS))
    (tmp_path / "reward.py").write_text("def varied(completion):\n    return float(len(completion) % 3)\n")
    settings = {
        "dataset": tmp_path / "tasks.jsonl", "model": tmp_path / "model", "reward": f"{tmp_path / 'reward.py'}:varied",
        "save-every": 2, "prompts-per-step": 2, "completions-per-prompt": 3, "max-new-tokens": 6,
        "lr": 1e-3, "weight-decay": 0.1, "decay": "cosine", "microbatch-tokens": 130,
    }  # fmt: skip
    return [word for key, value in settings.items() for word in (f"--{key}", str(value))]


def start(command, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "posttrain", command, "--quiet", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process):
    said, _ = process.communicate(timeout=500)
    assert process.returncode == 0, said


def rows(run):
    lines = (run / "metrics.jsonl").read_bytes().split(b"\n")[:-1] if (run / "metrics.jsonl").is_file() else []
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(OF_THE_MACHINE)} for line in lines
    ]


def without_times(run):
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    return rows(run), samples


def contents(checkpoint):
    return {path.name: path.read_bytes() for path in checkpoint.iterdir()}


RL = ["rl", "--steps", str(STEPS), "--updates-per-step", "2"]
ITERATED = ["online-preference", "--rounds", str(STEPS), "--updates-per-round", "2", "--pairs-per-step", "2"]
ADAPTIVE = ["--algorithm", "ppo-penalty", "--kl-target", "0.01", "--kl-gain", "1", "--precision", "float32"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        [*RL, "--precision", "bfloat16"],
        [*RL, "--precision", "float32", "--lora-rank", "2"],
        [*RL, *ADAPTIVE],
        [*RL, *ADAPTIVE, "--critic", "own", "--ref-sync-every", "3"],
        [*ITERATED, "--precision", "float32"],
        [*ITERATED, "--precision", "bfloat16", "--ref-sync-every", "3"],
    ],
    ids=[
        "all weights in bfloat16",
        "adapter in float32",
        "adaptive KL",
        "adaptive KL, critic of its own, renewed reference",
        "iterated dpo",
        "iterated dpo, renewed reference",
    ],
)
def test_a_killed_and_resumed_run_equals_one_that_was_not(tmp_path, options, more):
    if "--lora-rank" in more:
        pytest.importorskip("peft")
    command, *more = more
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(command, *options, *more, "--output", str(whole)))

    process = start(command, *options, *more, "--output", str(killed))
    renewed = "--ref-sync-every" in more  # after step 3: what was renewed is in the checkpoint of step 4
    last = STEPS - 1 if renewed else random.Random(str(more)).randrange(3, STEPS)  # the first checkpoint is of step 2
    while len(rows(killed)) < last:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not renewed or (killed / "checkpoints/step-000004").is_dir()

    finish(start(command, "--resume", str(killed)))
    assert without_times(killed) == without_times(whole)
    assert [row["step"] for row in rows(killed)] == list(range(1, STEPS + 1))
    assert any(row["grad_norm"] > 0 for row in rows(killed)), "a run that learns nothing shows nothing"
    if "ppo-penalty" in more:
        assert len({row["groups/kl_coefficient"] for row in rows(killed)}) > 2, "a coefficient that stays shows nothing"
    final = f"checkpoints/step-{STEPS:06d}"
    assert contents(killed / final) == contents(whole / final)
