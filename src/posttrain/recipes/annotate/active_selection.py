"""Validate options and score items for active selection."""

from collections.abc import Sequence
from typing import cast

from posttrain.annotation.acquisition import WORTH, worth
from posttrain.annotation.store.tables import Item
from posttrain.engine.scorer import load_scorer
from posttrain.errors import RewardError, UserError, unknown
from posttrain.recipes.annotate.forms import Import
from posttrain.runs.progress import Progress
from posttrain.training.resolve_model import saved_model
from posttrain.types import Message, Role

RANDOM, MOVED = "random", "moved"
WAYS = (RANDOM, *WORTH, MOVED)


def check_choice(config: Import) -> None:
    """Refuse options that do not go together, before anything is read or sampled."""
    way, ensemble, earlier = config.choose, config.reward_model, config.kl_from
    if way not in WAYS:
        raise unknown("way to choose", way, WAYS)
    named = f"leave out --reward-model, or type --choose {' or '.join(WORTH)}"
    refused = {
        f"--ask must be 0 or more; got {config.ask}": config.ask < 0,
        "--choose, --reward-model and --kl-from need the number of items to select: pass --ask": not config.ask
        and (way != RANDOM or ensemble or earlier),
        f"--choose {way} needs a reward-model ensemble: pass --reward-model": way in WORTH and not ensemble,
        f"--choose {way} uses no reward model; {named}": ensemble and way not in WORTH,
        f"--choose {way} uses no earlier model; leave out --kl-from, or type --choose {MOVED}": earlier
        and way != MOVED,
        "--choose moved ranks prompts by the KL of a model from an earlier one: pass the model with --models, and the "
        "earlier one with --kl-from": way == MOVED and not (earlier and config.models),
    }
    for says, wrong in refused.items():
        if wrong:
            raise UserError(says)


def worths(config: Import, items: Sequence[Item], quiet: bool) -> list[float]:
    """What it is worth to ask each item; at random they are worth the same."""
    if config.choose == MOVED:
        return [item.details[MOVED]["kl"] for item in items]
    if config.choose == RANDOM:
        return [0.0] * len(items)
    short = next((item.name for item in items if len(item.completions) < 2), None)
    if short is not None:
        raise UserError(f"item '{short}' has fewer than two completions, which an ensemble needs to compare")
    saved = saved_model(config.reward_model)
    scorer = load_scorer(saved.where, precision=config.precision)
    if scorer.model.members < 2:
        raise UserError(
            f"the reward model {config.reward_model} has one member; train an ensemble with reward-model --ensemble 5"
        )
    if not scorer.model.comparable:
        raise UserError(
            f"the scores of {config.reward_model} are not calibrated, so the information gain is "
            "unknown; train it with held-out pairs (--eval-share)"
        )
    found: list[float] = []
    with Progress(f"score by {saved.title}", len(items), quiet=quiet) as progress:
        for done, item in enumerate(items, 1):
            prompt = [Message(cast(Role, said["role"]), said["content"]) for said in item.prompt]
            try:
                told = scorer([[*prompt, Message("assistant", one.text)] for one in item.completions])
            except RewardError as problem:
                raise UserError(
                    f"item '{item.name}' is too long for the reward model, which takes {scorer.most} tokens"
                ) from problem
            found.append(worth(told, config.choose))
            progress.step(done)
    return found
