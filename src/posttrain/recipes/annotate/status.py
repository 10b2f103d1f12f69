"""Progress and inter-annotator agreement of each project.

posttrain annotate status
posttrain annotate status --project helpful --json
"""

from dataclasses import dataclass
from typing import Any

from posttrain.annotation.store import projects
from posttrain.annotation.store.database import Connection, open_store
from posttrain.annotation.store.project_statistics import statistics_of
from posttrain.annotation.store.tables import Project
from posttrain.recipes.annotate.forms import Status


@dataclass(frozen=True)
class StatusResult:
    """All projects that were asked for: counts, agreement, and how many disputed items nobody has decided."""

    projects: list[dict[str, Any]]

    def lines(self) -> list[str]:
        """The same for people."""
        return [
            f"{one['project']}: {one['judged']} of {one['wanted']} judgements, {one['whole']} of {one['items']} items "
            f"whole, {one['skipped']} skipped, {one['annotators']} people, alpha {_shown(one['alpha'])}, "
            f"W {_shown(one['kendall_w'])}, {one['disputed']} disputed"
            for one in self.projects
        ] or ["no project yet"]


def run(config: Status) -> StatusResult:
    """Count."""
    with open_store(config.store).read() as connection:
        chosen = [projects.find(connection, config.project)] if config.project else projects.everything(connection)
        return StatusResult([_status(connection, project) for project in chosen])


def _status(connection: Connection, project: Project) -> dict[str, Any]:
    together = statistics_of(connection, project)
    return {
        "project": project.name,
        "kind": project.kind,
        **projects.progress(connection, project)._asdict(),
        "alpha": together.alpha,
        "kendall_w": together.kendall_w,
        "disputed": sum(not one.decided for one in together.disputes),
    }


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
