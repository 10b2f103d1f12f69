"""Atomic folder writes."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from posttrain.errors import UserError

TRAINING = ("optimizer", "masters", "reference", "state.json", "checksums.json", "critic-")
"""What the names of files begin with that a checkpoint keeps for resuming."""


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target`, which becomes `target` when the block ends and goes when it fails.

    Raises:
        UserError: the target exists and is not an empty folder, or cannot be made.
    """
    refuse_occupied(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.writing-", dir=target.parent))
        new = scratch / target.name  # mkdtemp's own folder is readable by its owner alone
        new.mkdir()
    except OSError as error:
        raise UserError(f"cannot write to '{target}': {error.strerror}; name another folder with `output`") from error
    try:
        yield new
        for path in new.rglob("*"):
            _sync(path)
        refuse_occupied(target)  # it may have come meanwhile
        if target.is_dir():
            target.rmdir()
        new.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def refuse_occupied(target: Path) -> None:
    """Nothing that is there is written over; raises `UserError`."""
    if target.is_dir() and not target.is_symlink() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise UserError(f"'{target}' exists and is not an empty folder; name another one with `output`, or remove it")


def copy_model(source: Path, target: Path) -> list[str]:
    """Copy the files of a model, byte for byte, without those that are for resuming; returns their names."""
    names: list[str] = []
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.startswith((*TRAINING, ".")) and path.suffix not in (".bin", ".pt", ".pkl"):
            shutil.copyfile(path, target / path.name)
            names.append(path.name)
    return names


def _sync(path: Path) -> None:
    """Have the system write a file, or a folder's list of names, to the disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems cannot sync a folder
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
