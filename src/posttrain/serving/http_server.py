"""How applications are served by HTTP, with timeouts of connections that uvicorn does not have.

It has one for idle connections; here are those of a request's head, and of an answer that is not read: a client that
sends or reads very slowly (slowloris) would otherwise hold a connection for ever. The timeouts of bodies are in
`annotation.app.security` and `server.guard`.
"""

import errno
import socket
from asyncio import TimerHandle, Transport
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from posttrain.errors import UserError, first_line

HEAD_SECONDS = 20.0  # from the connection, or from a request's first byte, to the end of its head
WRITE_SECONDS = 60.0  # for which the client reads nothing of an answer that fills the buffers

LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def address_of(host: str, port: int) -> str:
    """Host and port by which this machine reaches a server that listens on an address.

    >>> address_of("0.0.0.0", 8000), address_of("fd00::1", 80)
    ('localhost:8000', '[fd00::1]:80')
    """
    local = host in ("127.0.0.1", "0.0.0.0", "::", "::1")
    return f"{'localhost' if local else f'[{host}]' if ':' in host else host}:{port}"


def bound(host: str, port: int) -> socket.socket:
    """A socket that has an address, and does not listen yet: taken before a server loads a model and says where it is.

    Raises:
        UserError: another server has the address, or this machine has none of that name.
    """
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
    """Listens on a socket that is bound."""

    def __init__(self, config: uvicorn.Config, place: socket.socket) -> None:
        super().__init__(config)
        self._place = place

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until interrupted."""
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections may be there still
        super().run([self._place, *(sockets or ())])


def http_server(app: Any, place: socket.socket, *, proxies: str = "", **more: Any) -> uvicorn.Server:
    """A server of an application.

    Args:
        app: the ASGI application.
        place: where it listens, as `bound` gives it.
        proxies: addresses of proxies whose headers about the client are believed, separated by commas.
        more: further settings of `uvicorn.Config`.
    """
    settings = uvicorn.Config(
        app,
        http=TimedProtocol,
        loop="asyncio",  # what was tested: with "auto" it is uvloop wherever another package has brought that
        log_level="warning",
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        server_header=False,
        **more,
    )
    return _Server(settings, place)


class TimedProtocol(H11Protocol):
    """uvicorn's protocol, with both timeouts."""

    head_timer: TimerHandle | None = None
    write_timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Wait for the first head."""
        super().connection_made(transport)
        self.head_timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a head that has begun; no longer once there is a request to answer."""
        super().data_received(data)
        if self._answering():
            self.head_timer = _cancel(self.head_timer)
        elif self.head_timer is None:
            self.head_timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def _answering(self) -> bool:
        cycle = self.cycle  # None before the first request
        return bool(cycle) and not cycle.response_complete

    def _late(self) -> None:
        self.head_timer = None
        if self.transport.is_closing() or self._answering():
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
        super().connection_lost(exc)


def _cancel(timer: TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
