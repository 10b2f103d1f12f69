"""What the routes use, put together over a folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from posttrain.errors import UserError
from posttrain.serving.access import Keys, Limits
from posttrain.serving.base import Base, Decoder
from posttrain.serving.files import locked
from posttrain.serving.guard import Pending
from posttrain.serving.run import Futures
from posttrain.serving.runs import Runs
from posttrain.serving.sessions import Samplers, Sessions
from posttrain.serving.worker import Worker


class Services:
    """A server's parts over a folder, which belongs to one process at a time; raises `UserError` if another has it.

    `report` gets a line for each failure that is not a client's.
    """

    def __init__(
        self,
        store: Path,
        base: Base,
        *,
        keys: Keys | None = None,
        limits: Limits | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.base, self.report, self.models = base, report, store / "models"
        self.limits, self.keys = limits or Limits(), keys or Keys.of(store)
        self.lock = locked(store, "store")
        self.samplers = Samplers(store / "samplers", self.models, self.limits.samplers_per_key)
        slots, cache_gb = self.limits.max_sequences, self.limits.cache_gb
        self.decoder = Decoder(base, self.samplers.load, max_sequences=slots, cache_gb=cache_gb)
        self.worker, self.futures = Worker(self.decoder, report), Futures()
        self.sessions = Sessions(store / "sessions", self.limits.sessions_per_key)
        self.pending = Pending(self.limits.pending_per_key)
        self.runs = Runs(self)

    def start(self) -> None:
        """Begin to compute."""
        self.worker.start()

    def close(self) -> None:
        """End after what is computed now."""
        self.worker.close()
        self.lock.release()

    def check_base(self, name: str) -> None:
        """Raise `UserError` for a base model that is another one."""
        if name != self.base.name:
            raise UserError(f"this server has the model '{self.base.name}'; got '{name[:80]}'")


def _services(request: Request) -> Services:
    return request.app.state.services


Served = Annotated[Services, Depends(_services)]
"""The parts of the server: an argument of routes."""
