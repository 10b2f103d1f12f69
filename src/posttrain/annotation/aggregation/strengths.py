"""Completion strengths and annotator reliabilities, by maximum a posteriori.

A model says how likely each observation is, from strengths s of the completions that it is about and the weight a_w of
the annotator w who made it, by which they are multiplied:

    maximise  sum_o log P(o | a_w s) - sum_i s_i^2 / (2 sigma^2) - sum_w (a_w - 1)^2 / (2 kappa^2)

An annotator whose a is 0 answers at random, one whose a is negative says the opposite of the others, and one whose a is
large tells small differences apart. The weights are 1 on average, so that strengths keep their unit: a difference of 1
means odds of 2.718 to 1 for the average annotator. The two priors keep what little data would make infinite finite.

Letters: O observations, C completions of all items, W annotators.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from posttrain.annotation.consensus import Belief, Odds
from posttrain.annotation.rankings import Vote, by_item, votes_of
from posttrain.types import Ranking

Array = np.ndarray[Any, np.dtype[Any]]
Item = str | int
Key = tuple[Item, int]  # a completion: its item, and its number

SIGMA, KAPPA = 3.0, 0.5


class Likelihood(NamedTuple):
    """How likely all observations are."""

    value: float  # the sum of their logarithms
    by_strength: Array  # its gradient, for each completion
    by_weight: Array  # and for each annotator
    by_extra: Array  # and for what else the model has


@dataclass(frozen=True)
class Fitted:
    """What was found."""

    strengths: Mapping[Item, Mapping[int, float]]  # of each item's completions; 0 on average
    errors: Mapping[Item, Mapping[int, float]]  # their standard errors, given the annotators' weights
    weights: Mapping[str | int, float]  # of annotators; 1 on average
    extra: Array


def beliefs_of(
    rankings: Sequence[Ranking], fitted: Callable[[Sequence[Vote]], Fitted], odds: Callable[[float, Fitted], Odds]
) -> Mapping[Item, Belief]:
    """What a model says of each item, `fitted` to the comparisons that the rankings of all items imply.

    `odds` are the average annotator's, of two completions whose strengths differ by so much.
    """
    votes = list(votes_of(rankings))
    found = fitted(votes) if votes else Fitted({}, {}, {}, np.empty(0))
    pairs: dict[Item, dict[tuple[int, int], Odds]] = {item: {} for item in by_item(rankings)}
    for item, i, j in dict.fromkeys((vote.item, vote.first, vote.second) for vote in votes):
        strengths = found.strengths[item]
        pairs[item][i, j] = odds(strengths[i] - strengths[j], found)
    return {
        item: Belief(mine, found.strengths.get(item, {}), found.errors.get(item, {})) for item, mine in pairs.items()
    }


def fit(
    completions: Sequence[Key],
    annotators: Sequence[str | int],
    likelihood: Callable[[Array, Array, Array], Likelihood],
    *,
    extra: Sequence[float] = (),
) -> Fitted:
    """Fit strengths and weights.

    Args:
        completions: C of them.
        annotators: W of them.
        likelihood: of strengths [C], weights [W] and the model's own parameters.
        extra: where the model's own parameters begin.
    """
    many, people = len(completions), len(annotators)

    def parts(point: Array) -> tuple[Array, Array, Array]:
        return point[:many], 1 + point[many : many + people], point[many + people :]

    def cost(point: Array) -> tuple[float, Array]:
        s, a, more = parts(point)
        found = likelihood(s, a, more)
        by_weight = found.by_weight - (a - 1) / KAPPA**2  # less its mean, so that no step changes theirs
        gradient = np.concatenate([found.by_strength - s / SIGMA**2, by_weight - by_weight.mean(), found.by_extra])
        value = found.value - float(s @ s) / (2 * SIGMA**2) - float((a - 1) @ (a - 1)) / (2 * KAPPA**2)
        return -value, -gradient

    start = np.concatenate([np.zeros(many + people), np.asarray(extra, dtype=float)])
    best = minimize(cost, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000, "ftol": 1e-12, "gtol": 1e-7})
    s, a, more = parts(best.x)
    items: dict[Item, list[int]] = {}
    for number, (item, _) in enumerate(completions):
        items.setdefault(item, []).append(number)
    curvature = _curvature(lambda point: likelihood(point, a, more).by_strength, s, list(items.values()))
    strengths: dict[Item, dict[int, float]] = {}
    errors: dict[Item, dict[int, float]] = {}
    for (item, members), block in zip(items.items(), curvature, strict=True):
        centre = np.eye(len(members)) - 1 / len(members)
        spread = np.sqrt(np.diag(centre @ np.linalg.inv(block) @ centre).clip(min=0))
        numbers = [completions[member][1] for member in members]
        strengths[item] = dict(zip(numbers, (centre @ s[members]).tolist(), strict=True))
        errors[item] = dict(zip(numbers, spread.tolist(), strict=True))
    return Fitted(strengths, errors, dict(zip(annotators, a.tolist(), strict=True)), more)


def _curvature(gradient: Callable[[Array], Array], s: Array, items: Sequence[Sequence[int]]) -> list[Array]:
    """Minus the second derivatives of the posterior, for the completions of each item.

    Items do not touch each other, so that one central difference serves the n-th completion of all of them at once.
    """
    step = 1e-4
    blocks = [np.eye(len(members)) / SIGMA**2 for members in items]
    for column in range(max(map(len, items))):
        shift = np.zeros_like(s)
        shift[[members[column] for members in items if column < len(members)]] = step
        change = (gradient(s + shift) - gradient(s - shift)) / (2 * step)
        for members, block in zip(items, blocks, strict=True):
            if column < len(members):
                block[:, column] -= change[list(members)]
    return [(block + block.T) / 2 for block in blocks]
