"""Reading run directories."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.errors import DataError, UserError
from posttrain.runs import config_file, jsonl
from posttrain.runs.timeline import Span
from posttrain.runs.timeline import read as read_timeline

CONFIG, METRICS, SAMPLES, HELDOUT = "config.toml", "metrics.jsonl", "samples.jsonl", "heldout.jsonl"
ENVIRONMENT, REPORT, CHECKPOINTS = "environment.json", "report.html", "checkpoints"


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion that a run shows. Its text is the model's own and is not to be trusted.

    Attributes:
        prompt: what was asked, in words.
        completion: what the model said.
        rewards: by name; `reward` is their total.
        reward: what the completion earned in all.
        answer: what would have been right, where that is known.
        stop_reason: why the completion ended.
        model: who said it, in runs that ask several.
        seat: whose words they are, where several seats are trained.
    """

    prompt: str
    completion: str
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    reward: float | None = None
    answer: str = ""
    stop_reason: str = ""
    model: str = ""
    seat: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """The contents of a run directory.

    Attributes:
        metrics: one row a step, in order, each with its `step`.
        samples: rows with `step` and the fields of `Sample`.
        heldout: the same of held-out prompts, where there were evaluations.
        timeline: who did what when, in a run of several processes.
    """

    path: Path
    command: str
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    heldout: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    timeline: list[Span] = field(default_factory=list[Span])

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name


def read_run(path: Path) -> Run:
    """Read a run directory; options that were renamed since have their new names.

    Raises:
        UserError: there is no run at `path`.
        DataError: a file of it is damaged before its last line.
    """
    if not (path / CONFIG).is_file():
        raise UserError(f"no run at {path}; expected a run directory with a {CONFIG}, such as runs/rl-2026-01-31-1")
    environment = read_environment(path)
    return Run(
        path=path,
        command=str(environment.get("command", "")),
        config=config_file.renamed(config_file.read(path / CONFIG)),
        environment=environment,
        metrics=jsonl.read(path / METRICS),
        samples=jsonl.read(path / SAMPLES),
        heldout=jsonl.read(path / HELDOUT),
        timeline=read_timeline(path),
    )


def read_environment(path: Path) -> dict[str, Any]:
    """The run's environment; empty if its file is missing."""
    try:
        environment = json.loads((path / ENVIRONMENT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DataError(f"{path / ENVIRONMENT} is not JSON: {error}") from error
    if not isinstance(environment, dict):
        raise DataError(f"{path / ENVIRONMENT}: expected one JSON object; got {type(environment).__name__}")
    return environment
