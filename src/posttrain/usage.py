"""`posttrain COMMAND --help`: the most used options by topic, one line each. `--help-all`: all, in full.

A form declares which of its fields are shown, and under which topic:

    HELP: ClassVar[Mapping[str, str]] = {"data": "dataset columns", "optimisation": "steps lr"}

A form adds to what its base classes show. Without `HELP` all options are shown.
"""

import dataclasses
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posttrain.errors import as_typed
from posttrain.options.hyperparameters import field_docstrings
from posttrain.options.option import alternatives, options_of
from posttrain.parsing import Section, flag, is_positional, kinds_of

TOPICS = ("data", "model", "rewards", "sampling", "optimisation", "evaluation", "project", "cluster", "run")
"""In the order of `--help`."""
MOST_LINES, WIDTH = 40, 100
_NARROWEST, _NAMES = 60, 32  # columns of a page, and at most of the names in it
_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}
_Values = Sequence[Mapping[str, Any]]


def page(
    program: str, about: str, sections: Sequence[Section], values: _Values, *, full: bool = False, width: int = 0
) -> str:
    """The text of `--help`; if `full`, of `--help-all`, in the order of the forms' groups.

    `values` of a file replace the defaults of each section's form. `width` is in columns; 0 for those of the terminal,
    at most `WIDTH`.
    """
    width = width or max(_NARROWEST, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))
    named = (name for section in sections for name, kind in kinds_of(section.form).items() if is_positional(kind))
    usage = [f"usage: {program}{''.join(f' {name.upper()}' for name in named)} [OPTIONS]", *textwrap.wrap(about, width)]
    body = _everything(sections, values, width) if full else _most_used(program, sections, values, width)
    return "\n".join([*usage, *body])


def _most_used(program: str, sections: Sequence[Section], values: _Values, width: int) -> Iterator[str]:
    """The options by topic, and of an algorithm's hyperparameters names and defaults."""
    listed = [(section, said) for section, said in zip(sections, values, strict=True) if not section.compact]
    topics: dict[str, list[_Entry]] = {}
    by_topic = any(shown(section.form) for section, _ in listed if section.table == "")
    for section, said in listed:
        for topic, names in (shown(section.form) if by_topic else {"options": kinds_of(section.form)}).items():
            topics.setdefault(topic, []).extend(_entries(section.form, names, said))
    column = min(_NAMES, max((len(name) for entries in topics.values() for name, *_ in entries), default=0))
    yield ""
    for topic in sorted(topics, key=lambda topic: TOPICS.index(topic) if topic in TOPICS else len(TOPICS)):
        yield f"{topic}:"
        for entry in topics[topic]:
            yield from _lines(entry, column, width)
    for section, said in zip(sections, values, strict=True):
        if section.compact:
            yield from _knobs(section, said, width)
    hidden = sum(len(kinds_of(section.form)) for section, _ in listed) - sum(map(len, topics.values()))
    more = f"{hidden} more option{'s' * (hidden > 1)}, and all texts in full" if hidden else "all texts in full"
    yield from textwrap.wrap(f"{program} --help-all shows {more}.", width)


def _everything(sections: Sequence[Section], values: _Values, width: int) -> Iterator[str]:
    for section, said in zip(sections, values, strict=True):
        for title, names in reversed(_groups(section).items()):  # the form's own first
            yield from ("", f"{title}:")
            for name, entry in zip(names, _entries(section.form, names, said), strict=True):
                limits = options_of(section.form)[name].range
                text = " ".join(filter(None, (entry.text, f"Range: {limits}." if limits else "", entry.default)))
                yield f"  {entry.typed}"
                yield from textwrap.wrap(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _groups(section: Section) -> dict[str, list[str]]:
    """The fields of a form by the group that declares them: the first line of that says what they are."""
    owner: dict[str, type] = {}
    for cls in section.form.__mro__:  # the form itself first, so that the group that a field began in comes last
        owner |= dict.fromkeys(vars(cls).get("__annotations__", ()), cls)
    found: dict[str, list[str]] = {}
    for name in kinds_of(section.form):
        title = (owner[name].__doc__ or section.title).strip().splitlines()[0].rstrip(".")
        found.setdefault(title, []).append(name)
    return found


def shown(form: type) -> dict[str, list[str]]:
    """The fields that `--help` shows of a form, by topic; those of the form itself first."""
    found: dict[str, list[str]] = {}
    for owner in form.__mro__:
        for topic, names in vars(owner).get("HELP", {}).items():
            listed = found.setdefault(topic, [])
            listed += [name for name in names.split() if name not in listed]
    return found


def brief(text: str, room: int) -> str:
    """The first sentence of a text, up to a `;`, or as many of its words as fit, and then three dots."""
    first = re.split(r"(?<=[.;]) ", text, maxsplit=1)[0].rstrip(".;")
    return first if len(first) <= room else first[: max(0, room - 3)].rsplit(" ", 1)[0] + "..."


class _Entry(NamedTuple):
    typed: str  # the option, with its metavar
    text: str
    default: str  # as text, "" if it is None, False or empty


def _entries(form: type, names: Iterable[str], said: Mapping[str, Any]) -> list[_Entry]:
    kinds, texts, values = kinds_of(form), field_docstrings(form), _values(form, said)
    return [_Entry(_typed(name, kinds[name]), as_typed(texts.get(name, "")), _default(values[name])) for name in names]


def _values(form: type, said: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(form)} | dict(said)


def _typed(name: str, kind: Any) -> str:
    if is_positional(kind):
        return name.upper()
    (option, *_) = (option for option in alternatives(kind) if option is not type(None))
    return flag(name) if option is bool else f"{flag(name)} {_METAVARS.get(option, 'TEXT')}"


def _default(value: Any) -> str:
    if value is None or value is False or value in ("", ()):
        return ""
    shown = "on" if value is True else f"{value:g}" if isinstance(value, float) else value
    return f"(default: {shown})"


def _lines(entry: _Entry, column: int, width: int) -> list[str]:
    """An option: one line in a page of `WIDTH` columns, as many as needed in a narrower one."""
    lead = f"  {entry.typed:<{column}}  "
    room = WIDTH - len(lead) - (len(entry.default) + 1 if entry.default else 0)
    said = " ".join(filter(None, (brief(entry.text, room), entry.default)))
    return textwrap.wrap(said, width, initial_indent=lead, subsequent_indent=" " * (column + 4)) or [lead.rstrip()]


def _knobs(section: Section, said: Mapping[str, Any], width: int) -> list[str]:
    """Names and defaults of an algorithm's hyperparameters; of a switch that is off only the name."""
    lines = [f"{section.title} (posttrain explain {section.title}):"]
    for name, value in _values(section.form, said).items():
        knob = f"  {flag(name)}" if value is False else f"  {flag(name)} {value}"
        if len(lines) > 1 and len(lines[-1]) + len(knob) <= width:
            lines[-1] += knob
        else:
            lines.append(knob)
    return lines
