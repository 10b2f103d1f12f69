"""Options of recipes that sample from a policy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from posttrain.errors import UserError, unknown
from posttrain.rollouts.async_engine import Schedule


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
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


@dataclass(frozen=True)
class SampledOptions(JudgeOptions):
    """Options of prompts, sampling and rewards."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset environment",
        "model": "model",
        "rewards": "reward reward_model judge gold",
        "sampling": "completions_per_prompt max_new_tokens temperature engine",
        "run": "seed",
    }
    dataset: str = ""
    """Prompts: a file, folder, glob, hub id, or gym:NAME?option=value. Or a weighted mixture such as "a.jsonl=0.7
    b.parquet=0.3". Optional for environments with tasks of their own."""
    model: str = "smollm2-135m-instruct"
    """Policy: hub id, folder or run. A run means its best checkpoint, or else its latest; adapters and packaged models
    work too."""
    reward: str = ""
    """Rewards and weights, such as "numbers=1.0 tags=0.1" or FILE.py:NAME. Also https://HOST/PATH, an address that is
    asked for scores. Default for gym: sources: gym=1.0."""
    reward_model: str = ""
    """Reward models, added to --reward. Runs, folders or hub ids, space-separated. Truncated completions are scored as
    they are; --reward length=1 penalises them."""
    ensemble_aggregation: str = "mean"
    """Ensemble: mean, worst or uncertain. uncertain: mean - --uncertainty-penalty x variance."""
    uncertainty_penalty: float = 0.5
    """Weight of the ensemble variance, with --ensemble-aggregation uncertain."""
    gold: str = ""
    """Gold rewards: logged, never optimised. Read by rl on held-out tasks. The best checkpoint and --stop-after go by
    gold, where it is given."""
    gold_model: str = ""
    """Reward model as gold reward, such as a larger one. With --gold, their weighted sum."""
    environment: str = ""
    """Multi-turn environment: FILE.py:CLASS or installed name. Default: single-turn. Without --reward, the reward is
    the environment's own."""
    environment_args: str = ""
    """Arguments of the environment, such as "size=100 max_turns=6"."""
    seats: str = ""
    """Models that play other seats of the environment: NAME=MODEL or NAME=URL#MODEL. Such as
    "opponent=runs/rl-2026-01-31-1 judge=http://localhost:8000/v1#MODEL"; they are not trained. Default: the policy
    plays all seats."""
    max_episode_tokens: int = 0
    """Token budget per seat and episode, 0: the model's context. Prompts count; past the budget replies are empty."""
    max_lost: float = 0.1
    """Maximum fraction of failed episodes per batch; above it the run stops. It saves a checkpoint."""
    schedule: str = "auto"
    """Turn scheduling: lockstep, continuous, pipelined, or auto (the environment's choice). lockstep samples a turn of
    all episodes together (reproducible); continuous samples each turn when it is requested, so that a slow tool delays
    only its own episode. pipelined is continuous, and scores each group as soon as its episodes have ended,
    while others are sampled: for slow judges and sandboxes. Not with --max-staleness, where the next step is sampled
    meanwhile."""
    completions_per_prompt: int = 8
    """Completions per prompt (group size). The batch is prompts x completions."""
    max_new_tokens: int = 256
    """Maximum tokens per completion."""
    max_prompt_tokens: int = 1024
    """Maximum tokens per prompt; longer prompts are left out, and counted."""
    temperature: float = 1.0
    """Sampling temperature; the loss uses the same."""
    precision: str = "auto"
    """float32, bfloat16, or auto (the faster one). Master weights are always float32."""
    microbatch_tokens: int = 4096
    """Maximum tokens per forward and backward pass. Bounds memory; never changes the result."""
    engine: str = "embedded"
    """Engine: embedded, vllm, or a vLLM server's URL; with --trainers one for each sampler, as "http://A:8000
    http://B:8000". vllm must be installed."""
    cache_gb: float = 1.5
    """KV cache size, in GB."""
    columns: str = ""
    """Column mapping, such as "prompt=question answer=final"."""
    limit: int | None = None
    """Maximum number of tasks; for gym: sources, the number to generate."""
    system: str | None = None
    """System message; replaces the data's own."""
    prompt_template: str = "{prompt}"
    """Template of each question."""
    chat_template: str = ""
    """Jinja file that replaces the tokenizer's chat template. Saved with the model."""
    seed: int = 0
    """Random seed of the run."""


