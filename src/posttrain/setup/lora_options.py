"""Options of LoRA adapters."""

import math

from posttrain.errors import UserError
from posttrain.models.lora import need_peft
from posttrain.models.lora_config import Lora
from posttrain.options.groups import Adapter


def lora_of(options: Adapter) -> Lora | None:
    """The adapter that a recipe's options ask for; None for `--lora-rank 0`. Nothing is loaded.

    Raises:
        UserError: an option is out of range, or an adapter option is given without --lora-rank; peft is not installed.
    """
    rank, alpha, dropout = options.lora_rank, options.lora_alpha, options.lora_dropout
    given = {
        "--lora-alpha": alpha is not None,
        "--lora-dropout": dropout != 0,
        "--lora-targets": bool(options.lora_targets.strip()),
        "--lora-rslora": options.lora_rslora,
        "--lora-dora": options.lora_dora,
        "--lora-modules-to-save": bool(options.lora_modules_to_save.strip()),
    }
    if rank < 0:
        raise UserError(f"--lora-rank must be 0 or more; got {rank}")
    if not rank:
        for flag, meant in given.items():
            if meant:
                raise UserError(f"{flag} needs a new adapter: pass --lora-rank too, such as 16, or leave it out")
        return None
    if alpha is not None and not 0 < alpha < math.inf:
        raise UserError(f"--lora-alpha must be above 0; got {alpha}")
    if not 0 <= dropout < 1:
        raise UserError(f"--lora-dropout is a probability, 0 to less than 1; got {dropout}")
    need_peft()
    return Lora(
        rank,
        alpha,
        dropout,
        _words(options.lora_targets),
        options.lora_rslora,
        options.lora_dora,
        _words(options.lora_modules_to_save),
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.replace(",", " ").split()))
