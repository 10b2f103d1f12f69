"""Groups as the samples that a run logs."""

import math
from collections.abc import Iterator, Sequence

from posttrain.monitoring.run import Sample
from posttrain.types import Group


def samples_of(groups: Sequence[Group], *, per_group: int | None = None, model: str = "") -> Iterator[Sample]:
    """One sample per completion, or the first `per_group` of each group."""
    for group in groups:
        prompt = "\n".join(f"{m.role}: {m.text}" for m in group.task.prompt)
        scored = zip(group.trajectories, group.rewards, group.scores, strict=True)
        for row, (trajectory, reward, scores) in enumerate(list(scored)[:per_group]):
            yield Sample(
                prompt=prompt,
                completion=_said(group, row),
                rewards={name: score.total for name, score in scores.items() if score.applicable},
                reward=None if math.isnan(reward) else reward,
                answer="" if group.task.answer is None else str(group.task.answer),
                stop_reason=str(trajectory.stop_reason),
                model=model,
            )


def _said(group: Group, row: int) -> str:
    """The completion; of several turns, all that was said after the prompt."""
    said = group.conversation(row)[len(group.task.prompt) :]
    if len(said) <= 1:
        return group.trajectories[row].text
    return "\n".join(f"{message.role}: {message.text}" for message in said)
