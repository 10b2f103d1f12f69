"""Write what people said to a file: a row for each judgement, with how it came about.

    posttrain annotate export --project helpful --output judgements.jsonl
    posttrain annotate consensus judgements.jsonl

`--history` adds what was corrected later, and what was said of items that came a second time.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.annotation.store import exports, projects
from posttrain.annotation.store.database import open_store
from posttrain.errors import UserError
from posttrain.monitoring import jsonl
from posttrain.recipes.annotate.serve import FILE


@dataclass(frozen=True)
class Export:
    """Write what people said to a file."""

    store: str = FILE
    """Where what people say is kept."""
    project: str = ""
    """Whose judgements."""
    output: str = ""
    """The file to write; its name ends with .jsonl."""
    history: bool = False
    """Also what was corrected later, and items that came a second time."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    rows: int

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        return {"path": self.path, "rows": self.rows}

    def lines(self) -> list[str]:
        """The same for people."""
        return [f"{self.rows:,} judgements in {self.path}"]


def run(config: Export) -> Exported:
    """Write the file; it is there when all of it is, or not at all."""
    if not config.output.endswith(".jsonl"):
        raise UserError(f"say where to write with --output NAME.jsonl; got {config.output!r}")
    path = Path(config.output).expanduser()
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent}; make it first")
    if not config.project:
        raise UserError("say whose judgements with --project; posttrain annotate status lists the projects")
    count, new = 0, path.with_name(f".{path.name}.new")
    try:
        with open_store(config.store).read() as connection, new.open("wb") as file:
            project = projects.find(connection, config.project)
            for row in exports.rows(connection, project, history=config.history):
                jsonl.append(file, row)
                count += 1
            os.fsync(file.fileno())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
    return Exported(path, count)
