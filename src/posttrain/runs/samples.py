"""Groups as the samples that a run logs."""

import math
from collections.abc import Iterator, Sequence

from posttrain.runs.run import Sample
from posttrain.types import Group, Row, Task


def samples_of(groups: Sequence[Group], *, per_group: int | None = None, model: str = "") -> Iterator[Sample]:
    """One sample per row: of each group all, or those of its first `per_group` episodes."""
    for group in groups:
        prompt = "\n".join(f"{m.role}: {m.text}" for m in group.task.prompt)
        shown = list(dict.fromkeys(row.episode for row in group.rows))[:per_group]
        several = len(group.by_seat) > 1
        for row in (row for row in group.rows if row.episode in shown):
            yield Sample(
                prompt=prompt,
                completion=_said(group.task, row),
                rewards={name: score.total for name, score in row.scores.items() if score.applicable},
                reward=None if math.isnan(row.reward) else row.reward,
                answer="" if group.task.answer is None else str(group.task.answer),
                stop_reason=str(row.trajectory.stop_reason),
                model=model,
                seat=row.seat if several else "",
            )


def _said(task: Task, row: Row) -> str:
    """The completion; for several turns, all text after the prompt."""
    said = row.conversation[len(task.prompt) :]
    if len(said) <= 1:
        return row.trajectory.text
    return "\n".join(f"{message.role}: {message.text}" for message in said)
