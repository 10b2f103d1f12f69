"""Groups of options that several commands have, each declared once; a form inherits them and may give other defaults.

Neither torch nor transformers is imported in this room: the help, a wrong option and what a job may set need none.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from posttrain.errors import UserError
from posttrain.options.kinds import Environment, Judge, Rows
from posttrain.options.option import Form, Job, Range, given

_JUDGE = "a judge: pass `judge` NAME=MODEL"


@dataclass(frozen=True, kw_only=True)
class Adapter(Form):
    """LoRA adapter."""

    NEEDS: ClassVar[Mapping[str, tuple[str, str]]] = dict.fromkeys(
        ("lora_alpha", "lora_dropout", "lora_targets", "lora_rslora", "lora_dora", "lora_modules_to_save"),
        ("lora_rank", "a new adapter: pass `lora_rank` too, such as 16, or leave it out"),
    )

    lora_rank: Annotated[int, Range(0), Job(high=256)] = 0
    """LoRA rank (r), 0: full fine-tuning."""
    lora_alpha: Annotated[float | None, Range(0, out="low"), Job(high=4096)] = None
    """LoRA alpha: the update is scaled by alpha / rank. Default: a scale of 2."""
    lora_dropout: Annotated[float, Range(0, 1, out="high"), Job(high=1)] = 0.0
    """LoRA dropout probability, in updates only (not in sampling or evaluation)."""
    lora_targets: Annotated[str, Job()] = ""
    """Target modules of LoRA, such as "q_proj v_proj". Default: all linear layers but the head."""
    lora_rslora: Annotated[bool, Job()] = False
    """Rank-stabilised LoRA: scale by alpha / sqrt(rank)."""
    lora_dora: Annotated[bool, Job()] = False
    """DoRA: weight-decomposed LoRA; slower updates."""
    lora_modules_to_save: Annotated[str, Job()] = ""
    """Modules trained in full and saved with the adapter, such as "embed_tokens lm_head". As modules_to_save of
    peft."""


@dataclass(frozen=True, kw_only=True)
class Optimisation(Form):
    """Optimiser and learning rate."""

    lr: Annotated[float, Range(0), Job(high=1)] = 1e-6
    """Peak learning rate."""
    warmup_steps: Annotated[int, Range(0), Job(high=100_000)] = 10
    """Linear learning-rate warmup steps."""
    decay: Annotated[Literal["constant", "linear", "cosine"], Job()] = "cosine"
    """Schedule after warmup: constant, linear or cosine."""
    weight_decay: Annotated[float, Range(0), Job(high=1)] = 0.0
    """AdamW weight decay."""
    max_grad_norm: Annotated[float, Range(0, out="low", infinite=True), Job(1e-6, 1e6)] = 1.0
    """Maximum global gradient norm (clipping)."""
    optim: Annotated[Literal["adamw", "adamw-8bit"], Job()] = "adamw"
    """Optimizer: adamw or adamw-8bit. adamw-8bit stores both Adam moments as block-wise quantised 8 bits, 2 bytes per
    parameter instead of 8, and updates slower; the moments of input embedding, norms and matrices below 4,096 elements
    stay float32."""
    offload_optimizer: Annotated[bool, Job()] = False
    """Keep the optimizer's state in host memory. Master weights, gradient sums and Adam moments are kept and AdamW is
    computed there: 16 bytes per trained parameter less on the GPU (12 for float32 weights), slower updates. Without a
    GPU it changes nothing."""
    gradient_checkpointing: Annotated[bool, Job()] = False
    """Recompute activations in the backward pass: less memory, more time. Per layer, about a third more time; gradients
    are bitwise the same."""


@dataclass(frozen=True, kw_only=True)
class Checkpoints(Form):
    """Checkpoints."""

    save_every: Annotated[int, Range(1), Job(high=1_000_000)] = 100
    """Steps between checkpoints. Evaluations and the end of training save one too."""
    keep_last: Annotated[int, Range(1), Job(high=5)] = 2
    """Number of checkpoints to keep, in addition to the best."""


@dataclass(frozen=True, kw_only=True)
class HeldOut(Form):
    """Held-out rows of given feedback."""

    NEEDS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "eval_every": ("eval_share eval_dataset", "held-out rows: pass `eval_share` or `eval_dataset`"),
        "stop_after": ("eval_every", "evaluations: pass `eval_every` too"),
    }

    eval_dataset: Rows = ""
    """Held-out rows. Those whose prompt is also in the training data are left out."""
    eval_share: Annotated[float, Range(0, 1, out="high"), Job(high=0.9)] = 0.0
    """Fraction of the rows to hold out, split by prompt. Alternative to `eval_dataset`."""
    eval_limit: Annotated[int, Range(1), Job(high=10_000)] = 300
    """Maximum number of held-out rows."""
    eval_every: Annotated[int, Range(0), Job(high=1_000_000)] = 0
    """Steps between evaluations, 0: at start and end only."""
    stop_after: Annotated[int, Range(0), Job(high=1000)] = 0
    """Early stopping patience in evaluations, 0: off."""

    def together(self) -> None:
        """Held-out rows are named once."""
        super().together()
        if self.eval_share and given(self.eval_dataset):
            raise UserError("`eval_dataset` and `eval_share` exclude each other; pass one of them")


@dataclass(frozen=True, kw_only=True)
class Control(Form):
    """The same run, from which nothing can be learned."""

    reward_control: Annotated[Literal["", "shuffled"], Job()] = ""
    """Control run: shuffled labels, from which nothing can be learned. rl permutes the rewards of each group (all that
    is logged is true), sft the answers among prompts, reward-model swaps each pair half of the time; held-out rows
    stay. Its notes and report say so."""


@dataclass(frozen=True, kw_only=True)
class TemplateArgs(Form):
    """Arguments of the chat template."""

    template_args: str | Mapping[str, object] = ""
    """Arguments of the chat template: NAME=VALUE words, such as "enable_thinking=false". In TOML and Python a table
    too. A value is JSON, or else text. Saved with the model."""

    def __post_init__(self) -> None:
        if isinstance(table := self.template_args, Mapping):  # as it would be typed
            try:
                words = [
                    f"{key}={json.dumps(value, ensure_ascii=False, allow_nan=False)}" for key, value in table.items()
                ]
            except (TypeError, ValueError, RecursionError) as error:
                raise UserError(f"`template_args` has a value that is no JSON: {error}") from error
            object.__setattr__(self, "template_args", shlex.join(words))
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class Rendering(TemplateArgs):
    """How rows become prompts."""

    system: Annotated[str | None, Job(text=True)] = None
    """System message; replaces the data's own. To evaluate and generate, use the training one."""
    prompt_template: Annotated[str, Job(text=True)] = "{prompt}"
    """Template of each user message. To evaluate and generate, use the training one."""
    chat_template: str = ""
    """Jinja file that replaces the tokenizer's chat template. Saved with the model."""


