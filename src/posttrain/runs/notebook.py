"""Progress in a notebook: curves as they come, under the cell that trains."""

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from posttrain.report import verdict
from posttrain.runs.callback import Callback
from posttrain.runs.result import page_of

if TYPE_CHECKING:
    from posttrain.runs.session import Session

EVERY_S = 2.0
"""Seconds between two pictures."""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; some, as Colab's, have a shell derived from Jupyter's."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)


class LiveView(Callback):
    """Shows a run in the notebook while it trains."""

    def __init__(self) -> None:
        """Nothing is shown before the run starts."""
        self._began = self._shown = 0.0
        self._first = 0
        self._display: Any = None

    def on_run_start(self, session: "Session") -> None:
        """Show that it starts."""
        from IPython.display import HTML, display  # pyright: ignore[reportMissingImports]

        self._began, self._first = time.monotonic(), session.step
        self._html = HTML
        self._display = display(HTML(page_of(session.directory.path.name, "starts", [])), display_id=True)

    def on_step(self, session: "Session", step: int, metrics: Mapping[str, float]) -> None:
        """Show the curves so far."""
        if time.monotonic() - self._shown >= EVERY_S:
            self._show(session)

    def on_run_end(self, session: "Session") -> None:
        """Show them all."""
        self._show(session)

    def _show(self, session: "Session") -> None:
        elapsed = time.monotonic() - self._began
        done = session.step - self._first
        left = elapsed / done * (session.total - session.step) if done else 0.0
        about = f"step {session.step} of {session.total}, {elapsed:.0f} s"
        rows, ended = session.rows, session.step == session.total or bool(session.stopped)
        about += "" if ended or not done else f", about {left:.0f} s left"
        page = page_of(session.directory.path.name, about, rows, verdict(rows) if ended else ())
        self._display.update(self._html(page))
        self._shown = time.monotonic()
