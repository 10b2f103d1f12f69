"""Training sessions, from run directory to report. The loop itself stays in the recipe.

    with open_session("sft", settings, Training(steps=..., trained=..., rate=..., ...), **where) as session:
        session.evaluate(examine)                     # before the first step, where the recipe has something held out
        for step in session.steps():                  # resume, signals, early stopping
            with session.update(examples):
                metrics = learner.forward_backward(batch, loss) | learner.optim_step({POLICY: session.lr})
            session.finish_step(metrics)              # log, progress, checkpoint when due
            session.evaluate(examine)                 # when due
    return Result(session.directory.path, session.step, session.interrupted, ...)

Failures: before the first update of a step nothing is lost, since the state after the last finished step is saved
from memory; after it, the last checkpoint remains. A failed or interrupted evaluation loses no update: its step
is saved, and a resumed run evaluates first. A signal ends sampling, scoring and evaluations at once; an update that has
begun is finished.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Unpack

from posttrain.data.packing import Example
from posttrain.errors import CheckpointError, PosttrainError, ProcessLost, TrainingError
from posttrain.report import write_report
from posttrain.runs import RunDirectory, Sample, machine_line
from posttrain.runs.callback import call
from posttrain.runs.environment import step_cost
from posttrain.runs.inputs import digests_in, judges_by_option, keep_code
from posttrain.runs.interrupt import Stopped, StopRequest, stop_requests
from posttrain.runs.jsonl import append, naming
from posttrain.runs.progress import TYPED, Phase, Progress, announce
from posttrain.runs.resuming import OWED, going_on, gone_back, kept_batch, resumed
from posttrain.runs.run import TIMELINE, Span, samples_of
from posttrain.runs.trackers import Sender, open_trackers
from posttrain.runs.training import RunOptions, Training
from posttrain.training import checkpoint
from posttrain.types import Group


class Session:
    """An open run; made by `open_session`."""

    def __init__(
        self,
        directory: RunDirectory,
        progress: Progress,
        stop: StopRequest,
        training: Training,
        found: checkpoint.Checkpoint | None,
        callbacks: Sequence[object],
    ) -> None:
        """See `open_session`; `found` is the checkpoint that the run resumes from."""
        self.directory, self.progress, self.total = directory, progress, training.steps
        self.step = found.step if found else 0
        self.state: dict[str, Any] = dict(found.state) if found else {}
        self.stopped = ""  # why it ends before its last step, if it does
        self.trackers: Sequence[Sender] = ()
        self._callbacks = callbacks
        self._stop, self._training = stop, training
        self.saved, self._tried, self._written, self.updating = self.step, self.step, self.step, False
        self._score = found.score if found else None
        self._began, self._sampled, self._phase, self._tokens = time.perf_counter(), 0.0, Phase("", 0.0), 0
        owed = self.state.pop(OWED, None)
        # metrics and samples of the finished step whose row is not written yet
        self._waiting = (owed["metrics"], [Sample(**said) for said in owed["samples"]]) if owed else None
        self._due = self._waiting is not None or (training.evaluations.first and self.step == 0)

    @property
    def lr(self) -> float:
        """The learning rate of the current step."""
        return self._training.rate(self.step)

    @property
    def interrupted(self) -> str:
        """The signal that ended the run before its last step or evaluation; "" if none did."""
        return self._stop.cause if self._due or (self.step < self.total and not self.stopped) else ""

    def log_heldout(self, groups: Sequence[Group]) -> None:
        """Write one answer to each held-out task, as they are at this step."""
        self.directory.log_heldout(self.step, samples_of(groups, per_group=1))

    @property
    def ended(self) -> tuple[Path, int, str]:
        """Where the run is, its steps, and what interrupted it: what a `RunResult` begins with."""
        return self.directory.path, self.step, self.interrupted

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics that have been written, a row a step."""
        return self.directory.read().metrics

    def stop(self, why: str) -> None:
        """End the run, as a finished one, after the current step."""
        self.stopped = why or "requested by a callback"

    def steps(self) -> Iterator[int]:
        """The numbers of the steps to do, from 0, until the last, a signal, or what the evaluations decide."""
        if self.step:
            self.stopped = self.stopped or self._training.evaluations.finished(self.rows)
        while self.step < self.total and not self._stop.requested and not self.stopped:
            self._began, self._sampled, self._tokens = time.perf_counter(), 0.0, 0
            yield self.step
        if self.stopped and self.step < self.total:
            self.progress.say(f"stopped after step {self.step}: {self.stopped}")

    @contextlib.contextmanager
    def rollout(self) -> Iterator[Phase]:
        """Sampling and scoring of a step: a signal ends it at once."""
        with self.progress.phase("rollout") as self._phase, self._stop.cancellable():
            yield self._phase
        self._sampled = time.perf_counter()

    @contextlib.contextmanager
    def update(self, examples: Sequence[Example]) -> Iterator[None]:
        """The updates of a step, on these examples, which are kept in the run if one fails."""
        self._tokens, self.updating = sum(len(example.continuation) for example in examples), True
        with (
            self.progress.phase("update"),
            self._spent("training"),
            kept_batch(self.step + 1, examples, self.directory.path, self.directory.checkpoints),
        ):
            yield

    def until_stopped(self, work: Callable[[], None]) -> None:
        """Do what a signal may end at once: it changes no weights, and writes nothing."""
        with self._stop.cancellable():
            work()

    def finish_step(
        self,
        metrics: Mapping[str, float],  # of the step; its learning rate, time and memory are added
        samples: Iterable[Sample] = (),  # completions to show
        *,
        state: Mapping[str, Any] | None = None,  # what the recipe needs to go on from here, as JSON
        tokens: float | None = None,  # trained on, for tokens per second; unless given, those of `update`
    ) -> None:
        """Take note of a step: its row, its samples, progress, and a checkpoint when one is due."""
        if self._sampled:
            tokens = metrics["tokens"] if self._training.overlapped else self._phase.tokens
        tokens = self._tokens if tokens is None else tokens
        cost = step_cost(self._began, tokens, self._sampled, overlapped=self._training.overlapped)
        self.state, self.updating = dict(state or {}), False
        self._waiting = {**metrics, "lr": self.lr, **cost}, list(samples)
        self.step += 1
        when, last = self._training.evaluations, self.step == self.total
        self._due = bool(when.every and self.step % when.every == 0) or (when.last and last)
        if not self._due:
            self._write({})

    def evaluate(self, examine: Callable[[], Mapping[str, float]]) -> None:
        """Where an evaluation is due, add what `examine` finds to the row of the step that was finished last."""
        if not self._due:
            return
        with self.progress.phase("evaluation"), self._spent("evaluation"), self._stop.cancellable():
            found = examine()
        self._due = False
        if self._waiting is None:  # before the first step
            self._log(0, found)
            call(self._callbacks, "on_evaluation", self, 0, found)
            return
        self._write(found)
        call(self._callbacks, "on_evaluation", self, self.step, found)
        self.stopped = self.stopped or self._training.evaluations.finished(self.rows)

    def _write(self, evaluation: Mapping[str, float], *, owed: bool = False) -> None:
        assert self._waiting is not None
        step, (finished, samples), self._waiting = self.step, self._waiting, None
        metrics = {**finished, **evaluation}
        self._log(step, metrics)
        self.directory.log_samples(step, samples)
        score = self._training.evaluations.score(metrics) if evaluation else None
        self._written, self._score = step, score if score is not None and math.isfinite(score) else None
        self.progress.step(
            step, **{name: metrics[key] for name, key in self._training.headline.items() if key in metrics}
        )
        if owed:
            self._save({OWED: {"metrics": finished, "samples": [asdict(sample) for sample in samples]}})
        elif step % self._training.save_every == 0 or evaluation:
            self._save()
        call(self._callbacks, "on_step", self, step, metrics)

    @contextlib.contextmanager
    def _spent(self, work: str) -> Iterator[None]:
        """Put this work of the trainers into the timeline of a run of several processes."""
        began = time.time()
        try:
            yield
        finally:
            if self._training.spans is not None:
                spans = [*self._training.spans(), Span("trainers", work, began, time.time())]
                # such as a full disk: the work says so itself
                with contextlib.suppress(OSError), (self.directory.path / TIMELINE).open("ab") as file:
                    for span in spans:
                        append(file, span._asdict())

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.directory.log_metrics(step, metrics)
        for tracker in self.trackers:
            tracker.log(step, metrics)

    def _save(self, more: Mapping[str, Any] | None = None) -> None:
        self._tried = self.step
        with self._spent("checkpoint"):
            folder = checkpoint.save(
                self.directory.checkpoints,
                self.step,
                self._training.trained.save,
                {**self.state, **(more or {})},
                keep_last=self._training.keep_last,
                score=self._score,
            )
        self.saved = self.step
        call(self._callbacks, "on_checkpoint", self, self.step, folder)

    def keep(self) -> None:
        """Save the state after the last finished step, unless that was tried, or an update has begun since."""
        if self.updating:
            return
        if self._waiting is not None:
            self._write({}, owed=True)
        elif self._tried < self.step == self._written:
            self._save()


