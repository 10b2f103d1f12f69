"""Atomic, checksummed checkpoints.

    checkpoints/
      best.json             which one scored highest, for people
      step-000040/
        checksums.json      size and sha256 of every other file
        state.json          step, score, and the caller's state
        ...                 what the caller wrote: safetensors, tokenizer files

Nothing is ever pickled: `training/adam.py` turns an optimiser into tensors and JSON.
"""

import contextlib
import errno
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from posttrain.data.digests import sha256
from posttrain.durable import sync
from posttrain.errors import CheckpointError, ProcessLost, first_line

AT_ONCE = 8  # files that are read for their checksums
_STATE, _SUMS, _BEST = "state.json", "checksums.json", "best.json"
_SAVING = ".saving-"
_NAME = re.compile(r"step-(\d+)(\.old)?")  # .old: was being replaced by a save of the same step when the process died


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose checksums were verified."""

    path: Path
    step: int
    state: dict[str, Any]  # what `save` was given, as JSON brings it back
    score: float | None = None
    skipped: tuple[str, ...] = ()  # a line for each newer or better one that is damaged, to be shown to the user


class _Damaged(Exception):
    """The reason why a checkpoint is invalid."""


def save(
    root: Path,
    step: int,
    write: Callable[[Path], None],
    state: Mapping[str, Any],
    *,
    keep_last: int = 2,
    score: float | None = None,
    expected_bytes: int = 0,
) -> Path:
    """Save a checkpoint of `step`, then drop those that are no longer kept; returns the folder, `root/step-000040`.

    Of the folders in `root`, where one process at a time may save, the newest `keep_last` stay, this one included, and
    the one with the highest score (of equal ones the earliest). A checkpoint of the same step is replaced.

    `write` puts model, tokenizer and optimiser files into the empty folder that it is given; all else that resuming
    needs is the `state`. If the bytes are known, the free space is checked before anything is written. Raises
    `CheckpointError` where it could not be written, with the earlier ones as they were, and `ProcessLost` as `write`.
    """
    if keep_last < 1 or step < 0 or (score is not None and not math.isfinite(score)):
        raise ValueError(f"save needs keep_last >= 1, step >= 0 and a finite score; got {keep_last}, {step}, {score}")
    folder, new = root / f"step-{step:06d}", root / f"{_SAVING}{step:06d}-{os.getpid()}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob(f"{_SAVING}*"):  # of processes that were killed
            shutil.rmtree(leftover)
        if shutil.disk_usage(root).free < expected_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        new.mkdir()
        write(new)
        _seal(new, {"step": step, "score": score, "state": dict(state)})
        _put_in_place(new, folder)
    except BaseException as error:
        if isinstance(error, ProcessLost) or not isinstance(error, Exception):  # Ctrl-C
            shutil.rmtree(new, ignore_errors=True)
            raise
        needed = max([expected_bytes, _size(new), *map(_size, _candidates(root)[:1])])
        shutil.rmtree(new, ignore_errors=True)
        raise CheckpointError(_why_not(error, root, step, needed)) from error
    try:
        _prune(root, step, keep_last)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {folder} was saved, but older ones in {root} cannot be deleted: {first_line(error)}; "
            "put that right, then resume"
        ) from error
    return folder


def latest(root: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole, None if there is none; raises `CheckpointError` if all are damaged."""
    return _first_whole(root, _candidates(root))


def best(root: Path) -> Checkpoint | None:
    """The same of the one with the highest score; None if none has a score."""
    return _first_whole(root, _by_score(root))


def best_step(root: Path) -> int | None:
    """Its step, not verified."""
    scored = _by_score(root)
    return _step(scored[0]) if scored else None


def load(path: Path) -> Checkpoint:
    """The checkpoint in this folder; raises `CheckpointError` where a file is missing, torn, or not what was saved."""
    if not path.is_dir():
        raise CheckpointError(f"no checkpoint at {path}; expected a folder like checkpoints/step-000040")
    try:
        return _checked(path)
    except _Damaged as damage:
        raise CheckpointError(f"checkpoint {path} is damaged: {damage}; use an earlier one of the same run") from damage


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors as safetensors, bit for bit. No two of them may share memory."""
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Named tensors from a safetensors file, on the CPU."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read tensors from {path}: {first_line(error)}") from error


def _seal(folder: Path, about: dict[str, Any]) -> None:
    """Add state and checksums to the caller's files, and fsync all of them."""
    for reserved in (_STATE, _SUMS):
        if (folder / reserved).exists():
            raise ValueError(f"{reserved} is written by save itself; give the file another name")
    (folder / _STATE).write_text(json.dumps(about, indent=1), encoding="utf-8")
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    with ThreadPoolExecutor(AT_ONCE) as pool:
        digests = list(pool.map(sha256, paths))
    sums = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": digest}
        for path, digest in zip(paths, digests, strict=True)
    }
    (folder / _SUMS).write_text(json.dumps(sums, indent=1), encoding="utf-8")
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def _put_in_place(new: Path, folder: Path) -> None:
    old = folder.with_name(f"{folder.name}.old")
    if folder.exists():
        if old.exists():  # of a process that was killed after the second rename; the folder itself is newer
            shutil.rmtree(old)
        folder.rename(old)
    new.rename(folder)
    sync(folder.parent)
    if old.exists():
        shutil.rmtree(old)


