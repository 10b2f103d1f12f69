"""Reward models as rewards, with ensemble aggregation.

A learned reward takes any `ScoreFn`; tests pass a lambda.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from types import MappingProxyType

from posttrain.errors import RewardError, UserError, unknown
from posttrain.rewards.reward import EpisodeReward
from posttrain.types import Episode, Message, Score, ScoreFn

Combine = Callable[[Sequence[float], float], float]

COMBINATIONS: Mapping[str, Combine] = MappingProxyType(
    {
        "mean": lambda scores, penalty: fmean(scores),
        "worst": lambda scores, penalty: min(scores),
        "uncertain": lambda scores, penalty: fmean(scores) - penalty * pvariance(scores),
    }
)
"""Aggregations of an ensemble's scores, with a weight.

    mean        1/H sum_h r_h
    worst       min_h r_h
    uncertain   1/H sum_h r_h - w 1/H sum_h (r_h - mean)^2

Coste et al. 2023 (https://arxiv.org/abs/2310.02743), who call the last two worst-case and
uncertainty-weighted optimisation.
"""


@dataclass(frozen=True)
class LearnedReward(EpisodeReward):
    """The score of a reward model. It is unbounded and does not indicate correctness.

    Args:
        ask: conversations in, the score of each by every member out.
        name: of the reward.
        use: a name in `COMBINATIONS`.
        penalty: w, for `uncertain`.
    """

    ask: ScoreFn
    name: str = "reward_model"
    use: str = "mean"
    penalty: float = 0.5
    role = "learned"
    bounds = (-math.inf, math.inf)
    patient = True

    def __post_init__(self) -> None:
        if self.use not in COMBINATIONS:
            raise unknown("use of a reward model", self.use, COMBINATIONS)
        if not 0 <= self.penalty < math.inf:
            raise UserError(f"the penalty of disagreement must be 0 or more; got {self.penalty}")

    async def score_episodes(self, episodes: Sequence[Episode]) -> list[Score]:
        """One score per episode.

        Raises:
            RewardError: there are not as many answers as episodes.
        """
        found = _asked(self.ask, self.name, episodes)
        return [Score(COMBINATIONS[self.use](scores, self.penalty)) for scores in found]


@dataclass(frozen=True)
class Disagreement(EpisodeReward):
    """Disagreement of an ensemble: the standard deviation of the members' scores. A monitor.

    With `CachedScores` as `ask`, shared with the reward itself, nothing is scored twice.
    """

    ask: ScoreFn
    name: str = "disagreement"
    role = "monitor"
    patient = True

    async def score_episodes(self, episodes: Sequence[Episode]) -> list[Score]:
        """One score per episode; errors as those of `LearnedReward`."""
        return [Score(pvariance(scores) ** 0.5) for scores in _asked(self.ask, self.name, episodes)]


class CachedScores:
    """A `ScoreFn` that caches its last result, for rewards that share it."""

    def __init__(self, ask: ScoreFn) -> None:
        self._ask, self._lock = ask, threading.Lock()
        self._last: tuple[list[tuple[Message, ...]], Sequence[Sequence[float]]] = ([], [])

    def __call__(self, conversations: Sequence[Sequence[Message]]) -> Sequence[Sequence[float]]:
        """As the wrapped `ScoreFn`."""
        asked = [tuple(one) for one in conversations]
        with self._lock:
            if self._last[0] != asked:
                self._last = asked, self._ask(conversations)
            return self._last[1]


def _asked(ask: ScoreFn, name: str, episodes: Sequence[Episode]) -> Sequence[Sequence[float]]:
    found = ask([episode.messages for episode in episodes])
    if len(found) != len(episodes) or not all(len(scores) for scores in found):
        raise RewardError(f"the model behind reward '{name}' gave {len(found)} answers to {len(episodes)} episodes")
    return found
