"""What the options ask for: which ratings and pairs are learned, and what each attribute counts for at first."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import ClassVar

from posttrain.data import Graded, question_of
from posttrain.errors import UserError, unknown
from posttrain.models.attributes import Units
from posttrain.training import feedback
from posttrain.training.feedback import RANKINGS, RATINGS, Sides
from posttrain.training.pair_options import ScoreOptions
from posttrain.types import Preference, Rated


@dataclass(frozen=True)
class Attributes(ScoreOptions):
    """Train a reward model on ratings of several attributes."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "ratings pair_columns",
        "model": "gate_width",
        "optimisation": "weights decorrelate",
        "evaluation": "calibrate",
    }
    ratings: str = ""
    """Rated responses: a file, folder, glob or hub id. With prompt, completion and ratings (HelpSteer2's and
    UltraFeedback's, too)."""
    dataset: str = ""
    """Pairs that train the gate; it learns what each attribute counts for after a prompt. Without them --weights
    says it."""
    weights: str = ""
    """Weights of attributes, such as "verbosity=-0.4 complexity=0". In units of their spread: 1 where it is not
    said, and 0 leaves one out. With pairs the gate begins there, and keeps the signs."""
    decorrelate: str = ""
    """Attribute to decorrelate from, such as verbosity. It is regressed out of the others, and does not count
    itself."""
    epochs: float = 1.0
    """Passes over the ratings; less than one for a part of them."""
    pairs_per_step: int = 16
    """Rated responses in a batch."""
    max_tokens: int = 1024
    """Tokens of the longest prompt and response. Longer ones are left out, and counted."""
    columns: str = ""
    """Columns of the ratings, such as "prompt=question completion=answer"."""
    pair_columns: str = ""
    """Columns of the pairs, such as "chosen=better rejected=worse"."""
    limit: int | None = None
    """Rows of each file to use, from the first; all unless given."""
    eval_dataset: str = ""
    """Held-out pairs; those whose prompt is also in --dataset are left out of them, and ratings of theirs are not
    learned."""
    eval_share: float = 0.0
    """Share of ratings and pairs to hold out. Equal prompts are held out together."""
    eval_limit: int = 300
    """Held-out ratings, and pairs, to use."""
    gate_width: int = 64
    """Hidden units of the gate, 0: a constant gate. With 0 the attributes count for the same after every prompt."""
    calibrate: bool = True
    """Fit a temperature on held-out pairs, and divide by it. A difference of scores is then the log-odds that
    people agree."""


def read(config: Attributes) -> tuple[Sides[Rated], Sides[tuple[Preference, ...]] | None]:
    """Ratings and pairs; nothing that is held out of the one is learned from the other."""
    rated = feedback.read(replace(config, dataset=config.ratings, eval_dataset=""), RATINGS)
    if not config.dataset:
        return rated, None
    pairs = feedback.read(replace(config, columns=config.pair_columns), RANKINGS)
    part = next((one for some in (*pairs.learned, *pairs.heldout) for one in some if one.partial), None)
    if part is not None:
        raise UserError(f"{part.source} compares steps; what an attribute counts for is learned of whole responses")
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
        raise UserError(f"--decorrelate {config.decorrelate} does not count itself; leave it out of --weights")
    if config.decorrelate:
        weights[config.decorrelate] = 0.0
    if not any(weights.values()):
        raise UserError(
            "no attribute counts for anything; one needs a weight other than 0, and --decorrelate another one"
        )
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


def units_of(names: Sequence[str], graded: Sequence[Graded]) -> Units:
    """Mean and spread of each attribute's ratings."""
    given = [[one.ratings[name] for one in graded if name in one.ratings] for name in names]
    for name, values in zip(names, given, strict=True):
        if len(set(values)) < 2:
            raise UserError(
                f"there are not two different ratings of '{name}' to learn from; leave it out with --weights {name}=0"
            )
    return Units(tuple(names), tuple(map(fmean, given)), tuple(map(pstdev, given)))
