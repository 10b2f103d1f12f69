"""Convert feedback to another layout.

    posttrain convert --dataset hh.jsonl.gz --to pairs --output pairs.jsonl
    posttrain convert --dataset OWNER/ULTRAFEEDBACK --to judgements --output thumbs.jsonl

Every row is read back before it is written, and must say the same. Left out: other columns, and how strongly and by
whom a response was chosen, for which these layouts have no fields.
"""

from collections.abc import Iterator
from typing import Any

from posttrain.data import reading_of
from posttrain.data.convert import TARGETS
from posttrain.errors import DataError, UserError, as_typed, unknown
from posttrain.options.tools import Convert
from posttrain.runs import jsonl

SHOWN = 3  # of what is left out


def run(config: Convert) -> tuple[list[str], dict[str, Any]]:
    """Read, convert and write; the file is there when all of it is, or not at all."""
    if not config.dataset:
        raise UserError("--dataset is required: a file, folder, glob or hub id")
    if config.to not in TARGETS:
        raise unknown("layout", config.to, TARGETS)
    path, target = jsonl.new_file(config.output), TARGETS[config.to]
    words = reading_of(config) | {"system": config.system, "prompt_template": config.prompt_template}
    found = target.load(config.dataset, **words)
    left_out = [as_typed(line) for line in found.left_out]

    def rows() -> Iterator[dict[str, Any]]:
        seen: set[str] = set()
        for item in found.items:
            try:
                for row in target.rows(item):
                    if not target.once or repr(row) not in seen:
                        yield row
                    seen.add(repr(row) if target.once else "")
            except DataError as problem:
                left_out.append(as_typed(str(problem)))
        if not seen:
            raise DataError(f"nothing was written: {left_out[0] if left_out else 'no response was found good'}")

    written = jsonl.write(path, rows())
    lines = [f"{written:,} rows in {path}: {as_typed(target.says)}"]
    if left_out:
        more = "" if len(left_out) <= SHOWN else f"; and {len(left_out) - SHOWN:,} more"
        lines.append(f"{len(left_out):,} left out: {'; '.join(left_out[:SHOWN])}{more}")
    return lines, {"path": path, "layout": config.to, "written": written, "left_out": left_out}
