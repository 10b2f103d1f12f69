"""Weight transfer between processes, local or over the network.

The trainer offers them on a port; clients with the key receive all of them, one at a time, each as a safetensors
document after its length and checksum. Received data are never executed. The connection is not encrypted: use it in a
trusted network.
"""

import hmac
import secrets
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from safetensors.torch import load, save
from torch import Tensor

from posttrain.errors import EngineError, described

Weights = Callable[[], Iterable[tuple[str, Tensor]]]
_HEADER = struct.Struct(">QI")  # length and CRC-32 of a document
_KEY_BYTES = 32
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
        for document in _documents(weights, failed):
            connection.sendall(_HEADER.pack(len(document), zlib.crc32(document)))
            connection.sendall(document)
        connection.sendall(_HEADER.pack(0, 0))


def _documents(weights: Weights, failed: list[Exception]) -> Iterator[bytes]:
    try:
        for name, weight in weights():
            yield save({name: weight.detach().cpu().contiguous()})
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
            while (header := _HEADER.unpack(_read(connection, _HEADER.size)))[0]:
                document = _read(connection, header[0])
                if zlib.crc32(document) != header[1]:
                    raise ChannelError(f"{where} were changed on the way: a checksum is wrong")
                yield from load(document).items()
    except OSError as error:
        raise ChannelError(f"{where} did not arrive whole: {error}") from error


def _read(connection: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(min(length - len(parts), 2**20))
        if not part:
            raise ConnectionError(f"the other side closed after {len(parts)} of {length} bytes")
        parts += part
    return bytes(parts)
