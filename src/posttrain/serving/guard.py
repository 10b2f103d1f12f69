"""Guards of the API: who may ask, from where, and how much. Any server with keys has them.

A page of another site that somebody on this machine has open must not reach the server: requests that a browser sent
for a page (`Origin`) are refused, as are host names that are not ours (DNS rebinding), and all need a key in a header,
which no form can send.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from ipaddress import ip_address
from threading import Lock
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from posttrain.serving.keys import PREFIX, Keys
from posttrain.serving.limits import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


DROPPED_BYTES, DROP_SECONDS = 2**16, 2.0  # of the body of a refused request


class _Refused(HTTPException):
    """A request that is refused before it is read, or while it is: the status, and why."""


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

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limited = _Limited(receive, self._limits)
        try:
            self._check(scope)
            await self._app(scope, limited.receive, send)
        except _Refused as refused:
            await limited.drop()
            answer = JSONResponse({"error": refused.detail}, refused.status_code, {"connection": "close"})
            await answer(scope, receive, send)
        except ClientDisconnect:
            return  # the client is gone

    def _check(self, scope: Message) -> None:
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
        scope.setdefault("state", {})["owner"] = owner
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > self._limits.body_bytes:
            raise _Refused(413, f"a request may have {self._limits.body_bytes} bytes; send smaller batches")


class _Limited:
    """Reads a body of limited size in limited time."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive, self._limits = receive, limits
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
        if self._read > self._limits.body_bytes:
            raise _Refused(413, f"a request may have {self._limits.body_bytes} bytes; send smaller batches")
        return message

    async def drop(self) -> None:
        """Read what is left of a small body: closed with unread data a connection is reset, and the answer lost."""
        self._until = min(self._until, time.monotonic() + DROP_SECONDS)
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


class TooMuchWaits(Exception):
    """An owner has as much waiting as may be."""


class Pending:
    """How much of each owner waits: samples, or bytes."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, Lock()
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
            self._waiting[owner] = waiting + amount

    def leave(self, owner: str, amount: int) -> None:
        """A request waits no more."""
        with self._lock:
            # what was accepted before the server ended counts nothing, and may be all that the owner has
            self._waiting[owner] = self._waiting.get(owner, 0) - amount
