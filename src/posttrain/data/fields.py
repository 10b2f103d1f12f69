"""Fields of a row that must be of a kind; a `DataError` names the row, the field and what it is."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from posttrain.data.records import Record, typed
from posttrain.data.structures import list_in


def as_list(row: Record, value: Any, name: str) -> Sequence[Any]:
    """A field that must be a list, or one as JSON or Python write it; raises `DataError`, which names it."""
    given = value
    if isinstance(value, str):
        value = list_in(value)
    if not isinstance(value, Sequence):
        raise row.fail(f"field '{name}' must be a list; got {given!r:.60}")
    return cast(Sequence[Any], value)


def as_mapping(row: Record, value: Any, name: str) -> Mapping[str, Any]:
    """A field that must be an object; raises `DataError`, which names it."""
    if not isinstance(value, Mapping):
        raise row.fail(f"field '{name}' must be an object; got {value!r:.60}")
    return value


def as_text(row: Record, value: Any, name: str) -> str:
    """A field that must be text that is not empty; raises `DataError`, which names it."""
    if not isinstance(value, str) or not value.strip():
        raise row.fail(f"field '{name}' must be text that is not empty; got {value!r:.60}")
    return value


def as_answer(row: Record, value: Any, name: str) -> str:
    """A response alone: text, or a list of one assistant's message; raises `DataError` for what is more."""
    said = Record({name: value}, row.place, row.id).response(name, ())
    if len(said) != 1 or said[0].tool_calls or said[0].reasoning:
        raise row.fail(f"field '{name}' must be one response as text; got {value!r:.60}")
    return said[0].content


def as_number(row: Record, value: Any, name: str) -> float:
    """A field that must be a finite number; raises `DataError`, which names it."""
    value = typed(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise row.fail(f"field '{name}' must be a number; got {value!r:.60}")
    if not math.isfinite(value) if isinstance(value, float) else abs(value) > 2**63:
        raise row.fail(f"field '{name}' must be a finite number; got {value!r}; correct or remove the row")
    return float(value)
