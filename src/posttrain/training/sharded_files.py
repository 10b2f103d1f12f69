"""Tensors of sharded ranks, in files that each rank writes: those of `torch.distributed.checkpoint`, as safetensors.

Its own format keeps the shapes in a pickle; with safetensors each file's header says which rows it has. They are read
by any number of ranks, each its own rows, and by one process.
"""

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from posttrain.errors import CheckpointError, first_line

APART_BYTES = 2**31  # from which on tensors are written by each rank
SHAPES = "shapes.json"  # of the full tensors, by name
FILE_BYTES = 2**30  # of a file of one rank, about: torch holds a file twice in memory while it writes it


def folder_of(path: Path) -> Path:
    """Where shards are written of what would be in this file."""
    return path.with_suffix("")


def write_shards(folder: Path, tensors: Mapping[str, Tensor], group: Any) -> None:
    """Write DTensors, of each rank its shards, and what all ranks have in full once. All ranks call it.

    All see the folder, and have the tensors in the same order; `group` is their process group, on CPUs. An error that
    one rank meets is raised on all.
    """
    ends = accumulate(-(-tensor.nbytes // group.size()) for tensor in tensors.values())
    files = {name: 1 + end // FILE_BYTES for name, end in zip(tensors, ends, strict=True)}
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=files, save_distributed=True)
    with _errors():
        save({name: t.detach() for name, t in tensors.items()}, storage_writer=writer, process_group=group)
    if group.rank() == 0:
        (folder / SHAPES).write_text(json.dumps({name: list(t.shape) for name, t in tensors.items()}), encoding="utf-8")


def room_for_shards(folder: Path, like: Mapping[str, Tensor], device: str = "cpu") -> dict[str, Tensor]:
    """Memory for all tensors of a folder that `write_shards` has filled, to be read by `read_shards`.

    What is named NAME, or NAME/KEY, is sharded as the DTensor NAME in `like` is, if it has its shape. All else is full,
    and on `device`: `meta` for a check alone.
    """
    try:
        shapes: dict[str, list[int]] = json.loads((folder / SHAPES).read_text(encoding="utf-8"))
        saved: dict[str, Any] = dict(HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"cannot read shards from {folder}: {first_line(error)}") from error
    # torch takes the last row that a file has for the end, and leaves memory as it was for rows that none has
    rows = {name: sum(chunk.sizes.numel() for chunk in known.chunks) for name, known in saved.items()}
    if lost := [name for name, shape in shapes.items() if rows.get(name) != math.prod(shape)]:
        raise CheckpointError(
            f"shards of '{lost[0]}' are missing in {folder}; all machines must see the folder to which trainers write"
        )
    room: dict[str, Tensor] = {}
    for name, known in saved.items():
        sharded, dtype = like.get(name.split("/")[0]), known.properties.dtype
        if isinstance(sharded, DTensor) and sharded.shape == known.size:
            room[name] = torch.empty_like(sharded, dtype=dtype, requires_grad=False)
        else:
            room[name] = torch.empty(known.size, dtype=dtype, device=device)
    return room


def read_shards(folder: Path, room: dict[str, Tensor], group: Any = None) -> None:
    """Read tensors, or this rank's shards of them, into the memory that `room_for_shards` made.

    The ranks of `group` all call it, and all raise what one meets; without one this process reads alone.
    """
    with _errors(), warnings.catch_warnings(action="ignore", category=UserWarning):  # that one process reads
        load(room, storage_reader=HuggingFaceStorageReader(str(folder)), process_group=group, no_dist=group is None)


@contextmanager
def _errors() -> Iterator[None]:
    """Raise what a rank has met, and not torch's `CheckpointException`, which is no `Exception`."""
    try:
        yield
    except CheckpointException as failed:
        error, _ = next(iter(failed.failures.values()))
        if isinstance(error, OSError):
            raise error from None
        raise CheckpointError(f"shards of a checkpoint: {first_line(error)}") from error
