"""Item 7: a run that is killed and resumed equals one that was never interrupted.

The real command is run, in processes of its own: `posttrain rl` on one layer of the model's own architecture and widths
with random weights and the model's own tokenizer, since what is checked is the loop and its files, not the model.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from posttrain import fast_paths
from posttrain.errors import PosttrainError
from posttrain.models.load import probe
from posttrain.recipes.verify.item import Item, format_name, violations
from posttrain.recipes.verify.subject import QUESTIONS, Subject
from posttrain.runs import jsonl
from posttrain.runs.run import METRICS

REWARD = "def varied(completion):\n    return float(len(completion) % 3)\n"  # random words do not solve anything
SAVE_EVERY = 2
LIMIT_S = 600.0
MEASURED = ("seconds/", "tokens_per_second", "memory_gb")  # of the machine, not of the method
RESULTS = ("masters.safetensors", "optimizer.safetensors")


def resume(subject: Subject) -> Item:
    """Train twice, once killed with SIGKILL at a random step and resumed; compare all metrics and every bit."""
    with tempfile.TemporaryDirectory(prefix="posttrain-verify-") as name:
        folder = Path(name)
        options = _prepare(subject, folder)
        killed_at = random.Random(subject.config.seed).randrange(SAVE_EVERY + 1, subject.config.resume_steps)
        through = _start(folder / "through", [*options, "--output", "."])
        killed = _start(folder / "killed", [*options, "--output", "."])
        try:
            _kill_after(killed, folder / "killed", killed_at)
            _finish(through, folder / "through")
        finally:
            for process in (through, killed):
                process.kill()
                process.wait()
        _finish(_start(folder / "killed", ["--resume", "."]), folder / "killed")
        found = compare(folder / "through", folder / "killed", subject.config.resume_steps)
    detail = (
        f"{subject.config.resume_steps} steps of rl on one random layer of this architecture in "
        f"{format_name(subject.dtype)}, killed after step {killed_at} and resumed: same metrics, and the same weights "
        "and optimiser bit for bit"
    )
    return violations("resume", found, detail)


def compare(through: Path, killed: Path, steps: int) -> list[str]:
    """What differs between two finished runs; a run that learned nothing would prove nothing."""
    rows = [_metrics(run) for run in (through, killed)]
    sums = [
        json.loads((run / "checkpoints" / f"step-{steps:06d}" / "checksums.json").read_text())
        for run in (through, killed)
    ]
    found = [f"metrics differ at step {a['step']}" for a, b in zip(*rows, strict=False) if a != b]
    if [row["step"] for row in rows[1]] != list(range(1, steps + 1)):
        found.append(f"the resumed run has the steps {[row['step'] for row in rows[1]]}")
    found += [f"{file} differs" for file in RESULTS if sums[0][file] != sums[1][file]]
    if not any(row["grad_norm"] > 0 for row in rows[0]):
        found.append("the run learned nothing, so nothing could differ")
    return found


def _prepare(subject: Subject, folder: Path) -> list[str]:
    """Write model, tasks and reward; returns the command's options."""
    model = probe(subject.config.model, 1, dtype=torch.float32)
    model.network.save_pretrained(folder / "model")
    subject.policy.chat.tokenizer.save_pretrained(str(folder / "model"))
    (folder / "reward.py").write_text(REWARD)
    tasks = [json.dumps({"prompt": question, "answer": ""}) for question in QUESTIONS]
    (folder / "tasks.jsonl").write_text("\n".join(tasks))
    settings: dict[str, Any] = {
        "dataset": folder / "tasks.jsonl",
        "model": folder / "model",
        "reward": f"{folder / 'reward.py'}:varied",
        "precision": format_name(subject.dtype),
        "steps": subject.config.resume_steps,
        "save-every": SAVE_EVERY,
        "prompts-per-step": 2,
        "completions-per-prompt": 3,
        "max-new-tokens": 6,
        "lr": 1e-3,
        "seed": subject.config.seed,
    }
    return [word for key, value in settings.items() for word in (f"--{key}", str(value))]


def _start(run: Path, options: list[str]) -> "subprocess.Popen[bytes]":
    run.mkdir(exist_ok=True)
    with (run.parent / f"{run.name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "posttrain", "rl", *options, "--quiet"],
            cwd=run,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # the folder of the run is no place to import from
            env={**os.environ, **fast_paths.for_children(), "PYTHONSAFEPATH": "1"},
        )


def _kill_after(process: "subprocess.Popen[bytes]", run: Path, step: int) -> None:
    """Kill the process as soon as it has logged `step`; it may be computing the next one, or saving this one."""
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        if len(_metrics(run)) >= step:
            process.kill()
            process.wait()
            return
        time.sleep(0.01)
    raise _failed("the run that was to be killed ended before that", run)


def _finish(process: "subprocess.Popen[bytes]", run: Path) -> None:
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise _failed(f"a run was not done after {LIMIT_S:g} s", run) from None
    if code:
        raise _failed(f"a run ended with exit code {code}", run)


def _failed(what: str, run: Path) -> PosttrainError:
    said = (run.parent / f"{run.name}.log").read_text(errors="replace").strip().splitlines()
    return PosttrainError(f"{what}: {said[-1] if said else 'it said nothing'}")


def _metrics(run: Path) -> list[dict[str, Any]]:
    """The rows that are whole, without what is measured of the machine."""
    rows = jsonl.read(run / METRICS)
    return [{key: value for key, value in row.items() if not key.startswith(MEASURED)} for row in rows]
