"""Values between the box of the tests and that of the solution, as tagged JSON.

A plain value arrives as the same exact builtin type, or type of the standard library. Everything else is a handle: it
stays where it is, and what arrives is its number. So no code, `__eq__` or pickle of one side reaches the other.
"""

from __future__ import annotations

import builtins
import json
import sys
from collections.abc import Callable

TYPE_CHECKING = False  # typing takes a tenth of the time to start
if TYPE_CHECKING:
    from typing import Any, BinaryIO

MOST_BYTES = 4 << 20  # of a message
_SEQUENCES: dict[str, Any] = {kind.__name__: kind for kind in (tuple, set, frozenset)}
_AS_TEXT: dict[tuple[str, str], tuple[str, str]] = {  # (module, class): what writes it, what reads it
    ("decimal", "Decimal"): ("__str__", ""),
    ("fractions", "Fraction"): ("__str__", ""),
    ("datetime", "date"): ("isoformat", "fromisoformat"),
    ("datetime", "time"): ("isoformat", "fromisoformat"),
    ("datetime", "datetime"): ("isoformat", "fromisoformat"),
}
_COLLECTIONS = ("Counter", "OrderedDict", "defaultdict", "deque")


class Closed(BaseException):
    """The other side is gone, or said what is no message. No `except Exception` of a test may catch it."""


class Unsuitable(TypeError):
    """A value that cannot be sent."""


def encode(value: Any, handle: Callable[[Any], dict[str, Any]]) -> Any:
    """JSON of a value; `handle` has that of one that is not plain."""
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        return value if -(2**63) < value < 2**63 else {"int": hex(value)}
    if kind is list:
        return [encode(one, handle) for one in value]
    if kind.__name__ in _SEQUENCES and kind is _SEQUENCES[kind.__name__]:
        return {kind.__name__: [encode(one, handle) for one in value]}
    if kind is dict:
        return {"dict": [[encode(key, handle), encode(one, handle)] for key, one in value.items()]}
    if kind in (bytes, bytearray):
        return {kind.__name__: value.hex()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if kind is type and getattr(builtins, value.__name__, None) is value:
        return {"type": value.__name__}
    return _of_library(value, kind, handle) or handle(value)  # pyright: ignore[reportUnknownArgumentType]


def _of_library(value: Any, kind: type[Any], handle: Callable[[Any], dict[str, Any]]) -> dict[str, Any] | None:
    """JSON of an object of the standard library that is as good as plain. Its module is there, if its class is."""
    module = sys.modules.get(kind.__module__)
    if getattr(module, kind.__name__, None) is not kind:
        return None
    if kind.__module__ == "collections" and kind.__name__ in _COLLECTIONS:
        inner = list(value) if kind.__name__ == "deque" else dict(value)
        return {"collections": [kind.__name__, encode(inner, handle)]}
    if written := _AS_TEXT.get((kind.__module__, kind.__name__)):
        return {"text": [kind.__module__, kind.__name__, getattr(value, written[0])()]}
    return None


def decode(said: Any, handle: Callable[[str, Any], Any]) -> Any:
    """The value; `handle` has that of a tag which is not one of a plain value, and of what stands there.

    Raises `ValueError`, `TypeError` or `KeyError` where it is no JSON of a value.
    """
    if said is None or isinstance(said, bool | int | float | str):
        return said
    if said.__class__ is list:
        return [decode(one, handle) for one in said]
    ((tag, inner),) = said.items()
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](decode(one, handle) for one in inner)
    if tag == "dict":
        return {decode(key, handle): decode(one, handle) for key, one in inner}
    if tag == "int":
        return int(inner, 16)
    if tag in ("bytes", "bytearray"):
        return {"bytes": bytes, "bytearray": bytearray}[tag].fromhex(inner)
    if tag == "complex":
        return complex(*inner)
    if tag == "range":
        return range(*inner)
    if tag == "type" and isinstance(found := getattr(builtins, inner), type):
        return found
    if tag == "collections" and inner[0] in _COLLECTIONS:
        import collections

        value = decode(inner[1], handle)
        return (
            collections.defaultdict(None, value) if inner[0] == "defaultdict" else getattr(collections, inner[0])(value)
        )
    if tag == "text" and (inner[0], inner[1]) in _AS_TEXT:
        kind = getattr(__import__(inner[0]), inner[1])
        reader = _AS_TEXT[inner[0], inner[1]][1]
        return (getattr(kind, reader) if reader else kind)(inner[2])
    return handle(tag, inner)


class Link:
    """Messages to and from the other side, a JSON list in each line. Either may ask the other while it is asked.

    Args:
        reads: from the other side.
        writes: to it.
        answers: what this side does when it is asked: a message to the value of its answer.
        handle: as of `encode`.
        found: as the handle of `decode`.
    """

    def __init__(
        self,
        reads: BinaryIO,
        writes: BinaryIO,
        answers: Callable[[list[Any]], Any],
        handle: Callable[[Any], dict[str, Any]],
        found: Callable[[str, Any], Any],
    ) -> None:
        self.reads, self.writes, self.answers = reads, writes, answers
        self.handle, self.found = handle, found

    def ask(self, *message: Any) -> list[Any]:
        """What the other side answers: ["value", JSON, ...] or ["error", names, text]."""
        self.send(list(message))
        return self.serve()

    def serve(self) -> list[Any]:
        """Answer questions until there is an answer to ours.

        Raises:
            Closed: the other side is gone, or does not keep to the protocol.
        """
        while True:
            message = self.receive()
            if message[0] in ("value", "error"):
                return message
            try:
                answer = self.answers(message)
            except Closed:
                raise
            except BaseException as error:  # SystemExit of the solution, too
                names = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
                answer = ["error", [type(error).__name__, *names], _text(error)]
            self.send(answer)

    def send(self, message: list[Any]) -> None:
        """Write a line."""
        line = json.dumps(message).encode()
        if len(line) > MOST_BYTES and message[0] == "value":
            line = json.dumps(
                ["error", ["TooLarge"], f"a value of {len(line) >> 20} MiB, of {MOST_BYTES >> 20} at most"]
            ).encode()
        try:
            self.writes.write(line + b"\n")
            self.writes.flush()
        except OSError:
            raise Closed("its process ended") from None

    def receive(self) -> list[Any]:
        """Read a line."""
        line = self.reads.readline(MOST_BYTES + 1)
        if not line:
            raise Closed("its process ended")
        if not line.endswith(b"\n"):
            raise Closed(f"it said more than {MOST_BYTES >> 20} MiB")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not (message.__class__ is list and message and message[0].__class__ is str):
            raise Closed("it said what is no message")
        return message


def _text(error: BaseException) -> str:
    try:
        return str(error)[:200]
    except Exception:
        return ""
