"""Signals random processes of a run on a cluster at random instants, and checks what became of it.

    python -m tests.distributed.kills [--kills 50] [--seed 0] [--max-staleness 0]

The run has two trainers, two samplers, and two scorers with a reward function. One process at a time gets SIGKILL, or,
if it is a trainer, a sampler or a scorer, perhaps SIGSTOP: the command, one of these, or one of Ray's. A command that
has ended is resumed. At the end no process may be left, and:

- A run in turn plays episodes of three turns. Its metrics, samples and last checkpoint must equal those of an
  undisturbed run.
- A run that samples ahead depends on the clock. It must have every step once, trained on each prompt once, from weights
  that are at most as old as allowed.

This takes about 15 seconds for each signal, and is no part of the test suite.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from tests.recipes.kills import different, found_in, rows_in, write_data

PROMPTS = 2  # of a step
IN_TURN = "rl --environment letters.py:Letters --reward environment|reward.py:varied=0.1"
AHEAD = "rl --dataset many.jsonl --reward reward.py:varied --completions-per-prompt 4"
WORDS = f"--max-new-tokens 6 --prompts-per-step {PROMPTS} --save-every 1"
MODEL = "--model model --precision float32 --lr 1e-3 --warmup-steps 0"
CLUSTER = "--trainers 2 --samplers 2 --scorers 2 --cluster-timeout 10"
OURS = {"trainer": "ray::Rank", "sampler": "ray::Sampler", "scorer": "ray::ScoringProcess"}
KINDS = OURS | {"raylet": "raylet/raylet", "gcs": "gcs/gcs_server"}
PATIENCE_S = 180.0  # for a run to gain a step


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """A process of the command line in that folder."""
    said = open(folder / "said.txt", "ab")  # noqa: SIM115  the process writes it
    command = [sys.executable, "-m", "posttrain", *words, "--quiet"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "POSTTRAIN_KILLS": str(folder)}
    return subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, env=environment)


def processes(folder: Path, command: int = 0) -> dict[str, list[psutil.Process]]:
    """The processes of a command, or all that commands have started in the folder, by kind."""
    found: dict[str, list[psutil.Process]] = {kind: [] for kind in (*KINDS, "other")}
    for process in psutil.Process(command).children(recursive=True) if command else psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            if process.environ().get("POSTTRAIN_KILLS") == str(folder):
                line = " ".join(process.cmdline())
                kind = next((kind for kind, mark in KINDS.items() if mark in line), "other")
                found[kind].append(process)
    return found


def words_of(steps: int, staleness: int) -> list[str]:
    """The run, as it is typed."""
    kind = f"{AHEAD} --max-staleness {staleness}" if staleness else IN_TURN
    words = [*kind.split(), *WORDS.split(), *MODEL.split(), *CLUSTER.split(), "--steps", str(steps)]
    return [word.replace("|", " ") for word in words]


def go_on(folder: Path, words: list[str]) -> subprocess.Popen[bytes]:
    """Begin the run, or resume it."""
    if any((folder / "killed/checkpoints").glob("step-*")):
        return start(folder, "rl", "--resume", "killed")
    subprocess.run(["rm", "-rf", str(folder / "killed")], check=True)
    return start(folder, *words, "--output", "killed")


def wait_for_rows(folder: Path, command: subprocess.Popen[bytes], rows: int) -> None:
    """Until the run has so many, or has ended; raises SystemExit if it hangs."""
    before, since = rows_in(folder / "killed"), time.monotonic()
    while command.poll() is None and rows_in(folder / "killed") < rows:
        if (now := rows_in(folder / "killed")) != before:
            before, since = now, time.monotonic()
        if time.monotonic() - since > PATIENCE_S:
            raise SystemExit(f"the run hangs after row {before}: {(folder / 'said.txt').read_text()[-3000:]}")
        time.sleep(0.01)


def disturb(folder: Path, command: subprocess.Popen[bytes], draw: random.Random) -> str:
    """Send a signal to one process; its kind and the signal, "" if there is none of the kind that was drawn."""
    kind = draw.choices(["command", *KINDS], [2, 3, 3, 2, 1, 1])[0]
    sign = signal.SIGSTOP if kind in OURS and draw.random() < 0.3 else signal.SIGKILL
    if kind == "command":
        command.kill()
        return "command SIGKILL"
    found = list[psutil.Process]()
    with contextlib.suppress(psutil.NoSuchProcess):
        found = processes(folder, command.pid)[kind]
    if not found:
        return ""
    with contextlib.suppress(psutil.NoSuchProcess):
        draw.choice(sorted(found, key=lambda process: process.pid)).send_signal(sign)
        return f"{kind} {sign.name}"
    return ""


def disturbed(folder: Path, words: list[str], steps: int, kills: int, draw: random.Random) -> Counter[str]:
    """Run to the end with so many signals in between; how many of each kind."""
    sent: Counter[str] = Counter()
    command = go_on(folder, words)
    while sum(sent.values()) < kills:
        rows = rows_in(folder / "killed")
        share = (steps - rows) / (kills - sum(sent.values()))
        if draw.random() < 0.8:
            wait_for_rows(folder, command, rows + draw.randint(1, max(1, int(1.5 * share))))
        time.sleep(draw.uniform(0, 0.5))
        if command.poll() is not None:
            if command.returncode == 0:
                break
            if command.returncode == 2:  # what is typed is refused
                raise SystemExit((folder / "said.txt").read_text()[-3000:])
            print(f"  the command ended with {command.returncode}; resumed at row {rows_in(folder / 'killed')}")
            command = go_on(folder, words)
            continue
        if what := disturb(folder, command, draw):
            sent[what] += 1
            print(f"{sum(sent.values())}. {what} at row {rows_in(folder / 'killed')}", flush=True)
        if what.startswith("command"):
            command.wait()
    while True:
        wait_for_rows(folder, command, steps + 1)
        if command.wait(PATIENCE_S) == 0:
            return sent
        command = go_on(folder, words)


def compared(folder: Path, words: list[str]) -> str:
    """How the run differs from one that is undisturbed."""
    if start(folder, *words, "--output", "whole").wait():
        raise SystemExit((folder / "said.txt").read_text())
    return different(found_in(folder / "whole"), found_in(folder / "killed"))


def lost_or_repeated(run: Path, steps: int, staleness: int) -> str:
    """What is wrong with the steps of a run that has sampled ahead."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    if [row["step"] for row in rows] != list(range(1, steps + 1)):
        return f"steps are {[row['step'] for row in rows]}"
    if (oldest := max(row["staleness/max"] for row in rows)) > staleness:
        return f"a token is {oldest} steps old"
    if twice := [prompt for prompt, n in Counter(str(sample["prompt"]) for sample in samples).items() if n > 1]:
        return f"trained on twice: {twice}"
    return "" if len(samples) == PROMPTS * steps else f"{len(samples)} prompts in {steps} steps of {PROMPTS}"


def main() -> None:
    """Read the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-staleness", type=int, default=0)
    args = parser.parse_args()
    steps = 3 * args.kills
    words = words_of(steps, args.max_staleness)
    with tempfile.TemporaryDirectory(prefix="posttrain-kills-") as name:
        folder = Path(name)
        write_data(folder)
        tasks = [{"prompt": f"{number}?", "answer": ""} for number in range(PROMPTS * steps)]
        (folder / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tasks))
        began = time.monotonic()
        sent = disturbed(folder, words, steps, args.kills, random.Random(args.seed))
        print(f"{sum(sent.values())} signals in {time.monotonic() - began:.0f} s: {dict(sorted(sent.items()))}")
        if args.max_staleness:
            wrong = lost_or_repeated(folder / "killed", steps, args.max_staleness)
        else:
            wrong = compared(folder, words)
        for _ in range(90):
            left = [process for each in processes(folder).values() for process in each]
            if not left:
                break
            time.sleep(1)
        print(f"left: {[process.cmdline()[:3] for process in left]}")
        once = f"each of {PROMPTS * steps} prompts was trained on once"
        print(wrong or (once if args.max_staleness else "equal: metrics, samples, last checkpoint"))
        if wrong or left:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
