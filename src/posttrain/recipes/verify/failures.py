"""Items 7, 8, 9: a killed run goes on to the same bits; what fails is an error with one cause, never a score of 0.

For item 7 the real command is run, `posttrain rl` in processes of its own, on one layer of the model's own architecture
and widths with random weights and its own tokenizer: what is checked is the loop and its files, not the model.
"""

import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from posttrain import fast_paths
from posttrain.engine.engine import BatchEngine
from posttrain.engine.scripted import ScriptedEngine
from posttrain.environments.env import Seat
from posttrain.environments.scored import ScoredEnvironment
from posttrain.episodes.episodes import Players, sample_groups
from posttrain.errors import PosttrainError, RewardError
from posttrain.models.load import probe
from posttrain.recipes.verify.subject import ALTERNATING, QUESTIONS, Dialogue, Item, Subject, batch_of
from posttrain.rewards import Weighted, from_function
from posttrain.runs import jsonl
from posttrain.runs.run import METRICS
from posttrain.types import Completion, Engine, Group, Outcome, Request, Sampling, Task

HANG_S = 5.0  # of a reward, which has
REWARD_LIMIT_S = 0.3
REWARD = "def varied(completion):\n    return float(len(completion) % 3)\n"  # random words do not solve anything
SAVE_EVERY = 2
LIMIT_S = 600.0
MEASURED = ("seconds/", "tokens_per_second", "memory_gb")  # of the machine, not of the method
RESULTS = ("masters.safetensors", "optimizer.safetensors")


class _Failing(BatchEngine):
    def generate(self, requests: Sequence[Request], on_tokens: Callable[[int], None] | None = None) -> list[Completion]:
        raise PosttrainError("the engine is unplugged")


def _raises(completion: str) -> float:
    raise OSError("the judge cannot be reached")


def _hangs(completion: str) -> float:
    time.sleep(HANG_S)
    return 1.0


def _nan(completion: str) -> float:
    return math.nan


def _too_few(completions: list[str]) -> list[float]:
    return [1.0] * (len(completions) - 1)


def failures(subject: Subject) -> Item:
    """Rewards that raise, hang, return NaN or lose a value, and an engine that fails, through training's driver."""
    chat = subject.policy.chat
    fine = ScriptedEngine(lambda request: (min(chat.stop_ids),), chat.stop_ids)
    cases: list[tuple[Callable[..., object], Engine, type[PosttrainError], str]] = [
        (_raises, fine, RewardError, "the judge cannot be reached"),
        (_hangs, fine, RewardError, "did not finish within"),
        (_nan, fine, RewardError, "nan"),
        (_too_few, fine, RewardError, "_too_few"),
        (_raises, _Failing(), PosttrainError, "the engine is unplugged"),
    ]
    found: list[str] = []
    for reward, engine, kind, cause in cases:
        what = "an engine that fails" if engine is not fine else f"a reward like {reward.__name__}"
        rewards = Weighted(((from_function(reward), 1.0),), timeout_s=REWARD_LIMIT_S if reward is _hangs else 60.0)
        players = Players(engine, chat, Sampling(subject.config.max_new_tokens))
        words = {"completions_per_prompt": 2, "seed": subject.config.seed}
        try:
            sample_groups(ScoredEnvironment(rewards), subject.tasks, players, **words)
        except kind as error:
            if cause not in str(error) or "\n" in str(error):
                found.append(f"{what}: the error does not say in one line what failed: {error}")
        except Exception as error:
            found.append(f"{what}: came out as {type(error).__name__}: {error}")
        else:
            found.append(f"{what}: was given a score")
    kinds = "rewards that raise, hang, return NaN or lose a value, and an engine that fails"
    return Item.unless("failures", found, f"{len(cases)} ways to fail are errors with one cause: {kinds}")


