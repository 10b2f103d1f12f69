"""Weight transfer between processes, local or over the network.

The trainer offers them on a port; a client with the key receives all of them, one at a time, each as a safetensors
document after its length. Received data are never executed. The connection is not encrypted: use it in a trusted
network.
"""

import hmac
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from safetensors.torch import load, save
from torch import Tensor

from posttrain.errors import EngineError

Weights = Callable[[], Iterable[tuple[str, Tensor]]]
_LENGTH = struct.Struct(">Q")
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
        with connection, suppress(OSError):  # a receiver that goes away says so itself
            connection.settimeout(PATIENCE)
            if not hmac.compare_digest(_read(connection, _KEY_BYTES), key):
                continue
            for name, weight in weights():
                document = save({name: weight.detach().cpu().contiguous()})
                connection.sendall(_LENGTH.pack(len(document)))
                connection.sendall(document)
            connection.sendall(_LENGTH.pack(0))


def received(host: str, port: int, key: str) -> Iterator[tuple[str, Tensor]]:
    """The weights that are offered there.

    Raises:
        EngineError: no trainer offers them, the key is wrong, or the connection broke before the last one.
    """
    try:
        with socket.create_connection((host, port), timeout=PATIENCE) as connection:
            connection.sendall(bytes.fromhex(key))
            while length := _LENGTH.unpack(_read(connection, _LENGTH.size))[0]:
                yield from load(_read(connection, length)).items()
    except OSError as error:
        raise EngineError(f"the weights offered at {host}:{port} did not arrive whole: {error}") from error


def _read(connection: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(min(length - len(parts), 2**20))
        if not part:
            raise ConnectionError(f"the other side closed after {len(parts)} of {length} bytes")
        parts += part
    return bytes(parts)
