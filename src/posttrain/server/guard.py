"""Guards of the API: who may ask, from where, and how much.

A page of another site that somebody on this machine has open must not reach the server: requests that a browser sent
for a page (`Origin`) are refused, as are host names that are not ours (DNS rebinding), and all need a key in a header,
which no form can send.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from ipaddress import ip_address
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from posttrain.server.limits import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class _Refused(HTTPException):
    """A request that is refused before it is read, or while it is: the status, and why."""


class Guard:
    """An ASGI layer: refuses other hosts, browsers' pages, and bodies that are too large or too slow.

    Args:
        app: the wrapped application.
        hosts: names of this machine, besides localhost and addresses; None for any, where keys are needed, which no
            page of another site has.
        limits: of bodies.
    """

    def __init__(self, app: App, hosts: Collection[str] | None, limits: Limits) -> None:
        self._app, self._hosts, self._limits = app, hosts, limits

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
        self._whole = not message.get("more_body", False)
        self._read += len(message.get("body", b""))
        if self._read > self._limits.body_bytes:
            raise _Refused(413, f"a request may have {self._limits.body_bytes} bytes; send smaller batches")
        return message


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
    """The number of samples of each owner that wait."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, Lock()
        self._count: dict[str, int] = {}

    def enter(self, owner: str, samples: int) -> bool:
        """Count a request's samples; False if the owner would have too many. One request alone may always wait."""
        with self._lock:
            count = self._count.get(owner, 0)
            if count and count + samples > self._most:
                return False
            self._count[owner] = count + samples
            return True

    def leave(self, owner: str, samples: int) -> None:
        """Those of a request wait no more."""
        with self._lock:
            self._count[owner] -= samples
