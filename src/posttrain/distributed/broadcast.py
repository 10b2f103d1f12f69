"""Weights from one process to others, by torch's broadcast over a gloo group of their own.

    with offered(weights, host) as port:            # in the process that has them
        ...
    dict(received(Offer(version, host, port, ...))) # in each of the others, at the same time

Each transfer has a new group, so that a process that dies in one is in no later one: the others get an error, and meet
again. gloo passes weights on in a tree. Names, shapes and formats are sent first, and checksums last; received data are
never executed. Nothing is encrypted, and whoever reaches the port can read the weights: use it in a trusted network.
"""

import json
import socket
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from posttrain.distributed import cluster
from posttrain.engine.weight_channel import FORMATS, PATIENCE, ChannelError
from posttrain.errors import EngineError, described, first_line

Weights = Sequence[tuple[str, Tensor]]
SLICE = 2**24  # bytes of one call: its time limit is for all of them
_ASKED = "asked"  # the queue of transfers that are asked for
_FOR_EVER = timedelta(days=365)
_DIST: Any = dist  # torch exports all of this, and says so of little

Pass = Callable[[Tensor], None]


class Offer(NamedTuple):
    """Where weights of a version are offered, and which part of a transfer a process is."""

    version: str
    host: str
    port: int
    transfer: str = "1"  # its name, which no other has
    rank: int = 1  # of the process that takes them, from 1
    size: int = 2  # how many processes take part, with the one that offers them
    patience: float = PATIENCE  # seconds that a call waits for the others


def open_store(host: str, clients: int | None, timeout: timedelta = _FOR_EVER) -> Any:
    """A `TCPStore` that listens at one address of this machine; it would listen at all of them by itself."""
    with socket.create_server((host, 0)) as listening:
        port = listening.getsockname()[1]
        more = {"wait_for_workers": False, "master_listen_fd": listening.detach()}
        return _DIST.TCPStore(host, port, clients, True, timeout, **more)


@contextmanager
def offered(weights: Weights, host: str) -> Iterator[int]:
    """Offer weights at `host` of this machine while the block runs; the port. `EngineError` if they cannot be read."""
    store, failed = open_store(host, None), list[Exception]()
    threading.Thread(target=_serve, args=(store, weights, failed), daemon=True, name="weights").start()
    try:
        yield store.port
    finally:
        # by another client: the thread's waits for the answer to its call
        _DIST.TCPStore(host, store.port, None, False).queue_push(_ASKED, "")
    if failed:
        raise EngineError(f"the weights could not be sent: {described(failed[0])}") from failed[0]


def _serve(store: Any, weights: Weights, failed: list[Exception]) -> None:
    while asked := store.queue_pop(_ASKED):
        transfer, size, patience = json.loads(asked)
        try:
            _send(_joined(store, transfer, 0, size, patience), weights)
        except RuntimeError:  # a receiver is gone, or late: the others say so themselves
            continue
        except Exception as error:
            failed.append(error)  # first: the others learn of it when the group goes, which the traceback keeps
            error.with_traceback(None)


def _send(passed: Pass, weights: Weights) -> None:
    about = [(name, list(weight.shape), str(weight.dtype)) for name, weight in weights]
    for name, _, form in about:
        if form not in FORMATS:
            raise TypeError(f"'{name}' is in {form}, which cannot be sent")
    said = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    passed(torch.tensor([len(said)]))
    passed(said)
    checksums: list[int] = []
    for _, weight in weights:
        here = weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        checksums.append(zlib.crc32(here.numpy().data))
        passed(here)
    passed(torch.tensor([zlib.crc32(said.numpy().data), *checksums]))


def received(offer: Offer) -> Iterator[tuple[str, Tensor]]:
    """The weights that are offered there, while all of the transfer call this; raises `ChannelError`."""
    where = f"the weights offered at {offer.host}:{offer.port}"
    try:
        socket.create_connection((offer.host, offer.port), offer.patience).close()  # a store's client tries again
        store = _DIST.TCPStore(offer.host, offer.port, None, False, timedelta(seconds=offer.patience))
        if offer.rank == 1:
            store.queue_push(_ASKED, json.dumps((offer.transfer, offer.size, offer.patience)))
        passed = _joined(store, offer.transfer, offer.rank, offer.size, offer.patience)
        passed(length := torch.zeros(1, dtype=torch.int64))
        passed(said := torch.empty(int(length), dtype=torch.uint8))
        checksums = [zlib.crc32(said.numpy().data)]
        for name, shape, form in json.loads(said.numpy().tobytes()):
            data = torch.empty(shape, dtype=FORMATS[form])
            here = data.view(-1).view(torch.uint8)
            passed(here)
            checksums.append(zlib.crc32(here.numpy().data))
            yield name, data
        passed(sent := torch.zeros(len(checksums), dtype=torch.int64))
        if sent.tolist() != checksums:
            raise ValueError("wrong checksum")
    except (OSError, RuntimeError) as error:
        raise ChannelError(f"{where} are incomplete: {first_line(error)}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise ChannelError(f"{where} are corrupt: {error}") from error


def _joined(store: Any, transfer: str, rank: int, size: int, patience: float) -> Pass:
    """Join a group; what passes a tensor in this process's memory from rank 0 to all."""
    cluster.use_own_interface()
    group = _DIST.ProcessGroupGloo(_DIST.PrefixStore(transfer, store), rank, size, timedelta(seconds=patience))
    from_first = _DIST.BroadcastOptions()
    from_first.rootRank = from_first.rootTensor = 0

    def passed(data: Tensor) -> None:
        for part in data.split(SLICE):
            if part.numel():
                group.broadcast([part], from_first).wait()

    return passed
