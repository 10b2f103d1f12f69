"""The application of a server with keys: who may ask, from where, how much, and errors as JSON.

An error is {"error": what was given, what was expected}: 400 for a client's mistake, 422 for a field that is wrong,
507 for a disk that is full. What is refused for the moment is answered with 429 if the key has too much, and with 503
if all together have; both say with `Retry-After` when to ask again.

A page of another site that somebody on this machine has open must not reach the server: requests that a browser sent
for a page (`Origin`) are refused, as are host names that are not ours (DNS rebinding), and all need a key in a header,
which no form can send.
"""

import asyncio
import contextlib
import errno
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from ipaddress import ip_address
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from posttrain.errors import UserError, described
from posttrain.serving.access import PREFIX, BodyLimits, Keys

if TYPE_CHECKING:
    from posttrain.serving.jobs.services import JobServices
    from posttrain.serving.services import Services

DROPPED_BYTES, DROP_SECONDS = 2**16, 2.0  # of the body of a refused request
EXPANDED = 8  # times its length is what a body in JSON takes while it is parsed, at least
OTHER_KIND = ("missing", "extra_forbidden", "list_type", "model_type")
"""What pydantic says of the kinds of a union that a value is not."""


def _owner(request: Request) -> str:
    return request.state.owner  # set by `Guard`, which has refused requests without a key


Owner = Annotated[str, Depends(_owner)]
"""Whose key a request has: an argument of routes."""


def services_of(request: Request) -> Any:
    """The parts of the server, those of `application`."""
    return request.app.state.services


def application(
    services: "Services | JobServices", routers: Sequence[APIRouter], hosts: Collection[str] | None
) -> FastAPI:
    """An application over a server's parts, which it starts and closes. `hosts`: see `Guard`."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        services.start()
        yield
        await run_in_threadpool(services.close)

    def full_disk(request: Request, error: Any) -> Response:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise error
        services.report(f"{request.url.path}: {described(error)}")
        return JSONResponse({"error": "the server's disk is full; try again when its operator has made room"}, 507)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.services = services
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(UserError, answer(400))
    app.add_exception_handler(OSError, full_disk)
    app.add_exception_handler(RequestValidationError, answer(422, first_mistake))
    app.add_exception_handler(HTTPException, lambda request, error: refusal(error))
    app.add_middleware(Guard, hosts=hosts, limits=services.limits, keys=services.keys)
    return app


def answer(status: int, text: Callable[[Any], str] = str) -> Any:
    """A handler of an error: its text, or another one, with a status."""
    return lambda request, error: JSONResponse({"error": text(error)}, status)


def refusal(error: Any, **headers: str) -> Response:
    """The answer to what is refused with a status."""
    text = "this server has no such route" if error.detail == "Not Found" else str(error.detail)
    return JSONResponse({"error": text}, error.status_code, {**(error.headers or {}), **headers})


def first_mistake(error: Any) -> str:
    """The first field that pydantic refuses, and why; a wrong value comes before fields of other kinds of a union."""
    found = error.errors()
    first = next((each for each in found if each["type"] not in OTHER_KIND), found[0])
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    if not where and first["type"] == "model_attributes_type":  # also what a body of another Content-Type is
        return "the body is not a JSON object; send one, with Content-Type: application/json"
    return f"{where}: {first['msg']}" if where else str(first["msg"])


class Pending:
    """How much of each owner waits: samples, or bytes; `total` is that of all together."""

    def __init__(self, most: int, total: float = math.inf) -> None:
        self._most, self._total, self._lock = most, total, Lock()
        self._waiting: dict[str, int] = {}

    def enter(self, owner: str, amount: int, share: float = 1.0) -> None:
        """Count a request, which may fill up to this share of the limit, or raise. One alone may always wait."""
        with self._lock:
            waiting, others = self._waiting.get(owner, 0), sum(self._waiting.values())
            if waiting and waiting + amount > share * self._most:
                status, text = 429, "too many requests of this key are waiting; try again later"
            elif others and others + amount > self._total:
                status, text = 503, "the server has as many requests as it can; try again later"
            else:
                self._waiting[owner] = waiting + amount
                return
        raise HTTPException(status, text, {"retry-after": "1"})

    def leave(self, owner: str, amount: int) -> None:
        """A request waits no more."""
        with self._lock:
            # what was accepted before the server ended counts nothing, and may be all that the owner has
            self._waiting[owner] = self._waiting.get(owner, 0) - amount


class Upload:
    """A request's body: received in limited time, and counted among those of its key and of all; at most `most`."""

    def __init__(self, receive: Receive, limits: BodyLimits, among: Pending) -> None:
        self._receive, self._limits, self._among = receive, limits, among
        self._read, self._whole, self._until = 0, False, time.monotonic() + limits.body_seconds
        self._owner, self._times, self._counted, self.most = "", 1, 0, limits.body_bytes

    def begin(self, owner: str, headers: dict[bytes, bytes]) -> None:
        """Count it before it is read, if its length is known."""
        self._owner = owner
        if b"protobuf" not in headers.get(b"content-type", b""):
            self.most, self._times = min(self._limits.json_bytes, self.most), EXPANDED
        length = headers.get(b"content-length", b"0")
        self.grow(int(length) if length.isdigit() and len(length) < 19 else self.most + 1)

    def grow(self, size: int) -> None:
        """It has so many bytes, or has them after decompression. Raises `HTTPException` 413, and as `Pending`."""
        if size > self.most:
            raise HTTPException(413, f"a request may have {self.most} bytes; send smaller batches")
        if (more := size * self._times - self._counted) > 0:
            self._among.enter(self._owner, more)
            self._counted += more

    async def receive(self) -> Message:
        """The next part of it."""
        if self._whole:  # what comes now is that the client has gone
            return await self._receive()
        message = await self._next()
        self.grow(self._read)
        return message

    async def _next(self) -> Message:
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._until - time.monotonic()))
        except TimeoutError:
            raise HTTPException(408, "the request took too long") from None
        self._whole = not message.get("more_body", False)  # or the client has gone
        self._read += len(message.get("body", b""))
        return message

    async def drop(self) -> None:
        """Read what is left of a small body: closed with unread data a connection is reset, and the answer lost."""
        self._until = min(self._until, time.monotonic() + DROP_SECONDS)
        with contextlib.suppress(HTTPException):
            while not self._whole and self._read < DROPPED_BYTES:
                await self._next()

    def end(self) -> None:
        """It is parsed, or was refused."""
        self._among.leave(self._owner, self._counted)


