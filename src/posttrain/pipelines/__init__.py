"""Pipelines: stages that feed each other, each a command of its own, from one TOML file.

    posttrain pipeline r1 --with model=OWNER/NAME
    posttrain pipeline my.toml --dry-run

A stage is a child process, so that its memory is given back when it ends. In the directory of a pipeline each has the
file of its options (NAME.toml), its run or outputs (NAME/), and a row in `stages.jsonl` when it begins and ends, by
which a pipeline that was interrupted or killed goes on (docs/pipelines.md).
"""

import contextlib
import json
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.errors import PosttrainError, UserError, unknown
from posttrain.options.option import as_written
from posttrain.options.tools import Pipeline
from posttrain.pipelines.process import Ended, end_left, ran
from posttrain.pipelines.reading import read_stages
from posttrain.pipelines.stages import Known, Stage, Stages
from posttrain.pipelines.table import Row, table_of, with_stage
from posttrain.report import Table, write_report
from posttrain.runs import RunDirectory, config_file, jsonl
from posttrain.runs.interrupt import StopRequest, stop_requests
from posttrain.runs.processes import PROGRAM
from posttrain.runs.progress import announce
from posttrain.runs.run import CONFIG, ENVIRONMENT

STAGES = "stages.jsonl"


class StageEnded(PosttrainError):
    """A stage failed, or a signal stopped it; `exit_code` is what the command ends with."""

    def __init__(self, said: str, exit_code: int) -> None:
        """Say what happened, and what to type."""
        super().__init__(said)
        self.exit_code = exit_code


@dataclass(frozen=True)
class PipelineResult:
    """Where the pipeline is, and what each stage made."""

    run: Path
    report: Path
    table: Table
    stages: tuple[Row, ...]

    def lines(self) -> list[str]:
        """The same for people."""
        return [*self.table.lines(), "", f"run     {self.run}", f"report  {self.report}"]

    def summary(self) -> dict[str, Any]:
        """The same as JSON."""
        return {"run": self.run, "report": self.report, "stages": [row.summary() for row in self.stages]}


def run(
    config: Pipeline,
    known: Known,
    *,
    output: Path | None = None,
    resume: Path | None = None,
    quiet: bool = False,
    accept_changes: Sequence[str] = (),
) -> PipelineResult:
    """Run the stages that are not done yet, one after another."""
    stages = read_stages(config.file, config.with_, known)
    shipped = stages.origin.parent == Path(__file__).parent
    settings = as_written(config if shipped else replace(config, file=str(stages.origin)))
    if other := next((name for name in accept_changes if name not in stages.by_name), ""):
        raise unknown("stage in --accept-changes:", other, stages.by_name)
    if resume:
        _refuse_changes(stages, _last_rows(resume), accept_changes)
        directory = RunDirectory.resume(resume, settings, may_differ=("file", "with_"))
    else:
        directory = RunDirectory.create(output, "pipeline", settings)
    with directory, stop_requests() as stop:
        root, rows = directory.path.absolute(), list[Row]()
        (root / "pipeline.toml").write_bytes(stages.origin.read_bytes())
        last = _last_rows(root)
        for number, stage in enumerate(stages.by_name.values(), start=1):
            row = last.get(stage.name)
            if row and row["digest"] != stage.digest:
                row = _set_aside(root, stage)
            if not row or row["state"] != "done" or not stage.output(root).exists():
                announce(f"[{number}/{len(stages.by_name)}] {stage.name}: posttrain {stage.command}", quiet=quiet)
                row = _Work(stages, stage, known, root, row, quiet).done(stop)
            rows = with_stage(rows, stage.name, row, root)
            announce(f"{rows[-1].name}: {rows[-1].said}", quiet=quiet)
            write_report(directory.read(), tables=[table_of(stages.title, rows, links=True)], findings=[])
    return PipelineResult(directory.path, directory.report, table_of(stages.title, rows), tuple(rows))


