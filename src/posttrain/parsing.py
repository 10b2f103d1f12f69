"""Command options: dataclass defaults, overridden by a TOML file, overridden by flags.

A field of a form is a flag, the text under it is its help, and nothing is said twice. What is typed wrong is one line.
"""

import contextlib
import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from posttrain.errors import UserError, unknown
from posttrain.options.option import POSITIONAL, Kind, alternatives, expected
from posttrain.runs.config_file import RENAMED

HELP, HELP_ALL = ("-h", "--help"), "--help-all"
TABLES = ("reward", "judge")
"""The kinds of options that a table of a TOML file may say, too."""


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A dataclass whose fields are flags, under a title of their own in `--help`."""

    title: str
    form: type
    table: str | None = None  # the table of a TOML file that sets them; "" for the file's top, None if no file may
    compact: bool = False  # whether `--help` shows their names and defaults alone


def parse(
    argv: Sequence[str], sections: Sequence[Section], *, program: str, file: Mapping[str, Any], origin: str
) -> list[Any]:
    """Read all options of a command: one instance of each section's dataclass.

    `program` is the command as it is typed, and `argv` what follows; `file` is what a TOML file says, which errors call
    `origin`. Raises `UserError` for an unknown option or key, a wrong value, or a combination that a dataclass refuses.
    """
    kinds = {name: kind for section in sections for name, kind in kinds_of(section.form).items()}
    assert len(kinds) == sum(len(kinds_of(section.form)) for section in sections), "two sections have the same option"
    said, typed = from_file(file, sections, origin), _typed(argv, kinds, program)
    return [
        section.form(**(values | {name: typed[name] for name in kinds_of(section.form) if name in typed}))
        for section, values in zip(sections, said, strict=True)
    ]


def given(argv: Sequence[str], name: str) -> str | None:
    """The value of one option, looked for before the others are known; None where it is not given."""
    found = None
    for token, following in zip(argv, [*argv, None][1:], strict=True):
        flag, equals, text = token.partition("=")
        if flag == f"--{name}":
            found = text if equals else following
    return found


def flag(name: str) -> str:
    """A field's name as it is typed, such as --max-tokens; of a word of Python's, `import_`, --import."""
    return "--" + name.rstrip("_").replace("_", "-")


@cache
def kinds_of(form: type) -> dict[str, Any]:
    """The type of each field as it is typed: what may be an object from Python is a text."""
    hints = get_type_hints(form, include_extras=True)
    return {field.name: _plain(hints[field.name]) for field in dataclasses.fields(form)}


def _plain(kind: Any) -> Any:
    if any(get_origin(one) is Mapping for one in alternatives(kind)) and get_origin(kind) is not Annotated:
        return str | dict
    if get_origin(kind) is not Annotated or is_positional(kind):
        return kind
    named = next((mark.name for mark in get_args(kind)[1:] if isinstance(mark, Kind)), "")
    return (str | dict if named in TABLES else str) if named else get_args(kind)[0]


def from_file(file: Mapping[str, Any], sections: Sequence[Section], origin: str) -> list[dict[str, Any]]:
    """What the file says for each section, as values of the fields' types."""
    tables = {section.table for section in sections if section.table}
    found: list[dict[str, Any]] = []
    for section in sections:
        if section.table is None:
            found.append({})
            continue
        here = file.get(section.table, {}) if section.table else {k: v for k, v in file.items() if k not in tables}
        if not isinstance(here, Mapping):
            raise UserError(f"{origin}: '{section.table}' must be a table, [{section.table}]; got {here!r}")
        kinds, values = kinds_of(section.form), dict[str, Any]()
        for key, value in here.items():
            if (now := RENAMED.get(key, "")) in kinds and key not in kinds:
                raise UserError(f"{origin}: '{key}' was renamed; write '{now}'")
            if key not in kinds:
                raise _unknown_key(key, value, section, sections, origin)
            with contextlib.suppress(TypeError):
                values[key] = _loaded(value, kinds[key])
                continue
            wanted = expected(kinds[key])
            raise UserError(f"{origin}: '{key}' must be {wanted}; got {value!r}{_quoted(value, kinds[key])}")
        found.append(values)
    return found


