"""Reward-model metrics on held-out pairs and ratings: accuracy, calibration, biases, ensemble uncertainty.

A pair is right if the chosen response has the higher score; a tie counts half. The score of an ensemble is the mean of
its members'.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import correlation, fmean, pstdev
from typing import NamedTuple

from posttrain.data.packing import Ranked
from posttrain.errors import UserError
from posttrain.statistics import Interval, mean_interval

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
    """Every pair of every ranking, in order; `scores` are those of their responses, one after the other.

    `first` is the number of the first ranking's prompt.
    """
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
    """Pair accuracy, with an interval over prompts, the unit of training.

    Raises:
        UserError: there are no pairs.
    """
    if not pairs:
        raise UserError("there are no pairs to judge")
    rates = list(by_prompt(pairs).values())
    return PairAccuracy(fmean(rates), mean_interval(rates), len(pairs))


def by_prompt(pairs: Sequence[ScoredPair]) -> dict[int, float]:
    """The pair accuracy of each prompt."""
    found: dict[int, list[float]] = {}
    for pair in pairs:
        found.setdefault(pair.prompt, []).append(pair.right)
    return {prompt: fmean(right) for prompt, right in found.items()}


def by_category(pairs: Sequence[ScoredPair]) -> dict[str, PairAccuracy]:
    """Accuracy by category, in order of appearance; empty if there are fewer than two."""
    names = dict.fromkeys(pair.category for pair in pairs)
    return {name: accuracy([p for p in pairs if p.category == name]) for name in names} if len(names) > 1 else {}


def log_loss(pairs: Sequence[ScoredPair], temperature: float = 1.0) -> float:
    """The mean of -log sigmoid(margin / T), in nats: 0.693 for margins of 0."""
    scaled = (-pair.margin / temperature for pair in pairs)
    return fmean(max(x, 0.0) + math.log1p(math.exp(-abs(x))) for x in scaled)


def calibration(pairs: Sequence[ScoredPair], temperature: float = 1.0) -> list[Bin]:
    """Reliability curve: confidence and accuracy in up to ten equal-width bins from 0.5 to 1.

    The confidence is sigmoid(|margin| / T). Empty bins are left out.
    """
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
        slope = fmean(pair.margin * (doubt - _sigmoid(-pair.margin * math.exp(middle))) for pair in pairs)
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
    """Pearson's correlation of score differences and length differences of pairs.

    None if either does not vary.
    """
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
    if not wrong or not right:
        return None
    right.sort()
    below = sum(bisect_left(right, w) + bisect_right(right, w) for w in wrong)  # a tie is in one of the two
    return below / (2 * len(wrong) * len(right))


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
    return _sigmoid(abs(pair.margin) / temperature)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else 1 - 1 / (1 + math.exp(x))


def correlations(
    names: Sequence[str], foretold: Sequence[Sequence[float]], rated: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Pearson's correlation of predictions and ratings, for each attribute where both vary.

    `foretold` has for each response a number for each attribute, in any unit, `rated` its ratings; some may be missing.

    Example:
        >>> correlations(["clear", "kind"], [[1, 0], [2, 0], [9, 0]], [{"clear": 4}, {"clear": 5}, {"kind": 1}])
        {'clear': 1.0}
    """
    found: dict[str, float] = {}
    for place, name in enumerate(names):
        pairs = [
            (numbers[place], ratings[name]) for numbers, ratings in zip(foretold, rated, strict=True) if name in ratings
        ]
        if len({a for a, _ in pairs}) > 1 and len({b for _, b in pairs}) > 1:
            found[name] = correlation(*zip(*pairs, strict=True))
    return found
