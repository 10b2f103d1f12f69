"""The body of POST /v1/jobs. Fields that it does not have are refused.

Rows are cut out of the text and read one by one, so that memory does not grow with the body: what is held is one row,
of bounded length, depth and number of containers, whatever a client sends. A body of 28 MB of empty lists, parsed as
a whole, would be 1 GB of objects.
"""

import json
import mmap
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from posttrain.errors import UserError
from posttrain.serving.guard import first_mistake

Name = Annotated[str, Field(min_length=1, max_length=128)]
Weight = Annotated[float, Field(ge=-1e6, le=1e6, strict=True)]

TEXT_BYTES = 4 << 20  # of a row, and of all but the rows
CONTAINERS = 1 << 16  # lists and objects, likewise
DEPTH = 64  # of lists and objects within each other, likewise
MOST_ROWS = 1_000_000
DATA_SETS = ("dataset", "eval_dataset")
_MARK = re.compile(rb'[\[\]{}"]|\\.', re.DOTALL)


class Body(BaseModel):
    """Nothing is ignored: a misspelt field would be a job with another meaning."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Rows(Body):
    """Data that is sent with the job: rows as of a JSONL file. They have been cut out when this is read."""

    rows: Annotated[list[Any], Field(max_length=0)]


class Named(Body):
    """Data of the operator's, by name."""

    name: Name


class Verifier(Body):
    """A reward that posttrain has, by name."""

    verifier: Name
    weight: Weight = 1.0


class Remote(Body):
    """A reward behind an HTTP address."""

    url: Annotated[str, Field(max_length=2000)]
    weight: Weight = 1.0


class Source(Body):
    """A reward as Python source; for keys that are trusted."""

    file: Annotated[str, Field(min_length=1, max_length=1_000_000)]
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")] = "reward"
    weight: Weight = 1.0


Reward = Verifier | Remote | Source
Data = Rows | Named


class Submitted(Body):
    """A job as its client asks for it."""

    command: Literal["rl", "sft", "preference", "reward-model"]
    model: Name
    dataset: Data
    eval_dataset: Data | None = None
    reward: Reward | Annotated[list[Reward], Field(min_length=1, max_length=8)] | None = None
    options: Annotated[dict[str, Any], Field(max_length=64)] = {}
    knobs: Annotated[dict[str, Any], Field(max_length=64)] = {}

    @property
    def rewards(self) -> list[Reward]:
        """The rewards; none where there is none."""
        if self.reward is None:
            return []
        return self.reward if isinstance(self.reward, list) else [self.reward]


def submitted(body: bytes | mmap.mmap, take: Callable[[str, dict[str, Any]], None]) -> Submitted:
    """What a client asks for in JSON; `take` gets each row with its field. A mistake's `UserError` names its place."""
    counts: dict[str, int] = {}

    def row(field: str, text: bytes) -> None:
        counts[field] = counts.get(field, 0) + 1
        if counts[field] > MOST_ROWS:
            raise UserError(f"{field}.rows may have {MOST_ROWS} rows")
        try:
            take(field, json.loads(text.decode()))
        except ValueError as error:
            raise UserError(f"{field}.rows, row {counts[field]} is not JSON: {error}"[:500]) from error

    try:
        asked = Submitted.model_validate_json(_without_rows(body, row))
    except ValidationError as error:
        raise UserError(first_mistake(error)[:500]) from error
    for field in DATA_SETS:
        if isinstance(getattr(asked, field), Rows) and field not in counts:
            raise UserError(f"{field}.rows must have a row at least")
    return asked


def _marks(body: bytes | mmap.mmap) -> Iterator[tuple[bytes, int, tuple[int, int]]]:
    """Each bracket and brace outside of strings, its place, and that of the last string before it."""
    quote, string = -1, (0, 0)
    for found in _MARK.finditer(body):
        if found[0] == b'"':
            quote, string = (found.end(), string) if quote < 0 else (-1, (quote, found.start()))
        elif quote < 0 and found[0] in b"[]{}":
            yield found[0], found.start(), string


def _without_rows(body: bytes | mmap.mmap, take: Callable[[str, bytes], None]) -> bytes:
    """A body with empty lists in place of the rows; `take` gets the field and the text of each row."""
    rest, part, depth, containers = b"", 0, 0, 0  # `part`: where a row begins, or what is beside rows
    field, outer, row, seen = "", "", False, dict[str, int]()

    def keep(end: int, most: int = TEXT_BYTES) -> bytes:
        """The part that ends at a byte."""
        what = f"a row of {field}" if field else "a body without its rows"
        if end - part > most:
            raise UserError(f"{what} may have {TEXT_BYTES} bytes")
        if depth - 3 * row > DEPTH or containers > CONTAINERS:
            raise UserError(f"{what} may have {CONTAINERS} lists and objects, {DEPTH} of them within each other")
        return body[part:end]

    for mark, at, (start, end) in _marks(body):
        opens = mark in b"[{"
        depth, containers = depth + (1 if opens else -1), containers + opens
        key = body[start:end] if opens and at - start < 200 and body[end + 1 : at].strip() == b":" else b""
        if field and not row and (depth == 4 if opens else depth == 2):  # between rows
            if mark != (b"{" if opens else b"]") or keep(at).strip() != (b"," if opens and seen[field] else b""):
                raise UserError(f"{field}.rows must be a list of objects")
            part, containers, row, field = at, 1, opens, field if opens else ""
        elif row and depth == 3:
            take(field, keep(at + 1))
            seen[field], part, containers, row = seen[field] + 1, at + 1, 0, False
        elif opens and depth == 2:
            outer = key.decode(errors="replace")
        elif mark == b"[" and depth == 3 and outer in DATA_SETS and key == b"rows":
            if outer in seen:
                raise UserError(f"{outer}.rows is given twice")
            rest += keep(at + 1, TEXT_BYTES - len(rest))
            field, part, seen[outer] = outer, at + 1, 0
        elif opens:
            keep(at)
    if field:
        raise UserError(f"the body ends within {field}.rows")
    return rest + keep(len(body), TEXT_BYTES - len(rest))
