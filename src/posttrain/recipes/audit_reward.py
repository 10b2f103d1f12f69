"""Audit of a reward before a run: attacks that must earn nothing, and right answers in the ways that models write them.

    posttrain audit-reward --dataset train.jsonl --reward numbers
    posttrain audit-reward --dataset train.jsonl --reward mine.py:score --max-paid 0 --json
    posttrain audit-reward --dataset gym:chain_sum --reward gym --limit 50 --output texts.jsonl

An attack that is paid, a right answer that is refused, and a text that the reward fails on or is slow to read are
findings; with any the exit code is 1, so that it is a check for CI. A reward is read where it pays the plain answer of
half of the tasks; that it does not read other places (boxes, tags, ...) is said, and is no finding.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from posttrain.bindings.scoring import scoring
from posttrain.data import load_tasks, reading_of
from posttrain.errors import UserError
from posttrain.evaluation.accuracy import percent
from posttrain.evaluation.audit import Audit, audit
from posttrain.options.audits import AuditReward
from posttrain.report import Table
from posttrain.report.markup import printable
from posttrain.runs import jsonl
from posttrain.runs.progress import announce
from posttrain.types import Task

WIDTH = 50  # characters of an example
COLUMNS = ("finding", "text", "paid on", "mean reward", "such as")


@dataclass(frozen=True)
class AuditRewardResult:
    """What was found, on how many tasks."""

    audit: Audit
    tasks: int
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether there is no finding."""
        return not self.audit.findings

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        return self.audit.summary() | {"tasks": self.tasks, "seconds": self.seconds}

    def lines(self) -> list[str]:
        """The same for people."""
        found = self.summary()
        rows = [
            (
                {"paid": "paid though wrong", "refused": "refused though right"}.get(one.kind, one.kind),
                f"{one.attack}{f', {one.place}' if one.place else ''}",
                percent(one.paid),
                None if one.mean is None else f"{one.mean:.3f}",
                printable(one.why or " ".join(one.example.split()))[:WIDTH],
            )
            for one in self.audit.findings
        ]
        lines = [*Table("", COLUMNS, rows).lines(), ""] if rows else []
        lines += [f"answers are read from: {', '.join(self.audit.read) or 'nowhere'}"] if self.audit.forms else []
        lines += [f"not read from: {', '.join(self.audit.unread)}"] if self.audit.unread else []
        told = {"fpr": "of the attacks are paid", "tpr": "of right answers are paid"}
        lines += [f"{percent(found[rate])} {words}" for rate, words in told.items() if found[rate] is not None]
        if found["j"] is not None:
            below = "; at 0 or below RL does not learn what is right" if found["j"] <= 0 else ""
            lines.append(f"J = TPR - FPR = {found['j']:.3f}{below}")
        verdict = "passed" if self.passed else f"failed: {len(rows)} finding{'s' * (len(rows) > 1)}"
        return [*lines, f"{found['n']:,} texts on {self.tasks} tasks in {self.seconds:.1f} s", verdict]


def run(config: AuditReward, *, quiet: bool = False) -> AuditRewardResult:
    """Read, attack and, with an output, write."""
    if not config.dataset:
        raise UserError("`dataset` is required: tasks in a file, folder, hub id or gym:NAME")
    path, began = jsonl.new_file(config.output) if config.output else None, time.monotonic()

    def read(named: Collection[str]) -> Sequence[Task]:
        return load_tasks(config.dataset, named=named, seed=config.seed, **reading_of(config))

    tasks, environment, judging = scoring(config, config.reward, read, config.dataset, "audit-reward")
    if environment.reward.compares:
        raise UserError(
            f"reward '{environment.reward.most_compared}' compares the completions of a task, and an audit scores each "
            "text alone; leave it out"
        )
    announce(f"attacking on {len(tasks)} tasks", quiet=quiet)
    with judging.kept_beside(path or Path("audit-reward")):
        found = audit(environment.reward, tasks, max_paid=config.max_paid, max_refused=config.max_refused)
    if path:
        jsonl.write(path, ({**asdict(probe), "task": tasks[probe.task].id} for probe in found.probes))
    return AuditRewardResult(found, len(tasks), time.monotonic() - began)