@dataclass(frozen=True)
class _Fails(Dialogue):
    """A dialogue in which those episodes break whose seeds are in `broken`; it notes the seeds of all."""

    broken: frozenset[int] = frozenset()
    seeds: list[int] = field(default_factory=list[int])

    async def play(self, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        self.seeds.append(seed)
        if seed not in self.broken:
            return await super().play(task, seats, seed)
        await seats["policy"].turn(task.prompt)
        raise RuntimeError("a tool has broken")


def lost_episodes(subject: Subject) -> Item:
    """The same dialogues, whole, with one episode broken, and with all but one of a task broken."""
    policy, size = subject.exact, subject.config.completions_per_prompt
    players = Players(policy.engine, policy.chat, Sampling(subject.config.max_new_tokens), max_lost=1.0)
    words = {"completions_per_prompt": size, "seed": subject.config.seed, "min_group": 2}
    sampled = partial(sample_groups, tasks=subject.tasks, players=players, **words)
    whole = _Fails(max_turns=2)
    groups = sampled(ScoredEnvironment(ALTERNATING, whole))
    found: list[str] = []
    for broken, left in ((whole.seeds[:1], [size - 1] + [size] * (len(groups) - 1)),
                         (whole.seeds[: size - 1], [size] * (len(groups) - 1))):  # fmt: skip
        kept = sampled(ScoredEnvironment(ALTERNATING, _Fails(max_turns=2, broken=frozenset(broken))))
        if (sizes := [len(group.rows) for group in kept]) != left:
            found.append(f"with {len(broken)} of {size} episodes of a task broken, groups of {sizes} are left")
            continue
        parts = (
            replace(group, rows=tuple(row for row in group.rows if whole.seeds[n * size + row.episode] not in broken))
            for n, group in enumerate(groups)
        )
        expected = _tokens([group for group in parts if len(group.rows) >= 2])
        if _tokens(kept) != expected:
            found.append("the episodes that are left say other things than without the broken ones")
        counts, tokens = batch_of(kept).counts, sum(map(len, chain(*expected)))
        if (counts.sequences, counts.tokens) != (sum(left), tokens):
            found.append(f"denominators are {counts.sequences} and {counts.tokens}; left are {sum(left)} and {tokens}")
    return Item.unless(
        "lost episodes",
        found,
        f"with one of {size} episodes of a task broken the others are as they were, and denominators count them alone; "
        "a task of which one is left is left out",
    )


def _tokens(groups: Sequence[Group]) -> list[list[tuple[int, ...]]]:
    return [[turn.token_ids for turn in row.trajectory.turns] for group in groups for row in group.rows]


def resume(subject: Subject) -> Item:
    """Train twice, once killed with SIGKILL at a random step and resumed; compare all metrics and every bit."""
    with tempfile.TemporaryDirectory(prefix="posttrain-verify-") as name:
        folder = Path(name)
        options = _prepare(subject, folder)
        killed_at = random.Random(subject.config.seed).randrange(SAVE_EVERY + 1, subject.config.resume_steps)
        with (
            _started(folder / "through", [*options, "--output", "."]) as through,
            _started(folder / "killed", [*options, "--output", "."]) as killed,
        ):
            _kill_after(killed, folder / "killed", killed_at)
            _finish(through, folder / "through")
        with _started(folder / "killed", ["--resume", "."]) as resumed:
            _finish(resumed, folder / "killed")
        found = compare(folder / "through", folder / "killed", subject.config.resume_steps)
    detail = (
        f"{subject.config.resume_steps} steps of rl on one random layer of this architecture in "
        f"{subject.format}, killed after step {killed_at} and resumed: same metrics, and the same weights "
        "and optimiser bit for bit"
    )
    return Item.unless("resume", found, detail)


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
        "precision": subject.format,
        "steps": subject.config.resume_steps,
        "save-every": SAVE_EVERY,
        "prompts-per-step": 2,
        "completions-per-prompt": 3,
        "max-new-tokens": 6,
        "lr": 1e-3,
        "seed": subject.config.seed,
    }
    return [word for key, value in settings.items() for word in (f"--{key}", str(value))]


@contextmanager
def _started(run: Path, options: list[str]) -> "Iterator[subprocess.Popen[bytes]]":
    """The command in a process that is over, killed if need be, when the block is."""
    run.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "posttrain", "rl", *options, "--quiet"]
    # the folder of the run is no place to import from
    environment = {**os.environ, **fast_paths.for_children(), "PYTHONSAFEPATH": "1"}
    with (
        (run.parent / f"{run.name}.log").open("ab") as log,
        subprocess.Popen(
            command, cwd=run, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def _kill_after(process: "subprocess.Popen[bytes]", run: Path, step: int) -> None:
    """Kill the process as soon as it has logged `step`; it may be computing the next one, or saving this one."""
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        if len(_metrics(run)) >= step:
            return process.kill()
        time.sleep(0.01)
    raise _failed("the run that was to be killed ended before that", run)


def _finish(process: "subprocess.Popen[bytes]", run: Path) -> None:
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
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
