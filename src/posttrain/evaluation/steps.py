"""Process reward models on labelled steps: are steps told right from wrong, and is the first wrong one found?

ProcessBench's protocol (Zheng et al. 2024, https://arxiv.org/abs/2412.06559): a model says that the first step whose
score is below a threshold is the first wrong one, or that there is none. The threshold of highest F1 on one half of the
prompts is used on the other, so that a model gains nothing by chance. A critic that says of everything that it is right
has an F1 of 0.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from posttrain.data.packing import Stepwise
from posttrain.evaluation import pairs
from posttrain.evaluation.process_bench import ALL_RIGHT, ProcessBench, process_bench
from posttrain.statistics import softplus

HALF = 0.5  # a step whose label is above it counts as right in metrics
THRESHOLDS = 200  # that are tried


def scored_steps(units: Sequence[Stepwise], logits: Sequence[Sequence[float]]) -> list[pairs.ScoredPair]:
    """Each labelled step as a pair of the label that it has and the other one."""
    return [
        pairs.ScoredPair((logit if right > HALF else -logit,), (0.0,), prompt=number)
        for number, (unit, of_unit) in enumerate(zip(units, logits, strict=True))
        for right, logit in zip(unit.right, of_unit, strict=True)
    ]


def step_measures(units: Sequence[Stepwise], logits: Sequence[Sequence[float]]) -> dict[str, float]:
    """Metrics of labelled steps.

    `accuracy` is the share of steps that are told right from wrong, by reasoning; `first_error` the share of reasonings
    of which the first wrong step is found, or that none is wrong; `wrong` the share of reasonings with one. `loss` is
    the cross-entropy of training, -y log p - (1 - y) log(1 - p), also of labels y between 0 and 1.
    """
    steps = scored_steps(units, logits)
    found = [
        next((place for place, logit in enumerate(of_unit) if logit < 0), None) == first_wrong(unit)
        for unit, of_unit in zip(units, logits, strict=True)
    ]
    return {
        "loss": fmean(
            right * softplus(-logit) + (1 - right) * softplus(logit)
            for unit, of_unit in zip(units, logits, strict=True)
            for right, logit in zip(unit.right, of_unit, strict=True)
        ),
        "accuracy": pairs.accuracy(steps).value,
        "first_error": fmean(found),
        "wrong": fmean(first_wrong(unit) is not None for unit in units),
        "calibration_error": pairs.calibration_error(steps),
    }


def first_wrong(unit: Stepwise) -> int | None:
    """The place of the first labelled step that is wrong; None where none is."""
    return next((place for place, right in enumerate(unit.right) if right <= HALF), None)


def crossfitted(
    labels: Sequence[int], logits: Sequence[Sequence[float]], prompts: Sequence[int]
) -> ProcessBench | None:
    """ProcessBench's measure, with the threshold of each half of the prompts from the other half.

    The halves are the prompts of even and of odd number. None where one of them has not both kinds of reasonings.
    """
    halves = [[place for place, prompt in enumerate(prompts) if prompt % 2 == half] for half in (0, 1)]
    if not all({labels[place] == ALL_RIGHT for place in half} == {True, False} for half in halves):
        return None
    said = [ALL_RIGHT] * len(labels)
    for half, other in zip(halves, halves[::-1], strict=True):
        threshold = best_threshold([labels[place] for place in other], [logits[place] for place in other])
        for place in half:
            said[place] = first_below(logits[place], threshold)
    return process_bench(labels, said)


def best_threshold(labels: Sequence[int], logits: Sequence[Sequence[float]]) -> float:
    """The threshold of highest F1, of about `THRESHOLDS` between logits that occur; the lowest of equal ones."""
    every = sorted({logit for one in logits for logit in one})
    some = every[:: max(1, len(every) // THRESHOLDS)]
    tried = [some[0], *((low + high) / 2 for low, high in pairwise(some))]
    return max(tried, key=lambda at: process_bench(labels, [first_below(one, at) for one in logits]).f1)


def first_below(logits: Sequence[float], threshold: float) -> int:
    """The first step whose logit is below the threshold; -1 where none is."""
    return next((place for place, logit in enumerate(logits) if logit < threshold), ALL_RIGHT)