@dataclass(frozen=True, kw_only=True)
class Computing(Form):
    """Precision, memory and randomness."""

    precision: Annotated[Literal["auto", "float32", "bfloat16"], Job()] = "auto"
    """float32, bfloat16, or auto (the faster one). Master weights are always float32."""
    microbatch_tokens: Annotated[int, Range(1), Job(high=1_048_576)] = 4096
    """Maximum tokens per forward and backward pass. Bounds memory; never changes the result."""
    seed: Annotated[int, Job(0, 2**31 - 1)] = 0
    """Random seed of the run."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Adapter, Optimisation, Checkpoints, Rendering, Computing):
    """What every recipe that trains has."""


@dataclass(frozen=True, kw_only=True)
class Judges(Form):
    """Language models that judge answers."""

    NEEDS: ClassVar[Mapping[str, tuple[str, str]]] = {
        **dict.fromkeys(("judge_prompt", "judge_temperature", "judge_max_new_tokens"), ("judge", _JUDGE)),
        **dict.fromkeys(("judge_concurrency", "judge_budget", "judge_cache"), ("judge seats", _JUDGE)),
    }

    judge: Judge = ""
    """LLM judges as rewards: NAME=URL#MODEL, NAME=MODEL or NAME=policy. Such as "helpful=http://localhost:8000/v1#MODEL"
    (an OpenAI-compatible API, with its key in HELPFUL_API_KEY), "brief=OWNER/NAME" (a local model) or "quality=policy"
    (self-rewarding: the policy scores its own answers with its current weights; not in evaluate and score). Each is a
    reward of weight 1 in 0 to 1, unless `reward` or `gold` sets its weight (`reward="helpful=0.5"`); reward functions
    that take reward_context query the others themselves."""
    judge_prompt: str = ""
    """Judge prompt: quality (default), a kind, or a text file. Kinds: rubric, pairwise, expected, genrm and others of
    docs/judges.md; reference compares with the task's answer; a file has the fields {question} or {conversation},
    {answer} and {scale 0 to 10}. For one judge: NAME=PROMPT."""
    judge_temperature: Annotated[float, Range(0, 2)] = 0.0
    """Sampling temperature of the judges. A verdict without a score is resampled up to twice, with another seed (at
    temperature 1 if this is 0)."""
    judge_max_new_tokens: Annotated[int, Range(1)] = 1024
    """Maximum tokens per verdict, reasoning included."""
    judge_concurrency: Annotated[int, Range(1)] = 16
    """Maximum concurrent requests per judge or seat API."""
    judge_budget: Annotated[int, Range(0)] = 0
    """Maximum requests to judge and seat APIs, 0: unlimited. Cached replies count. When it is reached, the run stops
    with a checkpoint; resume it with a larger one."""
    judge_cache: str = ""
    """Cache file for replies of judge and seat APIs. Default: judge-cache.jsonl in the run; of commands without a run,
    next to `output`, or in the working directory, until they are done."""


@dataclass(frozen=True, kw_only=True)
class Ensemble(Form):
    """Several reward models."""

    NEEDS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "ensemble_aggregation": ("reward_model", "a `reward_model`"),
        "step_aggregation": ("reward_model gold_model", "a process reward model; name it with `reward_model`"),
    }

    ensemble_aggregation: Literal["mean", "worst", "uncertain"] = "mean"
    """Ensemble: mean, worst or uncertain. uncertain: mean - `uncertainty_penalty` x variance."""
    uncertainty_penalty: Annotated[float, Range(0)] = 0.5
    """Weight of the ensemble variance, with `ensemble_aggregation="uncertain"`."""
    step_aggregation: Literal["min", "product", "last", "mean", "sum", "softmin"] = "min"
    """Process reward models: the score of a response from its steps. min, product, last or mean of the probabilities p
    that they are right; sum of 2p - 1; softmin, PURE's min-form credit."""

    def together(self) -> None:
        """A penalty is of one aggregation."""
        super().together()
        if self.ensemble_aggregation != "uncertain" and self.says("uncertainty_penalty"):
            raise UserError("`uncertainty_penalty` needs `ensemble_aggregation` uncertain")


@dataclass(frozen=True, kw_only=True)
class Playing(Form):
    """Environments."""

    NEEDS: ClassVar[Mapping[str, tuple[str, str]]] = {"environment_args": ("environment", "`environment`; pass it too")}

    environment: Environment = ""
    """Multi-turn environment: FILE.py:CLASS or installed name. Default: single-turn. Without prompts it plays its own
    tasks (held-out ones, where nothing is trained); without `reward`, the reward is the environment's own."""
    environment_args: str = ""
    """Arguments of the environment, such as "size=100 max_turns=6"."""
