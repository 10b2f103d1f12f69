"""What the options ask for: which ratings and pairs are learned, and what each attribute counts for at first."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

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

    ratings: str = ""
    """Rated responses: a file, folder, glob or hub id with prompt, completion and ratings
    (HelpSteer2's and UltraFeedback's, too)."""
    dataset: str = ""
    """Pairs, from which a gate learns what each attribute counts for after a prompt; without them --weights says it."""
    weights: str = ""
    """What an attribute counts for in units of its spread, such as "verbosity=-0.4 complexity=0": 1 where it is not
    said, and 0 leaves it out. With pairs the gate begins there, and keeps the signs."""
    apart: str = ""
    """An attribute that the score is not to follow, such as verbosity: what the others have in common with it is taken
    from them, and it does not count itself."""
    epochs: float = 1.0
    """Passes over the ratings; less than one for a part of them."""
    pairs_per_step: int = 16
    """Rated responses in a batch."""
    max_tokens: int = 1024
    """The longest of prompt and response; longer ones are left out, and counted."""
    columns: str = ""
    """Which columns of the ratings to read, such as "prompt=question completion=answer"."""
    pair_columns: str = ""
    """Which columns of the pairs to read, such as "chosen=better rejected=worse"."""
    limit: int | None = None
    """Use only so many rows of each file, from the first."""
    eval_dataset: str = ""
    """Held-out pairs; those whose prompt is also in --dataset are left out of them, and ratings of theirs are not
    learned."""
    eval_share: float = 0.0
    """Hold out this share of ratings and pairs instead; equal prompts are held out together."""
    eval_limit: int = 300
    """Held-out ratings, and pairs, to use."""
    gate_width: int = 64
    """Hidden units of the gate; 0: the attributes count for the same after every prompt."""
    calibrate: bool = True
    """Divide the scores by what makes their differences the log-odds that people agree, as held-out pairs say."""


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
    if config.apart and config.apart not in weights:
        raise unknown("attribute", config.apart, weights)
    if config.apart in said:
        raise UserError(f"--apart {config.apart} does not count itself; leave it out of --weights")
    if config.apart:
        weights[config.apart] = 0.0
    if not any(weights.values()):
        raise UserError("no attribute counts for anything; one needs a weight other than 0, and --apart another one")
    return {name: weight for name, weight in weights.items() if weight or name == config.apart}


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
