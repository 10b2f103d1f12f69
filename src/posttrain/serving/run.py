"""A client's model: what it is, and where it stands."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.serving.base import Adapter
from posttrain.serving.journal import Journal
from posttrain.serving.trainer import Trainer


@dataclass(frozen=True)
class Record:
    """What a model is, as its folder says."""

    model_id: str
    owner: str
    base_model: str
    adapter: dict[str, Any]
    ended: bool = False  # its checkpoints are left
    unloaded: int | None = None  # the seq_id of the request that ended it


@dataclass
class Run:
    """A client's model.

    Attributes:
        record: what it is.
        folder: everything of it.
        next: the seq_id that is scheduled next; all before it are.
        executed: the last seq_id that has a result; -1: none.
        saved: the last seq_id that the saved state contains; -1: none.
        trainer: its weights, where they are in memory.
        waiting: the seq_ids that are accepted and not scheduled, and what each counts of its key's backlog.
        queued: those that are scheduled and not begun, likewise, in order.
        apart: whether it is kept out of passes with other models.
    """

    record: Record
    folder: Path
    next: int = 0
    executed: int = -1
    saved: int = -1
    steps: int = 0  # optimiser steps since the state was saved
    trainer: Trainer | None = None
    waiting: dict[int, int] = field(default_factory=dict[int, int])
    queued: dict[int, int] = field(default_factory=dict[int, int])
    last: int | None = None  # the request after which it ends
    busy: bool = False  # a request of it is being done
    apart: bool = False  # its last pass with others failed, and nothing has shown since that it was not at fault
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def journal(self) -> Journal:
        """Its requests and results."""
        return Journal(self.folder)

    @property
    def adapter(self) -> Adapter:
        """Its LoRA configuration."""
        return Adapter.of(self.record.adapter)

    def request_id(self, seq: int) -> str:
        """The id of its request `seq`."""
        return f"{self.record.model_id}:{seq}"
