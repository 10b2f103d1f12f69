"""What an option is: its annotation says type, range and who may set it; its text stands under it.

    lr: Annotated[float, Range(0), Job(high=1)] = 1e-6
    \"\"\"Peak learning rate.\"\"\"

Command line, TOML, Python and jobs read these declarations. A value is checked in `Form.__post_init__` and nowhere
else, whichever door it came through. Standard library only.
"""

import dataclasses
import math
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

from posttrain.errors import UserError, refuse_unknown, unknown


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low` to `high`; those that are `out` are not in it themselves."""

    low: float = -math.inf
    high: float = math.inf
    out: Literal["", "low", "high"] = ""
    infinite: bool = False  # whether infinity is a value, such as of a limit
    hint: str = ""  # what an error says besides

    def __contains__(self, value: float) -> bool:
        below = self.low < value if self.out == "low" else self.low <= value
        over = value < self.high if self.out == "high" else value <= self.high
        return below and over and (math.isfinite(value) or (self.infinite and value > 0))

    def __str__(self) -> str:
        if self.low == -math.inf:
            return "a finite number"
        if self.high == math.inf:
            return f"above {self.low:g}" if self.out == "low" else f"{self.low:g} or more"
        least = f"above {self.low:g}" if self.out == "low" else f"{self.low:g}"
        return f"{least} to {'below ' if self.out == 'high' else ''}{self.high:g}"


@dataclass(frozen=True)
class Kind:
    """The value names something that Python may give as an object: a data set, a reward, a model, ..."""

    name: str


POSITIONAL = "positional"
"""Mark of an option that is typed without its name."""


@dataclass(frozen=True)
class Job:
    """A stranger's job may set the option, within these limits. It may set none without this mark."""

    low: float = -math.inf
    high: float = math.inf
    names: tuple[str, ...] = ()  # of a choice, those that a job may make; all unless given
    text: bool = False  # whether free text is allowed, for the model to read; otherwise letters, digits, _ . and spaces

    def refuse(self, option: "Option", value: Any) -> None:
        """Raise `UserError` unless a job may set the option to this value."""
        kind = option.alternatives[0]
        if names := self.names or (get_args(kind) if get_origin(kind) is Literal else ()):
            fits, what = isinstance(value, str) and value in names, f"must be one of {', '.join(names)}"
        elif kind is bool:
            fits, what = isinstance(value, bool), "must be true or false"
        elif kind in (int, float):
            low = max(self.low, option.range.low if option.range else -math.inf)
            number = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
            fits = number and low <= value <= self.high  # nan is not, either
            what = f"must be {'a whole number' if kind is int else 'a number'} from {low:g} to {self.high:g}"
        elif self.text:
            fits = isinstance(value, str) and len(value) <= _LONGEST and not _CONTROL.search(value)
            what = f"must be text of at most {_LONGEST} characters, none of them control characters"
        else:
            fits = isinstance(value, str) and bool(_WORDS.fullmatch(value))
            what = "has 1 to 500 letters, digits, _ . and spaces"
        if not fits:
            raise UserError(f"'{option.name}' {what}; got {value!r:.80}")


_LONGEST = 20_000
_WORDS = re.compile(r"[\w. ]{1,500}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class Option(NamedTuple):
    """One option, as every reader sees it."""

    name: str
    type: Any
    default: Any
    range: Range | None
    kind: str  # "" for a plain value
    job: Job | None  # None where a job may not set it

    @property
    def alternatives(self) -> list[Any]:
        """The types of a value, without None."""
        return [one for one in alternatives(self.type) if one is not types.NoneType]

    def refuse(self, value: Any) -> None:
        """Raise `UserError` unless `value` is of the option's type and in its range."""
        if self.kind or (value is None and types.NoneType in alternatives(self.type)):
            return
        if choices := [one for kind in self.alternatives if get_origin(kind) is Literal for one in get_args(kind)]:
            if value not in choices:
                raise unknown(self.name, str(value), map(str, choices))
        elif not any(is_one(value, kind) for kind in self.alternatives):
            raise UserError(f"`{self.name}` must be {expected(self.type)}; got {value!r:.80}")
        if self.range and value is not None and float(value) not in self.range:
            hint = f"; {self.range.hint}" if self.range.hint else ""
            raise UserError(f"`{self.name}` must be {self.range}; got {value}{hint}")


@dataclass(frozen=True)
class Form:
    """Base of all forms: checks each name and value, then what they say together."""

    NEEDS: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """By option: others, of which it needs one, and what an error says that it needs. Those of base classes count."""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Refuse names that are no options, before Python does without saying which are."""
        refuse_unknown(cls, given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for option in options_of(type(self)).values():
            option.refuse(getattr(self, option.name))
        for owner in type(self).__mro__:
            for name, (others, what) in vars(owner).get("NEEDS", {}).items():
                if self.says(name) and not any(map(self.says, others.split())):
                    raise UserError(f"`{name}` needs {what}")
        self.together()

    def says(self, name: str) -> bool:
        """Whether it has this option, and not at its default."""
        option = options_of(type(self)).get(name)
        value = getattr(self, name, None)
        return option is not None and (given(value) if option.kind else value != option.default)

    def together(self) -> None:
        """Refuse what two options say together."""


@cache
def options_of(form: type) -> Mapping[str, Option]:
    """The options of a form by name, those of its groups first."""
    hints = get_type_hints(form, include_extras=True)
    found: dict[str, Option] = {}
    for field in dataclasses.fields(form):
        hint = hints[field.name]
        kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        found[field.name] = Option(
            field.name,
            kind,
            None if field.default is dataclasses.MISSING else field.default,
            next((mark for mark in marks if isinstance(mark, Range)), None),
            next((mark.name for mark in marks if isinstance(mark, Kind)), ""),
            next((mark for mark in marks if isinstance(mark, Job)), None),
        )
    return found


def alternatives(kind: Any) -> list[Any]:
    """The types of a union, or the one type that there is, without annotations."""
    if get_origin(kind) is Annotated:
        return alternatives(get_args(kind)[0])
    if get_origin(kind) in (types.UnionType, Union):
        return [option for part in get_args(kind) for option in alternatives(part)]
    return [kind]


_NAMES = {int: "a whole number", float: "a number", str: "text", Path: "a path", bool: "true or false", dict: "a table"}


def expected(kind: Any) -> str:
    """A type in plain words."""
    if len(options := [one for one in alternatives(kind) if one is not types.NoneType]) != 1:
        return " or ".join(map(expected, options))
    origin, inner = get_origin(options[0]), get_args(options[0])
    if origin is Literal:
        return f"one of {', '.join(str(one) or repr(one) for one in inner)}"
    if origin is tuple:
        return f"a list, each {expected(inner[0])}"
    return _NAMES.get(dict if origin is Mapping else options[0], "a value")


def is_one(value: Any, kind: Any) -> bool:
    """Whether a value is of this type; a whole number is a number, and a bool is none."""
    if get_origin(kind) is tuple:
        return isinstance(value, tuple | list)
    if get_origin(kind) is Mapping:
        return isinstance(value, Mapping)
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind if kind in (int, bool) else isinstance(value, kind)


def given(value: Any) -> bool:
    """Whether an option that may name an object was given: an empty text and None say that it was not.

    Rows are given even if there are none of them, which their reader says.
    """
    return value is not None and not (isinstance(value, str) and not value)


MARK = "python:"
"""How a configuration begins to say which object an option was given: `python:NAME`, and its digest if it has one."""


def as_written(form: Any) -> dict[str, Any]:
    """What a configuration file says of a form: its values, and of objects the names."""
    options = options_of(type(form)).items()
    return {name: _written(getattr(form, name)) if option.kind else getattr(form, name) for name, option in options}


def _written(value: Any) -> Any:
    if value is None or isinstance(value, str | Path | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _written(item) for key, item in value.items()}
    return f"{MARK}{name_of(value)}"


def name_of(value: Any) -> str:
    """The qualified name of a function or class, or of an object's class."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
