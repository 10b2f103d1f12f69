"""Groups of rows, from columns: what is the same in all rows need not be written in each."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from posttrain.types import Group, Row, Score, Task, Trajectory

TASK = Task(())


def group_of(
    trajectories: Sequence[Trajectory],
    rewards: Sequence[float],
    *,
    task: Task = TASK,
    scores: Sequence[Mapping[str, Score]] = (),
    seats: Sequence[str] = (),
    episodes: Sequence[int] = (),
    metrics: Sequence[Mapping[str, float]] = (),
    step_rewards: Sequence[Mapping[int, float]] = (),
) -> Group:
    """A group of one seat, whose row i is episode i, unless columns say otherwise."""
    count = len(trajectories)
    columns = zip(
        trajectories,
        rewards,
        scores or [{}] * count,
        seats or [""] * count,
        episodes or range(count),
        metrics or [{}] * count,
        step_rewards or [{}] * count,
        strict=True,
    )
    rows = [
        Row(
            trajectory=trajectory,
            reward=reward,
            scores=of_row,
            seat=seat,
            episode=episode,
            metrics=measured,
            step_rewards=paid,
        )
        for trajectory, reward, of_row, seat, episode, measured, paid in columns
    ]
    return Group(task=task, rows=tuple(rows))


def with_rows(group: Group, **columns: Sequence[Any]) -> Group:
    """The group with other values in these fields of its rows."""
    rows = zip(group.rows, *columns.values(), strict=True)
    changed = [replace(row, **dict(zip(columns, values, strict=True))) for row, *values in rows]
    return replace(group, rows=tuple(changed))