_announce_once = cache(announce)  # several runs from Python have the same machine


@contextlib.contextmanager
def open_session(
    command: str,
    settings: Mapping[str, Any],  # all of the command's options
    training: Training,
    **where: Unpack[RunOptions],
) -> Iterator[Session]:
    """Open a run's directory, new or resumed, and close it with its report.

    Raises `InputsChanged` where files that the options name are others than when the run began, and that is not
    accepted, `CheckpointError` where no checkpoint is whole.
    """
    if unknown := {*where} - {*RunOptions.__annotations__}:  # else a run would begin anew where it was to be resumed
        raise TypeError(f"unexpected keyword '{min(unknown)}'")
    resume, quiet, callbacks = where.get("resume"), where.get("quiet", False), where.get("callbacks", ())
    settings, environment = {**settings, **where.get("given", {})}, {**training.environment}
    began = str(environment.get("model", ""))
    models = {"model": [began], **judges_by_option(settings, environment.get("judges", {}))}
    environment |= {"model": os.path.abspath(began)} if os.path.isdir(began) else {}
    environment |= {"folder": os.getcwd(), "inputs": digests_in(settings, models)}
    if resume is None:
        directory = RunDirectory.create(where.get("output"), command, settings, environment=environment)
    else:
        with going_on(resume):
            directory = resumed(resume, command, settings, training, environment, where.get("accept_changes", ()))
    keep_code(settings, directory.path)
    (announce if TYPED.get() else _announce_once)(machine_line(directory.environment), quiet=quiet)
    training.prepare()
    with going_on(directory.path):
        found, notes = (None, ()) if resume is None else gone_back(directory, training, quiet=quiet)
    start = found.step if found else 0
    with directory, stop_requests() as stop, Progress(command, training.steps, start=start, quiet=quiet) as progress:
        session = Session(directory, progress, stop, training, found, callbacks)
        for note in (*training.notes, *notes):
            progress.say(note)
        trackers = open_trackers(where.get("tracking"), directory.path, settings, progress.say)
        with _tracked(session, trackers), _saved_on_failure(session):
            call(callbacks, "on_run_start", session)
            with contextlib.suppress(Stopped):
                yield session
            session.keep()
            call(callbacks, "on_run_end", session)
    with _saved_on_failure(session), naming(directory.report):
        write_report(directory.read())


@contextlib.contextmanager
def _tracked(session: Session, trackers: Sequence[Sender]) -> Iterator[None]:
    session.trackers = trackers
    status = "failed"
    try:
        yield
        status = "interrupted" if session.interrupted else "finished"
    finally:
        for tracker in trackers:
            tracker.finish(status)


@contextlib.contextmanager
def _saved_on_failure(session: Session) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:
        with contextlib.suppress(PosttrainError, OSError):  # such as a full disk, which `error` may be
            session.keep()
            if isinstance(error, CheckpointError) and (found := checkpoint.latest(session.directory.checkpoints)):
                session.saved = found.step  # its own, where only older ones could not be dropped
        run = session.directory.path
        if isinstance(error, ProcessLost):
            error.run, error.step = run, session.saved
        if session.saved and not (session.updating and isinstance(error, TrainingError)):  # which says it itself
            error.add_note(f"step {session.saved} is saved in {run}, `resume` continues from there")
        elif isinstance(error, OSError):
            error.add_note(f"{run} has no checkpoint yet, `resume={run}` starts it from the first step")
        raise
