"""Reward functions that are called in other processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from posttrain.background import in_thread
from posttrain.errors import UserError
from posttrain.rewards.custom import CustomReward, Source, load_reward
from posttrain.types import EpisodeGroup, Score, SeatScores

Ask = Callable[[Sequence[EpisodeGroup]], list[list[SeatScores]]]
"""Has groups scored, and blocks until they are; threads may call it at the same time."""


@dataclass(frozen=True, kw_only=True)
class Elsewhere(CustomReward):
    """A user's function as a `Reward`, called in another process. All that is known of it is what it is here."""

    ask: Ask

    @property
    def patient(self) -> bool:
        """The process that runs the function enforces its time limit: queueing for a process does not count."""
        return True

    async def score(self, groups: Sequence[EpisodeGroup]) -> list[list[SeatScores]]:
        """As in `CustomReward`."""
        found = await in_thread(self.ask, groups)
        for scores in (scores for of_group in found for scores in of_group):
            for score in [scores] if isinstance(scores, Score) else scores.values():
                self._note(score)
        return found


def elsewhere(function: CustomReward, ask: Ask) -> Elsewhere:
    """The same function, called by `ask`."""
    return Elsewhere(**{each.name: getattr(function, each.name) for each in fields(function)}, ask=ask)


def load_again(source: Source) -> CustomReward:
    """The function in this process, as another has loaded it.

    Raises:
        UserError: as `load_reward`, or the file is another one by now.
    """
    found = load_reward(source.path)
    if found.source is None or found.source.digest != source.digest:
        raise UserError(f"the file of the reward '{source.path}' is not what the run began with; restore it")
    return found
