"""Guards of the web app: size limits, security headers, origin checks, rate limits, and safe Markdown.

Every write is a POST from one of our own pages: it has the session's CSRF token, which no other site
can read, and `Origin` or `Sec-Fetch-Site` show the same origin. Of what a model wrote nothing is executed or fetched:
raw HTML is shown as text, and the rendered Markdown passes a sanitiser with a short allow-list of tags, without
scripts, styles, frames, forms or images. Links open in a new tab without a referrer.
"""

import asyncio
import time
from collections import deque
from collections.abc import Collection
from ipaddress import ip_address
from threading import Lock
from urllib.parse import urlsplit

import nh3
from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from posttrain.errors import as_typed

LARGEST = 1024 * 1024  # bytes of a request's body
BODY_SECONDS = 30.0  # within which all of it has to come
SWEPT = 1024  # keys of a limit from which those are forgotten that have nothing left: addresses never come back

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer browsers call the origin of our own forms null
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class Forbidden(Exception):
    """A request that no page of ours makes; its message says why it is refused."""


class TooOften(Exception):
    """Rate limit exceeded."""


class Guard:
    """An ASGI layer: refuses other hosts, bodies that are too large or too slow, and puts the headers on every answer.

    `hosts` are those of `create_app`.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None = None) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        async def refuse(words: str, code: int, **headers: str) -> None:
            await PlainTextResponse(words, code, headers)(scope, receive, with_headers)

        found = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if self.hosts is not None and not (len(found) == 1 and is_served(found[0], self.hosts)):
            words = "these pages are not served by this name; start the server with `url` and the address of the pages"
            return await refuse(as_typed(words), 421)
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > LARGEST:
            return await refuse("too large", 413)
        body, whole = bytearray(), False
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while not whole:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    whole = not message.get("more_body", False)
                    if len(body) > LARGEST:
                        return await refuse("too large", 413)
        except TimeoutError:
            return await refuse("the request took too long", 408, connection="close")
        read = iter([{"type": "http.request", "body": bytes(body)}])

        async def replayed() -> Message:
            return next(read, None) or await receive()

        await self.app(scope, replayed, with_headers)


def is_served(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names localhost, an address, or one of `names`, with any port.

    An address is safe: a page of another site reaches this server under its own name only (DNS rebinding).
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        return name in ("localhost", *names) or ip_address(name) is not None
    except ValueError:
        return False


def from_here(request: Request, url: str) -> None:
    """Raise `Forbidden` where the browser says that another site made this request; `url` is where ours are."""
    elsewhere = request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
    origin = request.headers.get("origin")
    if elsewhere or (origin not in (None, url) and urlsplit(origin).netloc != request.headers.get("host")):
        raise Forbidden("this request comes from another site")


class Limit:
    """Rate limit per key: a maximum number within a number of seconds. It is kept in this process.

    Failures are counted afterwards, so concurrent requests may exceed it: a room full of people that
    log in at once, from one address, must not be refused.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self.seconds = most, seconds
        self._seen: dict[str, deque[float]] = {}  # the last `most` of each
        self._lock = Lock()

    def count(self, key: str) -> None:
        """Count one."""
        with self._lock:
            now = time.monotonic()
            if len(self._seen) >= SWEPT:
                for name in [name for name, seen in self._seen.items() if seen[-1] <= now - self.seconds]:
                    del self._seen[name]
            self._seen.setdefault(key, deque(maxlen=self.most)).append(now)

    def check(self, key: str) -> None:
        """Raise `TooOften` if the limit is reached."""
        with self._lock:
            since = time.monotonic() - self.seconds
            if sum(at > since for at in self._seen.get(key, ())) >= self.most:
                raise TooOften


_TAGS = {
    *("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "ul", "ol", "li", "strong", "em", "s"),
    *("code", "pre", "table", "thead", "tbody", "tr", "th", "td", "a"),
}
_READER = (
    # a line that a model ended is a line: joined ones would be other words than those that are judged
    MarkdownIt("commonmark", {"html": False, "linkify": False, "breaks": True})
    .enable(["table", "strikethrough"])
    .disable("image")
)


def rendered(text: str) -> Markup:
    """Untrusted text as safe HTML."""
    return cleaned(_READER.render(text))


def cleaned(html: str) -> Markup:
    """HTML without what could run, fetch or style anything."""
    kept = nh3.clean(
        html,
        tags=_TAGS,
        attributes={"*": set(), "a": {"href"}, "ol": {"start"}},
        url_schemes={"http", "https"},
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )
    return Markup(kept)