def _refuse_changes(stages: Stages, last: Mapping[str, Any], accepted: Sequence[str]) -> None:
    """Refuse stages that have begun and are others now, unless that is accepted; those that need one follow it."""
    for name, stage in stages.by_name.items():
        if (row := last.get(name)) is None or row["own"] == stage.own or name in accepted:
            continue
        if row.get("code") == UserError.exit_code:  # a mistake, which has been corrected
            continue
        now = {"run": stage.command, **stage.table}
        how = "; ".join(config_file.differences({"run": row["command"], **row["table"]}, now))
        again = " ".join([*accepted, name])
        raise UserError(
            f"stage '{name}' has begun and is another one now: {how or 'a file that it reads has changed'}; undo that, "
            f'or type --accept-changes "{again}" to do it again, and all that needs it'
        )


def _last_rows(root: Path) -> dict[str, Any]:
    """The last row of each stage that has begun."""
    return {row["stage"]: row for row in jsonl.read(root / STAGES)}


def _set_aside(root: Path, stage: Stage) -> None:
    """Keep what a stage made that is done again."""
    free = next(path for number in range(1, 10_000) if not (path := root / f"{stage.name}.old-{number}").exists())
    with contextlib.suppress(FileNotFoundError):
        (root / stage.name).rename(free)


@dataclass(frozen=True)
class _Work:
    """A stage that is to be done, or to be gone on with."""

    stages: Stages
    stage: Stage
    known: Known
    root: Path
    last: Mapping[str, Any] | None  # its last row of `stages.jsonl`
    quiet: bool

    def done(self, stop: StopRequest) -> dict[str, Any]:
        """Its row of `stages.jsonl` once it is done; raises `StageEnded` where it is not."""
        stage, out = self.stage, self.root / f"{self.stage.name}.out"
        if self.last:
            end_left(self.last, stage.name)
        about = {"stage": stage.name, "command": stage.command, "table": stage.table}
        about |= {"own": stage.own, "digest": stage.digest}
        spent, words, began = self._spent(), self._words(), time.time()
        with (self.root / STAGES).open("ab") as journal:

            def write(state: str, **more: Any) -> dict[str, Any]:
                jsonl.append(journal, row := {**about, "state": state, **more})
                return row

            ended = Ended(0, stop.cause) if stop.requested else None
            ended = ended or ran(words, out, stop, lambda who: write("begun", began=began, spent=spent, **who))
            seconds = spent + time.time() - began
            if not ended.code and not ended.cause:
                *_, answer = out.read_text(encoding="utf-8").splitlines()
                return write("done", seconds=seconds, result=json.loads(answer))
            write("stopped" if ended.cause else "failed", seconds=seconds, code=ended.code)
        again = f"posttrain pipeline --resume {shlex.quote(str(self.root))}"
        if ended.cause:
            said = f"stopped by {ended.cause} in stage '{stage.name}'; to go on, type: {again}"
            raise StageEnded(said, 128 + signal.Signals[ended.cause])
        how = f"exit code {ended.code}" if ended.code > 0 else f"signal {signal.Signals(-ended.code).name}"
        said = f"stage '{stage.name}' (posttrain {stage.command}) ended with {how}, after what is said above"
        raise StageEnded(f"{said}; correct that, then type: {again}", max(1, ended.code))

    def _words(self) -> list[str]:
        """What is typed: to go on with a run that has begun, or to begin it, also where it had got nowhere."""
        stage, folder = self.stage, self.root / self.stage.name
        shared = self.known.commands[stage.command].shared
        if "resume" in shared and all((folder / name).is_file() for name in (CONFIG, ENVIRONMENT)):
            words = ["--resume", str(folder)]
        else:  # other files beside outputs are parts and caches, which the command finds
            for made in [stage.output(self.root, option) for option in stage.outputs] or [folder]:
                shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
            if "output" not in shared:
                folder.mkdir(exist_ok=True)
            file = _config(self.stages, stage, self.root, self.root)
            words = ["--config", str(file), *(["--output", str(folder)] if "output" in shared else [])]
        return [*stage.command.split(), *words, "--json", *(["--quiet"] if self.quiet and "quiet" in shared else [])]

    def _spent(self) -> float:
        """Seconds of earlier attempts; one that was killed lasted until it last wrote."""
        if not self.last or self.last["state"] == "done":
            return 0.0
        if "seconds" in self.last:
            return self.last["seconds"]
        written = [path.stat().st_mtime for path in (self.root / self.stage.name).rglob("*")]
        return self.last["spent"] + max(0.0, max(written, default=0.0) - self.last["began"])


