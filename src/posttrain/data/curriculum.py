"""Which tasks a step draws: those that are solved about half of the time, or the easy ones first.

Rewards of 0 and 1 teach by p(1 - p), their variance at a success of p: nothing where all or none of a group are right.
`BySuccess` draws by it, measured while training; Chen et al. 2025 (https://arxiv.org/abs/2505.14970) draw categories of
tasks by the mean absolute advantage, which is highest there, too. `ByRank` gives the easiest share of the tasks first
and all of them later: the linear competence of Platanios et al. 2019 (https://arxiv.org/abs/1903.09848).
"""

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from posttrain.data.order import batch_indices, seed_for
from posttrain.errors import UserError
from posttrain.types import Task

START, REACHED = 0.2, 0.5  # of `ByRank`: shares of the tasks and of the run
RATE, FLOOR = 0.5, 0.02  # of `BySuccess`


class Curriculum:
    """All tasks alike: every epoch is a new permutation of them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.state: dict[str, float] = {}  # what a checkpoint keeps

    def indices(self, batch: int, draw: int, seed: int) -> list[int]:
        """The places of the tasks of draw number `draw`, from 0, of `batch` tasks each."""
        return batch_indices(self._count, batch, draw, seed)

    def note(self, solved: Mapping[str, float]) -> dict[str, float]:
        """Learn from a step, by a task's id the share of its completions that solved it; what is logged of it."""
        return {}


class ByRank(Curriculum):
    """The easiest `START` of the tasks first, then more in equal steps, and all after `REACHED` of the run.

        share(t) = min(1, start + (1 - start) t / (reached T)),   t of T tasks drawn

    Within the share tasks are drawn alike. A draw depends on its number and the seed alone, so that nothing is stored.
    """

    def __init__(self, ranks: Sequence[float], drawn: int) -> None:
        super().__init__(len(ranks))
        self._order = sorted(range(len(ranks)), key=ranks.__getitem__)
        self._drawn, self._share = drawn, START

    def share(self, batch: int, draw: int) -> float:
        """The share of the tasks from which a draw is made."""
        return min(1.0, START + (1 - START) * (batch * draw / (REACHED * self._drawn)))

    def indices(self, batch: int, draw: int, seed: int) -> list[int]:
        """As of `Curriculum`."""
        self._share = self.share(batch, draw)
        count = min(len(self._order), max(batch, math.ceil(self._share * len(self._order))))
        if count < batch:  # fewer tasks than a batch has
            return [self._order[place] for place in batch_indices(count, batch, draw, seed)]
        draws = Random(seed_for(seed, "curriculum", draw))
        return [self._order[place] for place in draws.sample(range(count), batch)]

    def note(self, solved: Mapping[str, float]) -> dict[str, float]:
        """The share of the tasks from which the last draw was made."""
        return {"curriculum/share": self._share}


class BySuccess(Curriculum):
    """Tasks by the variance of their outcome, without replacement: weight p(1 - p) + `FLOOR`.

    p, the state by the task's id, is a moving average of the share of completions that solved a task, each group
    counting `RATE`; a task that was not drawn yet has 1/2, so that all are tried. `FLOOR` keeps solved and unsolved
    ones from being forgotten.
    """

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(len(ids))
        self._ids = ids

    def indices(self, batch: int, draw: int, seed: int) -> list[int]:
        """As of `Curriculum`; with fewer tasks than a batch has, they are drawn again."""
        draws = Random(seed_for(seed, "curriculum", draw))
        # Efraimidis and Spirakis 2006: the largest u^(1/w) are a draw by weight w without replacement
        successes = [self.state.get(name, 0.5) for name in self._ids]
        keys = [math.log(1 - draws.random()) / (p * (1 - p) + FLOOR) for p in successes]
        best = sorted(range(len(keys)), key=keys.__getitem__, reverse=True)
        return (best * math.ceil(batch / len(best)))[:batch]

    def note(self, solved: Mapping[str, float]) -> dict[str, float]:
        """As of `Curriculum`; logged are the share of the tasks that were drawn, and their mean success."""
        for name, success in solved.items():
            before = self.state.get(name, success)
            self.state[name] = before + RATE * (success - before)
        known = self.state.values()
        found = {"curriculum/seen": len(known) / len({*self._ids})}
        return found | ({"curriculum/success": math.fsum(known) / len(known)} if known else {})


def curriculum_for(
    name: str, tasks: Sequence[Task], drawn: int, *, judged: bool = True, ahead: bool = False
) -> Curriculum:
    """The curriculum of a name: `success`, `length` of the prompt in characters, a column of numbers, low first, or "".

    `drawn` is how many tasks the run draws, `judged` whether a reward says what is solved, `ahead` whether steps are
    drawn before the ones before them are known.

    Raises:
        UserError: a task has no number in that column, or no id; or success cannot be known when tasks are drawn.
    """
    if not name:
        return Curriculum(len(tasks))
    if name == "success":
        if ahead:
            raise UserError("`curriculum=success` draws each step by the one before; leave out `max_staleness`")
        if not judged:
            raise UserError("`curriculum=success` needs a `reward` that says what is solved, such as numbers or gym")
        if unnamed := sum(not task.id for task in tasks):
            raise UserError(f"`curriculum=success` needs the tasks' ids; {unnamed} of {len(tasks)} have none")
        return BySuccess([task.id for task in tasks])
    if name == "length":
        return ByRank([sum(len(message.content) for message in task.prompt) for task in tasks], drawn)
    ranks: list[Any] = [task.metadata.get(name) for task in tasks]
    for task, value in zip(tasks, ranks, strict=True):
        if not isinstance(value, int | float) or not math.isfinite(value):
            columns = ", ".join(sorted(task.metadata)) or "none"
            raise UserError(
                f"`curriculum={name}` needs a number in the column '{name}'; task {task.id!r} has {value!r} "
                f"(its columns: {columns}); or give success or length"
            )
    return ByRank(ranks, drawn)
