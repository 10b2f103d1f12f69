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

from posttrain.errors import EngineError

Weights = Callable[[], Iterable[tuple[str, Tensor]]]
_HEADER = struct.Struct(">QI")  # length and CRC-32 of a document
_KEY_BYTES = 32
PATIENCE = 60.0  # seconds without a byte


@contextmanager
def offered(weights: Weights, host: str) -> Iterator[tuple[int, str]]:
    """Offer `weights` at the address `host` of this machine while the block runs: the port, and the key in hex."""
    key = secrets.token_bytes(_KEY_BYTES)
    with socket.create_server((host, 0)) as server:
        threading.Thread(target=_serve, args=(server, key, weights), daemon=True).start()
        try:
            yield server.getsockname()[1], key.hex()
        finally:
            with suppress(OSError):  # wakes the thread that waits
                server.shutdown(socket.SHUT_RDWR)


def _serve(server: socket.socket, key: bytes, weights: Weights) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:  # closed
            return
        threading.Thread(target=_send, args=(connection, key, weights), daemon=True).start()


def _send(connection: socket.socket, key: bytes, weights: Weights) -> None:
    with connection, suppress(OSError):  # a receiver that goes away says so itself
        connection.settimeout(PATIENCE)
        if not hmac.compare_digest(_read(connection, _KEY_BYTES), key):
            return
        for name, weight in weights():
            document = save({name: weight.detach().cpu().contiguous()})
            connection.sendall(_HEADER.pack(len(document), zlib.crc32(document)))
            connection.sendall(document)
        connection.sendall(_HEADER.pack(0, 0))


def received(host: str, port: int, key: str) -> Iterator[tuple[str, Tensor]]:
    """The weights that are offered there.

    Raises:
        EngineError: no trainer offers them, the key is wrong, or they did not arrive whole and unchanged.
    """
    where = f"the weights offered at {host}:{port}"
    try:
        with socket.create_connection((host, port), timeout=PATIENCE) as connection:
            connection.sendall(bytes.fromhex(key))
            while (header := _HEADER.unpack(_read(connection, _HEADER.size)))[0]:
                document = _read(connection, header[0])
                if zlib.crc32(document) != header[1]:
                    raise EngineError(f"{where} were changed on the way: a checksum is wrong")
                yield from load(document).items()
    except OSError as error:
        raise EngineError(f"{where} did not arrive whole: {error}") from error


def _read(connection: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(min(length - len(parts), 2**20))
        if not part:
            raise ConnectionError(f"the other side closed after {len(parts)} of {length} bytes")
        parts += part
    return bytes(parts)