def _prune(root: Path, step: int, keep_last: int) -> None:
    """Drop what is neither among the newest nor the best; later steps are damaged ones that this run will replace."""
    scored = _by_score(root)
    if scored:
        about = {"name": scored[0].name, "score": _score(scored[0])}
        new = root / f"{_SAVING}{_BEST}"
        new.write_text(json.dumps(about), encoding="utf-8")
        sync(new)
        new.replace(root / _BEST)
    ours = [path for path in _candidates(root) if _step(path) <= step]
    for path in ours[keep_last:]:
        if path not in scored[:1]:
            shutil.rmtree(path)
    sync(root)


def _candidates(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: (_step(path), path.suffix != ".old"), reverse=True)


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def _score(path: Path) -> float | None:
    """The score recorded in a checkpoint; None if there is none or it cannot be read."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return float(json.loads((path / _STATE).read_text(encoding="utf-8"))["score"])
    return None


def _by_score(root: Path) -> list[Path]:
    """Checkpoints with a score, the highest first, the earlier first among equals."""
    scored = [(score, path) for path in _candidates(root) if (score := _score(path)) is not None]
    return [path for _, path in sorted(scored, key=lambda item: (-item[0], _step(item[1])))]


def _first_whole(root: Path, candidates: list[Path]) -> Checkpoint | None:
    skipped: list[str] = []
    for path in candidates:
        try:
            found = _checked(path)
        except _Damaged as damage:
            skipped.append(f"{path.name}: {damage}")
        else:
            return replace(found, skipped=tuple(skipped))
    if skipped:
        raise CheckpointError(f"every checkpoint in {root} is damaged ({'; '.join(skipped)}); start a new run")
    return None


def _checked(folder: Path) -> Checkpoint:
    """Verify size and checksum of every file."""
    try:
        sums = json.loads((folder / _SUMS).read_text(encoding="utf-8"))
        expected = {str(name): (int(kept["size"]), str(kept["sha256"])) for name, kept in sums.items()}
    except FileNotFoundError:
        raise _Damaged(f"{_SUMS} is missing") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise _Damaged(f"{_SUMS} cannot be read") from None
    if _STATE not in expected:
        raise _Damaged(f"{_SUMS} does not name {_STATE}")
    for name, (size, _) in expected.items():
        path = folder / name
        if not path.is_file():
            raise _Damaged(f"{name} is missing")
        if (found := path.stat().st_size) != size:
            raise _Damaged(f"{name} has {found} bytes, not {size}")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        digests = pool.map(sha256, (folder / name for name in expected))
        for (name, (_, expected_digest)), digest in zip(expected.items(), digests, strict=True):
            if digest != expected_digest:
                pool.shutdown(wait=False, cancel_futures=True)
                raise _Damaged(f"{name} has another checksum than when it was saved")
    about = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    return Checkpoint(folder, about["step"], about["state"], about["score"])


def _why_not(error: Exception, root: Path, step: int, needed: int) -> str:
    """One line on a save that failed. Call it after the half-written folder is gone."""
    what = f"checkpoint of step {step} not saved in {root}"
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or f"os error {errno.ENOSPC}" in str(error):  # the second is how safetensors says it
        free = shutil.disk_usage(next(path for path in (root, *root.parents) if path.exists())).free
        quota = getattr(error, "errno", 0) == errno.EDQUOT
        least = f"at least {needed}" if quota or needed > free else f"more than {free}"  # blocks are counted whole
        there = "a quota is used up" if quota else f"{free} are free"
        what += f": no space left; it needs {least} bytes and {there}; free some space there, then resume"
    else:
        what += f": {first_line(error)}; fix that, then resume"
    return f"{what} (earlier checkpoints are unchanged)" if _candidates(root) else what


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
