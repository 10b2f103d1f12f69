"""Weight transfer between processes, local or over the network.

For vLLM servers, which may reach the trainer and not be reached by it, as behind a container's network: there no
collective call works. The trainer offers them on a port; clients with the key receive all of them, one at a time: two
lengths and a checksum, name, shape and format as JSON, and the bytes as they lie in memory (little-endian). Received
data are never executed. The connection is not encrypted: use it in a trusted network.
"""

import hmac
import json
import secrets
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from posttrain.errors import EngineError, described

Weights = Callable[[], Iterable[tuple[str, Tensor]]]
"""All weights by name."""
_HEADER = struct.Struct(">IQI")  # lengths of what is said of a weight, and of its bytes; CRC-32 of both
FORMATS = {str(each): each for each in (torch.bfloat16, torch.float16, torch.float32, torch.float64)}
_MOST = 2**16  # bytes said of a weight
_KEY_BYTES = 32
_SLICE = 2**22  # bytes that are sent at a time: the time limit of a socket is for all of one call
PATIENCE = 60.0  # seconds without a byte


class ChannelError(EngineError):
    """Weights that did not arrive whole and unchanged."""


@contextmanager
def offered(weights: Weights, host: str) -> Iterator[tuple[int, str]]:
    """Offer `weights` at the address `host` of this machine while the block runs: the port, and the key in hex.

    Raises:
        EngineError: at the end, the weights could not be read; the receivers know only that they did not get all.
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
        threading.Thread(target=_send, args=(connection, key, weights, failed), daemon=True).start()


def _send(connection: socket.socket, key: bytes, weights: Weights, failed: list[Exception]) -> None:
    with connection, suppress(OSError):  # a receiver that goes away says so itself
        connection.settimeout(PATIENCE)
        if not hmac.compare_digest(_read(connection, _KEY_BYTES), key):
            return
        for header, about, data in _told(weights, failed):
            connection.sendall(_HEADER.pack(*header) + about)
            for at in range(0, len(data), _SLICE):
                connection.sendall(data[at : at + _SLICE])
        connection.sendall(_HEADER.pack(0, 0, 0))


def _told(weights: Weights, failed: list[Exception]) -> Iterator[tuple[tuple[int, int, int], bytes, memoryview]]:
    """What is sent of each weight: the header, what is said of it, and its bytes."""
    try:
        for name, weight in weights():
            here = weight.detach().cpu().contiguous()
            if str(here.dtype) not in FORMATS:
                raise TypeError(f"'{name}' is in {here.dtype}, which cannot be sent")
            about = json.dumps({"name": name, "shape": list(here.shape), "format": str(here.dtype)}).encode()
            data = _bytes_of(here.reshape(-1).view(torch.uint8))
            yield (len(about), len(data), zlib.crc32(data, zlib.crc32(about))), about, data
    except Exception as error:
        failed.append(error)
        raise OSError(str(error)) from error  # ends the connection


def received(host: str, port: int, key: str) -> Iterator[tuple[str, Tensor]]:
    """The weights that are offered there.

    Raises:
        ChannelError: no trainer offers them, the key is wrong, or they did not arrive whole and unchanged.
    """
    where = f"the weights offered at {host}:{port}"
    try:
        with socket.create_connection((host, port), timeout=PATIENCE) as connection:
            connection.sendall(bytes.fromhex(key))
            while (header := _HEADER.unpack(_read(connection, _HEADER.size))) != (0, 0, 0):
                yield _weight(connection, *header)
    except OSError as error:
        raise ChannelError(f"{where} did not arrive whole: {error}") from error
    except (ValueError, TypeError, KeyError, RuntimeError) as error:  # of torch, of a length that cannot be
        raise ChannelError(f"{where} were changed on the way: {error}") from error


def _weight(connection: socket.socket, about_bytes: int, size: int, checksum: int) -> tuple[str, Tensor]:
    """The next weight; raises `ValueError` where it is not what was sent."""
    if about_bytes > _MOST:
        raise ValueError(f"{about_bytes} bytes are said of one weight")
    about = _read(connection, about_bytes)
    data = torch.empty(size, dtype=torch.uint8)
    _fill(connection, _bytes_of(data))
    if zlib.crc32(_bytes_of(data), zlib.crc32(about)) != checksum:
        raise ValueError("a checksum is wrong")
    said = json.loads(about)
    return said["name"], data.view(FORMATS[said["format"]]).view(said["shape"])


def _bytes_of(data: Tensor) -> memoryview:
    return data.numpy().data


def _read(connection: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    _fill(connection, memoryview(data))
    return bytes(data)


def _fill(connection: socket.socket, data: memoryview) -> None:
    done = 0
    while done < len(data):
        part = connection.recv_into(data[done:])
        if not part:
            raise ConnectionError(f"the other side closed after {done} of {len(data)} bytes")
        done += part
