"""Kills every training recipe with SIGKILL at random instants, resumes it, and compares with a run that was left alone.

Three of four instants lie in training: so many rows of metrics after the start, and a part of a step. The others lie
between the start of a process and its first row.

    python -m tests.recipes.kills [--kills 20] [--seed 0] [NAME ...]

Each run is killed and resumed until it has been killed so often, and then left to end: metrics, samples and the last
checkpoint must be equal. This takes about three minutes for each recipe on one core, and is no part of the test suite,
which kills some runs once (`tests/contract/test_kill.py`).
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.recipes.folders import model_folder
from tests.recipes.test_reward_attributes import PAIRS, RATED

OF_THE_MACHINE = ("seconds/", "tokens_per_second", "memory_gb", "cluster/")
ENVIRONMENT = '''
from dataclasses import dataclass
from posttrain.environments import Environment
from posttrain.types import Message, Outcome, Task


@dataclass(frozen=True)
class Letters(Environment):
    """Three turns; each letter a pays."""

    max_turns: int = 3

    def tasks(self, split, seed):
        return [Task((Message("user", f"{split} {i}?"),), id=f"{split} {i}") for i in range(6)]

    async def play(self, task, seats, seed):
        said, new = "", task.prompt
        for number in range(self.max_turns):
            said += (await seats["policy"].turn(new)).text
            new = [Message("user", f"More {number}.")]
        return Outcome({"policy": said.count("a") / 10})
'''
REWARD = "def varied(completion):\n    return float(len(completion) % 3)\n"
SAMPLED = "--dataset tasks.jsonl --reward reward.py:varied --completions-per-prompt 3 --prompts-per-step 2"
RECIPES = {
    "sft": "sft --dataset rows.jsonl --steps 120 --examples-per-step 2",
    "preference": "preference --dataset pairs.jsonl --steps 120 --pairs-per-step 2",
    "reward-model": "reward-model --dataset pairs.jsonl --steps 120 --pairs-per-step 2",
    "reward-model-attributes": "reward-model --heads attributes --ratings ratings.jsonl --dataset pairs.jsonl "
    "--steps 60 --pairs-per-step 4",
    "rl": f"rl {SAMPLED} --steps 60 --max-new-tokens 6",
    "rl-turns": "rl --environment letters.py:Letters --steps 60 --max-new-tokens 6 --prompts-per-step 2",
    "online-preference": f"online-preference {SAMPLED} --rounds 60 --pairs-per-step 2 --max-new-tokens 6",
}


def write_data(folder: Path) -> None:
    """A model, and something to learn for each recipe."""
    model_folder(folder / "model")
    (folder / "letters.py").write_text(ENVIRONMENT)
    (folder / "reward.py").write_text(REWARD)
    rows = {
        "tasks": [{"prompt": f"{i}+2?", "answer": ""} for i in range(6)],
        "rows": [{"prompt": f"{i}+2?", "completion": f"It is {i + 2}."} for i in range(16)],
        "pairs": PAIRS[:16],
        "ratings": RATED,
    }
    for name, each in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in each))


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A process of the command line in that folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "posttrain", *words, "--quiet"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str]) -> None:
    """Wait until it has ended well."""
    said, _ = process.communicate(timeout=600)
    if process.returncode:
        raise SystemExit(f"exit {process.returncode}: {said}")


def found_in(run: Path) -> dict[str, Any]:
    """What must be equal: metrics without times, samples, and the last checkpoint."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{key: value for key, value in row.items() if not key.startswith(OF_THE_MACHINE)} for row in rows]
    samples = (run / "samples.jsonl").read_text() if (run / "samples.jsonl").exists() else ""
    last = max((run / "checkpoints").glob("step-*"))
    return {"metrics": metrics, "samples": samples, **{path.name: path.read_bytes() for path in last.iterdir()}}


def rows_in(run: Path) -> int:
    """How many rows of metrics are written."""
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def begin(folder: Path, words: list[str]) -> subprocess.Popen[str]:
    """The run that is killed, gone on with once it has a checkpoint."""
    run = folder / "killed"
    if any((run / "checkpoints").glob("step-*")):
        return start(folder, words[0], "--resume", "killed")
    shutil.rmtree(run, ignore_errors=True)
    return start(folder, *words, "--output", "killed")


def killed(folder: Path, words: list[str], kills: int, draw: random.Random) -> str:
    """What differs between a run that is killed so often and one that is not; "" where nothing does."""
    began, whole, run = time.monotonic(), folder / "whole", folder / "killed"
    process = start(folder, *words, "--output", "whole")
    while process.poll() is None and not rows_in(whole):
        time.sleep(0.01)
    first = time.monotonic() - began
    finish(process)
    rows = rows_in(whole)
    step, instants, starting = (time.monotonic() - began - first) / rows, list[int](), 0
    while len(instants) < kills:
        process, before = begin(folder, words), rows_in(run)
        in_training = draw.random() < 0.75
        if in_training:  # a fair share of the rows that are left
            least = before + 1 + draw.randrange(max(1, 2 * (rows - before) // (kills - len(instants) + 1)))
            while process.poll() is None and rows_in(run) < least:
                time.sleep(0.001)
            time.sleep(draw.uniform(0, step))
        else:
            time.sleep(draw.uniform(0, first))
        process.send_signal(signal.SIGKILL)
        said, _ = process.communicate()
        if process.returncode == 0:  # it has ended before: begin another one
            if (wrong := different(found_in(whole), found_in(run))) != "":
                return wrong
            shutil.rmtree(run)
        elif process.returncode != -signal.SIGKILL:
            return f"could not be resumed: {said}"
        else:
            instants.append(rows_in(run))
            starting += not in_training
    finish(begin(folder, words))
    print(
        f"  killed {len(instants)} times, {starting} of them before its first row, with {instants} of {rows} rows of "
        "metrics written",
        flush=True,
    )
    return different(found_in(whole), found_in(run))


def different(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """The first thing that differs."""
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    return f"{names} differ" if names else ""


def main() -> int:
    """Print what became of each recipe; 1 if any run differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(RECIPES), help="recipes; all unless given")
    parser.add_argument("--kills", type=int, default=20, help="of each recipe (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="decides the instants (default: 0)")
    options = parser.parse_args()
    wrong = 0
    for name in options.names:
        with tempfile.TemporaryDirectory(prefix="posttrain-kills-") as scratch:
            folder = Path(scratch)
            write_data(folder)
            common = "--model model --precision float32 --lr 1e-3 --warmup-steps 0 --save-every 1"
            words = [*RECIPES[name].split(), *common.split()]
            began = time.monotonic()
            found = killed(folder, words, options.kills, random.Random(f"{name} {options.seed}"))
            print(f"{name}: {found or 'equal'} ({time.monotonic() - began:.0f} s)", flush=True)
            wrong += bool(found)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
