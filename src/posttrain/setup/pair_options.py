"""Options of recipes on human feedback."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from posttrain.errors import UserError
from posttrain.setup.training_options import check_heldout, check_settings


@dataclass(frozen=True)
class PairOptions:
    """Options of training data, optimisation and held-out data."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset columns limit max_tokens",
        "model": "model lora_rank precision",
        "optimisation": "epochs steps pairs_per_step lr warmup_steps decay microbatch_tokens gradient_checkpointing "
        "offload_optimizer",
        "evaluation": "eval_share eval_dataset eval_every stop_after",
        "run": "seed",
    }
    dataset: str = ""
    """Preference pairs: a file, folder, glob, hub id or mixture. With prompt, chosen and rejected (or as HH-RLHF has
    them)."""
    model: str = "smollm2-135m-instruct"
    """Model to train: hub id, folder or run. A run means its best checkpoint, or else its latest; packaged models work
    too."""
    epochs: float = 1.0
    """Number of epochs; may be a fraction."""
    steps: int = 0
    """Number of updates, 0: set by --epochs."""
    pairs_per_step: int = 16
    """Pairs per batch."""
    max_tokens: int = 1024
    """Maximum tokens of prompt and response. Pairs with a longer one are left out, and counted."""
    lr: float = 1e-6
    """Peak learning rate."""
    warmup_steps: int = 10
    """Linear learning-rate warmup steps."""
    decay: str = "cosine"
    """Schedule after warmup: constant, linear or cosine."""
    weight_decay: float = 0.0
    """AdamW weight decay."""
    max_grad_norm: float = 1.0
    """Maximum global gradient norm (clipping)."""
    optim: str = "adamw"
    """Optimizer: adamw or adamw-8bit. adamw-8bit stores both Adam moments as block-wise quantised 8 bits, 2 bytes per
    parameter instead of 8, and updates slower; the moments of input embedding, norms and matrices below 4,096 elements
    stay float32."""
    offload_optimizer: bool = False
    """Keep the optimizer's state in host memory. Master weights, gradient sums and Adam moments are kept and AdamW is
    computed there: 16 bytes per trained parameter less on the GPU (12 for float32 weights), slower updates. Without a
    GPU it changes nothing."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time. Per layer, about a third more time; gradients
    are bitwise the same."""
    lora_rank: int = 0
    """LoRA rank (r), 0: full fine-tuning."""
    lora_alpha: float | None = None
    """LoRA alpha: the update is scaled by alpha / rank. Default: a scale of 2."""
    lora_dropout: float = 0.0
    """LoRA dropout probability, in updates only (not in sampling or evaluation)."""
    lora_targets: str = ""
    """Target modules of LoRA, such as "q_proj v_proj". Default: all linear layers but the head."""
    lora_rslora: bool = False
    """Rank-stabilised LoRA: scale by alpha / sqrt(rank)."""
    lora_dora: bool = False
    """DoRA: weight-decomposed LoRA; slower updates."""
    lora_modules_to_save: str = ""
    """Modules trained in full and saved with the adapter, such as "embed_tokens lm_head". As modules_to_save of
    peft."""
    precision: str = "auto"
    """float32, bfloat16, or auto (the faster one). Master weights are always float32."""
    microbatch_tokens: int = 4096
    """Maximum tokens per forward and backward pass. Bounds memory; never changes the result."""
    columns: str = ""
    """Column mapping, such as "chosen=better rejected=worse"."""
    limit: int | None = None
    """Maximum number of rows; default: all."""
    system: str | None = None
    """System message; replaces the data's own."""
    prompt_template: str = "{prompt}"
    """Template of each user message."""
    chat_template: str = ""
    """Jinja file that replaces the tokenizer's chat template. Saved with the model."""
    eval_dataset: str = ""
    """Held-out pairs. Those whose prompt is also in the training data are left out."""
    eval_share: float = 0.0
    """Fraction of the pairs to hold out, split by prompt. Alternative to --eval-dataset."""
    eval_limit: int = 300
    """Maximum number of held-out pairs."""
    eval_every: int = 0
    """Steps between evaluations, 0: at start and end only."""
    stop_after: int = 0
    """Early stopping patience in evaluations, 0: off."""
    save_every: int = 100
    """Steps between checkpoints. Evaluations and the end of training save one too."""
    keep_last: int = 2
    """Number of checkpoints to keep, in addition to the best."""
    seed: int = 0
    """Random seed of the run."""


@dataclass(frozen=True)
class ScoreOptions(PairOptions):
    """The same of a reward model."""

    lr: float = 1e-5
    """Peak learning rate. LoRA usually needs about ten times as much."""
    lora_rank: int = 0
    """LoRA rank (r), 0: full fine-tuning. The head is trained in full; the adapter is merged when saved."""


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
