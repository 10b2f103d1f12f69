"""Convert feedback to another layout.

    posttrain convert --dataset hh.jsonl.gz --to pairs --output pairs.jsonl
    posttrain convert --dataset OWNER/ULTRAFEEDBACK --to judgements --output thumbs.jsonl

Every row is read back before it is written, and must say the same. Left out: other columns, and how strongly and by
whom a response was chosen, for which these layouts have no fields.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.data import parse_columns
from posttrain.data.convert import TARGETS, Target
from posttrain.errors import DataError, UserError, as_typed, unknown
from posttrain.options.tools import Convert
from posttrain.runs import jsonl

SHOWN = 3  # of what is left out


@dataclass(frozen=True)
class ConvertResult:
    """What was written, and what could not be."""

    path: Path
    layout: str
    written: int
    left_out: tuple[str, ...]  # where each row is, and why

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        return {
            "path": self.path,
            "layout": self.layout,
            "written": self.written,
            "left_out": [as_typed(line) for line in self.left_out],
        }

    def lines(self) -> list[str]:
        """The same for people, with the first of what was left out."""
        found = [f"{self.written:,} rows in {self.path}: {TARGETS[self.layout].says}"]
        if self.left_out:
            more = "" if len(self.left_out) <= SHOWN else f"; and {len(self.left_out) - SHOWN:,} more"
            found.append(f"{len(self.left_out):,} left out: " + "; ".join(self.left_out[:SHOWN]) + more)
        return [as_typed(line) for line in found]


def run(config: Convert) -> ConvertResult:
    """Read, convert and write; the file is there when all of it is, or not at all."""
    if not config.dataset:
        raise UserError("--dataset is required: a file, folder, glob or hub id")
    if config.to not in TARGETS:
        raise unknown("layout", config.to, TARGETS)
    path = jsonl.new_file(config.output)
    target = TARGETS[config.to]
    found = target.load(
        config.dataset,
        split=config.split or None,
        columns=parse_columns(config.columns) if config.columns else None,
        limit=config.limit,
        system=config.system,
        prompt_template=config.prompt_template,
    )
    left_out = list(found.left_out)
    written = jsonl.write(path, _rows(found.items, target, left_out))
    return ConvertResult(path, config.to, written, tuple(left_out))


def _rows(items: Iterable[Any], target: Target, left_out: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of all items, of which there must be some; what cannot be said is told to `left_out`."""
    seen: set[str] = set()
    some = False
    for item in items:
        try:
            rows = target.rows(item)
        except DataError as problem:
            left_out.append(str(problem))
            continue
        for row in rows:
            some = True
            if not target.once:
                yield row
            elif (said := repr(row)) not in seen:
                seen.add(said)
                yield row
    if not some:
        raise DataError(f"nothing was written: {left_out[0] if left_out else 'no response was found good'}")
