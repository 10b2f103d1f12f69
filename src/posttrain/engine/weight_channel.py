"""Weight transfer between processes, local or over the network.

For vLLM servers, which may reach the trainer and not be reached by it, as behind a container's network: there no
collective call works. The trainer offers them on a port; clients with the key receive all of them, one at a time: a
length, a checksum, and the weight in the format of safetensors. Received data are never executed. The connection is not
encrypted: use it in a trusted network.
"""

import hmac
import secrets
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase

import torch
from safetensors.torch import load, save
from torch import Tensor

from posttrain.errors import EngineError, described

Weights = Callable[[], Iterable[tuple[str, Tensor]]]
"""All weights by name."""
_HEADER = struct.Struct(">QI")  # the length of a weight, and its CRC-32; both 0 after the last
FORMATS = {str(each): each for each in (torch.bfloat16, torch.float16, torch.float32, torch.float64)}
_KEY_BYTES = 32
PATIENCE = 60.0  # seconds without a byte


class ChannelError(EngineError):
    """Weights that did not arrive whole and unchanged."""


@contextmanager
def offered(weights: Weights, host: str) -> Iterator[tuple[int, str]]:
    """Offer weights at `host` of this machine while the block runs: the port, and the key in hex.

    Raises `EngineError` at its end if they could not be read; the receivers know only that they did not get all.
    """
    failed: list[Exception] = []
    key = secrets.token_bytes(_KEY_BYTES)
    with socket.create_server((host, 0)) as server:
        threading.Thread(target=_serve, args=(server, key, weights, failed), daemon=True).start()
        try:
            yield server.getsockname()[1], key.hex()
        finally:
            with suppress(OSError):  # wakes the thread that waits
                server.shutdown(socket.SHUT_RDWR)
    if failed:
        raise EngineError(f"the weights could not be sent: {described(failed[0])}") from failed[0]


def _serve(server: socket.socket, key: bytes, weights: Weights, failed: list[Exception]) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:  # closed
            return
        connection.settimeout(PATIENCE)
        threading.Thread(target=_send, args=(connection, key, weights, failed), daemon=True).start()


def _send(connection: socket.socket, key: bytes, weights: Weights, failed: list[Exception]) -> None:
    with connection, suppress(OSError), connection.makefile("rwb") as file:  # who goes away says so itself
        if hmac.compare_digest(_read(file, _KEY_BYTES), key):
            for data in _told(weights, failed):
                file.write(_HEADER.pack(len(data), zlib.crc32(data)))
                file.write(data)
            file.write(_HEADER.pack(0, 0))


def _told(weights: Weights, failed: list[Exception]) -> Iterator[bytes]:
    try:
        for name, weight in weights():
            if str(weight.dtype) not in FORMATS:
                raise TypeError(f"'{name}' is in {weight.dtype}, which cannot be sent")
            yield save({name: weight.detach().cpu().contiguous()})
    except Exception as error:
        failed.append(error)
        raise OSError(str(error)) from error  # ends the connection


def received(host: str, port: int, key: str) -> Iterator[tuple[str, Tensor]]:
    """The weights that are offered there; raises `ChannelError` if they do not arrive whole and unchanged."""
    where = f"the weights offered at {host}:{port}"
    try:
        with socket.create_connection((host, port), PATIENCE) as connection, connection.makefile("rwb") as file:
            file.write(bytes.fromhex(key))
            file.flush()
            while (header := _HEADER.unpack(_read(file, _HEADER.size))) != (0, 0):
                data = _read(file, header[0])
                if zlib.crc32(data) != header[1]:
                    raise ValueError("wrong checksum")
                yield from load(data).items()
    except OSError as error:
        raise ChannelError(f"{where} are incomplete: {error}") from error
    except (ValueError, OverflowError, MemoryError) as error:  # of a length that cannot be
        raise ChannelError(f"{where} are corrupt: {error}") from error


def _read(file: BufferedIOBase, length: int) -> bytes:
    data = file.read(length)
    if len(data) < length:
        raise ConnectionError(f"the other side closed after {len(data)} of {length} bytes")
    return data
