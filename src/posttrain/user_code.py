"""What users name: code by its path, `path/to/file.py:name`, and its arguments, checked against the signature."""

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from importlib.abc import SourceLoader
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from posttrain.errors import USER_MODULE, UserError, described, unknown

T = TypeVar("T")

_EXPECTED: Mapping[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NO_FIT = (KeyError, StopIteration, TypeError, ValueError)


def load(purpose: str, path: str, kind: str) -> Any:
    """The object `path/to/file.py:name`; errors say what for, such as a reward, and what kind: function or class."""
    file, colon, name = path.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise UserError(f"cannot read the {purpose} '{path}'; expected path/to/file.py:{kind}")
    location = Path(file).expanduser()
    if not location.is_file():
        raise UserError(
            f"the {purpose} '{path}' needs the file '{file}', which does not exist (looked in {Path.cwd()})"
        )
    module = import_file(location)
    found = getattr(module, name, None)
    if found is None:
        is_one = inspect.isclass if kind == "class" else inspect.isfunction
        own = (pair for pair in vars(module).items() if getattr(pair[1], "__module__", "") == module.__name__)
        defined = [key for key, value in own if is_one(value)]
        raise unknown(f"{kind} of '{file}':", name, defined, see="" if defined else "it has none")
    return found


class _Source(SourceLoader):
    """A file as it was read. Python's cached bytecode is of whichever version had its size in the same second."""

    def __init__(self, location: str, source: bytes) -> None:
        self._location, self._source = location, source

    def get_filename(self, fullname: str) -> str:
        return self._location

    def get_data(self, path: str) -> bytes:
        return self._source


def import_file(location: Path) -> ModuleType:
    """The file as a module, once for each version of the file: two names of one file share its state."""
    location = location.resolve()
    source = location.read_bytes()
    version = hashlib.sha256(str(location).encode() + b"\0" + source).hexdigest()[:16]
    name = f"{USER_MODULE}{location.stem}_{version}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, location, loader=_Source(str(location), source))
    if spec is None or spec.loader is None:
        raise UserError(f"'{location}' cannot be imported as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(location.parent))  # so that it can import its neighbours, as a script can
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        ours = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == str(location)]
        line = getattr(error, "lineno", None) or (ours[-1] if ours else None)
        where = f"line {line}: " if line else ""
        raise UserError(f"'{location}' cannot be imported: {where}{described(error)}") from error
    finally:
        sys.path.remove(str(location.parent))
    return module


def made(what: str, kind: Callable[..., T], given: Mapping[str, Any]) -> T:
    """An object of a class, made with these arguments; errors as of `fitted`, for one that is missing, of the class."""
    arguments = fitted(what, kind, given)
    for name, parameter in _parameters(kind).items():
        if parameter.default is parameter.empty and name not in arguments:
            raise UserError(f"{what} needs the argument {name}, {_expected(_kind(parameter))}; give {name}=VALUE")
    try:
        return kind(**arguments)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what} cannot be created: {described(error)}") from error


def fitted(
    what: str, function: Callable[..., Any], given: Mapping[str, Any], *, ours: Collection[str] = ()
) -> dict[str, Any]:
    """`given` as arguments of a function or class, each as its parameter's annotation or default says.

    A text is read as that type, since a command line has nothing else: a whole number, a number, true or false, one of
    the values of a `Literal`, values between commas for a tuple or list of such. Errors call the function `what`;
    `ours` are parameters that are not the user's to give.

    Example:
        >>> def score(completion, scale: float = 1.0, words: tuple[str, ...] = ()): ...
        >>> fitted("'score'", score, {"scale": "2", "words": "a,b"})
        {'scale': 2.0, 'words': ('a', 'b')}
    """
    known = {name: parameter for name, parameter in _parameters(function).items() if name not in ours}
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise unknown(f"argument of {what}:", name, known, see="" if known else "It takes none")
        kind = _kind(known[name])
        try:
            found[name] = _as(kind, value)
        except _NO_FIT:
            raise UserError(f"argument {name} of {what} is {value!r}; expected {_expected(kind)}") from None
    return found


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:  # an annotation that is imported for type checkers alone
        signature = inspect.signature(function)
    return {name: one for name, one in signature.parameters.items() if one.kind in _NAMED}


def _kind(parameter: inspect.Parameter) -> Any:
    """The type of a parameter: as it is annotated, or of its default; `Any` where neither says."""
    if parameter.annotation is not parameter.empty:
        return parameter.annotation
    return type(parameter.default) if isinstance(parameter.default, bool | int | float | str) else Any


def _as(kind: Any, value: Any) -> Any:
    """A value as a type; raises one of `_NO_FIT` where it is none."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or isinstance(kind, str | TypeVar):
        return value
    if kind is bool and isinstance(value, str):
        return {"true": True, "false": False}[value.lower()]
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, str | int | kind):
            raise ValueError
        return kind(value)
    if origin is Literal:
        return next(one for one in inner if str(one) == str(value))
    if origin in (Union, UnionType):
        for one in inner:
            with suppress(*_NO_FIT):
                return _as(one, value)
        raise ValueError
    if origin in (tuple, list, Sequence) and inner:
        values = [_as(inner[0], one) for one in (value.split(",") if isinstance(value, str) else value)]
        return values if origin is list else tuple(values)
    if origin is Callable:
        fits = callable(value)
    else:  # a text for anything else is left to its reader
        fits = not inspect.isclass(origin or kind) or isinstance(value, (origin or kind, str))
    if not fits:
        raise ValueError
    return value


def _expected(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return _EXPECTED.get(kind) or inspect.formatannotation(kind)
