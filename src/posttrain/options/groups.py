"""Groups of options that several commands have, each declared once; a form inherits them and may give other defaults.

Neither torch nor transformers is imported in this room: `--help`, a wrong option and what a job may set need none.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from posttrain.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """LoRA adapter."""

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


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """Optimiser and learning rate."""

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


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Checkpoints."""

    save_every: int = 100
    """Steps between checkpoints. Evaluations and the end of training save one too."""

    keep_last: int = 2
    """Number of checkpoints to keep, in addition to the best."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Held-out rows of given feedback."""

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


@dataclass(frozen=True, kw_only=True)
class TemplateArgs:
    """Arguments of the chat template."""

    template_args: str | Mapping[str, object] = ""
    """Arguments of the chat template: NAME=VALUE words, such as "enable_thinking=false". In TOML and Python a table
    too. A value is JSON, or else text. Saved with the model."""

    def __post_init__(self) -> None:
        if isinstance(self.template_args, Mapping):
            object.__setattr__(self, "template_args", as_words("template_args", self.template_args))


def as_words(option: str, table: Mapping[str, object]) -> str:
    """A table of an option as it would be typed; raises `UserError` for a value that JSON has not."""
    try:
        words = [f"{name}={json.dumps(value, ensure_ascii=False, allow_nan=False)}" for name, value in table.items()]
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"`{option}` has a value that is no JSON: {error}") from error
    return shlex.join(words)


@dataclass(frozen=True, kw_only=True)
class Rendering(TemplateArgs):
    """How rows become prompts."""

    system: str | None = None
    """System message; replaces the data's own."""

    prompt_template: str = "{prompt}"
    """Template of each user message."""

    chat_template: str = ""
    """Jinja file that replaces the tokenizer's chat template. Saved with the model."""


@dataclass(frozen=True, kw_only=True)
class Computing:
    """Precision, memory and randomness."""

    precision: str = "auto"
    """float32, bfloat16, or auto (the faster one). Master weights are always float32."""

    microbatch_tokens: int = 4096
    """Maximum tokens per forward and backward pass. Bounds memory; never changes the result."""

    seed: int = 0
    """Random seed of the run."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Adapter, Optimisation, Checkpoints, Rendering, Computing):
    """What every recipe that trains has."""


@dataclass(frozen=True, kw_only=True)
class Judges:
    """Language models that judge answers."""

    judge: str = ""
    """LLM judges as rewards: NAME=URL#MODEL, NAME=MODEL or NAME=policy. Such as "helpful=http://localhost:8000/v1#MODEL"
    (an OpenAI-compatible API, with its key in HELPFUL_API_KEY), "brief=OWNER/NAME" (a local model) or "quality=policy"
    (self-rewarding: the policy scores its own answers with its current weights; not in evaluate and score). Each is a
    reward of weight 1 in 0 to 1, unless --reward or --gold sets its weight (--reward "helpful=0.5"); reward functions
    that take reward_context query the others themselves."""

    judge_prompt: str = ""
    """Judge prompt: quality (default), reference, or a text file. reference compares with the task's answer; a file has
    the fields {question} or {conversation}, {answer} and {scale 0 to 10}. For one judge: NAME=PROMPT."""

    judge_temperature: float = 0.0
    """Sampling temperature of the judges. A verdict without a score is resampled up to twice, with another seed (at
    temperature 1 if this is 0)."""

    judge_max_new_tokens: int = 1024
    """Maximum tokens per verdict, reasoning included."""

    judge_concurrency: int = 16
    """Maximum concurrent requests per judge or seat API."""

    judge_budget: int = 0
    """Maximum requests to judge and seat APIs, 0: unlimited. Cached replies count. When it is reached, the run stops
    with a checkpoint; resume it with a larger one."""

    judge_cache: str = ""
    """Cache file for replies of judge and seat APIs. Default: judge-cache.jsonl in the run (best-of-n and score: next
    to --output until that is complete)."""


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Several reward models."""

    ensemble_aggregation: str = "mean"
    """Ensemble: mean, worst or uncertain. uncertain: mean - --uncertainty-penalty x variance."""

    uncertainty_penalty: float = 0.5
    """Weight of the ensemble variance, with --ensemble-aggregation uncertain."""


@dataclass(frozen=True, kw_only=True)
class Playing:
    """Environments."""

    environment: str = ""
    """Multi-turn environment: FILE.py:CLASS or installed name. Default: single-turn. Without --reward, the reward is
    the environment's own."""

    environment_args: str = ""
    """Arguments of the environment, such as "size=100 max_turns=6"."""
