"""Training on what a program can check: a table with baseline, best constant answer and control, from commands.

    python benchmarks/checked.py code --output runs/checked
    python benchmarks/checked.py code constraints --methods rl control --seeds 0 1 2 --output runs/checked

Rows: code (functions with tests), constraints (held-out kinds), knights-2 and knights-3 (knights and knaves of two and
three people), curriculum (sums of mixed difficulty; its methods draw tasks alike, by success and by length). A row is
its commands: data, a cold start with seed 0, runs of RL and, of each model, an evaluation on the same held-out tasks.
Each command is printed before it runs, and none that has finished is run again: give the same --output to go on.

Intervals are 95%, over tasks; the gain is paired by task. *Constant* is the share of the held-out tasks that one fixed
answer gets: the most common one, or for code and constraints the best of some texts that were written to pass. The
method *control* is the same run with rewards shuffled within groups, whose gain is no effect of them.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from posttrain.evaluation.accuracy import best_constant
from posttrain.runs import jsonl, read_run
from posttrain.statistics import mean_interval, paired_difference_interval

HERE = Path(__file__).resolve().parent.parent / "examples"
PATTERN = "def {name}(x):\n    return {value}\n"
NAMES = ("f", "g", "solve", "compute", "apply", "convert")
TEXTS = (
    '"<<Note>> It is small. P.S. Bye"',
    '"<<Note>> Water morning people small because often green night long together. One. Two. P.S. Bye"',
    "* A *small* point\n* It ends. That is all.",
    "Water water morning morning people people small small because because often often green green night night long "
    "long together together so it goes on and on for more than that.\n* *A*\n* That is all.",
)
SUMS = "gym:chain_sum?min_terms=2&max_terms=6&min_digits=1&max_digits=1"
CONTROL = {"rl": "", "control": "--reward-control shuffled"}
TRAIN = "--warmup-steps 2 --decay linear --microbatch-tokens 2048 --save-every 1000 --keep-last 1"
SFT = f"sft {TRAIN} --lr 3e-5 --examples-per-step 8"
RL = "--kl-coefficient 0 --warmup-steps 1 --save-every 1000"


@dataclass(frozen=True)
class Row:
    """A row: its commands, in which {out}, {model}, {data} and {examples} are paths."""

    task: str
    train: str  # options of rl
    heldout: str  # options of evaluate
    outcome: str  # the reward that says what is right
    cold: str = ""  # the command of the cold start; "": the packaged model
    model: str = "{out}/cold"  # where the cold start is
    make: str = ""  # arguments of a script of examples/
    methods: Mapping[str, str] = field(default_factory=lambda: dict(CONTROL))
    steps: int = 8
    tasks: int = 100  # held out, with four samples each
    constants: Callable[[], tuple[str, ...]] = tuple  # texts that were written to pass


def programs() -> tuple[str, ...]:
    """Programs that define all names, each with one constant or the argument itself."""
    values = ("x", "0", "1", "2", "len(x)", "sum(x)", "max(x)", "x[0]")
    return tuple("".join(PATTERN.format(name=name, value=value) for name in NAMES) for value in values)


def knights(make: str) -> Row:
    """Knights and knaves."""
    options = '--reward "{examples}/knights.py:score tags=0.1"'
    return Row(
        "knights and knaves",
        f"{options} --dataset {{data}}/train.jsonl --prompts-per-step 6 --completions-per-prompt 8 "
        "--max-new-tokens 96 --lr 2e-5 --microbatch-tokens 2048",
        f"{options} --dataset {{data}}/heldout.jsonl --max-new-tokens 96",
        "score",
        cold="sft --dataset {data}/cold.jsonl --limit 128 --lr 5e-5 --warmup-steps 2 --microbatch-tokens 2048",
        make=make,
        tasks=64,
    )


ROWS = {
    "code": Row(
        "functions with four tests",
        "--dataset {data}/train.jsonl --reward code --prompts-per-step 8 --completions-per-prompt 8 "
        "--max-new-tokens 64 --lr 2e-5",
        "--dataset {data}/heldout.jsonl --reward code --max-new-tokens 64",
        "code",
        cold="sft --dataset {data}/train.jsonl --limit 48 --lr 5e-5 --warmup-steps 2 --microbatch-tokens 2048",
        make="functions.py {data}",
        constants=programs,
    ),
    "constraints": Row(
        "one instruction of six kinds",
        "--dataset {data}/train.jsonl --reward constraints --prompts-per-step 8 --completions-per-prompt 8 "
        "--max-new-tokens 64 --lr 2e-5",
        "--dataset {data}/heldout.jsonl --reward constraints --max-new-tokens 64",
        "constraints",
        model="smollm2-135m-instruct",
        make="constraints.py {data}",
        constants=lambda: TEXTS,
    ),
    "knights-2": knights("knights.py {data}"),
    "knights-3": knights("knights.py {data} --logic-kk {logic_kk}"),
    "curriculum": Row(
        "sums of 2 to 6 terms",
        f'--system "Solve the problem." --dataset "{SUMS}" --limit 48 --reward "gym_bare=1.0 tags=0.1" '
        "--prompts-per-step 16 --completions-per-prompt 4 --max-new-tokens 64 --lr 1.5e-5",
        f'--system "Solve the problem." --dataset "{SUMS}" --reward gym_bare --max-new-tokens 64',
        "gym_bare",
        cold="quickstart --rl-steps 1 --problems 8 --samples 2 --base-problems 1",
        model="{out}/cold/cold-start/model",
        methods={"alike": "", "success": "--curriculum success", "length": "--curriculum length"},
    ),
}


def ran(command: str, output: Path) -> float:
    """Run a command of posttrain, or a script, unless it has finished; its seconds. What it writes is `output`."""
    done = output.with_name(f"{output.name}.seconds")
    if not done.exists():
        shutil.rmtree(output, ignore_errors=True)  # of a run that was cut off
        output.unlink(missing_ok=True)
        words = shlex.split(command)
        print(f"$ {'python' if words[0].endswith('.py') else 'posttrain'} {command}", flush=True)
        began = time.monotonic()
        subprocess.run([sys.executable, *([] if words[0].endswith(".py") else ["-m", "posttrain"]), *words], check=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        done.write_text(f"{time.monotonic() - began:.1f}")
    return float(done.read_text())


def piped(name: str, values: Mapping[str, Any], output: Path) -> float:
    """Run a shipped pipeline, or go on with it; its seconds."""
    options = " ".join(f"--with {key}={value}" for key, value in values.items())
    words = f"--resume {output}" if (output / "stages.jsonl").exists() else f"{name} {options} --output {output}"
    return ran(f"pipeline {words}", output / "report.html")


def once(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """A file of rows, which is written once."""
    if not path.exists():
        jsonl.write(path, rows)
    return path


@dataclass(frozen=True)
class Found:
    """What a model answered to the held-out tasks."""

    rates: dict[str, float]  # by task
    answers: dict[str, str]  # that are right, where they are known

    def part(self, name: str) -> list[str]:
        """The tasks whose id begins with this."""
        return [task for task in self.rates if task.startswith(name)]


def found_in(output: Path, outcome: str) -> Found:
    """Read the samples of an evaluation."""
    solved: dict[str, list[bool]] = {}
    answers: dict[str, str] = {}
    for sample in read_run(output).samples:
        solved.setdefault(sample["task"], []).append(sample["rewards"].get(outcome, 0.0) >= 1)
        answers[sample["task"]] = sample["answer"]
    return Found({task: fmean(each) for task, each in solved.items()}, answers)


def constant_of(row: Row, data: Path, found: Found, tasks: list[str]) -> float:
    """The share of these tasks that the best constant answer gets."""
    texts = row.constants()
    if not texts:
        known: dict[str, str] = {}
        if (data / "heldout.jsonl").exists():  # of knights who is what, whatever their names are
            lines = (data / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
            known = {one["answer"]: one["roles"] for one in map(json.loads, lines)}
        found_one = best_constant([known.get(found.answers[task], found.answers[task]) for task in tasks])
        return found_one[1] if found_one else 1 / len(tasks)
    rows = [json.loads(line) for line in (data / "heldout.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = [one for place, one in enumerate(rows) if one.get("id", f"row-{place}") in tasks] or rows[: len(tasks)]
    asked, scored = data / f"constant-{len(kept)}-{tasks[0][:4]}.jsonl", data / f"scored-{tasks[0][:4]}.jsonl"
    asked.write_text("".join(json.dumps({**one, "completion": text}) + "\n" for text in texts for one in kept))
    ran(f"score --dataset {asked} --reward {row.outcome} --output {scored}", scored)
    earned = [json.loads(line)["reward"] for line in scored.read_text(encoding="utf-8").splitlines()]
    return max(fmean(earned[place : place + len(kept)]) for place in range(0, len(earned), len(kept)))


def interval(mean: float, ends: tuple[float, float], sign: str = "") -> str:
    """A share with its interval."""
    return f"{mean:{sign}.3f} ({ends[0]:{sign}.3f} to {ends[1]:{sign}.3f})"


def share(rates: Sequence[float]) -> str:
    """A mean with its interval."""
    return interval(fmean(rates), mean_interval(rates)) if rates else "none"


def gain(before: Sequence[float], after: Sequence[float]) -> str:
    """A paired difference with its interval."""
    return interval(fmean(after) - fmean(before), paired_difference_interval(before, after), "+")


def line(*cells: Any) -> None:
    """Print a line of a table."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def head(*names: str) -> None:
    """Print the first lines of a table."""
    line(*names)
    print("|" + "---|" * len(names), flush=True)


