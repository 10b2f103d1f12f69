"""How applications are served by HTTP, with bounds of connections that uvicorn does not have.

It has a timeout for idle connections; here are those of a request's head, and of an answer that is not read: a client
that sends or reads very slowly (slowloris) would otherwise hold a connection for ever. The timeouts of bodies are in
`annotation.app.security` and `serving.guard`. Connections are bounded below what the process may open, by peer until
they have shown a key, and by key.
"""

import errno
import resource
import socket
import time
from asyncio import TimerHandle, Transport
from collections import Counter
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.config import LOGGING_CONFIG
from uvicorn.protocols.http.h11_impl import H11Protocol

from posttrain.errors import UserError, first_line

HEAD_SECONDS = 20.0  # from the connection, or from a request's first byte, to the end of its head
WRITE_SECONDS = 60.0  # for which the client reads nothing of an answer that fills the buffers

CONNECTIONS = 4096  # at once, if the process may open as many files
OTHER_FILES = 128  # that a server has open
BY_KEY, BY_PEER = 2, 8  # parts of all connections: of one key, and of one address without a key
NEW_SECONDS = 1.0  # a connection without a key that is younger is not closed for another one
LOG_LINES = 20  # of a kind of log in a minute

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def address_of(host: str, port: int) -> str:
    """Host and port by which this machine reaches a server that listens on an address.

    >>> address_of("0.0.0.0", 8000), address_of("fd00::1", 80)
    ('localhost:8000', '[fd00::1]:80')
    """
    local = host in ("127.0.0.1", "0.0.0.0", "::", "::1")
    return f"{'localhost' if local else f'[{host}]' if ':' in host else host}:{port}"


def bound(host: str, port: int) -> socket.socket:
    """A socket that has an address and does not listen yet: taken before a model is loaded; raises `UserError`."""
    if not 0 < port < 65536:
        raise UserError(f"`port` must be 1 to 65535; got {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        place = socket.socket(family)
        try:
            if family == socket.AF_INET6:
                place.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # `::` is of IPv6 alone
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # at once after the last server
            place.bind(address)
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # or another could be bound to it, too
        except OSError:
            place.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"another server listens on port {port}; end it, or pass another `port`") from error
        raise UserError(f"`host` {host} `port` {port} cannot be listened on: {first_line(error)}") from error
    return place


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, place: socket.socket) -> None:
        super().__init__(config)
        self._place = place

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections may be there still
        super().run([self._place, *(sockets or ())])


class Few:
    """Lets `LOG_LINES` lines a minute through, so that no client can fill a disk with them."""

    def __init__(self) -> None:
        self._minute, self._seen = 0, 0

    def filter(self, record: Any) -> bool:
        """Count a line, as a filter of a logger; whether it is written."""
        minute = int(time.monotonic() // 60)
        self._seen = self._seen + 1 if minute == self._minute else 1
        self._minute = minute
        return self._seen <= LOG_LINES


class Connections:
    """The connections of a server: how many, of whom. In the thread of its event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._strangers: dict[TimedProtocol, float] = {}  # those that have shown no key, and since when
        self._peers, self._owners = Counter[str](), Counter[str]()

    def admit(self, new: "TimedProtocol") -> bool:
        """Count a connection; whether there is room, for which an idle one without a key may be closed."""
        full = len(self._strangers) + self._owners.total() >= self._most
        crowded = self._peers[new.peer] >= self._most // BY_PEER
        if full or crowded:
            before = time.monotonic() - NEW_SECONDS
            peer = new.peer if crowded else None
            for old, since in list(self._strangers.items()):
                if since > before:
                    break
                if not old.answering and peer in (None, old.peer):
                    self.forget(old)
                    old.transport.abort()
                    full = False
                    break
        if not full:
            self._strangers[new] = time.monotonic()
            self._peers[new.peer] += 1
        return not full

    def belongs(self, connection: "TimedProtocol", owner: str) -> bool:
        """Count a connection as one of a key's owner; False if that has as many as may be."""
        if connection.owner != owner and not connection.transport.is_closing():  # else nobody would forget it
            if self._owners[owner] >= self._most // BY_KEY:
                return False
            self.forget(connection)
            connection.owner = owner
            self._owners[owner] += 1
        return True

    def forget(self, connection: "TimedProtocol") -> None:
        """A connection is closed, or another's now."""
        if self._strangers.pop(connection, None) is not None:
            self._peers -= Counter([connection.peer])
        elif connection.owner is not None:
            self._owners -= Counter([connection.owner])
            connection.owner = None


def http_server(
    app: Any, place: socket.socket, *, proxies: str = "", connections: int = CONNECTIONS, **more: Any
) -> uvicorn.Server:
    """A server of an application at a `place` of `bound`; what headers say of clients is believed of `proxies`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < min(hard, connections + OTHER_FILES):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, connections + OTHER_FILES), hard))
    most = min(connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OTHER_FILES)
    few = {"level": "WARNING", "filters": ["few"]}
    loggers = LOGGING_CONFIG["loggers"] | {"asyncio": few, "uvicorn.error": few}
    lines = LOGGING_CONFIG | {"filters": {"few": {"()": Few}}, "loggers": loggers}
    protocol: Any = partial(TimedProtocol, Connections(most))
    settings = uvicorn.Config(
        app,
        http=protocol,
        loop="asyncio",  # what was tested: with "auto" it is uvloop wherever another package has brought that
        log_config=lines,
        log_level="warning",
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        server_header=False,
        **more,
    )
    return _Server(settings, place)


class TimedProtocol(H11Protocol):
    """uvicorn's protocol, with both timeouts, among the connections of its server."""

    head_timer: TimerHandle | None = None
    write_timer: TimerHandle | None = None
    owner: str | None = None  # of the key that it has shown

    def __init__(self, among: Connections, **settings: Any) -> None:
        super().__init__(**settings)
        self.among = among
        self.app_state = {**self.app_state, "connection": self}  # which a request's scope has

    def connection_made(self, transport: Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Wait for the first head, if there is room."""
        super().connection_made(transport)
        if self.among.admit(self):
            self.head_timer = self.loop.call_later(HEAD_SECONDS, self._late)
        else:
            transport.write(BUSY)
            transport.close()

    @property
    def peer(self) -> str:
        """The address of the other side."""
        return self.client[0] if self.client else ""

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a head that has begun; no longer once there is a request to answer."""
        super().data_received(data)
        if self.answering:
            self.head_timer = _cancel(self.head_timer)
        elif self.head_timer is None and not self.transport.is_closing():
            self.head_timer = self.loop.call_later(HEAD_SECONDS, self._late)

    @property
    def answering(self) -> bool:
        """Whether a request is being done."""
        cycle = self.cycle  # None before the first request
        return bool(cycle) and not cycle.response_complete

    def _late(self) -> None:
        self.head_timer = None
        if self.transport.is_closing() or self.answering:
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self.transport.write(LATE)
        self.transport.close()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        if self.write_timer is None:
            self.write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        self.write_timer = _cancel(self.write_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self.head_timer, self.write_timer = _cancel(self.head_timer), _cancel(self.write_timer)
        self.among.forget(self)
        self.app_state = {}
        super().connection_lost(exc)


def _cancel(timer: TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
