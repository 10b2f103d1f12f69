"""What the routes use, put together over a folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from posttrain.errors import UserError
from posttrain.server.base import Base
from posttrain.server.decoder import Decoder
from posttrain.server.futures import Futures
from posttrain.server.guard import Pending
from posttrain.server.keys import Keys
from posttrain.server.limits import Limits
from posttrain.server.operations import Context
from posttrain.server.runs import Runs
from posttrain.server.samplers import Samplers
from posttrain.server.sessions import Sessions
from posttrain.server.worker import Worker


@dataclass(frozen=True)
class Services:
    """The parts of a server."""

    base: Base
    limits: Limits
    keys: Keys
    sessions: Sessions
    samplers: Samplers
    futures: Futures
    decoder: Decoder
    worker: Worker
    runs: Runs
    context: Context
    pending: Pending
    lock: FileLock
    report: Callable[[str], None]

    def start(self) -> None:
        """Begin to compute."""
        self.worker.start()

    def close(self) -> None:
        """End after what is computed now."""
        self.worker.close()
        self.lock.release()


def keys_of(store: Path) -> Keys:
    """The keys of the server in a folder."""
    store.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Keys(store / "keys.json")


def open_services(
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
) -> Services:
    """The server's parts over a folder, which belongs to one process at a time.

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
    limits, keys = limits or Limits(), keys or keys_of(store)
    lock = FileLock(store / "lock", thread_local=False)  # it is released in another thread
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"another server uses '{store}'; end that one, or give another `store`") from None
    models = store / "models"
    samplers = Samplers(store / "samplers", models)
    decoder = Decoder(base, samplers.load, max_sequences=max_sequences, cache_gb=cache_gb)
    worker, futures = Worker(decoder, report), Futures()
    context = Context(base, models, samplers, limits, microbatch_tokens)
    sessions, pending = Sessions(store / "sessions"), Pending(limits.pending_per_key)
    settings = {"in_memory": models_in_memory, "save_every": save_every, "batch_gradients": batch_gradients}
    runs = Runs(context, worker, futures, **settings, heard=sessions.heard, report=report)
    return Services(
        base, limits, keys, sessions, samplers, futures, decoder, worker, runs, context, pending, lock, report
    )
