"""Aggregation methods: from rankings by several annotators to an estimate per item.

Two of them have strengths s of completions, which are multiplied by a weight a_w of the annotator w. Both are found by
maximum a posteriori, where the model says how likely each observation o is:

    maximise  sum_o log P(o | a_w s) - sum_i s_i^2 / (2 sigma^2) - sum_w (a_w - 1)^2 / (2 kappa^2)

An annotator whose a is 0 answers at random, one whose a is negative says the opposite of the others, and one whose a is
large tells small differences apart. The weights are 1 on average, so that strengths keep their unit: a difference of 1
means odds of 2.718 to 1 for the average annotator. The two priors keep what little data would make infinite finite.

Letters: C completions of all items, W annotators, R rankings, K completions of the longest.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from posttrain.annotation.rankings import Belief, Odds, Vote, by_item, votes_of
from posttrain.errors import unknown
from posttrain.types import Ranking

Array = np.ndarray[Any, np.dtype[Any]]
Item = str | int
Method = Callable[[Sequence[Ranking]], Mapping[Item, Belief]]

SIGMA, KAPPA = 3.0, 0.5
_Likelihood = tuple[float, Array, Array, Array]
"""How likely all observations are: the sum of their logarithms, and its gradients by strengths [C], by weights [W] and
by what else the model has."""

ROUNDS = 100  # of Dawid and Skene's expectation maximisation


def majority(rankings: Sequence[Ranking]) -> Mapping[Item, Belief]:
    """The shares of the votes.

        P(i > j) = votes for i / votes on i and j

    Example:
        >>> said = [Ranking("x", name, order) for name, order in (("a", ((0,), (1,))), ("b", ((0,), (1,))))]
        >>> majority([*said, Ranking("x", "c", ((1,), (0,)))])["x"].odds[0, 1].first
        0.6666666666666666
    """
    found: dict[Item, Belief] = {}
    for item, said in by_item(rankings).items():
        votes: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        for vote in votes_of(said):
            votes[vote.first, vote.second][vote.outcome] += 1
        found[item] = Belief({pair: Odds(*(n[o] / n.total() for o in (1, 0, -1))) for pair, n in votes.items()})
    return found


def dawid_skene(rankings: Sequence[Ranking]) -> Mapping[Item, Belief]:
    """Annotators' error rates and the true outcomes of comparisons, estimated jointly.

    Dawid and Skene 1979 (https://doi.org/10.2307/2346806), by crowd-kit. Each comparison of two completions has a true
    outcome z (the first is better, the second, neither), and annotator w says y with a probability of their own:

        P(z = c) = p_c,   P(y_w = k | z = c) = e^w_kc

    The two are found by expectation maximisation, which begins with the majority. Which completion is called the first
    says nothing, so each comparison is given both ways round: p and e are then the same either way.

    An annotator who says the opposite of what is true is as informative as one who says what is true, once it is known.
    It needs several comparisons by each, and several annotators of each: of two who differ, nothing says who is wrong.
    """
    import pandas  # here: these two take a second, which the other methods need not wait for
    from crowdkit.aggregation import DawidSkene

    rows: list[tuple[tuple[Item, int, int], Item, int]] = []
    for vote in votes_of(rankings):
        rows.append(((vote.item, vote.first, vote.second), vote.annotator, vote.outcome))
        rows.append(((vote.item, vote.second, vote.first), vote.annotator, -vote.outcome))
    odds: dict[Item, dict[tuple[int, int], Odds]] = {item: {} for item in by_item(rankings)}
    names = {task: number for number, task in enumerate(dict.fromkeys(task for task, _, _ in rows))}
    people = {person: number for number, person in enumerate(dict.fromkeys(person for _, person, _ in rows))}
    numbered = [(names[task], people[person], outcome) for task, person, outcome in rows]
    fitted = DawidSkene(n_iter=ROUNDS).fit(pandas.DataFrame(numbered, columns=["task", "worker", "label"])).probas_
    assert fitted is not None
    outcomes = [int(column) for column in fitted.columns]
    for (item, first, second), name in names.items():
        if first < second:
            likely = dict(zip(outcomes, map(float, fitted.loc[name]), strict=True))
            odds[item][first, second] = Odds(*(likely.get(outcome, 0.0) for outcome in (1, 0, -1)))
    return {item: Belief(found) for item, found in odds.items()}


def bradley_terry(rankings: Sequence[Ranking]) -> Mapping[Item, Belief]:
    """Strengths from pairwise comparisons: the average annotator's odds, and strengths with their errors.

    Bradley and Terry 1952 (https://doi.org/10.2307/2334029), with ties as in Davidson 1970
    (https://doi.org/10.1080/01621459.1970.10481082) and a weight for each annotator:

        d = a_w (s_i - s_j),   Z = e^(d/2) + e^(-d/2) + nu
        P(i > j) = e^(d/2) / Z,   P(neither) = nu / Z,   P(j > i) = e^(-d/2) / Z

    nu, how readily people call two completions equal, is found as well, with one comparison of equals added that was a
    tie and one that was not, so that it stays finite; without any tie it is 0. A ranking counts as all the comparisons
    in it, as if they were independent.

    crowd-kit's NoisyBradleyTerry has annotators' skills too. It is not used: in 1.4.2 the gradient of a skill is that
    of the annotator's last comparison alone, and it has no ties.
    """
    return _beliefs(rankings, fit_comparisons, _davidson_odds)


def plackett_luce(rankings: Sequence[Ranking]) -> Mapping[Item, Belief]:
    """Strengths from whole rankings: the average annotator's odds, and strengths with their errors.

    Plackett 1975 (https://doi.org/10.2307/2346567), Luce 1959, with a weight for each annotator. A ranking is made from
    the top: each place is given to one of those that are left, in proportion to e^(a_w s).

        P(c_1 > c_2 > ... > c_K) = prod_k e^(a_w s_(c_k)) / sum_(l >= k) e^(a_w s_(c_l))

    Completions that are tied are each chosen from all that were left before any of them (Breslow's approximation). The
    model itself has no ties: two completions come out equal only where nothing tells them apart.
    """
    return _beliefs(rankings, lambda votes: fit_rankings(rankings), _luce_odds)


METHODS: Mapping[str, Method] = MappingProxyType(
    {way.__name__.replace("_", "-"): way for way in (majority, dawid_skene, bradley_terry, plackett_luce)}
)


def method(name: str) -> Method:
    """The method of this name; raises `UserError` for one that there is not."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


@dataclass(frozen=True)
class Fitted:
    """What was found."""

    strengths: Mapping[Item, Mapping[int, float]]  # of each item's completions; 0 on average
    errors: Mapping[Item, Mapping[int, float]]  # their standard errors, given the annotators' weights
    weights: Mapping[Item, float]  # of annotators; 1 on average
    extra: Array


def _beliefs(
    rankings: Sequence[Ranking], fitted: Callable[[Sequence[Vote]], Fitted], odds: Callable[[float, Fitted], Odds]
) -> Mapping[Item, Belief]:
    """What a model says of each item; `odds` are of two completions whose strengths differ by so much."""
    votes = list(votes_of(rankings))
    found = fitted(votes) if votes else Fitted({}, {}, {}, np.empty(0))
    pairs: dict[Item, dict[tuple[int, int], Odds]] = {item: {} for item in by_item(rankings)}
    for item, i, j in dict.fromkeys((vote.item, vote.first, vote.second) for vote in votes):
        strengths = found.strengths[item]
        pairs[item][i, j] = odds(strengths[i] - strengths[j], found)
    return {
        item: Belief(mine, found.strengths.get(item, {}), found.errors.get(item, {})) for item, mine in pairs.items()
    }


def fit_comparisons(votes: Sequence[Vote]) -> Fitted:
    """Of Bradley and Terry: strengths and weights, and log nu as the one thing `extra` where there are ties."""
    completions = list(dict.fromkeys((vote.item, one) for vote in votes for one in (vote.first, vote.second)))
    annotators = list(dict.fromkeys(vote.annotator for vote in votes))
    number = {key: i for i, key in enumerate(completions)}
    first = np.array([number[vote.item, vote.first] for vote in votes])
    second = np.array([number[vote.item, vote.second] for vote in votes])
    person = np.array([annotators.index(vote.annotator) for vote in votes])
    outcome = np.array([vote.outcome for vote in votes], dtype=float)
    tied = int((outcome == 0).sum())

    def likelihood(s: Array, a: Array, extra: Array) -> _Likelihood:
        gap = s[first] - s[second]
        d = a[person] * gap
        log_nu = extra[0] if tied else -math.inf
        log_z = np.logaddexp(np.logaddexp(d / 2, -d / 2), log_nu)
        value = float((outcome * d / 2 - log_z).sum())
        by_d = outcome / 2 - (np.exp(d / 2 - log_z) - np.exp(-d / 2 - log_z)) / 2
        by_strength = np.bincount(first, a[person] * by_d, len(s)) - np.bincount(second, a[person] * by_d, len(s))
        by_weight = np.bincount(person, gap * by_d, len(a))
        if not tied:
            return value, by_strength, by_weight, np.empty(0)
        log_equals = float(np.logaddexp(math.log(2), log_nu))  # Z of two that are equally strong
        value += tied * log_nu + log_nu - 2 * log_equals
        by_nu = tied - np.exp(log_nu - log_z).sum() + 1 - 2 * math.exp(log_nu - log_equals)
        return value, by_strength, by_weight, np.array([by_nu])

    return _fit(completions, annotators, likelihood, extra=(0.0,) if tied else ())


def _davidson_odds(gap: float, found: Fitted) -> Odds:
    nu = math.exp(found.extra[0]) if len(found.extra) else 0.0
    up, down = math.exp(gap / 2), math.exp(-gap / 2)
    total = up + down + nu
    return Odds(up / total, nu / total, down / total)


def fit_rankings(rankings: Sequence[Ranking]) -> Fitted:
    """Of Plackett and Luce: strengths and weights."""
    completions = list(dict.fromkeys((r.item, one) for r in rankings for tier in r.tiers for one in tier))
    annotators = list(dict.fromkeys(ranking.annotator for ranking in rankings))
    number = {key: i for i, key in enumerate(completions)}
    longest = max(sum(map(len, ranking.tiers)) for ranking in rankings)
    who = np.full((len(rankings), longest), -1)  # [R, K] the completion at each place, -1 where the ranking is over
    since = np.zeros_like(who)  # [R, K] the place of the first of its tier: it was drawn from what was left there
    for row, ranking in enumerate(rankings):
        place = 0
        for tier in ranking.tiers:
            who[row, place : place + len(tier)] = [number[ranking.item, one] for one in tier]
            since[row, place : place + len(tier)] = place
            place += len(tier)
    there = who >= 0
    person = np.array([annotators.index(ranking.annotator) for ranking in rankings])

    def likelihood(s: Array, a: Array, extra: Array) -> _Likelihood:
        raw = np.where(there, s[who], 0.0)
        x = np.where(there, a[person][:, None] * raw, -np.inf)
        top = x.max(axis=1, keepdims=True)
        mass = np.exp(x - top)
        left = np.cumsum(mass[:, ::-1], axis=1)[:, ::-1]  # what all from this place on sum to
        drawn_from = np.take_along_axis(left, since, axis=1)
        log_from = np.log(np.where(there, drawn_from, 1.0)) + top
        value = float((x - log_from)[there].sum())
        # each draw takes from all that were left, in proportion: every place at or after its tier's first
        shares = np.zeros_like(mass)
        np.add.at(shares, (np.arange(len(mass))[:, None], since), np.where(there, 1 / drawn_from, 0.0))
        by_x = np.where(there, 1.0 - mass * np.cumsum(shares, axis=1), 0.0)
        by_strength = np.bincount(who[there], (by_x * a[person][:, None])[there], len(s))
        return value, by_strength, np.bincount(person, (by_x * raw).sum(axis=1), len(a)), np.empty(0)

    return _fit(completions, annotators, likelihood)


def _luce_odds(gap: float, found: Fitted) -> Odds:
    first = float(1 / (1 + np.exp(-gap)))
    return Odds(first, 0.0, 1 - first)


def _fit(
    completions: Sequence[tuple[Item, int]],
    annotators: Sequence[Item],
    likelihood: Callable[[Array, Array, Array], _Likelihood],
    *,
    extra: Sequence[float] = (),
) -> Fitted:
    """Fit a model; `likelihood` is of strengths [C], weights [W] and parameters of its own, which begin at `extra`."""
    from scipy.optimize import minimize  # here: majority votes need none of it

    many, people = len(completions), len(annotators)

    def parts(point: Array) -> tuple[Array, Array, Array]:
        return point[:many], 1 + point[many : many + people], point[many + people :]

    def cost(point: Array) -> tuple[float, Array]:
        s, a, more = parts(point)
        value, by_strength, by_weight, by_extra = likelihood(s, a, more)
        by_weight = by_weight - (a - 1) / KAPPA**2  # less its mean, so that no step changes theirs
        gradient = np.concatenate([by_strength - s / SIGMA**2, by_weight - by_weight.mean(), by_extra])
        value = value - float(s @ s) / (2 * SIGMA**2) - float((a - 1) @ (a - 1)) / (2 * KAPPA**2)
        return -value, -gradient

    start = np.concatenate([np.zeros(many + people), np.asarray(extra, dtype=float)])
    best = minimize(cost, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000, "ftol": 1e-12, "gtol": 1e-7})
    s, a, more = parts(best.x)
    items: defaultdict[Item, list[int]] = defaultdict(list)
    for number, (item, _) in enumerate(completions):
        items[item].append(number)
    curvature = _curvature(lambda point: likelihood(point, a, more)[1], s, list(items.values()))
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
