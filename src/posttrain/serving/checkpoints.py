"""Named checkpoints: `tinker://MODEL/weights/NAME` and `tinker://MODEL/sampler_weights/NAME`.

Each is a folder of the model's, written whole or not at all, with checksums, and never unpickled
(`training/checkpoint.py`). A model's folder is named after its id.
"""

import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from posttrain.errors import CheckpointError, UserError
from posttrain.serving.files import checked_name
from posttrain.training import checkpoint
from posttrain.training.checkpoint import Checkpoint

Kind = Literal["weights", "sampler_weights"]
KINDS: tuple[Kind, ...] = ("weights", "sampler_weights")

STEP = "step-000000"  # the folder of each in its own: they are not numbered
_ADDRESS = re.compile(r"tinker://([^/]*)/(weights|sampler_weights)/([^/]*)", re.DOTALL)
_MODEL = re.compile(r"[0-9a-f]{32}:train:[0-9]{1,9}")


@dataclass(frozen=True)
class Address:
    """Where a checkpoint is."""

    model_id: str
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"tinker://{self.model_id}/{self.kind}/{self.name}"

    @classmethod
    def of(cls, text: str) -> "Address":
        """Read an address; raises `UserError` for what is none."""
        if (found := _ADDRESS.fullmatch(text)) is None:
            raise UserError(
                f"a checkpoint is tinker://MODEL/weights/NAME or .../sampler_weights/NAME; got '{text[:200]}'"
            )
        if not _MODEL.fullmatch(found[1]):
            raise UserError(f"there is no model '{found[1][:80]}'")
        kind: Any = found[2]
        return cls(found[1], kind, checked_name(found[3], "a checkpoint"))

    def folder(self, models: Path) -> Path:
        """Its folder among those of all models."""
        return models / folder_name(self.model_id) / self.kind / self.name


def folder_name(model_id: str) -> str:
    """The name of a model's folder."""
    return model_id.replace(":", ".")


def save(
    root: Path, write: Callable[[Path], None], about: dict[str, Any], *, ttl_seconds: int | None, overwrite: bool
) -> None:
    """Save a checkpoint, unless the same request has saved it before.

    A server that is killed after a save and before it has kept the result does the request again. Requests are told
    apart by `about["request"]`. Raises `UserError` if there is one of another request; `OSError`, as on a full disk, is
    no mistake of the client's.
    """
    if not overwrite and (found := read(root)) is not None:
        if "request" in about and found.state.get("request") == about["request"]:
            return
        raise UserError(f"there is a checkpoint '{root.name}' already; give another name, or overwrite it")
    if ttl_seconds is not None and ttl_seconds <= 0:
        raise UserError(f"ttl_seconds must be above 0; got {ttl_seconds}")
    expires = None if ttl_seconds is None else time.time() + ttl_seconds
    try:
        checkpoint.save(root, 0, write, {**about, "expires": expires, "time": time.time()}, keep_last=1)
    except CheckpointError as error:
        raise OSError(str(error)) from error


def read(root: Path) -> Checkpoint | None:
    """The checkpoint in a folder; None if there is none, or it has expired. Raises `CheckpointError` if damaged."""
    found = checkpoint.latest(root)
    return None if found is None or _expired(found.state) else found


def delete(root: Path) -> None:
    """Delete a checkpoint; raises `UserError` if there is none. What is being saved in its place stays."""
    if not (found := _folders(root)):
        raise UserError(f"there is no checkpoint '{root.name}'")
    for folder in found:
        shutil.rmtree(folder)


def names(model: Path) -> list[tuple[Kind, str]]:
    """Kind and name of each of a model's checkpoints; deletes nothing, for the thread that saves may be another."""
    return [(kind, root.name) for kind in KINDS for root in sorted((model / kind).glob("*")) if not _gone(root)]


def tidy(model: Path) -> None:
    """Delete checkpoints that have expired, and what an interrupted save has left. Never while something is saved."""
    for root in (root for kind in KINDS for root in (model / kind).glob("*")):
        if _gone(root):
            shutil.rmtree(root, ignore_errors=True)


def _gone(root: Path) -> bool:
    """Whether a folder has no checkpoint yet or any more, or one that has expired; a damaged one is there."""
    if not (found := _folders(root)):
        return True
    try:
        return _expired(json.loads((found[0] / "state.json").read_text(encoding="utf-8"))["state"])
    except (OSError, ValueError, KeyError):  # damaged, or replaced at this moment
        return False


def _folders(root: Path) -> list[Path]:
    """What was saved in a folder; a second one is being replaced."""
    return sorted(root.glob(f"{STEP}*"))


def _expired(about: dict[str, Any]) -> bool:
    return (about["expires"] or float("inf")) < time.time()
