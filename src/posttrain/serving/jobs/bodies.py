"""The body of POST /v1/jobs. Fields that it does not have are refused.

Rows are cut out of the text and read one by one, so that memory does not grow with the body: what is held is one row,
of bounded length, depth and number of containers, whatever a client sends. A body of 28 MB of empty lists, parsed as
a whole, would be 1 GB of objects.
"""

import json
import mmap
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from posttrain.errors import UserError
from posttrain.serving.answers import first_mistake

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
    """What a client asks for.

    Args:
        body: JSON.
        take: gets each row, with the field that it is of, `dataset` or `eval_dataset`.

    Raises:
        UserError: it is not what it should be; names the field, or the row.
    """
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
        asked = Submitted.model_validate_json(_Cut(body, row).rest)
    except ValidationError as error:
        raise UserError(first_mistake(error)[:500]) from error
    for field in DATA_SETS:
        if isinstance(getattr(asked, field), Rows) and field not in counts:
            raise UserError(f"{field}.rows must have a row at least")
    return asked


class _Cut:
    """Cuts the rows out of a body.

    Args:
        body: JSON.
        take: gets the text of each row, an object.

    Attributes:
        rest: the body, with empty lists in place of the rows.
    """

    def __init__(self, body: bytes | mmap.mmap, take: Callable[[str, bytes], None]) -> None:
        self._body, self._take, self._string = body, take, (0, 0)  # the place of the last string
        self._depth = self._containers = self._part = 0  # where a part begins: a row, or what is between lists of rows
        self._field, self._outer, self._seen = "", "", set[str]()
        self._row, self._first = False, True
        self.rest, quote = b"", -1
        for found in _MARK.finditer(body):
            mark, at = found[0], found.start()
            if mark == b'"':
                quote, self._string = (at, self._string) if quote < 0 else (-1, (quote + 1, at))
            elif quote < 0 and mark in b"[{":
                self._opened(mark, at)
            elif quote < 0 and mark in b"]}":
                self._closed(mark, at)
        if self._field:
            raise UserError(f"the body ends within {self._field}.rows")
        self._keep(len(body))

    def _opened(self, mark: bytes, at: int) -> None:
        self._depth, self._containers = self._depth + 1, self._containers + 1
        if self._field and self._depth == 4:
            self._between(at, mark == b"{")
            self._part, self._containers, self._row = at, 1, True
        elif self._depth == 2:
            self._outer = self._key(at)
        elif self._depth == 3 and mark == b"[" and self._outer in DATA_SETS and self._key(at) == "rows":
            if self._outer in self._seen:
                raise UserError(f"{self._outer}.rows is given twice")
            self._keep(at + 1)
            self._field, self._first = self._outer, True
            self._seen.add(self._field)
        if self._depth - 3 * self._row > DEPTH or self._containers > CONTAINERS:
            raise UserError(f"{self._what} may have {CONTAINERS} lists and objects, {DEPTH} of them within each other")
        self._bounded(at)

    def _closed(self, mark: bytes, at: int) -> None:
        self._depth -= 1
        if self._row and self._depth == 3:
            self._bounded(at)
            self._take(self._field, self._body[self._part : at + 1])
            self._part, self._row, self._first = at + 1, False, False
        elif self._field and self._depth == 2:
            self._between(at, mark == b"]", last=True)
            self._field, self._part, self._containers = "", at, 0

    def _between(self, at: int, right: bool, *, last: bool = False) -> None:
        """Refuse what is not a comma between rows."""
        comma = b"" if last or self._first else b","
        if not right or self._body[self._part : at].strip() != comma:
            raise UserError(f"{self._field}.rows must be a list of objects")

    def _key(self, at: int) -> str:
        """The name of the value that begins at a byte; "" where it has none."""
        start, end = self._string
        if at - start > 200 or self._body[end + 1 : at].strip() != b":":
            return ""
        return self._body[start:end].decode(errors="replace")

    def _keep(self, end: int) -> None:
        """Add the part that ends at a byte to the rest."""
        self._bounded(end)
        self.rest, self._part = self.rest + self._body[self._part : end], end

    def _bounded(self, at: int) -> None:
        if at - self._part + (0 if self._field else len(self.rest)) > TEXT_BYTES:
            raise UserError(f"{self._what} may have {TEXT_BYTES} bytes")

    @property
    def _what(self) -> str:
        return f"a row of {self._field}" if self._field else "a body without its rows"
