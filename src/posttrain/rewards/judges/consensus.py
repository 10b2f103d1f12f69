"""The consensus of several judges."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Literal, cast

from posttrain.background import all_of
from posttrain.errors import UserError, unknown
from posttrain.rewards.judges import Judge
from posttrain.rewards.reward import Reward
from posttrain.types import EpisodeGroup, Score, SeatScores, Task

Use = Literal["mean", "majority", "minimum"]
_EQUAL = 1e-9  # scores that differ by less are a tie


def consensus(scores: Sequence[Sequence[float]], use: Use = "mean", weights: Sequence[float] = ()) -> list[float]:
    """One score for each answer to a task, from those of J judges, each from 0 to 1.

        mean       s_i = sum_j w_j s_ji / sum_j w_j
        minimum    s_i = min_j s_ji
        majority   s_i = 1/(G-1) sum_k (1 + sign(sum_j w_j sign(s_ji - s_jk))) / 2

    The majority decides between each two answers; of one that is alone each judge says whether its score is 1/2 or
    more. Weights are 1 unless given.

    Example:
        >>> said = [[1.0, 0.0], [0.6, 0.4], [0.0, 1.0]]
        >>> [consensus(said, use) for use in ("majority", "minimum")]
        [[1.0, 0.0], [0.0, 0.0]]
    """
    own = list(weights) or [1.0] * len(scores)
    places = range(len(scores[0]))
    if use == "minimum":
        return [min(of[i] for of in scores) for i in places]
    if use == "mean":
        return [math.fsum(w * of[i] for w, of in zip(own, scores, strict=True)) / math.fsum(own) for i in places]
    votes = zip(*(preferences(of) for of in scores), strict=True)
    won = [_sign(math.fsum(w * vote for w, vote in zip(own, of, strict=True))) for of in votes]
    if len(places) == 1:
        return [(1 + won[0]) / 2]
    found = [0.0 for _ in places]
    for (i, j), which in zip(combinations(places, 2), won, strict=True):
        found[i] += (1 + which) / 2 / (len(places) - 1)
        found[j] += (1 - which) / 2 / (len(places) - 1)
    return found


def preferences(scores: Sequence[float]) -> list[int]:
    """Of each two answers in order, 1 if the first is better, -1 if the second is, 0 for a tie.

    Of one that is alone 1 if its score is 1/2 or more, else -1.
    """
    if len(scores) == 1:
        return [1 if scores[0] >= 0.5 else -1]
    return [_sign(one - other) for one, other in combinations(scores, 2)]


def weight_of(accuracy: float) -> float:
    """The weight log(p / (1 - p)) of a judge that is right with probability p: the one of the best weighted majority.

    Nitzan and Paroush 1982 (https://doi.org/10.2307/2526438), for independent judges. Raises `UserError` unless p is
    above 1/2 and below 1.
    """
    if not 0.5 < accuracy < 1:
        raise UserError(f"the accuracy of a judge must be above 0.5, a coin's, and below 1; got {accuracy:g}")
    return math.log(accuracy / (1 - accuracy))


@dataclass(frozen=True)
class Consensus:
    """Several judges as one reward; it applies where each of them has a verdict."""

    judges: tuple[Judge, ...]
    use: Use = "mean"
    weights: tuple[float, ...] = ()
    name: str = "consensus"
    role = "judge"
    bounds = (0.0, 1.0)
    patient = True

    @property
    def columns(self) -> frozenset[str]:
        """Those of all judges."""
        return frozenset[str]().union(*(judge.columns for judge in self.judges))

    @property
    def orders(self) -> bool:
        """Whether those that compare ask in both orders."""
        return all(judge.orders for judge in self.judges if judge.min_group > 1)

    @property
    def compares(self) -> bool:
        """Whether an answer's score depends on the others: a majority decides between each two."""
        return self.use == "majority" or self.min_group > 1

    @property
    def min_group(self) -> int:
        """That of the judge that compares most."""
        return max(judge.min_group for judge in self.judges)

    async def unreadable(self, tasks: Sequence[Task]) -> list[str]:
        """For each task, why a judge cannot judge it."""
        told = [await judge.unreadable(tasks) for judge in self.judges]
        return [next((one for one in why if one), "") for why in zip(*told, strict=True)]

    async def score(self, groups: Sequence[EpisodeGroup]) -> list[list[SeatScores]]:
        """The consensus of each group's scores."""
        said = await all_of(judge.score(groups) for judge in self.judges)
        return [self._agreed(cast("Sequence[Sequence[Score]]", of)) for of in zip(*said, strict=True)]

    def _agreed(self, said: Sequence[Sequence[Score]]) -> list[SeatScores]:
        by_answer = list(zip(*said, strict=True))
        whole = [place for place, of in enumerate(by_answer) if all(score.applicable for score in of)]
        values = [[of[place].value for place in whole] for of in said]
        found = dict(zip(whole, consensus(values, self.use, self.weights) if whole else (), strict=True))
        return [
            Score(
                found[place],
                explanation="\n\n".join(score.explanation for score in of),
                metrics={
                    name: fmean(s.metrics[name] for s in of if name in s.metrics) for s in of for name in s.metrics
                },
            )
            if place in found
            else Score.not_applicable(next(score.explanation for score in of if not score.applicable))
            for place, of in enumerate(by_answer)
        ]


def consensus_of(
    judges: Mapping[str, Reward],
    of: tuple[str, ...] = (),
    use: Use = "mean",
    accuracy: tuple[float, ...] = (),
    name: str = Consensus.name,
) -> Consensus:
    """The reward `consensus?of=a,b&use=minimum`: of all judges unless `of` names some; `accuracy` of each, in order."""
    known = {key: judge for key, judge in judges.items() if isinstance(judge, Judge)}
    names = of or tuple(known)
    if other := [one for one in names if one not in known]:
        raise unknown("judge of the reward 'consensus':", other[0], known, see="" if known else "there are no judges")
    if len({*names}) < max(2, len(names)):
        raise UserError("the reward 'consensus' needs two or more judges, such as `judge=\"a=MODEL b=MODEL\"`")
    if accuracy and (use == "minimum" or len(accuracy) != len(names)):
        raise UserError(
            "the reward 'consensus' weighs judges by one accuracy for each, and the minimum has no weights; got "
            f"{len(accuracy)} for {len(names)} judges and use={use}"
        )
    return Consensus(tuple(known[one] for one in names), use, tuple(map(weight_of, accuracy)), name)


def _sign(value: float) -> int:
    return (value > _EQUAL) - (value < -_EQUAL)
