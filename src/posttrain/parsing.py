"""Command options: dataclass defaults, overridden by a TOML file, overridden by flags.

Flags and `--help` are made by tyro from the dataclasses themselves: a field is a flag, the text under it is its help,
and nothing is said twice. What people get wrong is looked for before tyro reads, so that a mistake is one line.
"""

import contextlib
import dataclasses
import tomllib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import tyro

from posttrain.docstrings import field_docstrings
from posttrain.errors import UserError, unknown
from posttrain.options.groups import as_words
from posttrain.runs.config_file import RENAMED

HELP, HELP_ALL = ("-h", "--help"), "--help-all"
_STYLE = (tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone, tyro.conf.PositionalMetavarFromFieldName)
_NAMES = {int: "a whole number", float: "a number", str: "text", Path: "a path", bool: "true or false"}


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A dataclass whose fields are flags, under a title of their own in `--help`.

    Attributes:
        table: the table of a TOML file that sets them; "" for the file's top, None if no file may.
        compact: whether `--help` shows their names and defaults alone.
    """

    title: str
    form: type
    table: str | None = None
    compact: bool = False


def parse(
    argv: Sequence[str], sections: Sequence[Section], *, program: str, about: str, file: Mapping[str, Any], origin: str
) -> list[Any]:
    """Read all options of a command.

    Args:
        argv: what was typed behind the command.
        sections: in the order of `--help`. No two may have a field of the same name.
        program: the command as it is typed, such as `posttrain rl`.
        about: what it does, for `--help`.
        file: what a TOML file says.
        origin: what to call that file in an error.

    Returns:
        One instance of each section's dataclass.

    Raises:
        UserError: an unknown option or key (the nearest one is named), a missing or wrong value, or a combination
            that a dataclass itself refuses.
        SystemExit: `--help-all` was asked for, and printed.
    """
    kinds: dict[str, Any] = {}
    for section in sections:
        fields = kinds_of(section.form)
        assert not kinds.keys() & fields.keys(), f"two sections have {kinds.keys() & fields.keys()}"
        kinds |= fields
    values = from_file(file, sections, origin)
    _check(argv, kinds, program)
    forms = [_unchecked(section.form, described=section.table != "") for section in sections]
    whole = dataclasses.make_dataclass(
        "Options",
        [
            (f"section_{i}", Annotated[form, tyro.conf.arg(name=section.title)], form(**values[i]))
            for i, (section, form) in enumerate(zip(sections, forms, strict=True))
        ],
    )
    words = ["--help" if word == HELP_ALL else word for word in argv]
    read = tyro.cli(whole, prog=program, description=about, args=words, config=_STYLE)
    found = [getattr(read, f"section_{i}") for i in range(len(sections))]
    return [section.form(**_values(part)) for section, part in zip(sections, found, strict=True)]


def given(argv: Sequence[str], name: str) -> str | None:
    """The value of one option, looked for before the others are known; None where it is not given.

    Example:
        >>> given(["--steps", "3", "--algorithm=grpo"], "algorithm")
        'grpo'
    """
    found = None
    for token, following in zip(argv, [*argv, None][1:], strict=True):
        flag, equals, text = token.partition("=")
        if flag == f"--{name}":
            found = text if equals else following
    return found


def flag(name: str) -> str:
    """A field's name as it is typed.

    Example:
        >>> flag("max_tokens")
        '--max-tokens'
    """
    return "--" + name.replace("_", "-")


def kinds_of(form: type) -> dict[str, Any]:
    """The type of each field, with tyro's annotations."""
    hints = get_type_hints(form, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(form)}


def _values(instance: Any) -> dict[str, Any]:
    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}


def _unchecked(form: type, *, described: bool) -> type:
    """The same dataclass without its own checks: those come last, on what file and flags say together.

    tyro would break the help of an option where the source breaks its lines.
    """
    texts = field_docstrings(form)
    helps = {
        name: Annotated[_typed(kind), tyro.conf.arg(help=texts[name])]
        for name, kind in kinds_of(form).items()
        if name in texts
    }
    doc = form.__doc__ if described else ""
    return type(form.__name__, (form,), {"__doc__": doc, "__annotations__": helps, "__post_init__": lambda self: None})


