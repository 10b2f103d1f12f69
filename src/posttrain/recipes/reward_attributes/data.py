"""Options and data of multi-attribute reward models."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import fmean, pstdev

from posttrain.data import Graded, question_of
from posttrain.errors import UserError, unknown
from posttrain.models.attributes import RatingScale
from posttrain.options.training import Attributes
from posttrain.setup import feedback
from posttrain.setup.feedback import RANKINGS, RATINGS, Sides
from posttrain.types import Preference, Rated


def read(config: Attributes) -> tuple[Sides[Rated], Sides[tuple[Preference, ...]] | None]:
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


def weights_of(config: Attributes, names: Collection[str]) -> dict[str, float]:
    """What each attribute that is learned counts for at the beginning, by name in order."""
    weights = dict.fromkeys(sorted(names), 1.0)
    said: dict[str, float] = {}
    for word in config.weights.split():
        name, _, number = word.partition("=")
        if name not in weights:
            raise unknown("attribute", name, weights)
        if name in said:
            raise UserError(f"'{name}' has two --weights; keep one")
        said[name] = _weight(word, number)
    weights |= said
    if config.decorrelate and config.decorrelate not in weights:
        raise unknown("attribute", config.decorrelate, weights)
    if config.decorrelate in said:
        raise UserError(f"--decorrelate {config.decorrelate} has weight 0; leave it out of --weights")
    if config.decorrelate:
        weights[config.decorrelate] = 0.0
    if not any(weights.values()):
        raise UserError("all attribute weights are 0; one that is not that of --decorrelate must be other than 0")
    return {name: weight for name, weight in weights.items() if weight or name == config.decorrelate}


def _weight(word: str, number: str) -> float:
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise UserError(f"cannot read the weight '{word}'; write ATTRIBUTE=NUMBER")
    return weight


def of_these(rated: Sides[Rated], names: Collection[str]) -> Sides[Rated]:
    """The ratings of these attributes alone, and the responses that have any."""

    def kept(side: Sequence[Rated]) -> list[Rated]:
        some = (replace(one, ratings={n: value for n, value in one.ratings.items() if n in names}) for one in side)
        return [one for one in some if one.ratings]

    return replace(rated, learned=kept(rated.learned), heldout=kept(rated.heldout))


def units_of(names: Sequence[str], graded: Sequence[Graded]) -> RatingScale:
    """Mean and spread of each attribute's ratings."""
    given = [[one.ratings[name] for one in graded if name in one.ratings] for name in names]
    for name, values in zip(names, given, strict=True):
        if len(set(values)) < 2:
            raise UserError(f"all ratings of '{name}' are equal; leave it out with --weights {name}=0")
    return RatingScale(tuple(names), tuple(map(fmean, given)), tuple(map(pstdev, given)))
