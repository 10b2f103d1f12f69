"""Objects that Python gives to options: read, named and digested once, before weights are read.

A run's configuration says `python:NAME sha256:DIGEST` of each, and a resumed run must be given it again.
"""

import hashlib
import inspect
import json
import pickle
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from posttrain.data.digests import digest_of_rows, model_digest
from posttrain.data.files import GIVEN, rows_given
from posttrain.errors import UserError, described
from posttrain.options.option import MARK, Form, Option, name_of, options_of


class RowsGiven(list[dict[str, Any]]):
    """Rows that were given, under a name for messages."""

    def __str__(self) -> str:
        return GIVEN

    __repr__ = __str__


@dataclass(frozen=True)
class Bound:
    """A form whose objects are bound."""

    form: Any  # with texts, or objects as the readers take them
    marks: Mapping[str, str]  # what the configuration of a run says of each object, by option
    unchecked: tuple[str, ...]  # options whose objects have no digest: a resumed run cannot tell others from them


@contextmanager
def bound(form: Form, *, sent: bool = False) -> Iterator[Bound]:
    """The form with its objects bound, while the block runs; `sent` says whether they go to other processes."""
    with ExitStack() as stack:
        changes, marks, unchecked = dict[str, Any](), dict[str, str](), list[str]()
        for option in options_of(type(form)).values():
            value = getattr(form, option.name)
            if not option.kind or value is None or isinstance(value, str):
                continue
            changes[option.name], digest = _bound(option, value, stack, sent)
            if digest is None:  # it is written as it is
                continue
            marks[option.name] = f"{MARK}{name_of(value)}" + (f" sha256:{digest}" if digest else "")
            if not digest:
                unchecked.append(option.name)
        yield Bound(replace(form, **changes) if changes else form, marks, tuple(unchecked))


def _bound(option: Option, value: Any, stack: ExitStack, sent: bool) -> tuple[Any, str | None]:
    """What the readers take in place of a value, and its digest; None where a configuration can say the value."""
    if option.kind == "engine":  # a run may go on with another
        return value, None
    if option.kind in ("dataset", "model") and isinstance(value, Path):
        return str(value), None
    if option.kind == "dataset":
        rows = RowsGiven(rows_given(value))
        return rows, digest_of_rows(rows)
    if option.kind == "model":
        return _model(option, value, stack, sent)
    if _is_plain(value):
        return value, None
    if sent:
        import cloudpickle  # of Ray, which sends it

        try:
            cloudpickle.dumps(value)
        except (Exception, pickle.PicklingError) as error:
            what = f"`{option.name}`: {name_of(value)}"
            raise UserError(f"{what} cannot be sent to another process: {described(error)}") from error
    return value, digest_of(value)


def _model(option: Option, value: Any, stack: ExitStack, sent: bool) -> tuple[Any, str | None]:
    """A run by its folder; a model in memory by that of a copy, so that what is trained is never the user's own."""
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


def _is_plain(value: Any) -> bool:
    """Whether a configuration file can say it: a text, a number, or a table or list of them."""
    if isinstance(value, Mapping):
        table = cast("Mapping[Any, Any]", value)
        return all(isinstance(key, str) and _is_plain(item) for key, item in table.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, cast("list[Any]", value)))
    return isinstance(value, str | int | float | bool | Path)


def digest_of(value: Any) -> str:
    """SHA-256 of code; "" where there is no source, as for what was typed at a prompt.

    Of a function its source, closure, defaults and the globals that it names count; of an object its class and state.

    Example:
        >>> digest_of(len)
        ''
    """
    try:
        parts = "\n".join(_parts(value, {}))
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _parts(value: Any, seen: dict[int, Any]) -> Iterator[str]:
    """What a value is; raises OSError or TypeError where a part of it has no source and is no plain value."""
    if id(value) in seen:
        yield "again"
        return
    if value is None or isinstance(value, str | bytes | int | float | bool):
        yield repr(value)
        return
    seen[id(value)] = value  # kept, so that no other object gets its number
    inside: list[Any] = []
    if isinstance(value, Mapping):
        items = sorted(cast("Mapping[Any, Any]", value).items(), key=lambda item: str(item[0]))
        inside = [part for item in items for part in item]
    elif isinstance(value, list | tuple | set | frozenset):
        inside = cast("list[Any]", value)
        if isinstance(value, set | frozenset):
            inside = sorted(inside, key=repr)
    elif inspect.ismodule(value):
        yield value.__name__
    elif inspect.ismethod(value):
        inside = [value.__self__, value.__func__]
    elif inspect.isfunction(value):
        yield inspect.getsource(value)
        outside = inspect.getclosurevars(value)
        inside = [[outside.nonlocals, outside.globals, value.__defaults__, value.__kwdefaults__]]
    elif isinstance(value, type):
        yield from _class(cast("type[Any]", value))
    else:
        inside = [type(value), vars(value)]
    for part in inside:
        yield from _parts(part, seen)


def _class(value: type) -> Iterator[str]:
    """Of a class of an installed package its name is enough: environment.json has the versions."""
    yield f"{value.__module__}.{value.__qualname__}"
    try:
        file = inspect.getfile(value)
        installed = "site-packages" in file or value.__module__.partition(".")[0] in ("posttrain", "builtins")
    except (OSError, TypeError):
        installed = value.__module__ == "builtins"
    if not installed:
        yield inspect.getsource(value)
        for base in value.__bases__:
            yield from _class(base)