def measure(row: Row, name: str, given: argparse.Namespace) -> None:
    """Run a row, and print its lines of the table."""
    out = given.output.resolve() / name
    data = out / "data"
    paths = {"out": out, "data": data, "examples": HERE, "logic_kk": given.logic_kk}
    paths["model"] = row.model.format(**paths)
    short = f" --steps {given.steps}" if given.steps else ""
    if row.make:
        ran(f"{HERE}/{row.make.format(**paths)}", data)
    cold = 0.0
    if row.cold:
        command = row.cold.format(**paths) + (short if row.cold.startswith("sft") else "")
        cold = ran(f"{command} --output {out}/cold", out / "cold")
    heldout = row.heldout.format(**paths) + (" --limit 6 --samples 1" if short else f" --limit {row.tasks} --samples 4")
    ran(f"evaluate --model {paths['model']} {heldout} --output {out}/cold-evaluated", out / "cold-evaluated")
    before = found_in(out / "cold-evaluated", row.outcome)
    parts = sorted({task.partition("-")[0] for task in before.rates}) if name == "constraints" else [""]
    for seed in given.seeds:
        for method in given.methods or row.methods:
            run = out / f"{method}-{seed}"
            steps = given.steps or row.steps
            options = f"{row.train.format(**paths)} {RL} {row.methods[method]} --steps {steps} --seed {seed}"
            took = ran(f"rl --model {paths['model']} {options} --output {run}", run)
            evaluated = out / f"{run.name}-evaluated"
            ran(f"evaluate --model {run} {heldout} --output {evaluated}", evaluated)
            shutil.rmtree(run / "checkpoints", ignore_errors=True)  # 1.6 GB of each run
            after, metrics = found_in(evaluated, row.outcome), read_run(run).metrics
            tokens = sum(one.get("tokens", 0) for one in metrics)
            for part in parts:
                tasks = before.part(part)
                was, now = ([each.rates[task] for task in tasks] for each in (before, after))
                constant = constant_of(row, data, before, tasks)
                said = f"{row.task}{f', kinds: {part}' if part else ''}"
                cells: list[Any] = [name, said, method, seed, share(was), share(now), gain(was, now), f"{constant:.3f}"]
                line(*cells, len(tasks), f"{tokens:,}", f"{took / 60:.1f}", f"{cold / 60:.1f}")


HEAD = (
    *("row", "task", "method", "seed", "before", "after", "gain, paired", "constant", "tasks", "tokens sampled"),
    *("minutes", "cold start, minutes"),
)


def main() -> None:
    """Run rows, and print their lines of the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", choices=ROWS)
    parser.add_argument("--output", type=Path, default=Path("runs/checked"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--methods", nargs="+", help="of a row; default: all")
    parser.add_argument("--logic-kk", default="3ppl_train.parquet", help="that file of Logic-RL's data")
    parser.add_argument("--steps", type=int, default=0, help="a short try of all commands")
    given = parser.parse_args()
    head(*HEAD)
    for name in given.rows:
        measure(ROWS[name], name, given)


if __name__ == "__main__":
    main()