def _typed(kind: Any) -> Any:
    """The type of what is typed for a field: of one that may be a table, text."""
    return str if any(get_origin(option) is Mapping for option in alternatives(kind)) else kind


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
                loaded = _loaded(value, kinds[key])
                values[key] = as_words(key, loaded) if isinstance(loaded, Mapping) else loaded
                continue
            expected = _expected(kinds[key])
            raise UserError(f"{origin}: '{key}' must be {expected}; got {value!r}{_quoted(value, kinds[key])}")
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
        if get_origin(option) is Mapping and isinstance(value, dict):
            return cast("dict[str, Any]", value)
        if get_origin(option) is tuple and isinstance(value, list):
            return tuple(_loaded(item, inner[0]) for item in value)
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if option is Path and isinstance(value, str):
            return Path(value)
        if option in (int, str, bool) and type(value) is option:
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


def _check(argv: Sequence[str], kinds: Mapping[str, Any], program: str) -> None:
    """Refuse what tyro would refuse, in one line."""
    if {*HELP, HELP_ALL} & {*argv}:
        return
    words = [name for name, kind in kinds.items() if is_positional(kind)]
    options = {name: kind for name, kind in kinds.items() if name not in words}
    switches = [name for name, kind in options.items() if alternatives(kind) == [bool]]
    known = [flag(name) for name in options] + [flag(f"no_{name}") for name in switches]
    waiting = list(argv)
    while waiting:
        typed, equals, text = (token := waiting.pop(0)).partition("=")
        name = typed[2:].replace("-", "_")
        if not typed.startswith("--"):
            if not words:
                raise UserError(
                    f"'{token}' stands where an option was expected; options begin with --, see {program} --help"
                )
        elif name in switches or name.removeprefix("no_") in switches:
            if equals:
                raise UserError(f"{typed} takes no value; type {flag(name)} or {flag('no_' + name)}")
        elif name not in options and (now := RENAMED.get(name, "")) in options:
            raise UserError(f"{typed} was renamed; type {flag(now)}")
        elif name not in options:
            raise unknown("option", typed, known, see=f"{program} --help-all lists all")
        else:
            if not equals:
                if not waiting or waiting[0].startswith("--"):
                    raise UserError(f"{typed} needs a value: {_expected(options[name])}")
                text = waiting.pop(0)
            if not _reads(text, options[name]):
                raise UserError(f"{typed} must be {_expected(options[name])}; got '{text}'")


def is_positional(kind: Any) -> bool:
    """Whether a field is typed without its name."""
    return get_origin(kind) is Annotated and tyro.conf.Positional in get_args(kind)[1:]


def _reads(text: str, kind: Any) -> bool:
    """Whether typed text is a value of this type."""
    return any(_is_one(text, option) for option in alternatives(kind))


def _is_one(text: str, option: Any) -> bool:
    if get_origin(option) is Literal:
        return text in map(str, get_args(option))
    if option is types.NoneType:  # what is not given is None; None cannot be typed
        return False
    if option in (int, float):
        try:
            option(text)
        except ValueError:
            return False
    return True


def alternatives(kind: Any) -> list[Any]:
    """The types of a union, or the one type that there is, without annotations."""
    if get_origin(kind) is Annotated:
        return alternatives(get_args(kind)[0])
    if get_origin(kind) in (types.UnionType, Union):
        return [option for part in get_args(kind) for option in alternatives(part)]
    return [kind]


def _expected(kind: Any) -> str:
    """A type in plain words."""
    return " or ".join(_named(option) for option in alternatives(kind) if option is not types.NoneType)


def _named(option: Any) -> str:
    if get_origin(option) is Literal:
        return f"one of {', '.join(map(str, get_args(option)))}"
    if get_origin(option) is Mapping:
        return "a table"
    if get_origin(option) is tuple:
        return f"a list, each {_expected(get_args(option)[0])}"
    return _NAMES.get(option, "a value")