@dataclass(frozen=True)
class OnlineOptions(SampledOptions):
    """Options of optimisation and held-out tasks."""

    HELP: ClassVar[Mapping[str, str]] = {
        "model": "model lora_rank",
        "sampling": "prompts_per_step",
        "optimisation": "lr microbatch_tokens",
        "evaluation": "eval_dataset eval_every",
    }
    prompts_per_step: int = 16
    """Prompts per batch."""
    lr: float = 1e-5
    """Peak learning rate; 1e-6 is usual for larger models. LoRA usually needs about ten times as much."""
    warmup_steps: int = 3
    """Linear learning-rate warmup steps."""
    decay: str = "constant"
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
    eval_dataset: str = ""
    """Held-out tasks; for gym: sources, their disjoint held-out split."""
    eval_limit: int = 100
    """Maximum number of held-out tasks."""
    eval_samples: int = 4
    """Samples per held-out task."""
    eval_every: int = 0
    """Steps between evaluations, 0: none. Also before the first step and after the last."""
    stop_after: int = 0
    """Early stopping patience in evaluations, 0: off. By gold reward, else accuracy, else reward."""
    save_every: int = 20
    """Steps between checkpoints. Evaluations and the end of training save one too."""
    keep_last: int = 2
    """Number of checkpoints to keep, in addition to the best."""


PIPELINED = "pipelined"
SCHEDULES: Mapping[str, Schedule | None] = {
    "auto": None,
    "lockstep": "lockstep",
    "continuous": "continuous",
    PIPELINED: None,  # `Players.pipelined` decides
}

COUNTS = (
    "prompts_per_step",
    "completions_per_prompt",
    "max_new_tokens",
    "max_prompt_tokens",
    "eval_limit",
    "eval_samples",
)
"""Options that must be 1 or more."""


def check_sampling(config: SampledOptions) -> None:
    """Validate the options of sampling and rewards.

    Raises:
        UserError: names the option and its valid range.
    """
    if not 0 < config.temperature < math.inf:
        raise UserError(
            f"--temperature must be above 0, or all completions of a group are equal; got {config.temperature}"
        )
    check_reward_models(config.reward_model, config.ensemble_aggregation, config.uncertainty_penalty)
    if not config.cache_gb > 0:
        raise UserError(f"--cache-gb must be above 0; got {config.cache_gb}")
    if not (config.dataset or config.environment):
        raise UserError("--dataset is required: a hub id, a file or folder, or gym:NAME")
    if config.environment_args and not config.environment:
        raise UserError("--environment-args needs --environment; pass it too")
    if config.seats and not config.environment:
        raise UserError("--seats needs an --environment with several seats; pass it too")
    if config.schedule not in SCHEDULES:
        raise unknown("schedule", config.schedule, SCHEDULES)
    if config.max_episode_tokens < 0 or not 0 <= config.max_lost <= 1:
        raise UserError("--max-episode-tokens must be 0 or more, and --max-lost a fraction from 0 to 1")


def check_reward_models(models: str, use: str, penalty: float) -> None:
    """Validate reward-model options that require another option.

    Raises:
        UserError: names the option and its valid range.
    """
    if use != "uncertain" and penalty != SampledOptions.uncertainty_penalty:
        raise UserError("--uncertainty-penalty needs --ensemble-aggregation uncertain")
    if not models and use != SampledOptions.ensemble_aggregation:
        raise UserError("--ensemble-aggregation needs a --reward-model")
    if not 0 <= penalty < math.inf:
        raise UserError(f"--uncertainty-penalty must be 0 or more; got {penalty}")


def check_evaluations(config: OnlineOptions) -> None:
    """Reject evaluation options if there are no evaluations.

    Raises:
        UserError: names the option and its valid range.
    """
    if config.stop_after < 0 or (config.stop_after and not config.eval_every):
        raise UserError("--stop-after must be 0 or more, and needs evaluations: pass --eval-every too")
    if (config.gold or config.gold_model) and not config.eval_every:
        raise UserError("--gold and --gold-model need held-out evaluations: pass --eval-every and --eval-dataset")
