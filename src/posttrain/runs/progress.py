"""Progress bars with time estimates; plain lines where there is no terminal.

Everything goes to standard error, so that standard output is free for answers (`--json`).
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import IO, Self

from rich.console import Console
from rich.progress import BarColumn, RenderableColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from posttrain.errors import as_typed

RECENT_STEPS = 20  # that the time left is estimated from: lengths change as a policy learns


@dataclass
class Phase:
    """A part of a step."""

    name: str
    began: float
    tokens: int = 0


TYPED: ContextVar[bool] = ContextVar("typed", default=False)
"""Whether a command was typed: then parameters in backticks are shown as flags (`errors.as_typed`)."""


def announce(line: str, *, quiet: bool = False) -> None:
    """Print a line before the work begins, such as the hardware; nothing if quiet."""
    if not quiet:
        _console(sys.stderr).print(_shown(line))


def _shown(line: str) -> Text:
    return Text(as_typed(line) if TYPED.get() else line)


def _console(file: IO[str]) -> Console:
    return Console(file=file, highlight=False, soft_wrap=True)


class Progress:
    """Progress of `total` steps. Use it as a context manager.

    Example:
        >>> with Progress("rl", total=2, file=sys.stdout, clock=iter(range(0, 100, 10)).__next__) as progress:
        ...     progress.step(1, reward=0.25)
        ...     progress.step(2, reward=0.5)
        rl 1/2  elapsed 0:10  left 0:10  reward 0.25
        rl 2/2  elapsed 0:20  reward 0.5
    """

    def __init__(
        self,
        title: str,  # of the work, such as `rl`
        total: int,  # steps, those done before included
        *,
        start: int = 0,  # steps done before, in a run that was resumed
        quiet: bool = False,  # print only messages of `say`
        every_seconds: float = 15.0,  # between two lines, where there is no terminal
        file: IO[str] | None = None,  # where to print, instead of standard error
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Describe the work."""
        self._title, self._total, self._done = title, total, start
        self._quiet, self._every, self._clock = quiet, every_seconds, clock
        self._console = _console(file or sys.stderr)
        self._interactive = self._console.is_terminal and not self._console.is_dumb_terminal
        self._began = self._now = self._printed = 0.0
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT_STEPS + 1)
        self._phase = Phase("", 0.0)
        self._numbers: dict[str, float | str] = {}
        self._bar: RichProgress | None = None

    def __enter__(self) -> Self:
        self._began = self._now = self._clock()
        self._printed = -float("inf")  # the first line comes with the first step, to show that something happens
        self._recent.append((self._done, self._began))
        if self._interactive and not self._quiet:
            self._bar = RichProgress(
                TextColumn("[bold]{task.description}", markup=True),
                BarColumn(bar_width=24),
                RenderableColumn(self),
                console=self._console,
                transient=True,
                refresh_per_second=4,
            )
            self._bar.start()
            self._bar.add_task(self._title, total=self._total, completed=self._done)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            self._console.print(Text(f"{self._title} {self._status()}"))

    def step(self, n: int, **numbers: float | str) -> None:
        """Say that step `n` is done, with the numbers to show until the next."""
        self._now = self._clock()
        self._done, self._numbers = n, numbers
        self._recent.append((n, self._now))
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=n)
        else:
            self._line(last=n >= self._total)

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """Show a phase of a step, such as `rollout`; `tokens` counts from 0 within it, also for the caller."""
        self._phase = Phase(name, self._clock())
        try:
            yield self._phase
        finally:
            self._phase = Phase("", 0.0)

    def tokens(self, count: int) -> None:
        """Count tokens that were just sampled or trained on; hand this to an engine as its `on_tokens`."""
        self._phase.tokens += count
        self._now = self._clock()
        if self._bar is None:
            self._line()

    def say(self, message: str) -> None:
        """Print a line above the bar: something that the user must know, however quiet it is to be."""
        console = self._bar.console if self._bar is not None else self._console
        console.print(_shown(message))

    def _status(self) -> str:
        """Progress, elapsed time and that left by the pace of the recent steps, and the newest metrics."""
        parts = [f"{self._done}/{self._total}", f"elapsed {_minutes(self._now - self._began)}"]
        (first, began), (last, ended) = self._recent[0], self._recent[-1]
        if first < last and self._done < self._total:
            pace = (ended - began) / (last - first)
            left = max(0.0, pace * (self._total - self._done) - (self._now - ended))
            parts.append(f"left {_minutes(left)}")
        if self._phase.name:
            tokens, seconds = self._phase.tokens, self._now - self._phase.began
            rate = f" {tokens:,} tokens, {tokens / seconds:,.0f}/s" if tokens and seconds > 0 else ""
            parts.append(self._phase.name + rate)
        parts += [f"{name} {_short(value)}" for name, value in self._numbers.items()]
        return "  ".join(parts)

    def _line(self, last: bool = False) -> None:
        if not self._quiet and (last or self._now - self._printed >= self._every):
            self._printed = self._now
            self._console.print(Text(f"{self._title} {self._status()}"))

    def __rich__(self) -> Text:
        """What stands next to the bar, which is drawn again between two steps."""
        self._now = self._clock()
        return Text(self._status())


def _minutes(seconds: float) -> str:
    """Seconds as a clock shows them.

    >>> _minutes(59.6), _minutes(3725)
    ('1:00', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _short(value: float | str) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)
