"""Common training options, and their checks."""

import math

from posttrain.errors import UserError, unknown
from posttrain.options.groups import TrainingOptions
from posttrain.setup.lora_options import lora_of
from posttrain.training.optimizer import OPTIMIZERS
from posttrain.training.schedule import SCHEDULES


def check_heldout(*, eval_share: float, eval_dataset: str, eval_every: int, stop_after: int) -> None:
    """Raise if the held-out split is missing or specified twice.

    Raises:
        UserError: names the option and its valid range.
    """
    if not 0 <= eval_share < 1:
        raise UserError(f"--eval-share must be a fraction, 0 to below 1; got {eval_share}")
    if eval_share and eval_dataset:
        raise UserError("--eval-dataset and --eval-share exclude each other; pass one of them")
    if eval_every and not (eval_share or eval_dataset):
        raise UserError("--eval-every needs held-out rows: pass --eval-share or --eval-dataset")
    if stop_after and not eval_every:
        raise UserError("--stop-after needs evaluations: pass --eval-every too")


def check_settings(
    settings: TrainingOptions, *, counts: tuple[str, ...] = (), zero_or_more: tuple[str, ...] = ()
) -> None:
    """Validate training options.

    Args:
        settings: a recipe's configuration.
        counts: further options of it that must be 1 or more.
        zero_or_more: further ones that must be 0 or more.

    Raises:
        UserError: names the option and its valid range.
    """
    for name in ("microbatch_tokens", "save_every", "keep_last", *counts):
        at_least(name, getattr(settings, name), 1)
    for name in ("lr", "warmup_steps", "weight_decay", *zero_or_more):
        at_least(name, getattr(settings, name), 0)
    lora_of(settings)
    if not settings.max_grad_norm > 0:  # nan as well; inf is for no clipping
        raise UserError(f"--max-grad-norm must be above 0; got {settings.max_grad_norm}")
    if settings.decay not in SCHEDULES:
        raise unknown("decay", settings.decay, SCHEDULES)
    if settings.optim not in OPTIMIZERS:
        raise unknown("optimiser", settings.optim, OPTIMIZERS)


def at_least(name: str, value: float, least: int) -> None:
    """Check an option's minimum; raises `UserError`."""
    if not least <= value < math.inf:
        raise UserError(f"--{name.replace('_', '-')} must be {least} or more; got {value}")
