"""The options that recipes which learn from people's feedback have in common."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from posttrain.errors import UserError
from posttrain.training.settings import check_heldout, check_settings


@dataclass(frozen=True)
class PairOptions:
    """What to learn from, how, and what to hold out."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset columns limit max_tokens",
        "model": "model lora_rank precision",
        "optimisation": "epochs steps pairs_per_step lr warmup_steps decay microbatch_tokens gradient_checkpointing",
        "evaluation": "eval_share eval_dataset eval_every stop_after",
        "run": "seed",
    }
    dataset: str = ""
    """Pairs: a file, folder, glob, hub id or mixture. With prompt, chosen and rejected (HH-RLHF's, too)."""
    model: str = "smollm2-135m-instruct"
    """What to train: hub id, folder or run. A run stands for its best or latest checkpoint; packaged models are
    taken as well."""
    epochs: float = 1.0
    """Passes over the pairs; less than one for a part of them."""
    steps: int = 0
    """Updates, 0: as many as --epochs takes."""
    pairs_per_step: int = 16
    """Pairs in a batch."""
    max_tokens: int = 1024
    """Tokens of the longest prompt and response. Pairs with a longer one are left out, and counted."""
    lr: float = 1e-6
    """Peak learning rate."""
    warmup_steps: int = 10
    """Warmup steps, until the peak of the learning rate."""
    decay: str = "cosine"
    """After the warmup: constant, linear or cosine."""
    weight_decay: float = 0.0
    """Of AdamW."""
    max_grad_norm: float = 1.0
    """Clip the global gradient norm to this value."""
    optim: str = "adamw"
    """The optimiser: adamw, or adamw-8bit: both moments of Adam in block-wise quantised 8 bits, 2 bytes per parameter
    instead of 8, and a slower update; input embedding, norms and matrices below 4,096 elements stay float32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time. Layer by layer, about a third more time;
    gradients are the same to the last bit."""
    lora_rank: int = 0
    """Rank of an adapter to train, 0: all weights."""
    lora_alpha: float | None = None
    """Scale of the adapter: its update is multiplied by alpha / rank; unless given, by 2."""
    lora_dropout: float = 0.0
    """Dropout probability on the adapter's input, in updates only; never in sampling or evaluation."""
    lora_targets: str = ""
    """Linear layers that get the adapter, such as "q_proj v_proj"; unless given, all but the head."""
    lora_rslora: bool = False
    """Multiply by alpha / sqrt(rank) instead (rank-stabilised LoRA), for which a high rank needs no larger alpha."""
    lora_dora: bool = False
    """DoRA: learn magnitude and direction of the weights separately; updates take longer."""
    lora_modules_to_save: str = ""
    """Modules to train fully and save with the adapter (modules_to_save of peft), such as "embed_tokens lm_head"."""
    precision: str = "auto"
    """float32, bfloat16, or auto, which takes the faster one. Master weights are float32 in any case."""
    microbatch_tokens: int = 4096
    """Tokens of one forward and backward pass; bounds memory, never changes the result."""
    columns: str = ""
    """Columns to read, such as "chosen=better rejected=worse"."""
    limit: int | None = None
    """Rows to use, from the first; all unless given."""
    system: str | None = None
    """A system message, in place of the data's own."""
    prompt_template: str = "{prompt}"
    """Text around each of the user's messages."""
    chat_template: str = ""
    """A Jinja file in place of the tokenizer's own chat template; it is saved with the model."""
    eval_dataset: str = ""
    """Held-out pairs; those whose prompt is also in the training data are left out of them."""
    eval_share: float = 0.0
    """Share of the pairs to hold out, equal prompts together. Or give them with --eval-dataset."""
    eval_limit: int = 300
    """Held-out pairs to use."""
    eval_every: int = 0
    """Steps between evaluations, 0: before and after only. Held-out pairs are judged before the first step and
    after the last in any case."""
    stop_after: int = 0
    """Stop after this many evaluations without gain, 0: never."""
    save_every: int = 100
    """Save a checkpoint every so many steps, besides after an evaluation and after the last."""
    keep_last: int = 2
    """Checkpoints to keep, besides the best."""
    seed: int = 0
    """Seed of every random choice of the run."""


@dataclass(frozen=True)
class ScoreOptions(PairOptions):
    """The same of a reward model."""

    lr: float = 1e-5
    """Peak learning rate. LoRA usually needs about ten times as much; it is not scaled for you."""
    lora_rank: int = 0
    """Rank of an adapter to train with the head, 0: all weights. What is saved has it merged."""


def check(options: PairOptions, *, counts: tuple[str, ...] = (), zero_or_more: tuple[str, ...] = ()) -> None:
    """Refuse what cannot be trained with, as `check_settings`; raises `UserError`, which names the option."""
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
