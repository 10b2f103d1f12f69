"""Reward-model metrics on held-out pairs, ties and ratings: accuracy, calibration, biases, ensemble uncertainty.

A pair is right if the chosen response has the higher score; a tie counts half. The score of an ensemble is the mean of
its members'. Over pairs that people found equal equal scores are rare: a predicted tie is a margin within some epsilon.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import correlation, fmean, pstdev
from typing import NamedTuple

from posttrain.data.packing import Ranked
from posttrain.errors import UserError
from posttrain.statistics import Interval, mean_interval, sigmoid, softplus

BINS = 10
HOTTEST, COLDEST = 20.0, 0.05


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """The scores of two responses, by each member of an ensemble, and their lengths in tokens."""

    chosen: tuple[float, ...]
    rejected: tuple[float, ...]
    chosen_tokens: int = 0
    rejected_tokens: int = 0
    category: str = ""
    prompt: int = 0  # pairs of one prompt share responses, and are not independent of each other

    @property
    def margin(self) -> float:
        """Score of the chosen response minus that of the rejected one."""
        return fmean(self.chosen) - fmean(self.rejected)

    @property
    def disagreement(self) -> float:
        """Standard deviation of the margin over ensemble members."""
        return pstdev(a - b for a, b in zip(self.chosen, self.rejected, strict=True))

    @property
    def right(self) -> float:
        """1 if the chosen response scores higher, 0 if lower, 1/2 for a tie."""
        return (self.margin > 0) + 0.5 * (self.margin == 0)


def scored_pairs(units: Sequence[Ranked], scores: Sequence[tuple[float, ...]], *, first: int = 0) -> list[ScoredPair]:
    """Every pair of every ranking, in order of their responses' `scores`; the first one's prompt has number `first`."""
    left = iter(scores)
    found: list[ScoredPair] = []
    for number, unit in enumerate(units, first):
        said = [(next(left), len(example.continuation)) for example in unit.examples]
        for better, worse, _ in unit.pairs:
            (chosen, chosen_tokens), (rejected, rejected_tokens) = said[better], said[worse]
            found.append(ScoredPair(chosen, rejected, chosen_tokens, rejected_tokens, prompt=number))
    return found


class PairAccuracy(NamedTuple):
    """Pair accuracy."""

    value: float
    ci95: Interval
    pairs: int


class Bin(NamedTuple):
    """A confidence bin of pairs."""

    confidence: float  # how likely it finds its own choice, on average
    right: float  # how often that was people's
    pairs: int


def accuracy(pairs: Sequence[ScoredPair]) -> PairAccuracy:
    """Pair accuracy, with an interval over prompts, the unit of training."""
    if not pairs:
        raise UserError("there are no pairs to judge")
    rates = list(by_prompt(pairs).values())
    return PairAccuracy(fmean(rates), mean_interval(rates), len(pairs))


def by_prompt(pairs: Sequence[ScoredPair]) -> dict[int, float]:
    """The pair accuracy of each prompt."""
    return _means((pair.prompt, pair.right) for pair in pairs)


def _means(values: Iterable[tuple[int, float]]) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for prompt, value in values:
        found.setdefault(prompt, []).append(value)
    return {prompt: fmean(some) for prompt, some in found.items()}


def by_category(pairs: Sequence[ScoredPair]) -> dict[str, PairAccuracy]:
    """Accuracy by category, in order of appearance; empty if there are fewer than two."""
    names = dict.fromkeys(pair.category for pair in pairs)
    return {name: accuracy([p for p in pairs if p.category == name]) for name in names} if len(names) > 1 else {}


def log_loss(pairs: Sequence[ScoredPair], temperature: float = 1.0) -> float:
    """The mean of -log sigmoid(margin / T), in nats: 0.693 for margins of 0."""
    return fmean(softplus(-pair.margin / temperature) for pair in pairs)


def calibration(pairs: Sequence[ScoredPair], temperature: float = 1.0) -> list[Bin]:
    """Reliability curve: confidence sigmoid(|margin| / T) and accuracy, in equal bins from 0.5 to 1, none empty."""
    bins: list[list[ScoredPair]] = [[] for _ in range(BINS)]
    for pair in pairs:
        bins[min(BINS - 1, int((_sure(pair, temperature) - 0.5) * 2 * BINS))].append(pair)
    return [
        Bin(fmean(_sure(p, temperature) for p in one), fmean(p.right for p in one), len(one)) for one in bins if one
    ]


def calibration_error(pairs: Sequence[ScoredPair], temperature: float = 1.0) -> float:
    """The expected calibration error over those bins.

        ECE = sum_b n_b / n |right_b - confidence_b|

    Guo et al. 2017, eq. 3 (https://arxiv.org/abs/1706.04599). With few pairs it is above 0 by chance alone.
    """
    return sum(b.pairs * abs(b.right - b.confidence) for b in calibration(pairs, temperature)) / len(pairs)


def fit_temperature(pairs: Sequence[ScoredPair]) -> float:
    """Temperature scaling: the T for which sigmoid(margin / T) is calibrated.

    It minimises log loss, within 0.05 to 20 (Guo et al. 2017, section 4.2), and does not change accuracy. The target
    probability of n pairs is (n + 1) / (n + 2), as in Platt scaling (Platt 1999), so that a few pairs
    that are all right do not give certainty. If most are wrong it is the upper end.

    Example:
        >>> pairs = [ScoredPair((4.0,), (0.0,))] * 75 + [ScoredPair((0.0,), (4.0,))] * 25
        >>> round(fit_temperature(pairs), 2)  # 4 / log 3, for infinitely many of them
        3.73
    """
    doubt = 1 / (len(pairs) + 2)
    low, high = math.log(1 / HOTTEST), math.log(1 / COLDEST)  # of the logarithm of a = 1/T, in which the slope rises
    for _ in range(60):
        middle = (low + high) / 2
        slope = fmean(pair.margin * (doubt - sigmoid(-pair.margin * math.exp(middle))) for pair in pairs)
        low, high = (middle, high) if slope < 0 else (low, middle)
    return math.exp(-(low + high) / 2)


def crossfitted_error(pairs: Sequence[ScoredPair]) -> float:
    """The calibration error at a cross-fitted temperature: each half uses the one fitted on the other half."""
    halves = pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :]
    if not all(halves):
        return calibration_error(pairs)
    cooled = [
        ScoredPair((pair.margin / temperature,), (0.0,))
        for one, temperature in zip(halves, map(fit_temperature, halves[::-1]), strict=True)
        for pair in one
    ]
    return calibration_error(cooled)


def length_correlation(pairs: Sequence[ScoredPair]) -> float | None:
    """Pearson's correlation of score and length differences of pairs; None if either does not vary."""
    # both ways round, so that the order of the two says nothing: the means are 0
    margins, longer = [p.margin for p in pairs], [p.chosen_tokens - p.rejected_tokens for p in pairs]
    spread = math.sqrt(sum(m * m for m in margins) * sum(d * d for d in longer))
    return sum(m * d for m, d in zip(margins, longer, strict=True)) / spread if spread else None


def by_length(pairs: Sequence[ScoredPair]) -> dict[str, PairAccuracy]:
    """Accuracy on pairs whose chosen response is the longer one, and the shorter one."""
    longer = [p for p in pairs if p.chosen_tokens > p.rejected_tokens]
    shorter = [p for p in pairs if p.chosen_tokens < p.rejected_tokens]
    return {name: accuracy(some) for name, some in (("longer", longer), ("shorter", shorter)) if some}


def disagreement_tells(pairs: Sequence[ScoredPair]) -> float | None:
    """The probability that disagreement is larger on a wrong pair than on a right one.

    The area under the ROC curve of disagreement as a predictor of errors: 0.5 is chance, 1 is perfect.
    None without an ensemble, without errors, or with errors only.
    """
    if not pairs or len(pairs[0].chosen) == 1:
        return None
    wrong, right = ([p.disagreement for p in pairs if p.right == outcome] for outcome in (0.0, 1.0))
    return exceeds(wrong, right) if wrong and right else None


def exceeds(some: Sequence[float], others: Iterable[float]) -> float:
    """The chance that one of `some` is larger than one of `others`, where equal ones count half."""
    ordered = sorted(others)
    below = sum(bisect_left(ordered, one) + bisect_right(ordered, one) for one in some)  # one equal is in one of them
    return below / (2 * len(some) * len(ordered))


def measures(pairs: Sequence[ScoredPair], temperature: float | None = None) -> dict[str, float]:
    """Metrics of pairs to log, by name; with a `temperature` that was fitted to them also how far off others' are."""
    found = {
        "loss": log_loss(pairs),
        "accuracy": accuracy(pairs).value,
        "margin": fmean(pair.margin for pair in pairs),
        "score/chosen": fmean(fmean(pair.chosen) for pair in pairs),
        "score/rejected": fmean(fmean(pair.rejected) for pair in pairs),
        "calibration_error": calibration_error(pairs),
    }
    optional = {"length_correlation": length_correlation(pairs), "disagreement_tells": disagreement_tells(pairs)}
    found |= {name: value for name, value in optional.items() if value is not None}
    if temperature is None:
        return found
    return found | {"temperature": temperature, "calibration_error/calibrated": crossfitted_error(pairs)}


def _sure(pair: ScoredPair, temperature: float) -> float:
    return sigmoid(abs(pair.margin) / temperature)


def correlations(
    names: Sequence[str], foretold: Sequence[Sequence[float]], rated: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Pearson's correlation of predictions and ratings, for each attribute where both vary.

    `foretold` has for each response a number for each attribute, in any unit, `rated` its ratings; some may be missing.
    """
    found: dict[str, float] = {}
    for place, name in enumerate(names):
        pairs = [
            (numbers[place], ratings[name]) for numbers, ratings in zip(foretold, rated, strict=True) if name in ratings
        ]
        if len({a for a, _ in pairs}) > 1 and len({b for _, b in pairs}) > 1:
            found[name] = correlation(*zip(*pairs, strict=True))
    return found


class Ties(NamedTuple):
    """Results on ties."""

    told: float
    """The chance that its margin is smaller over a pair that people found equal than over one that they decided: 0.5
    where the size of a margin says nothing of it, 1 where it tells all."""
    accuracy: float
    """How often it says what people say, with a third answer, neither; the prompt is the unit, as it is of pairs."""
    ci95: Interval
    never: float
    """The same if it never says so."""
    epsilon: float
    """Up to which margin it would say so: the best one for all pairs."""
    pairs: int  # that people decided
    ties: int


def ties_of(pairs: Sequence[ScoredPair], ties: Sequence[ScoredPair]) -> Ties:
    """Pairs that people decided, and pairs that they found equal, of which it says nothing which one is called chosen.

        accuracy = 1/P sum_p 1/n_p ( sum over its pairs [m > eps] + sum over its ties [|m| <= eps] )

    The pairwise accuracy with ties of Deutsch, Foster and Freitag 2023, "Ties Matter"
    (https://arxiv.org/abs/2305.14324), with their tie calibration: eps is the one that is best. Here it is found on one
    half of the prompts and used on the other, so that a model gains nothing by chance.
    """
    if not pairs or not ties:
        raise ValueError("ties are measured beside pairs that were decided; one of the two is empty")
    order = {prompt: place for place, prompt in enumerate(dict.fromkeys(one.prompt for one in (*pairs, *ties)))}
    halves = [
        (
            [one for one in pairs if order[one.prompt] % 2 == half],
            [one for one in ties if order[one.prompt] % 2 == half],
        )
        for half in (0, 1)
    ]
    if not all(some for half in halves for some in half):
        halves = [(pairs, ties)]

    def right(some: Sequence[ScoredPair], equal: Sequence[ScoredPair], epsilon: float) -> list[tuple[int, float]]:
        decided = [(pair.prompt, float(pair.margin > epsilon)) for pair in some]
        return [*decided, *((tie.prompt, float(abs(tie.margin) <= epsilon)) for tie in equal)]

    said: list[tuple[int, float]] = []
    for half, others in zip(halves, halves[::-1], strict=True):
        said += right(*half, best_epsilon(*others))
    rates, never = list(_means(said).values()), fmean(_means(right(pairs, ties, 0.0)).values())
    told = exceeds([abs(pair.margin) for pair in pairs], (abs(tie.margin) for tie in ties))
    best = best_epsilon(pairs, ties)
    return Ties(told, fmean(rates), mean_interval(rates), never, best, len(pairs), len(ties))


def best_epsilon(pairs: Sequence[ScoredPair], ties: Sequence[ScoredPair]) -> float:
    """The smallest epsilon of highest accuracy, with equal weight for each prompt."""
    of_prompt = Counter(one.prompt for one in (*pairs, *ties))
    margins = sorted((pair.margin, 1 / of_prompt[pair.prompt]) for pair in pairs)
    sizes = sorted((abs(tie.margin), 1 / of_prompt[tie.prompt]) for tie in ties)
    missed, met = ([0.0, *accumulate(weight for _, weight in one)] for one in (margins, sizes))

    def right(epsilon: float) -> float:
        up_to = (epsilon, math.inf)
        return round(met[bisect_right(sizes, up_to)] - missed[bisect_right(margins, up_to)], 9)

    candidates = sorted({0.0, *(size for size, _ in sizes)})  # between two of them nothing is gained
    return max(candidates, key=right)
