"""The adapter that a recipe's options ask for."""

from posttrain.models.lora import Lora, need_peft
from posttrain.options.groups import Adapter


def lora_of(options: Adapter) -> Lora | None:
    """The adapter; None for `lora_rank` 0. Nothing is loaded. Raises `UserError` where peft is not installed."""
    if not options.lora_rank:
        return None
    need_peft()
    return Lora(
        options.lora_rank,
        options.lora_alpha,
        options.lora_dropout,
        _words(options.lora_targets),
        options.lora_rslora,
        options.lora_dora,
        _words(options.lora_modules_to_save),
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.replace(",", " ").split()))