def _config(stages: Stages, stage: Stage, root: Path, folder: Path) -> Path:
    """The file of a stage's options in a folder, for a pipeline whose directory is `root`."""
    file = folder / f"{stage.name}.toml"
    file.write_text(config_file.dumps(stages.options(stage, root)), encoding="utf-8")
    return file


@dataclass(frozen=True)
class PipelinePlan:
    """By stage what --dry-run of its command says, or why there is no plan of it."""

    stages: Mapping[str, Mapping[str, Any] | str]
    training: int  # stages to come that keep checkpoints

    @property
    def plans(self) -> dict[str, Mapping[str, Any]]:
        """Those of the stages that can be planned."""
        return {name: plan for name, plan in self.stages.items() if not isinstance(plan, str)}

    @property
    def disk(self) -> int:
        """Bytes of the checkpoints of all stages at most; a stage without a plan is taken for the largest that has one.

        The runs of all stages are kept, so that a pipeline fills a disk that each of its stages leaves room on.
        """
        known = [plan["disk_bytes"] for plan in self.plans.values()]
        return sum(known) + (self.training - len(known)) * max(known, default=0)

    def lines(self) -> list[str]:
        """The same for people."""
        each = [f"{name}: {plan if isinstance(plan, str) else _planned(plan)}" for name, plan in self.stages.items()]
        return each + [f"in all: {self._room()}"] * bool(self.plans)

    def summary(self) -> dict[str, Any]:
        """The same as JSON."""
        warnings = [f"{name}: {warning}" for name, plan in self.plans.items() for warning in plan["warnings"]]
        if self.disk > self._free():
            warnings.append(self._room())
        return {"stages": self.stages, "disk_bytes": self.disk, "warnings": warnings, "notes": list[str]()}

    def _free(self) -> int:
        return min((plan["free_disk_bytes"] for plan in self.plans.values()), default=0)

    def _room(self) -> str:
        """What is kept against what is free."""
        many = f"{self.training} stage{'s' * (self.training != 1)} to train"
        said = f"checkpoints of {many} take up to {self.disk / 1e9:.1f} GB and {self._free() / 1e9:.1f} GB are free"
        return said + "; make room, or keep fewer (keep_last)" * (self.disk > self._free())


def dry_run(config: Pipeline, known: Known, *, resume: Path | None = None) -> PipelinePlan:
    """Plan the stages whose inputs exist; all are checked, and nothing is written."""
    stages, found = read_stages(config.file, config.with_, known), dict[str, Mapping[str, Any] | str]()
    root, last = (resume or Path("PIPELINE")).absolute(), _last_rows(resume) if resume else {}
    done = {name for name, row in last.items() if row["state"] == "done"}
    trains = [name for name, stage in stages.by_name.items() if "dry_run" in known.commands[stage.command].shared]
    for name, stage in stages.by_name.items():
        waits = [other for other in stage.needs if other not in done]
        if name in done or waits or name not in trains:
            found[name] = "done" if name in done else f"{stage.command}{', after ' * bool(waits)}{', '.join(waits)}"
            continue
        with tempfile.TemporaryDirectory() as folder:
            words = [*PROGRAM, *stage.command.split(), "--config", str(_config(stages, stage, root, Path(folder)))]
            told = subprocess.run([*words, "--dry-run", "--json"], capture_output=True, text=True, check=False)
        if told.returncode:
            why = (told.stderr.splitlines() or [""])[-1].removeprefix("posttrain: ")
            raise UserError(f"stage '{name}' of {stages.origin}: {why}")
        found[name] = json.loads(told.stdout.splitlines()[-1])
    return PipelinePlan(found, len(set(trains) - done))


def _planned(plan: Mapping[str, Any]) -> str:
    seconds = plan["seconds"]
    time = "time not measured" if seconds is None else f"about {seconds / 60:.1f} minutes"
    sizes = f"{plan['peak_bytes'] / 1e9:.1f} GB of memory, {plan['disk_bytes'] / 1e9:.1f} GB of disk"
    return "; ".join([f"{plan['command']} of {plan['model']}, {time}, {sizes}", *plan["warnings"]])
