"""The result of `--dry-run`, as data and as text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.planning.costs import GB, Phase, Training
from posttrain.planning.step_time import StepTime
from posttrain.planning.work import Work


@dataclass(frozen=True)
class Plan:
    """Cost estimate of a run. Bytes, seconds and tokens; memory for the longest sequences, time for expected ones."""

    work: Work
    training: Training
    precision: str
    phases: tuple[Phase, ...]
    available: int  # bytes of memory
    time: StepTime | None  # None where nothing was measured
    disk: int  # bytes of all checkpoints at the worst moment
    free: int  # bytes of disk
    busy: float  # programs that wanted a core of this machine meanwhile, over its cores
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()  # what the run would tell its user

    @property
    def epochs(self) -> float:
        """Epochs."""
        return self.work.steps * self.work.longest.prompts / self.work.rows

    def summary(self) -> dict[str, Any]:
        """The estimate as JSON values."""
        step = None if self.time is None else self.time.step
        return {
            "command": self.work.command,
            "model": self.training.shape.name,
            "parameters": self.training.shape.parameters,
            "trainable": self.training.trainable,
            "precision": self.precision,
            "batch": self.work.longest.sequences,
            "steps": self.work.steps,
            "updates": self.work.steps * self.work.updates,
            "epochs": self.epochs,
            "tokens_per_step": self.work.expected.tokens,
            "microbatches": self.work.expected.microbatches,
            "memory": {phase.name: dict(phase.parts) for phase in self.phases},
            "peak_bytes": max(phase.total for phase in self.phases),
            "available_bytes": self.available,
            "disk_bytes": self.disk,
            "free_disk_bytes": self.free,
            "busy": self.busy,
            "seconds_per_step": step,
            "seconds": None if step is None else step * self.work.steps,
            "fits": not self.warnings,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """The estimate as text."""
        shape, held, expected = self.training.shape, self.training.held(), self.work.expected
        adapter = f", of which an adapter trains {self.training.trainable:,}" if self.training.lora_rank else ""
        return [
            f"{self.work.command}: {shape.name}, {shape.parameters:,} parameters{adapter}, computed in "
            f"{self.precision}",
            "batch    " + self._batch(),
            f"tokens   {expected.tokens:,} a step, in {_count(expected.microbatches, 'micro-batch')} of up to "
            f"{expected.microbatch_tokens:,}; {self.work.lengths}",
            f"memory   {', '.join(f'{p.name} {p.total / GB:.1f} GB' for p in self.phases)}; "
            f"{self.available / GB:.1f} GB are available",
            f"         held all the time: {_shown(held)}",
            *(f"         {p.name}: {_shown({k: v for k, v in p.parts.items() if k not in held})}" for p in self.phases),
            "time     " + self._time(),
            f"disk     {self.disk / GB:.1f} GB for checkpoints at most; {self.free / GB:.1f} GB are free",
            *(f"note     {note}" for note in self.notes),
            *(f"WARNING  {warning}" for warning in self.warnings or ()),
            *([] if self.warnings else ["It fits."]),
        ]

    def _batch(self) -> str:
        passes = f"{self.epochs:.2g}" if self.epochs < 10 else f"{self.epochs:,.0f}"
        work = self.work
        steps, updates = _count(work.steps, "step"), _count(work.steps * work.updates, "update")
        return f"{work.batch}; {steps}, {updates}, {passes} passes over {_count(work.rows, 'row')}"

    def _time(self) -> str:
        if self.time is None:
            return "not measured"
        update, sampling, sync, overlapped = self.time
        parts = "" if sampling is None else f" (sampling {_clock(sampling)}{' and ' if overlapped else ', '}"
        parts += "" if sampling is None else f"update {_clock(update)}{' at the same time' * overlapped}"
        parts += ("" if sync is None else f", weights {_clock(sync)}") + ")" * bool(parts)
        most = "about " if sampling is None else "at most "
        busy = (
            f"; other programs kept this machine busy ({self.busy:.1f} a core), so expect less"
            if self.busy > 0.6
            else ""
        )
        step = self.time.step
        unscored = ", without scoring" * bool(self.training.reward_models or self.training.chat_models)
        return f"{most}{_clock(step)} a step{parts}, {_clock(step * self.work.steps)} in all{unscored}{busy}"


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 'es' if name.endswith('ch') else 's'}"


def _shown(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size / GB:.2f} GB" for name, size in parts.items())


def _clock(seconds: float) -> str:
    """Seconds as people say them.

    >>> _clock(0.42), _clock(75.0), _clock(9000.0)
    ('0.4 s', '75 s', '2 h 30 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
