"""`posttrain COMMAND --help`: the most used options by topic, one line each. `--help-all`: all, in full.

A form declares which of its fields are shown, and under which topic:

    HELP: ClassVar[Mapping[str, str]] = {"data": "dataset columns", "optimisation": "steps lr"}

A form adds to what its base classes show. Without `HELP` all options are shown.
"""

import dataclasses
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posttrain.docstrings import field_docstrings
from posttrain.errors import as_typed
from posttrain.options.option import alternatives, options_of
from posttrain.parsing import Section, flag, is_positional, kinds_of

TOPICS = ("data", "model", "rewards", "sampling", "optimisation", "evaluation", "project", "cluster", "run")
"""In the order of `--help`."""
MOST_LINES, WIDTH = 40, 100
_NARROWEST, _NAMES = 60, 32  # columns of a page, and at most of the names in it
_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}


def page(
    program: str, about: str, sections: Sequence[Section], values: Sequence[Mapping[str, Any]], *, width: int = 0
) -> str:
    """The text of `--help`.

    Args:
        program: the command as it is typed, such as `posttrain rl`.
        about: what it does.
        sections: the forms of its options.
        values: of each section, values of a file, which replace its form's defaults.
        width: columns; 0 for those of the terminal, at most `WIDTH`.
    """
    width = width or max(_NARROWEST, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))
    listed = [(section, said) for section, said in zip(sections, values, strict=True) if not section.compact]
    topics: dict[str, list[_Entry]] = {}
    by_topic = any(shown(section.form) for section, _ in listed if section.table == "")
    for section, said in listed:
        for topic, names in (shown(section.form) if by_topic else {"options": _names(section.form)}).items():
            topics.setdefault(topic, []).extend(_entries(section.form, names, said))
    column = min(_NAMES, max((len(name) for entries in topics.values() for name, *_ in entries), default=0))
    hidden = sum(len(_names(section.form)) for section, _ in listed) - sum(map(len, topics.values()))
    words = "".join(f" {name.upper()}" for section, _ in listed for name in _positional(section.form))
    lines = [f"usage: {program}{words} [OPTIONS]", *textwrap.wrap(about, width), ""]
    for topic in sorted(topics, key=lambda topic: TOPICS.index(topic) if topic in TOPICS else len(TOPICS)):
        lines.append(f"{topic}:")
        lines += [line for entry in topics[topic] for line in _lines(entry, column, width)]
    for section, said in zip(sections, values, strict=True):
        if section.compact:
            lines += _knobs(section, said, width)
    more = f"{hidden} more option{'s' * (hidden > 1)}, and all texts in full" if hidden else "all texts in full"
    return "\n".join([*lines, *textwrap.wrap(f"{program} --help-all shows {more}.", width)])


def full_page(
    program: str, about: str, sections: Sequence[Section], values: Sequence[Mapping[str, Any]], *, width: int = 0
) -> str:
    """The text of `--help-all`, as `page`: every option with its whole text, in the order of the forms' groups."""
    width = width or max(_NARROWEST, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))
    words = "".join(f" {name.upper()}" for section in sections for name in _positional(section.form))
    lines = [f"usage: {program}{words} [OPTIONS]", *textwrap.wrap(about, width)]
    for section, said in zip(sections, values, strict=True):
        for title, names in reversed(_groups(section).items()):  # the form's own first
            lines += ["", f"{title}:"]
            for name, entry in zip(names, _entries(section.form, names, said), strict=True):
                limits = options_of(section.form)[name].range
                lines.append(f"  {entry.typed}")
                text = " ".join(filter(None, (entry.text, f"Range: {limits}." if limits else "", entry.default)))
                lines += textwrap.wrap(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def _groups(section: Section) -> dict[str, list[str]]:
    """The fields of a form by the group that declares them: the first line of that says what they are."""
    owner: dict[str, type] = {}
    for cls in section.form.__mro__:  # the form itself first, so that the group that a field began in comes last
        owner |= dict.fromkeys(vars(cls).get("__annotations__", ()), cls)
    found: dict[str, list[str]] = {}
    for name in _names(section.form):
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
    """The first sentence of a text, up to a `;`, or as many of its words as fit.

    Example:
        >>> brief("Peak learning rate; 1e-6 is usual. LoRA needs more.", 40), brief("Peak learning rate.", 10)
        ('Peak learning rate', 'Peak...')
    """
    first = re.split(r"(?<=[.;]) ", text, maxsplit=1)[0].rstrip(".;")
    return first if len(first) <= room else first[: max(0, room - 3)].rsplit(" ", 1)[0] + "..."


def _names(form: type) -> list[str]:
    return [field.name for field in dataclasses.fields(form)]


def _positional(form: type) -> list[str]:
    return [name for name, kind in kinds_of(form).items() if is_positional(kind)]


class _Entry(NamedTuple):
    typed: str  # the option, with its metavar
    text: str
    default: str  # as text, "" if it is None, False or empty


def _entries(form: type, names: Iterable[str], said: Mapping[str, Any]) -> list[_Entry]:
    kinds, texts = kinds_of(form), field_docstrings(form)
    values = _defaults(form) | dict(said)
    return [_Entry(_typed(name, kinds[name]), as_typed(texts.get(name, "")), _default(values[name])) for name in names]


def _defaults(form: type) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(form)}


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
    for name, value in (_defaults(section.form) | dict(said)).items():
        knob = f"  {flag(name)}" if value is False else f"  {flag(name)} {value}"
        if len(lines) > 1 and len(lines[-1]) + len(knob) <= width:
            lines[-1] += knob
        else:
            lines.append(knob)
    return lines
