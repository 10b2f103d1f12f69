"""Objects that Python gives to options: read, named and digested once, before weights are read.

A run's configuration says `python:NAME sha256:DIGEST` of each, and a resumed run must be given it again.
"""

import hashlib
import inspect
import json
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from posttrain.data.digests import digest_of_rows, model_digest
from posttrain.data.given import GIVEN, rows_given
from posttrain.errors import UserError, described
from posttrain.options.option import MARK, Form, Option, name_of, options_of

F = TypeVar("F", bound=Form)


class RowsGiven(list[dict[str, Any]]):
    """Rows that were given, under a name for messages."""

    def __str__(self) -> str:
        return GIVEN

    __repr__ = __str__


@dataclass(frozen=True)
class Bound:
    """A form whose objects are bound.

    Attributes:
        form: with texts, or objects as the readers take them.
        marks: what the configuration of a run says of each object, by option.
        unchecked: the options whose objects have no digest, so that a resumed run cannot tell others from them.
    """

    form: Any
    marks: Mapping[str, str]
    unchecked: tuple[str, ...] = ()


@contextmanager
def bound(form: Form, *, sent: bool = False) -> Iterator[Bound]:
    """The form with its objects bound, while the block runs.

    Args:
        form: with texts and objects.
        sent: whether its objects go to other processes.

    Raises:
        UserError: an object of the wrong kind, or one that cannot be sent where it must be.
    """
    with ExitStack() as stack:
        changes, marks, unchecked = dict[str, Any](), dict[str, str](), list[str]()
        for option in options_of(type(form)).values():
            value = getattr(form, option.name)
            if not option.kind or value is None or isinstance(value, str):
                continue
            changes[option.name], digest = _BIND.get(option.kind, _object)(option, value, stack, sent)
            if digest is None:  # it is written as it is
                continue
            marks[option.name] = f"{MARK}{name_of(value)}" + (f" sha256:{digest}" if digest else "")
            if not digest:
                unchecked.append(option.name)
        yield Bound(replace(form, **changes) if changes else form, marks, tuple(unchecked))


def _rows(option: Option, value: Any, stack: ExitStack, sent: bool) -> tuple[Any, str | None]:
    if isinstance(value, Path):
        return str(value), None
    rows = RowsGiven(rows_given(value))
    return rows, digest_of_rows(rows)


def _model(option: Option, value: Any, stack: ExitStack, sent: bool) -> tuple[Any, str | None]:
    """A run by its folder; a model in memory by that of a copy, so that what is trained is never the user's own."""
    if isinstance(value, Path):
        return str(value), None
    if isinstance(run := getattr(value, "run", None), Path):
        return str(run), None
    both = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else ()
    if len(both) != 2 or not all(hasattr(one, "save_pretrained") for one in both):
        raise UserError(
            f"`{option.name}` is a name, a folder, a run, or a model in memory with its tokenizer: (model, tokenizer); "
            f"got {type(value).__name__}"
        )
    if sent:
        raise UserError(f"`{option.name}` is in memory, and trains in one process; save it to a folder for a cluster")
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="posttrain-model-"))
    for one in both:
        one.save_pretrained(folder)
    return folder, model_digest(Path(folder))


def _object(option: Option, value: Any, stack: ExitStack, sent: bool) -> tuple[Any, str | None]:
    if _is_plain(value):
        return value, None
    if sent:
        _refuse_unsendable(option.name, value)
    return value, digest_of(value)


def _engine(option: Option, value: Any, stack: ExitStack, sent: bool) -> tuple[Any, str | None]:
    return value, None  # a run may go on with another


_BIND: Mapping[str, Callable[[Option, Any, ExitStack, bool], tuple[Any, str | None]]] = {
    "dataset": _rows,
    "model": _model,
    "engine": _engine,
}


def _is_plain(value: Any) -> bool:
    """Whether a configuration file can say it: a text, a number, or a table or list of them."""
    if isinstance(value, Mapping):
        table = cast("Mapping[Any, Any]", value)
        return all(isinstance(key, str) and _is_plain(item) for key, item in table.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, cast("list[Any]", value)))
    return isinstance(value, str | int | float | bool | Path)


def _refuse_unsendable(name: str, value: Any) -> None:
    import cloudpickle  # of Ray, which sends it

    try:
        cloudpickle.dumps(value)
    except (Exception, pickle.PicklingError) as error:
        raise UserError(f"`{name}`: {name_of(value)} cannot be sent to another process: {described(error)}") from error


def digest_of(value: Any) -> str:
    """SHA-256 of code; "" where there is no source, as for what was typed at a prompt.

    Of a function its source, closure, defaults and the globals that it names count; of an object its class and state.

    Example:
        >>> digest_of(len)
        ''
    """
    parts: list[str] = []
    return _sha("\n".join(parts)) if _describe(value, parts, set()) else ""


def _describe(value: Any, parts: list[str], seen: set[int]) -> bool:
    """Append what a value is to `parts`; False where a part of it has no source and is no plain value."""
    if id(value) in seen or value is None or isinstance(value, str | bytes | int | float | bool):
        parts.append(repr(value) if id(value) not in seen else "again")
        return True
    seen.add(id(value))
    if isinstance(value, Mapping):
        items = sorted(cast("Mapping[Any, Any]", value).items(), key=lambda item: str(item[0]))
        return all(_describe(part, parts, seen) for item in items for part in item)
    if isinstance(value, list | tuple | set | frozenset):
        ordered = sorted(cast("set[Any]", value), key=repr) if isinstance(value, set | frozenset) else value
        return all(_describe(part, parts, seen) for part in cast("list[Any]", ordered))
    if inspect.ismodule(value):
        parts.append(value.__name__)
        return True
    if inspect.ismethod(value):
        return _describe(value.__self__, parts, seen) and _describe(value.__func__, parts, seen)
    if inspect.isfunction(value):
        return _function(value, parts, seen)
    if isinstance(value, type):
        return _class(cast("type[Any]", value), parts, seen)
    if not hasattr(value, "__dict__"):
        return False
    return _describe(type(value), parts, seen) and _describe(vars(value), parts, seen)


def _function(value: Any, parts: list[str], seen: set[int]) -> bool:
    try:
        parts.append(inspect.getsource(value))
    except (OSError, TypeError):
        return False
    outside = inspect.getclosurevars(value)
    return _describe([outside.nonlocals, outside.globals, value.__defaults__, value.__kwdefaults__], parts, seen)


def _class(value: type, parts: list[str], seen: set[int]) -> bool:
    """Of a class of an installed package its name is enough: environment.json has the versions."""
    parts.append(f"{value.__module__}.{value.__qualname__}")
    if _is_installed(value):
        return True
    try:
        parts.append(inspect.getsource(value))
    except (OSError, TypeError):
        return False
    return all(_class(base, parts, seen) for base in value.__bases__)


def _is_installed(value: type) -> bool:
    try:
        file = inspect.getfile(value)
    except (OSError, TypeError):
        return value.__module__ == "builtins"
    return "site-packages" in file or value.__module__.partition(".")[0] in ("posttrain", "builtins")


def _sha(text: str) -> str:
    return hashlib.sha256(json.dumps(text).encode()).hexdigest()
