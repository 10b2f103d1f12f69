"""Training and evaluation of the gate over attributes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

from posttrain.data import ChatFormat, Graded
from posttrain.data.packing import Ranked
from posttrain.evaluation.pairs import (
    HOTTEST,
    ScoredPair,
    accuracy,
    crossfitted_error,
    fit_temperature,
    measures,
    scored_pairs,
)
from posttrain.evaluation.ratings import correlations
from posttrain.models.attributes import AttributeModel, Mixture, Reading
from posttrain.objectives.attributes import shares
from posttrain.recipes.reward_attributes.data import Attributes
from posttrain.session import Progress
from posttrain.setup import feedback
from posttrain.training.attributes import read_all
from posttrain.training.gate import choices_of, fit_gate
from posttrain.training.learner import Learner
from posttrain.training.reward import sequences_of


@dataclass(frozen=True)
class Parts:
    """All that a run works with."""

    graded: feedback.Units[Graded]
    pairs: feedback.Units[Ranked] | None
    model: AttributeModel
    begins: Mixture  # before anything is known of what people choose
    chat: ChatFormat
    learner: Learner
    begun: str  # where what is trained was loaded from
    notes: tuple[str, ...]  # what to tell the user

    @property
    def holds_out(self) -> bool:
        """Whether anything is held out."""
        return bool(self.graded.heldout or (self.pairs and self.pairs.heldout))


def mix(config: Attributes, parts: Parts) -> None:
    """Learn how to make one score of the attributes as they are now."""
    model, most = parts.model, config.microbatch_tokens
    if config.decorrelate:
        seen = read_all(model, [one.example for one in parts.graded.learned], microbatch_tokens=most)
        apart = model.units.names.index(config.decorrelate)
        left = tuple(shares(seen.attributes_EK, apart).tolist())
        model.mixture = model.mixture._replace(apart=apart, shares=left)
    if parts.pairs is not None:
        seen = read_all(model, sequences_of(parts.pairs.learned), microbatch_tokens=most)
        choices = choices_of(model.mixture, seen, parts.pairs.learned)
        model.mixture = fit_gate(model.mixture, choices, seed=config.seed)
    model.mixture = model.mixture._replace(finished=True)


def evaluate(config: Attributes, parts: Parts, progress: Progress) -> dict[str, float]:
    """What held-out rows say of the attributes and of the score, which pairs calibrate."""
    model, most = parts.model, config.microbatch_tokens
    metrics: dict[str, float] = {}
    if graded := parts.graded.heldout:
        seen = read_all(model, [one.example for one in graded], microbatch_tokens=most)
        found = correlations(model.units.names, seen.attributes_EK.tolist(), [one.ratings for one in graded])
        metrics |= {f"correlation/{name}": value for name, value in found.items()}
        metrics |= {"correlation": fmean(found.values())} if found else {}
    if parts.pairs is not None and (heldout := parts.pairs.heldout):
        seen = read_all(model, sequences_of(heldout), microbatch_tokens=most)
        metrics |= _alone(model, heldout, seen, progress)
        metrics |= _together(config, model, heldout, seen, progress)
    return {f"evaluation/{name}": value for name, value in metrics.items()}


def _alone(model: AttributeModel, heldout: Sequence[Ranked], seen: Reading, progress: Progress) -> dict[str, float]:
    """How often each attribute alone judges pairs as people did, and what it counts for on average over prompts."""
    firsts = [0, *accumulate(len(unit.examples) for unit in heldout)][:-1]
    counts = model.mixture.gate(seen.prompts_ED[firsts]) * seen.attributes_EK.new_tensor(model.mixture.weights).abs()
    parts: list[float] = (counts / counts.sum(1, keepdim=True)).mean(0).tolist()
    found: dict[str, float] = {}
    by_attribute: list[list[float]] = seen.attributes_EK.T.tolist()
    for name, weight, part, numbers in zip(model.units.names, model.mixture.weights, parts, by_attribute, strict=True):
        rate = accuracy(_scored(heldout, [-number if weight < 0 else number for number in numbers]))
        found |= {f"alone/{name}": rate.value, f"gate/{name}": part}
        if weight and rate.ci95[1] < 0.5:
            progress.say(
                f"people choose the response with {'more' if weight < 0 else 'less'} '{name}' in {1 - rate.value:.0%} "
                f"of the held-out pairs, and its weight says otherwise; give --weights {name}={-weight:g}"
            )
    return found


def _together(
    config: Attributes, model: AttributeModel, heldout: Sequence[Ranked], seen: Reading, progress: Progress
) -> dict[str, float]:
    """What held-out pairs say of the score, before it is calibrated."""
    mixture = model.mixture
    scores: list[float] = mixture.scores(*seen).tolist()
    scored = _scored(heldout, scores)
    found = measures(scored)
    if config.calibrate:
        temperature = fit_temperature(scored)
        if temperature >= HOTTEST * 0.99:
            progress.say("held-out accuracy is at chance; calibration shrank the scores to 0")
        model.mixture = mixture._replace(
            scale=mixture.scale / temperature, zero=(mixture.zero + fmean(scores)) / temperature, comparable=True
        )
        found |= {"temperature": temperature, "calibration_error/calibrated": crossfitted_error(scored)}
    return found


def _scored(heldout: Sequence[Ranked], numbers: Sequence[float]) -> list[ScoredPair]:
    return scored_pairs(heldout, [(number,) for number in numbers])