class Guard:
    """An ASGI layer: refuses other hosts, browsers' pages, and bodies that are too large or too slow.

    `hosts` are names of this machine, besides localhost and addresses; None for any, where keys are needed, which no
    page of another site has. No body is parsed without a key.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None, limits: BodyLimits, keys: Keys) -> None:
        self._app, self._hosts, self._limits, self._keys = app, hosts, limits, keys
        self._bodies = Pending(limits.bodies_per_key, limits.bodies_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, with its owner and `Upload` in `request.state`."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        upload, headers = Upload(receive, self._limits, self._bodies), dict(scope["headers"])
        state = scope.setdefault("state", {})
        try:
            owner = self._owner(headers, state.get("connection"))
            state |= {"owner": owner, "upload": upload}
            upload.begin(owner, headers)
            await self._app(scope, upload.receive, send)
        except HTTPException as refused:
            await upload.drop()
            await refusal(refused, connection="close")(scope, receive, send)
        except ClientDisconnect:
            return  # the client is gone
        finally:
            upload.end()

    def _owner(self, headers: dict[bytes, bytes], connection: Any) -> str:
        """Whose request it is; `connection` is `http_server.TimedProtocol`, where that serves."""
        if self._hosts is not None and not _is_ours(headers.get(b"host", b"").decode("latin-1"), self._hosts):
            raise HTTPException(421, "this server has another name; start it with its own as the host")
        if b"origin" in headers:
            raise HTTPException(403, "the API is not for pages in a browser")
        key = headers.get(b"x-api-key", b"").decode("latin-1")
        owner = self._keys.owner(key)
        if owner is None:
            what = "this server does not know the key in X-API-Key" if key else "a request needs a key, in X-API-Key"
            raise HTTPException(401, f"{what}; keys begin with {PREFIX}")
        if connection is not None and not connection.among.belongs(connection, owner):
            raise HTTPException(429, "this key has too many connections; close some", {"retry-after": "1"})
        return owner


def _is_ours(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names localhost, an address, or one of `names`, with any port."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        return name in ("localhost", *names) or bool(ip_address(name))
    except ValueError:
        return False
