"""Persistent cache of chat-model replies.

A line has the digest of the request, the reply, and a checksum of both. The text of the request is not stored. A
truncated or corrupt line is ignored, as is one with an earlier version's digest: its request is sent again.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posttrain.types import Message, Reply, StopReason, ToolCall, Usage

CACHE = "judge-cache.jsonl"  # in a run


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
        if self._path is not None:
            row = {"key": key, "reply": _written(reply)}
            line = json.dumps({**row, "checksum": _checksum(row)})
            with self._path.open("ab") as file:
                torn = file.tell() > 0 and not _ends_a_line(self._path)
                file.write(b"\n" * torn + line.encode() + b"\n")  # at once, for another run may append too


def digest_of(*parts: object) -> str:
    """A digest of a request, its model and its server."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _read(path: Path) -> Iterator[tuple[str, Reply]]:
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        try:
            row = json.loads(line)
            whole = row.pop("checksum") == _checksum(row)
            if whole:
                yield row["key"], _reply(row["reply"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue


def _checksum(row: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:16]


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read() == b"\n"


def _written(reply: Reply) -> dict[str, Any]:
    message = reply.message
    return {
        "content": message.content,
        "reasoning": message.reasoning,
        "calls": [[call.id, call.name, call.arguments] for call in message.tool_calls],
        "stop": str(reply.stop_reason),
        "tokens": [reply.usage.prompt_tokens, reply.usage.completion_tokens],
    }


def _reply(row: dict[str, Any]) -> Reply:
    calls = tuple(ToolCall(*call) for call in row["calls"])
    message = Message("assistant", row["content"], calls, reasoning=row["reasoning"])
    return Reply(message, StopReason(row["stop"]), Usage(*row["tokens"]))
