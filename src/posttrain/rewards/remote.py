r"""Rewards behind an HTTP address: `https://HOST/PATH`, or `public:https://HOST/PATH`.

    POST {"prompts": [[{"role": "user", "content": "1+1?"}], ...],
          "completions": ["2", ...],
          "tasks": [{"id": "train-0", "answer": "2", "metadata": {}}, ...]}

    200 {"scores": [1.0, ...]}

One score for each completion, in order: finite numbers, of any range. Requests have at most `BATCH` completions. What
may pass (no connection, no answer in time, HTTP 408, 429, 5xx) is tried again; everything else is an error, never a
score of 0. Redirects are not followed, answers are limited in size, and proxies of the environment are not used.

With `public:`, for addresses that others have chosen, no host is asked of which an address is private, loopback,
link-local or otherwise special. The connection is made to the very address that was checked, so that a name that
changes its address in between (DNS rebinding) leads nowhere else.
"""

import http.client
import ipaddress
import json
import math
import random
import re
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import SplitResult, urlsplit

from posttrain.background import in_thread, in_time
from posttrain.errors import RewardError, UserError, described
from posttrain.types import Episode

PUBLIC = "public:"
BATCH = 256  # completions of a request
TIMEOUT_S = 45.0  # of a request, all of it
ATTEMPTS, PAUSE_S = 4, 1.0  # requests; seconds before the second, twice as long before each later one
ANSWER_BYTES = 1 << 16  # of an answer, besides ANSWER_BYTES_EACH for each score
ANSWER_BYTES_EACH = 64
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_URL = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+(?:/[A-Za-z0-9._~%/@:+,;-]*)?")
# NAT64, IPv4-compatible and IPv4-translated: the last 32 bits are an IPv4 address
_EMBEDDED = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")  # RFC 8215: a network's own, whatever it leads to

Address = tuple[int, str]  # family, and the address as numbers
Resolve = Callable[[str, int], list[Address]]


class _Passing(Exception):
    """A failure that may pass."""


def resolved(host: str, port: int) -> list[Address]:
    """The addresses of a host."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, str(address[0])) for family, _, _, _, address in found]


@dataclass(frozen=True)
class Remote:
    """A call for `from_function` that asks an HTTP address for the scores of episodes; see `check_address`."""

    url: str
    public: bool = False  # whether only public addresses may be asked
    pause_s: float = PAUSE_S  # before the second attempt
    resolve: Resolve = field(default=resolved, compare=False, repr=False)
    bounds = (-math.inf, math.inf)  # no score says that a task is solved

    def __post_init__(self) -> None:
        check_address(self.url)

    async def __call__(self, episodes: Sequence[Episode], **columns: object) -> list[float]:
        """One number per episode; all columns are sent. Raises `RewardError` as the module says."""
        scores: list[float] = []
        for begin in range(0, len(episodes), BATCH):
            scores += await in_thread(self._scores, episodes[begin : begin + BATCH])
        return scores

    def _scores(self, episodes: Sequence[Episode]) -> list[float]:
        tasks = [episode.task for episode in episodes]
        asked = {
            "prompts": [[{"role": m.role, "content": m.content} for m in task.prompt] for task in tasks],
            "completions": [episode.completion for episode in episodes],
            "tasks": [{"id": task.id, "answer": task.answer, "metadata": dict(task.metadata)} for task in tasks],
        }
        body, why = json.dumps(asked, default=str).encode(), ""
        most = ANSWER_BYTES + ANSWER_BYTES_EACH * len(episodes)
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(self.pause_s * 2 ** (attempt - 1) * random.uniform(0.75, 1.25))
            try:
                return self._numbers(in_time(TIMEOUT_S, self._post, body, most), len(episodes))
            except TimeoutError:
                why = f"no whole answer within {TIMEOUT_S:g} s"
            except _Passing as passing:
                why = str(passing)
        raise RewardError(f"the reward at {self.url} gave no answer in {ATTEMPTS} attempts; the last one: {why}")

    def _post(self, body: bytes, most: int) -> bytes:
        connection = self._connected(urlsplit(self.url))
        try:
            path = urlsplit(self.url).path or "/"
            headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "Connection": "close"}
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            if answer.status in TRANSIENT:
                raise _Passing(f"HTTP {answer.status}")
            if answer.status != 200:
                moved = "; redirects are not followed" if 300 <= answer.status < 400 else ""
                raise RewardError(f"the reward at {self.url} answered HTTP {answer.status}{moved}")
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise RewardError(f"the reward at {self.url} compressed its answer, which was not asked for")
            said = answer.read(most + 1)
            if len(said) > most:
                raise RewardError(f"the reward at {self.url} answered with more than {most} bytes")
            return said
        except (OSError, http.client.HTTPException) as error:
            raise _Passing(described(error)) from error
        finally:
            connection.close()

    def _connected(self, url: SplitResult) -> http.client.HTTPConnection:
        """A connection to the address that was checked, whatever the host's name resolves to by now."""
        host = url.hostname or ""
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            addresses = self.resolve(host, port)
        except OSError as error:
            raise _Passing(described(error)) from error
        if self.public and (private := [address for _, address in addresses if not is_public(address)]):
            raise RewardError(f"the reward at {self.url} is at {private[0]}, which is not a public address")
        if not addresses:
            raise _Passing(f"{host} has no address")
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        try:
            connection.sock = socket.create_connection((addresses[0][1], port), timeout=TIMEOUT_S)
            if url.scheme == "https":
                context = ssl.create_default_context()
                connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
                connection.default_port = 443  # so that the Host header leaves it out
        except OSError as error:
            connection.close()
            raise _Passing(described(error)) from error
        return connection

    def _numbers(self, answer: bytes, count: int) -> list[float]:
        try:
            found: object = json.loads(answer)
        except (ValueError, RecursionError):
            raise RewardError(f"the reward at {self.url} did not answer with JSON") from None
        values = cast("dict[str, list[float]]", found).get("scores") if isinstance(found, dict) else None
        if not isinstance(values, list):
            raise RewardError(f'the reward at {self.url} must answer {{"scores": [numbers]}}')
        if len(values) != count:
            raise RewardError(f"the reward at {self.url} gave {len(values)} scores for {count} completions")
        if wrong := [one for one in values if type(one) not in (int, float)]:
            raise RewardError(f"the reward at {self.url} gave {repr(wrong[0])[:40]} as a score; expected a number")
        return values


def is_remote(word: str) -> bool:
    """Whether a word in a list of rewards is an address."""
    return word.removeprefix(PUBLIC).startswith(("http://", "https://"))


def check_address(url: str) -> None:
    """Raise `UserError` unless `url` is an http address of a host and a path, and no more."""
    try:
        fits = _URL.fullmatch(url) is not None and bool(urlsplit(url).hostname) and urlsplit(url).port != 0
    except ValueError:  # a port that is none
        fits = False
    if not fits:
        raise UserError(
            f"the address of a reward is http(s)://HOST[:PORT]/PATH, without user, query or fragment; got {url[:80]!r}"
        )


def is_public(address: str) -> bool:
    """Whether an address can be reached from everywhere.

    An address that has another one inside (IPv4 in IPv6, NAT64, 6to4) leads there, and so is judged by that.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if found.is_site_local or found in _LOCAL_NAT64 or found.is_loopback or found.is_unspecified:
            return False
        if inner is None and any(found in network for network in _EMBEDDED):
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return found.is_global and not found.is_multicast
