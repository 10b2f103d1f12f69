"""Progress and inter-annotator agreement of each project.

posttrain annotate status
posttrain annotate status --project helpful --json
"""

from dataclasses import asdict, dataclass
from typing import Any

from posttrain.annotation.store import projects
from posttrain.annotation.store.database import open_store
from posttrain.annotation.store.project_statistics import statistics_of
from posttrain.recipes.annotate.forms import Status


@dataclass(frozen=True)
class ProjectStatus:
    """One project."""

    project: str
    kind: str
    items: int
    known: int
    wanted: int
    judged: int
    whole: int
    skipped: int
    annotators: int
    alpha: float | None
    kendall_w: float | None
    disputed: int  # items on which people do not agree, and of which nobody has decided


@dataclass(frozen=True)
class StatusResult:
    """All that were asked for."""

    projects: list[ProjectStatus]

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        return {"projects": [asdict(project) for project in self.projects]}

    def lines(self) -> list[str]:
        """The same for people."""
        return [
            f"{one.project}: {one.judged} of {one.wanted} judgements, {one.whole} of {one.items} items whole, "
            f"{one.skipped} skipped, {one.annotators} people, alpha {_shown(one.alpha)}, W {_shown(one.kendall_w)}, "
            f"{one.disputed} disputed"
            for one in self.projects
        ] or ["no project yet"]


def run(config: Status) -> StatusResult:
    """Count."""
    with open_store(config.store).read() as connection:
        chosen = [projects.find(connection, config.project)] if config.project else projects.everything(connection)
        found: list[ProjectStatus] = []
        for project in chosen:
            together = statistics_of(connection, project)
            counts = projects.progress(connection, project)._asdict()
            found.append(
                ProjectStatus(
                    project.name,
                    project.kind,
                    **counts,
                    alpha=together.alpha,
                    kendall_w=together.kendall_w,
                    disputed=sum(not one.decided for one in together.disputes),
                )
            )
    return StatusResult(found)


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
