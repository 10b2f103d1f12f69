"""Values between the box of the tests and that of the solution, as tagged JSON.

A plain value arrives as the same exact builtin type, or type of the standard library. Everything else is a handle: it
stays where it is, and what arrives is its number. So no code, `__eq__` or pickle of one side reaches the other.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence

TYPE_CHECKING = False  # typing takes a tenth of the time to start
if TYPE_CHECKING:
    from typing import Any

MOST_BYTES = 4 << 20  # of a message
GONE = "its process ended"


_PLAIN: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    **dict.fromkeys(
        ("builtins.tuple", "builtins.set", "builtins.frozenset", "collections.deque"),
        (list, lambda kind, inner: kind(inner)),
    ),
    **dict.fromkeys(("collections.Counter", "collections.OrderedDict"), (dict, lambda kind, inner: kind(inner))),
    **dict.fromkeys(("decimal.Decimal", "fractions.Fraction"), (str, lambda kind, inner: kind(inner))),
    **dict.fromkeys(
        ("datetime.date", "datetime.time", "datetime.datetime"),
        (lambda value: value.isoformat(), lambda kind, inner: kind.fromisoformat(inner)),
    ),
    "collections.defaultdict": (dict, lambda kind, inner: kind(None, inner)),
    "builtins.dict": (lambda value: [[*pair] for pair in value.items()], lambda kind, inner: kind(inner)),
    "builtins.bytes": (bytes.hex, lambda kind, inner: kind.fromhex(inner)),
    "builtins.bytearray": (bytearray.hex, lambda kind, inner: kind.fromhex(inner)),
    "builtins.complex": (lambda value: [value.real, value.imag], lambda kind, inner: kind(*inner)),
    "builtins.range": (lambda value: [value.start, value.stop, value.step], lambda kind, inner: kind(*inner)),
}
"""By module and class: what writes a value as one that JSON knows better, and what reads it from that."""


class Closed(BaseException):
    """The other side is gone, or said what is no message. No `except Exception` of a test may catch it."""


class Unsuitable(TypeError):
    """A value that cannot be sent."""


def _there(operation: str) -> Callable[..., Any]:
    """A method that is done on the other side."""

    def there(self: Standin, *args: Any, **named: Any) -> Any:
        return self._link.operate(operation, self, *args, **named)

    return there


class Standin:
    """A name or an object of the other side. Operations on it are done there; it equals only itself."""

    def __init__(self, link: Link, where: dict[str, Any], what: str) -> None:
        for name, value in (("_link", link), ("_where", where), ("_what", what)):
            object.__setattr__(self, name, value)

    __call__, __setattr__, __getitem__, __setitem__ = map(_there, ("call", "setattr", "getitem", "setitem"))
    __len__, __iter__, __next__, __str__ = map(_there, ("len", "iter", "next", "str"))
    __contains__ = None  # what says yes to everything, or counts without end, would contain every answer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._link.operate("getattr", self, name)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return self._what


class Link:
    """One side: messages to and from the other, a JSON list in each line. Either may ask while it is asked."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = os.fdopen(reads, "rb"), os.fdopen(writes, "wb")
        self._kept: list[Any] = []  # what the other side has handles of
        self._numbers: dict[int, int] = {}  # of each, by its id
        self._standins: dict[int, Standin] = {}

    def handle(self, value: Any) -> dict[str, Any]:
        """What arrives of a value that is not plain."""
        if type(value) is Standin:
            return value._where
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._kept)
            self._kept.append(value)
        return {"mine": [self._numbers[id(value)], type(value).__name__[:80]]}

    def found(self, tag: str, inner: Any) -> Any:
        """What a handle is of."""
        if tag == "yours":
            return self._kept[inner]
        if tag != "mine":
            raise ValueError(tag)
        number, name = int(inner[0]), str(inner[1])[:80]
        return self._standins.setdefault(number, Standin(self, {"yours": number}, f"an object of class {name}"))

    def answer(self, operation: str, target: Any, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """What an operation that the other side asks for returns; all as JSON."""
        raise NotImplementedError

    def operate(self, operation: str, target: Standin, *args: Any, **named: Any) -> Any:
        """What an operation on an object of the other side returns."""
        answer = self.ask(operation, self.handle(target), args, named)
        if answer[0] == "value":
            return self.decode(answer[1])
        raise RuntimeError(f"a function of the tests raised {answer[1][0]}: {answer[2]}")

    def encode(self, value: Any) -> Any:
        """JSON of a value."""
        kind = type(value)  # pyright: ignore[reportUnknownVariableType]
        if value is None or kind in (bool, float, str):
            return value
        if kind is int:
            return value if -(2**63) < value < 2**63 else {"int": hex(value)}
        if kind is list:
            return [self.encode(one) for one in value]
        if kind is type and getattr(builtins, value.__name__, None) is value:
            return {"type": value.__name__}
        name = f"{kind.__module__}.{kind.__name__}"
        if name in _PLAIN and getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind:
            return {name: self.encode(_PLAIN[name][0](value))}
        return self.handle(value)

    def decode(self, said: Any) -> Any:
        """The value; raises `ValueError`, `TypeError`, `KeyError` or alike where it is no JSON of one."""
        if said is None or isinstance(said, bool | int | float | str):
            return said
        if said.__class__ is list:
            return [self.decode(one) for one in said]
        ((tag, inner),) = said.items()
        if tag == "int":
            return int(inner, 16)
        if tag == "type" and isinstance(found := getattr(builtins, inner), type):
            return found
        if tag not in _PLAIN:
            return self.found(tag, inner)
        module, _, name = tag.partition(".")
        inner = self.decode(inner)
        if type(inner) not in (list, dict, str):  # pyright: ignore[reportUnknownArgumentType]
            raise ValueError(tag)
        return _PLAIN[tag][1](getattr(__import__(module), name), inner)

    def encoded(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments as JSON."""
        return [self.encode(one) for one in args], {key: self.encode(one) for key, one in named.items()}

    def decoded(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments as values."""
        return [self.decode(one) for one in args], {key: self.decode(one) for key, one in named.items()}

    def ask(self, operation: str, target: Any, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """What the other side answers: ["value", JSON, ...] or ["error", names, text]."""
        self.send([operation, target, *self.encoded(args, named)])
        return self.serve()

    def serve(self) -> list[Any]:
        """Answer questions until there is an answer to ours; raises `Closed`."""
        while (message := self.receive())[0] not in ("value", "error"):
            try:
                operation, target, args, named = message
                answer = ["value", *self.answer(operation, target, args, named)]
            except Closed:
                raise
            except BaseException as error:  # SystemExit of the solution, too
                names = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
                answer = ["error", [type(error).__name__, *names], _text(error)]
            self.send(answer)
        return message

    def send(self, message: list[Any]) -> None:
        """Write a line."""
        line = json.dumps(message).encode()
        if len(line) > MOST_BYTES and message[0] == "value":
            told = f"a value of {len(line) >> 20} MiB, of {MOST_BYTES >> 20} at most"
            line = json.dumps(["error", ["TooLarge"], told]).encode()
        try:
            self._writes.write(line + b"\n")
            self._writes.flush()
        except OSError:
            raise Closed(GONE) from None

    def receive(self) -> list[Any]:
        """Read a line."""
        line = self._reads.readline(MOST_BYTES + 1)
        if not line:
            raise Closed(GONE)
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
