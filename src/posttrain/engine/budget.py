"""What chat models behind APIs cost: budgets, and a persistent cache of replies, which are not asked for again.

A line of the cache has the digest of the request, the reply, and a checksum of both. The text of the request is not
stored. A truncated or corrupt line is ignored, as is one with an earlier version's digest: its request is sent again.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import NoReplyError, UserError
from posttrain.types import Message, Reply, StopReason, ToolCall, Usage

CACHE = "judge-cache.jsonl"  # in a run


@dataclass
class Budget:
    """Counts requests when they are sent, failed ones included, and cost when replies arrive.

    Nothing is sent beyond it. What requests that are under way cost is known when they are answered: by that the money
    may be exceeded.
    """

    requests: int = 0  # at most; 0: no limit
    money: float = 0.0  # at most; 0: no limit
    prices: tuple[float, float] = (0.0, 0.0)  # of a million prompt and of a million completion tokens, in its currency
    sent: int = 0
    spent: float = 0.0

    def __post_init__(self) -> None:
        if self.requests < 0 or not self.money >= 0 or not min(self.prices) >= 0:
            raise UserError("a budget, and prices, must be 0 or more")
        if self.money and not any(self.prices):
            raise UserError("a budget of money needs the prices of a million prompt and completion tokens")

    def begin(self, replies: Iterable[Reply]) -> None:
        """Reset the count to the usage of these cached replies."""
        self.sent, self.spent = 0, 0.0
        for reply in replies:
            self.sent += 1
            self.pay(reply.usage)

    def take(self) -> None:
        """Count a request that is about to be sent; raises `NoReplyError` if the budget is used up."""
        if self.requests and self.sent >= self.requests:
            raise NoReplyError(
                f"the budget of judges, {self.requests} requests, is used up; their replies are cached: raise "
                "`judge_budget` to go on"
            )
        if self.money and self.spent >= self.money:
            raise NoReplyError(f"the budget of judges, {self.money:g}, is used up: {self.spent:.4g} is spent")
        self.sent += 1

    def pay(self, usage: Usage) -> None:
        """Add the usage of a reply."""
        tokens = (usage.prompt_tokens, usage.completion_tokens)
        self.spent += sum(price * n for price, n in zip(self.prices, tokens, strict=True)) / 1e6


class ReplyCache:
    """Replies by a digest of the request: in memory and, while `kept_in`, in a file."""

    def __init__(self) -> None:
        self._found: dict[str, Reply] = {}
        self._path: Path | None = None

    @property
    def replies(self) -> Sequence[Reply]:
        """All of them."""
        return list(self._found.values())

    @contextmanager
    def kept_in(self, path: Path) -> Iterator[None]:
        """Load the file and append to it while the block runs; clear the cache afterwards."""
        self._found, self._path = dict(_read(path)), path
        try:
            yield
        finally:
            self._found, self._path = {}, None

    def get(self, key: str) -> Reply | None:
        """The reply to the request with this digest."""
        return self._found.get(key)

    def put(self, key: str, reply: Reply) -> None:
        """Keep a reply; raises `OSError` where the disk is full."""
        self._found[key] = reply
        if self._path is None:
            return
        message = reply.message
        written = {
            "content": message.content,
            "reasoning": message.reasoning,
            "calls": [[call.id, call.name, call.arguments] for call in message.tool_calls],
            "stop": str(reply.stop_reason),
            "tokens": [reply.usage.prompt_tokens, reply.usage.completion_tokens],
        }
        row = {"key": key, "reply": written}
        line = json.dumps({**row, "checksum": _checksum(row)}).encode() + b"\n"
        with self._path.open("a+b") as file:  # one write, for another run may append too
            torn = False
            if file.tell():
                file.seek(-1, 2)
                torn = file.read() != b"\n"
            file.write(b"\n" * torn + line)


def digest_of(*parts: object) -> str:
    """A digest of a request, its model and its server."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _read(path: Path) -> Iterator[tuple[str, Reply]]:
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        try:
            row = json.loads(line)
            if row.pop("checksum") == _checksum(row):
                reply = row["reply"]
                calls = tuple(ToolCall(*call) for call in reply["calls"])
                message = Message("assistant", reply["content"], calls, reasoning=reply["reasoning"])
                yield row["key"], Reply(message, StopReason(reply["stop"]), Usage(*reply["tokens"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue


def _checksum(row: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:16]
