"""Guards of the API: who may ask, from where, and how much. Any server with keys has them.

What is refused for the moment is answered with 429 if the key has too much, and with 503 if all together have; both say
with `Retry-After` when to ask again.

A page of another site that somebody on this machine has open must not reach the server: requests that a browser sent
for a page (`Origin`) are refused, as are host names that are not ours (DNS rebinding), and all need a key in a header,
which no form can send.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from ipaddress import ip_address
from threading import Lock
from types import MappingProxyType
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from posttrain.errors import UserError
from posttrain.serving.keys import PREFIX, Keys
from posttrain.serving.limits import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


DROPPED_BYTES, DROP_SECONDS = 2**16, 2.0  # of the body of a refused request


RETRY_SECONDS = 1  # after which what was refused for the moment is asked for again
EXPANDED = 8  # times its length is what a body in JSON takes while it is parsed, at least


class _Refused(HTTPException):
    """A request that is refused before it is read, or while it is: the status, and why."""


class TooLarge(UserError):
    """A request that is too large, whenever it is asked."""


class TooMuch(Exception):
    """What an owner, or all together, may have for the moment is used up: the status, and what the client is told."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class TooMuchWaits(TooMuch):
    """An owner has as much waiting as may be."""

    def __init__(self) -> None:
        super().__init__(429, "too many requests of this key are waiting; try again later")


def _owner(request: Request) -> str:
    return request.state.owner  # set by `Guard`, which has refused requests without a key


Owner = Annotated[str, Depends(_owner)]
"""Whose key a request has: an argument of routes."""


class Guard:
    """An ASGI layer: refuses other hosts, browsers' pages, and bodies that are too large or too slow.

    Args:
        app: the wrapped application.
        hosts: names of this machine, besides localhost and addresses; None for any, where keys are needed, which no
            page of another site has.
        limits: of bodies.
        keys: of clients. No body is parsed without one; the owner is in `request.state`.
    """

    def __init__(self, app: App, hosts: Collection[str] | None, limits: Limits, keys: Keys) -> None:
        self._app, self._hosts, self._limits, self._keys = app, hosts, limits, keys
        self._bodies = Pending(limits.bodies_per_key, limits.bodies_bytes)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limited = _Limited(receive, self._limits)
        with contextlib.ExitStack() as stack:
            try:
                owner = self._check(scope)
                limited.held = stack.enter_context(Held(self._bodies, owner))
                self._begin(scope, limited.held)
                await self._app(scope, limited.receive, send)
            except (_Refused, TooLarge, TooMuch) as refused:
                await limited.drop()
                await refusal(refused, {"connection": "close"})(scope, receive, send)
            except ClientDisconnect:
                return  # the client is gone

    def _check(self, scope: Message) -> str:
        """Whose request it is."""
        headers = dict(scope["headers"])
        if self._hosts is not None and not _is_ours(headers.get(b"host", b"").decode("latin-1"), self._hosts):
            raise _Refused(421, "this server has another name; start it with its own as the host")
        if b"origin" in headers:
            raise _Refused(403, "the API is not for pages in a browser")
        key = headers.get(b"x-api-key", b"").decode("latin-1")
        owner = self._keys.owner(key)
        if owner is None:
            what = "this server does not know the key in X-API-Key" if key else "a request needs a key, in X-API-Key"
            raise _Refused(401, f"{what}; keys begin with {PREFIX}")
        connection = scope.setdefault("state", {}).get("connection")  # of `http_server.TimedProtocol`
        if connection is not None and not connection.belongs_to(owner):
            raise TooMuch(429, "this key has too many connections; close some")
        scope["state"]["owner"] = owner
        return owner

    def _begin(self, scope: Message, held: "Held") -> None:
        """Count the body before it is read, if its length is known."""
        headers = dict(scope["headers"])
        scope["state"]["held"] = held
        held.most, held.times = self._limits.body_bytes, 1
        if b"protobuf" not in headers.get(b"content-type", b""):
            held.most, held.times = min(self._limits.json_bytes, held.most), EXPANDED
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18:
            raise _Refused(413, f"a request may have {held.most} bytes; send smaller batches")
        held.grow(int(length))


class Held:
    """The bytes that a request holds while it is received and parsed, of its key's and of all together's.

    Attributes:
        most: bytes that the body may have, also expanded.
        times: what each byte counts.
    """

    def __init__(self, bodies: "Pending", owner: str) -> None:
        self._bodies, self._owner, self._bytes = bodies, owner, 0
        self.most, self.times = 0, 1

    def grow(self, size: int) -> None:
        """The body has so many bytes, or has them after decompression.

        Raises:
            TooLarge: it may not have so many.
            TooMuch: others have what would be needed.
        """
        if size > self.most:
            raise TooLarge(f"a request may have {self.most} bytes; send smaller batches")
        if (more := size * self.times - self._bytes) > 0:
            self._bodies.enter(self._owner, more)
            self._bytes += more

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *error: object) -> None:
        self._bodies.leave(self._owner, self._bytes)


def refusal(error: Exception, headers: Mapping[str, str] = MappingProxyType({})) -> Response:
    """The answer to a request that is refused."""
    if isinstance(error, TooMuch):
        return JSONResponse({"error": str(error)}, error.status, {**headers, "retry-after": str(RETRY_SECONDS)})
    if isinstance(error, HTTPException):
        return JSONResponse({"error": str(error.detail)}, error.status_code, dict(headers))
    return JSONResponse({"error": str(error)}, 413, dict(headers))


class _Limited:
    """Reads a body of limited size in limited time."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive = receive
        self.held: Held | None = None
        self._read, self._whole, self._until = 0, False, time.monotonic() + limits.body_seconds

    async def receive(self) -> Message:
        """The next part of the body."""
        if self._whole:  # what comes now is that the client has gone
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._until - time.monotonic()))
        except TimeoutError:
            raise _Refused(408, "the request took too long") from None
        self._whole = not message.get("more_body", False)  # or the client has gone
        self._read += len(message.get("body", b""))
        if self.held is not None:
            self.held.grow(self._read)
        return message

    async def drop(self) -> None:
        """Read what is left of a small body: closed with unread data a connection is reset, and the answer lost."""
        self._until, self.held = min(self._until, time.monotonic() + DROP_SECONDS), None
        with contextlib.suppress(_Refused):
            while not self._whole and self._read < DROPPED_BYTES:
                await self.receive()


def _is_ours(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names localhost, an address, or one of `names`, with any port."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if name in ("localhost", *names):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class Pending:
    """How much of each owner waits: samples, or bytes; `total` is that of all together."""

    def __init__(self, most: int, total: float = math.inf) -> None:
        self._most, self._total, self._lock = most, total, Lock()
        self._waiting: dict[str, int] = {}

    def enter(self, owner: str, amount: int, share: float = 1.0) -> None:
        """Count a request, which may fill up to this share of the limit. One alone may always wait.

        Raises:
            TooMuchWaits: the owner would have too much.
        """
        with self._lock:
            waiting = self._waiting.get(owner, 0)
            if waiting and waiting + amount > share * self._most:
                raise TooMuchWaits
            others = sum(self._waiting.values())
            if others and others + amount > self._total:
                raise TooMuch(503, "the server has as many requests as it can; try again later")
            self._waiting[owner] = waiting + amount

    def leave(self, owner: str, amount: int) -> None:
        """A request waits no more."""
        with self._lock:
            # what was accepted before the server ended counts nothing, and may be all that the owner has
            self._waiting[owner] = self._waiting.get(owner, 0) - amount
