"""Options of recipes on human feedback."""

import math

from posttrain.errors import UserError
from posttrain.options.training import PairOptions
from posttrain.setup.training_options import check_heldout, check_settings


def check(options: PairOptions, *, counts: tuple[str, ...] = (), zero_or_more: tuple[str, ...] = ()) -> None:
    """Validate options, as `check_settings`; raises `UserError`, which names the option."""
    check_settings(
        options,
        counts=("pairs_per_step", "max_tokens", "eval_limit", *counts),
        zero_or_more=("eval_every", "stop_after", *zero_or_more),
    )
    check_heldout(
        eval_share=options.eval_share,
        eval_dataset=options.eval_dataset,
        eval_every=options.eval_every,
        stop_after=options.stop_after,
    )
    if options.steps < 0 or not 0 < options.epochs < math.inf:
        raise UserError(
            f"--epochs must be above 0 and --steps 0 or more; got {options.epochs} epochs and {options.steps} steps"
        )
