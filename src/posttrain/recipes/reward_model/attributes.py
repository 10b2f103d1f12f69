"""Heads of rated attributes, and a gate that makes one score of them (ArmoRM).

The heads learn the ratings by regression; then trunk and heads are held fixed, and the gate learns from pairs what each
attribute counts for after a prompt (Wang et al. 2024, https://arxiv.org/abs/2406.12845). Without pairs the weights are
those that are given. The gate is learned whenever held-out rows are judged after a step, and after the last one; what
is saved between cannot score yet, and is there to go on from. Left out: ratings and pairs of parts of a response.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from statistics import fmean, pstdev
from typing import cast

from posttrain.bindings import feedback
from posttrain.bindings.feedback import RANKINGS, RATINGS, Sides, Units
from posttrain.data import ChatFormat, Graded, question_of
from posttrain.data.packing import Example, Ranked
from posttrain.data.ratings import Rated
from posttrain.errors import UserError, unknown
from posttrain.evaluation.pairs import ScoredPair, accuracy, correlations, fit_temperature, measures, scored_pairs
from posttrain.models.attributes import AttributeModel, RatingScale, Reading, load_attributes
from posttrain.objectives.reward_models import shares
from posttrain.options.training import AttributeHeads, Scoring
from posttrain.recipes.reward_model.heads import Heads
from posttrain.training.attributes import RatingLoss, choices_of, fit_gate, rated_batch, read_all
from posttrain.training.learner import Learner
from posttrain.training.local_learner import LocalLearner
from posttrain.types import Preference


class Attributes(Heads):
    """As in `Heads`; the mixture keeps its own calibration."""

    options = AttributeHeads
    kind = RATINGS
    on_clusters = False  # the gate reads the model itself

    def __init__(self, config: Scoring) -> None:
        if not config.ratings:
            raise UserError("`ratings` is required: a file, folder, glob or hub id")
        if config.eval_dataset and not config.dataset:
            raise UserError("`eval_dataset` are held-out pairs; pass training pairs too, with `dataset`")
        self._config, (rated, self._compared) = config, _read(config)
        self._weights = _weights(config, {name for one in rated.learned for name in one.ratings})
        self._sides, self.names = _of_these(rated, self._weights), tuple(self._weights)

    def loader(self, where: str) -> Callable[..., AttributeModel]:
        """As in `Heads`."""
        weights = list(self._weights.values())
        return partial(load_attributes, names=self.names, weights=weights, width=self._config.gate_width)

    def tokenize(self, chat: ChatFormat, context: int) -> Units[Graded]:
        """As in `Heads`."""
        graded = super().tokenize(chat, context)
        self._scale = _scale(self.names, graded.learned)
        self._pairs = None
        if self._compared:
            at_once = replace(self._config, pairs_per_step=1, warmup_steps=0)  # the gate learns from all pairs at once
            self._pairs = feedback.tokenize(at_once, RANKINGS, self._compared, chat, context)
        self.evaluated = bool(graded.heldout or (self._pairs and self._pairs.heldout)), True
        told = " ".join(f"{name}={weight:g}" for name, weight in self._weights.items())
        says = "pairs change that" if self._pairs else "no pairs say otherwise; give some with `dataset`"
        notes = (*(self._pairs.notes if self._pairs else ()), f"weights: {told}; {says}")
        return replace(graded, notes=(*graded.notes, *notes))

    def begin(self, learner: Learner) -> None:
        """As in `Heads`."""
        super().begin(learner)
        self._model = cast(LocalLearner[AttributeModel], learner).model
        self._model.units = self._scale
        self._begins = self._model.mixture._replace(finished=not (self._pairs or self._config.decorrelate))

    def gradient(self, batch: Sequence[Graded], seed: int) -> dict[str, float]:
        """As in `Heads`."""
        self._model.mixture = self._begins
        return self._learner.forward_backward(rated_batch(batch, seed=seed), RatingLoss())

    def evaluate(self, step: int, say: Callable[[str], None]) -> dict[str, float]:
        """What held-out rows say of the attributes and of the score; pairs train the gate, and calibrate the score."""
        if step:
            self._mix()
        found: dict[str, float] = {}
        if graded := self._units.heldout:
            seen = self._read(RATINGS.examples(graded)).attributes_EK.tolist()
            by_name = correlations(self.names, seen, [one.ratings for one in graded])
            found |= {f"correlation/{name}": value for name, value in by_name.items()}
            found |= {"correlation": fmean(by_name.values())} if by_name else {}
        if self._pairs is not None and (heldout := self._pairs.heldout):
            seen = self._read(RANKINGS.examples(heldout))
            found |= self._each_alone(heldout, seen, say)
            found |= self._together(heldout, seen)
        return found

    def _read(self, examples: Sequence[Example]) -> Reading:
        return read_all(self._model, examples, microbatch_tokens=self._config.microbatch_tokens)

    def _mix(self) -> None:
        """Learn how to make one score of the attributes as they are now."""
        mixture = self._model.mixture
        if self._config.decorrelate:
            apart = self.names.index(self._config.decorrelate)
            left = shares(self._read(RATINGS.examples(self._units.learned)).attributes_EK, apart)
            mixture = mixture._replace(apart=apart, shares=tuple(left.tolist()))
        if self._pairs is not None:
            seen = self._read(RANKINGS.examples(self._pairs.learned))
            mixture = fit_gate(mixture, choices_of(mixture, seen, self._pairs.learned), seed=self._config.seed)
        self._model.mixture = mixture._replace(finished=True)

    def _each_alone(self, heldout: Sequence[Ranked], seen: Reading, say: Callable[[str], None]) -> dict[str, float]:
        """How often each attribute alone judges pairs as people did, and what it counts for on average over prompts."""
        mixture = self._model.mixture
        firsts = [0, *accumulate(len(unit.examples) for unit in heldout)][:-1]
        counts = mixture.gate(seen.prompts_ED[firsts]) * seen.attributes_EK.new_tensor(mixture.weights).abs()
        parts: list[float] = (counts / counts.sum(1, keepdim=True)).mean(0).tolist()
        found: dict[str, float] = {}
        by_attribute: list[list[float]] = seen.attributes_EK.T.tolist()
        for name, weight, part, numbers in zip(self.names, mixture.weights, parts, by_attribute, strict=True):
            rate = accuracy(_scored(heldout, [-number if weight < 0 else number for number in numbers]))
            found |= {f"alone/{name}": rate.value, f"gate/{name}": part}
            if weight and rate.ci95[1] < 0.5:
                say(
                    f"people choose the response with {'more' if weight < 0 else 'less'} '{name}' in "
                    f"{1 - rate.value:.0%} of the held-out pairs, and its weight says otherwise; give "
                    f"`weights` {name}={-weight:g}"
                )
        return found

    def _together(self, heldout: Sequence[Ranked], seen: Reading) -> dict[str, float]:
        """What held-out pairs say of the score, before it is calibrated."""
        mixture = self._model.mixture
        scores: list[float] = mixture.scores(*seen).tolist()
        scored = _scored(heldout, scores)
        if not self._config.calibrate:
            return measures(scored)
        temperature = fit_temperature(scored)
        zero = (mixture.zero + fmean(scores)) / temperature
        self._model.mixture = mixture._replace(scale=mixture.scale / temperature, zero=zero, comparable=True)
        return measures(scored, temperature)


def _read(config: Scoring) -> tuple[Sides[Rated], Sides[tuple[Preference, ...]] | None]:
    """Ratings and pairs; nothing that is held out of the one is learned from the other."""
    rated = feedback.read(replace(config, dataset=config.ratings, eval_dataset=""), RATINGS)
    if not config.dataset:
        return rated, None
    pairs = feedback.read(replace(config, columns=config.pair_columns), RANKINGS)
    part = next((one for some in (*pairs.learned, *pairs.heldout) for one in some if one.partial), None)
    if part is not None:
        raise UserError(f"{part.source} compares steps; the gate is trained on pairs of whole responses")
    asked = {question_of(preferences[0].prompt) for preferences in pairs.heldout}
    kept = [one for one in rated.learned if question_of(one.prompt) not in asked]
    if not kept:
        raise UserError("all rated responses answer prompts of held-out pairs; hold out other pairs")
    if len(kept) < len(rated.learned):
        note = f"{len(rated.learned) - len(kept)} rated responses answer prompts of held-out pairs, and were left out"
        rated = replace(rated, learned=kept, notes=(*rated.notes, note))
    return rated, pairs


def _weights(config: Scoring, names: Collection[str]) -> Mapping[str, float]:
    """What each attribute that is learned counts for at the beginning, by name in order."""
    weights = dict.fromkeys(sorted(names), 1.0)
    said: dict[str, float] = {}
    for word in config.weights.split():
        name, _, number = word.partition("=")
        if name not in weights:
            raise unknown("attribute", name, weights)
        if name in said:
            raise UserError(f"'{name}' has two `weights`; keep one")
        try:
            said[name] = float(number)
        except ValueError:
            said[name] = math.nan
        if not math.isfinite(said[name]):
            raise UserError(f"cannot read the weight '{word}'; write ATTRIBUTE=NUMBER")
    weights |= said
    if config.decorrelate and config.decorrelate not in weights:
        raise unknown("attribute", config.decorrelate, weights)
    if config.decorrelate in said:
        raise UserError(f"`decorrelate={config.decorrelate}` has weight 0; leave it out of `weights`")
    if config.decorrelate:
        weights[config.decorrelate] = 0.0
    if not any(weights.values()):
        raise UserError("all attribute weights are 0; one that is not that of `decorrelate` must be other than 0")
    return {name: weight for name, weight in weights.items() if weight or name == config.decorrelate}


def _of_these(rated: Sides[Rated], names: Collection[str]) -> Sides[Rated]:
    """The ratings of these attributes alone, and the responses that have any."""

    def kept(side: Sequence[Rated]) -> list[Rated]:
        some = (replace(one, ratings={n: value for n, value in one.ratings.items() if n in names}) for one in side)
        return [one for one in some if one.ratings]

    return replace(rated, learned=kept(rated.learned), heldout=kept(rated.heldout))


def _scale(names: Sequence[str], graded: Sequence[Graded]) -> RatingScale:
    """Mean and spread of each attribute's ratings."""
    given = [[one.ratings[name] for one in graded if name in one.ratings] for name in names]
    for name, values in zip(names, given, strict=True):
        if len(set(values)) < 2:
            raise UserError(f"all ratings of '{name}' are equal; leave it out with `weights` {name}=0")
    return RatingScale(tuple(names), tuple(map(fmean, given)), tuple(map(pstdev, given)))


def _scored(heldout: Sequence[Ranked], numbers: Sequence[float]) -> list[ScoredPair]:
    return scored_pairs(heldout, [(number,) for number in numbers])
