"""What the routes use, put together over a folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from posttrain.serving.base import Base
from posttrain.serving.decoder import Decoder
from posttrain.serving.files import locked
from posttrain.serving.futures import Futures
from posttrain.serving.guard import Pending
from posttrain.serving.keys import Keys
from posttrain.serving.limits import Limits
from posttrain.serving.operations import Context
from posttrain.serving.runs import Runs
from posttrain.serving.samplers import Samplers
from posttrain.serving.sessions import Sessions
from posttrain.serving.worker import Worker


class Services:
    """A server's parts over a folder, which belongs to one process at a time.

    Args:
        store: the folder.
        base: the base model.
        keys: of clients; None: those in the folder.
        limits: of what clients may ask.
        microbatch_tokens: of one forward and backward pass, at most, unless a sequence is longer.
        max_sequences: that are sampled together.
        cache_gb: of keys and values.
        models_in_memory: adapters with their optimisers.
        save_every: optimiser steps between saves of a model's state.
        batch_gradients: whether gradients of several models may be computed in one pass.
        report: gets a line for each failure that is not a client's.

    Raises:
        UserError: another process has the folder.
    """

    def __init__(
        self,
        store: Path,
        base: Base,
        *,
        keys: Keys | None = None,
        limits: Limits | None = None,
        microbatch_tokens: int = 4096,
        max_sequences: int = 128,
        cache_gb: float = 1.0,
        models_in_memory: int = 8,
        save_every: int = 1,
        batch_gradients: bool = False,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.base, self.report = base, report
        self.limits, self.keys = limits or Limits(), keys or keys_of(store)
        self.lock = locked(store, "store")
        models = store / "models"
        self.samplers = Samplers(store / "samplers", models, self.limits.samplers_per_key)
        self.decoder = Decoder(base, self.samplers.load, max_sequences=max_sequences, cache_gb=cache_gb)
        self.worker, self.futures = Worker(self.decoder, report), Futures()
        self.context = Context(base, models, self.samplers, self.limits, microbatch_tokens)
        self.sessions = Sessions(store / "sessions", self.limits.sessions_per_key)
        self.pending = Pending(self.limits.pending_per_key)
        self.runs = Runs(
            self.context,
            self.worker,
            self.futures,
            in_memory=models_in_memory,
            save_every=save_every,
            batch_gradients=batch_gradients,
            heard=self.sessions.heard,
            report=report,
        )

    def start(self) -> None:
        """Begin to compute."""
        self.worker.start()

    def close(self) -> None:
        """End after what is computed now."""
        self.worker.close()
        self.lock.release()


def _services(request: Request) -> Services:
    return request.app.state.services


Served = Annotated[Services, Depends(_services)]
"""The parts of the server: an argument of routes."""


def keys_of(store: Path) -> Keys:
    """The keys of the server in a folder."""
    store.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Keys(store / "keys.json")
