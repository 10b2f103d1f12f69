"""Dataset rows with their source, so that errors name file and line."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, cast

from posttrain.data.messages import excerpt, list_in, read_message, read_text, read_tools, with_tools
from posttrain.errors import DataError, UserError
from posttrain.types import Message

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# Names that public data sets use for a field; the first one that a row has is what the error message proposes.
_ALSO_CALLED = {
    "prompt": ("question", "problem", "instruction", "query", "input", "messages", "text"),
    "completion": ("response", "answer", "output", "solution", "chosen"),
    "answer": ("final", "solution", "target", "label", "ground_truth"),
}


class UnknownColumn(DataError):
    """A mapping that names a column of which no row has a value."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field  # the name that the column was to be mapped to


@dataclass(frozen=True, slots=True)
class Row:
    """The fields of one row, the place that an error names, and an id that does not change from run to run."""

    fields: Mapping[str, Any]
    place: str  # data.jsonl line 17
    id: str  # data.jsonl:17

    def fail(self, problem: str) -> DataError:
        """The error that names this row."""
        return DataError(f"{self.place}: {problem}")

    def missing(self, field: str) -> DataError:
        """The error for a field that is not there, with the column that is probably meant, or that is null."""
        if field in self.fields:
            return self.fail(f"field '{field}' has no value; fill it in, or remove the row")
        near = get_close_matches(field, self.fields, n=1)
        column = next((c for c in (*near, *_ALSO_CALLED.get(field, ())) if c in self.fields), "COLUMN")
        return self.fail(
            f"field '{field}' is missing; this row has: {', '.join(self.fields) or 'no fields'}; "
            f'map it with `columns="{field}={column}"`'
        )

    def __contains__(self, field: str) -> bool:
        return self.fields.get(field) is not None

    def text(self, field: str) -> str:
        """A field that must be text with something in it."""
        if field not in self:
            raise self.missing(field)
        return self._text(self.fields[field], f"field '{field}'")

    def messages(self, field: str) -> tuple[Message, ...]:
        """A field that must be a conversation: text (one user message), or a list of messages.

        The column `tools` goes with it, on its first message from the system or a user.
        """
        if field not in self:
            raise self.missing(field)
        value = self.fields[field]
        if isinstance(value, str) and field in ("messages", "conversations") and (found := list_in(value)):
            value = found  # a cell of a csv
        elif isinstance(value, str):
            value = [{"role": "user", "content": self.text(field)}]
        if not isinstance(value, Sequence) or not value:
            raise self.fail(f"field '{field}' must be text or a list of {{role, content}}; got {excerpt(value)}")
        tools = self.tools()
        try:
            items = enumerate(cast(Sequence[Any], value), 1)
            found = [read_message(item, f"field '{field}' message {i}", tools) for i, item in items]
        except DataError as error:
            raise self.fail(str(error)) from None
        return with_tools(found, tools)

    def tools(self) -> tuple[str, ...]:
        """The column `tools`, each a JSON schema as text; empty where there is none."""
        try:
            return read_tools(self.fields.get("tools"))
        except DataError as error:
            raise self.fail(f'{error}; if it is something else, rename it with `columns="other=tools"`') from None

    def _text(self, value: Any, name: str) -> str:
        try:
            return read_text(value, name)
        except DataError as error:
            raise self.fail(str(error)) from None


def typed(value: Any) -> Any:
    """Parse a csv cell as a number or boolean; other values are returned unchanged.

    Example:
        >>> typed("0.5"), typed("True"), typed("yes"), typed(None)
        (0.5, True, 'yes', None)
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return float(text) if _NUMBER.fullmatch(text) else value


def parse_columns(flags: str | Sequence[str]) -> dict[str, str]:
    """Column mapping as typed: the name that posttrain uses, `=`, the name that the data uses.

    Raises:
        UserError: not of this form, or a name that is mapped twice.

    Example:
        >>> parse_columns("prompt=question answer=reward_model.ground_truth")
        {'prompt': 'question', 'answer': 'reward_model.ground_truth'}
    """
    columns: dict[str, str] = {}
    for flag in flags.split() if isinstance(flags, str) else flags:
        target, equals, source = flag.partition("=")
        if not (target and equals and source):
            raise UserError(f"cannot read the column mapping '{flag}'; write FIELD=COLUMN, such as prompt=question")
        if target in columns:
            raise UserError(f"the field '{target}' is mapped twice: to '{columns[target]}' and to '{source}'; keep one")
        columns[target] = source
    return columns


def map_columns(rows: Sequence[Row], columns: Mapping[str, str]) -> list[Row]:
    """Rows with columns renamed; `a.b` is the field `b` inside the field `a`.

    Raises:
        DataError: a column that no row has (the nearest one is named), or that one row lacks.
    """
    known = {name for row in rows for name in row.fields}
    for field, source in columns.items():
        outer = source if source in known else source.split(".")[0]
        if outer not in known:
            near = get_close_matches(outer, known, n=1, cutoff=0.4)
            hint = f"did you mean '{near[0]}'? " if near else ""
            has = ", ".join(sorted(known))
            raise UnknownColumn(f"unknown column '{source}'; {hint}The data has: {has}", field)
    return [_map_row(row, columns) for row in rows]


def _map_row(row: Row, columns: Mapping[str, str]) -> Row:
    mapped = {name: value for name, value in row.fields.items() if name not in columns.values()}
    for target, source in columns.items():
        value: Any = row.fields
        for name in (source,) if source in row.fields else source.split("."):
            if not isinstance(value, Mapping) or name not in value:
                raise row.fail(f"column '{source}', mapped to '{target}', is missing; it has: {', '.join(row.fields)}")
            value = cast(Any, value[name])
        mapped[target] = value
    return Row(mapped, row.place, row.id)