def _unknown_key(key: str, value: Any, section: Section, sections: Sequence[Section], origin: str) -> UserError:
    """The error for a key that a section does not have: where it belongs, or the nearest one."""
    place = f"{origin}, table [{section.table}]" if section.table else origin
    for other in sections:
        if other.table is not None and key in kinds_of(other.form):
            there = f"in table [{other.table}]" if other.table else "at the file's top, before all tables"
            return UserError(f"{place}: '{key}' belongs {there}")
    tables = [other.table for other in sections if other.table]
    if isinstance(value, Mapping) and tables and not section.table:
        there = ", ".join(f"[{table}]" for table in tables)
        return unknown(f"table in {place}:", key, tables, see=f"there are {there}; other options are at the file's top")
    return unknown(f"key in {place}:", key, kinds_of(section.form))


def _loaded(value: Any, kind: Any) -> Any:
    """A value of a TOML file as its field wants it; raises `TypeError` if it is of another kind."""
    for option in alternatives(kind):
        inner = get_args(option)
        if get_origin(option) is Literal and value in inner:
            return value
        if get_origin(option) is tuple and isinstance(value, list):
            return tuple(_loaded(item, inner[0]) for item in value)
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if option is Path and isinstance(value, str):
            return Path(value)
        if option in (int, str, bool, dict) and type(value) is option:
            return value
    raise TypeError


def _quoted(value: Any, kind: Any) -> str:
    """What an error says of a text: that it is one, and to leave out the quotes if it would be right without them."""
    if not isinstance(value, str):
        return ""
    with contextlib.suppress(TypeError, tomllib.TOMLDecodeError):
        _loaded(tomllib.loads(f"value = {value}")["value"], kind)
        return ", which is text; leave out the quotes"
    return ", which is text"


def _typed(argv: Sequence[str], kinds: Mapping[str, Any], program: str) -> dict[str, Any]:
    words = [name for name, kind in kinds.items() if is_positional(kind)]
    options = {name: kind for name, kind in kinds.items() if name not in words}
    switches = [name for name, kind in options.items() if alternatives(kind) == [bool]]
    known = [flag(name) for name in options] + [flag(f"no_{name}") for name in switches]
    found: dict[str, Any] = {}
    waiting = list(argv)
    while waiting:
        typed, equals, text = (token := waiting.pop(0)).partition("=")
        name = typed[2:].replace("-", "_")
        name = name if f"{name}_" not in options else f"{name}_"
        if not typed.startswith("--"):
            if not words or (words[0] in found and not isinstance(found[words[0]], tuple)):
                raise UserError(
                    f"'{token}' was found where an option was expected; options begin with --, see {program} --help"
                )
            found[words[0]] = _added(found.get(words[0]), token, kinds[words[0]])
        elif name in switches or name.removeprefix("no_") in switches:
            if equals:
                raise UserError(f"{typed} takes no value; type {flag(name)} or {flag('no_' + name)}")
            found[name if name in switches else name.removeprefix("no_")] = name in switches
        elif name not in options and (now := RENAMED.get(name, "")) in options:
            raise UserError(f"{typed} was renamed; type {flag(now)}")
        elif name not in options:
            raise unknown("option", typed, known, see=f"{program} --help-all lists all")
        else:
            if not equals:
                if not waiting or waiting[0].startswith("--"):
                    raise UserError(f"{typed} needs a value: {expected(options[name])}")
                text = waiting.pop(0)
            try:
                found[name] = _added(found.get(name), text, options[name])
            except TypeError:
                raise UserError(f"{typed} must be {expected(options[name])}; got '{text}'") from None
    return found


def is_positional(kind: Any) -> bool:
    """Whether a field is typed without its name."""
    return get_origin(kind) is Annotated and POSITIONAL in get_args(kind)[1:]


def _added(before: tuple[Any, ...] | None, text: str, kind: Any) -> Any:
    """The value that is typed; where a list is wanted, behind what was typed of it before."""
    several = get_origin(alternatives(kind)[0]) is tuple
    return (*(before or ()), *_loaded([text], kind)) if several else _read(text, kind)


def _read(text: str, kind: Any) -> Any:
    """Typed text as a value of this type; raises `TypeError` where it is none."""
    for read in (int, float, str):
        with contextlib.suppress(TypeError, ValueError):
            return _loaded(read(text), kind)
    raise TypeError
