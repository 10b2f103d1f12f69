"""A Python session for episodes: what one cell defines is there in the next."""

import json
import subprocess
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from posttrain.sandbox.box import Box, Limits, Stop, read
from posttrain.sandbox.isolation import Sandbox


@dataclass(frozen=True)
class Cell:
    """What a cell of a session did."""

    output: str
    """What it printed, and the value of its last expression."""
    error: str
    """Its traceback, or the limit that ended the session; "" if there was none."""
    stopped: Stop | None = None
    """The limit that ended the session."""


@dataclass
class PythonSession(AbstractContextManager["PythonSession"]):
    r"""Python in a box, for the cells of an episode.

    Hashes have a fixed seed, so that the same cells print the same sets. CPU seconds and wall clock are limits of each
    cell. A cell that reaches one ends the session: the next cell has a new one, without what was defined. Methods
    may be called from any thread, and take turns; an environment awaits them by `asyncio.to_thread`.

    Example:
        >>> with PythonSession() as session:
        ...     _ = session.run("total = 40")
        ...     session.run("total + 2").output
        '42\n'
    """

    limits: Limits = field(default_factory=lambda: Limits(cpu_s=2.0))
    sandbox: Sandbox = "bubblewrap"
    _box: Box | None = field(default=None, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def run(self, code: str) -> Cell:
        """Run a cell.

        Raises:
            UserError: programs cannot be isolated on this machine, with cause and remedy.
            SandboxError: the box did not start.
        """
        with self._lock:
            fresh = self._box is None
            box = self._box or Box("session.main", {"lasts": True}, self.limits, self.sandbox, stdin=subprocess.PIPE)
            self._box = box
            assert box.process.stdin is not None
            try:
                if fresh:
                    self._answer(box)  # that it is there
                box.give_time()
                box.process.stdin.write(json.dumps(code).encode() + b"\n")
                box.process.stdin.flush()
                output, error = self._answer(box)
                return Cell(str(output), str(error))
            except (OSError, ValueError, TypeError, RecursionError):  # no answer, or none of ours
                how = box.ended()
                box.close()
                self._box = None
                return Cell("", f"the session {how}; what was defined is gone", box.stopped)

    def _answer(self, box: Box) -> list[object]:
        assert box.process.stdout is not None
        (said,) = read([box], [box.process.stdout.fileno()], line=True)
        return json.loads(said)

    def close(self) -> None:
        """End the session. Another cell would begin a new one."""
        with self._lock:
            if self._box is not None:
                self._box.close()
                self._box = None

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
