"""Groups as the samples that a run logs."""

import math
from collections.abc import Iterator, Sequence

from posttrain.runs.run import Sample
from posttrain.types import Group


def samples_of(groups: Sequence[Group], *, per_group: int | None = None, model: str = "") -> Iterator[Sample]:
    """One sample per row: of each group all, or those of its first `per_group` episodes."""
    for group in groups:
        prompt = "\n".join(f"{m.role}: {m.text}" for m in group.task.prompt)
        numbers = group.episodes or tuple(range(len(group.trajectories)))
        shown = list(dict.fromkeys(numbers))[:per_group]
        seats = group.seat_names if len(set(group.seat_names)) > 1 else ("",) * len(numbers)
        for row in (row for row, number in enumerate(numbers) if number in shown):
            trajectory, reward, scores = group.trajectories[row], group.rewards[row], group.scores[row]
            yield Sample(
                prompt=prompt,
                completion=_said(group, row),
                rewards={name: score.total for name, score in scores.items() if score.applicable},
                reward=None if math.isnan(reward) else reward,
                answer="" if group.task.answer is None else str(group.task.answer),
                stop_reason=str(trajectory.stop_reason),
                model=model,
                seat=seats[row],
            )


def _said(group: Group, row: int) -> str:
    """The completion; for several turns, all text after the prompt."""
    said = group.conversation(row)[len(group.task.prompt) :]
    if len(said) <= 1:
        return group.trajectories[row].text
    return "\n".join(f"{message.role}: {message.text}" for message in said)
