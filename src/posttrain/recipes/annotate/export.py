"""Export annotations: raw rows, or training data.

    posttrain annotate export --project helpful --output rows.jsonl

    posttrain annotate export --project helpful --to pairs --output pairs.jsonl
    posttrain reward-model --dataset pairs.jsonl

`--history` adds what was corrected later, and what was said of items that came a second time. `--to pairs`, judgements,
ratings, steps or demonstrations writes what people say together, to learn from.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.annotation.aggregation import METHODS
from posttrain.annotation.store import exports, projects
from posttrain.annotation.store.database import open_store
from posttrain.annotation.store.tables import Project
from posttrain.annotation.training_rows import LESSONS
from posttrain.errors import UserError, unknown
from posttrain.recipes.annotate.forms import Export
from posttrain.runs import jsonl


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    rows: int

    def lines(self) -> list[str]:
        """The same for people."""
        return [f"{self.rows:,} rows in {self.path}"]


def run(config: Export) -> Exported:
    """Write the file; it is there when all of it is, or not at all."""
    path = jsonl.new_file(config.output)
    if not config.project:
        raise UserError("--project is required; posttrain annotate status lists the projects")
    if config.to != "rows" and config.to not in LESSONS:
        raise unknown("layout", config.to, ["rows", *LESSONS])
    if config.method not in METHODS:
        raise unknown("method", config.method, METHODS)
    if config.history and config.to != "rows":
        raise UserError("--history needs --to rows")
    with open_store(config.store).read() as connection:
        project = projects.find(connection, config.project)
        count = jsonl.write(path, _rows(connection, project, config))
    return Exported(path, count)


def _rows(connection: exports.Connection, project: Project, config: Export) -> Iterator[dict[str, Any]]:
    if config.to == "rows":
        return exports.rows(connection, project, history=config.history)
    lesson = LESSONS[config.to]
    if project.kind not in lesson:
        fitting = [name for name, other in LESSONS.items() if project.kind in other]
        raise UserError(
            f"a project of the kind '{project.kind}' makes no {config.to}; type --to {' or '.join(fitting)}"
        )
    rows = lesson[project.kind](exports.told(connection, project), config.method)
    return (row | {"project": project.name} for row in rows)
