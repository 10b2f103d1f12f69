"""The options of recipes that sample from a policy and judge it, and of those that learn from that."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from posttrain.errors import UserError, unknown


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """Language models that judge answers."""

    judge: str = ""
    """LLM judges as rewards: NAME=ADDRESS#MODEL, or NAME=MODEL. Such as "helpful=http://localhost:8000/v1#MODEL" (an
    OpenAI-compatible API; its key is read from HELPFUL_API_KEY) or "brief=OWNER/NAME" (a local model). Each is a reward
    of weight 1, from 0 to 1, unless --reward or --gold names it (--reward "helpful=0.5"); a function that takes
    reward_context asks the others itself."""
    judge_prompt: str = ""
    """Prompt of the judges: quality (default), reference, or a text file. reference compares with the task's answer; a
    file has {question} or {conversation}, {answer} and {scale 0 to 10}. Of one judge: NAME=PROMPT."""
    judge_temperature: float = 0.0
    """Sampling temperature of verdicts. One without a score is sampled again with another seed, up to twice (at
    temperature 1 where this is 0)."""
    judge_max_new_tokens: int = 1024
    """Tokens of the longest verdict, reasoning included."""
    judge_concurrency: int = 16
    """Requests in flight to a judge, at most. Of judges behind an address."""
    judge_budget: int = 0
    """Requests to all judges, at most, 0: no limit. Of judges behind an address; replies in the cache count. When it is
    reached, the run stops with a checkpoint, and --resume with a larger one goes on."""
    judge_cache: str = ""
    """File that keeps the replies of judges. Of judges behind an address none is asked for twice. Default:
    judge-cache.jsonl in the run (best-of-n and score: next to --output until that is complete)."""


@dataclass(frozen=True)
class SampledOptions(JudgeOptions):
    """What to ask a policy, how to sample its answers, and by what to judge them."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset environment",
        "model": "model",
        "rewards": "reward reward_model judge gold",
        "sampling": "completions_per_prompt max_new_tokens temperature engine",
        "run": "seed",
    }
    dataset: str = ""
    """Prompts: a file, folder, glob, hub id, or gym:NAME?option=value. Or a weighted mixture such as "a.jsonl=0.7
    b.parquet=0.3". Not needed with an environment that has tasks of its own."""
    model: str = "smollm2-135m-instruct"
    """The policy: hub id, folder or run. A run stands for its best or latest checkpoint; adapters and packaged
    models are taken as well."""
    reward: str = ""
    """Rewards and weights, such as "numbers=1.0 tags=0.1" or FILE.py:NAME. For gym: sources gym=1.0 unless given."""
    reward_model: str = ""
    """Reward models whose score is a reward besides those of --reward. Runs, folders or hub ids, in quotes where
    there are spaces. A cut-off answer is scored as if it ended there; --reward length=1 makes that cost."""
    ensemble_aggregation: str = "mean"
    """Ensemble aggregation: mean, worst, or uncertain (mean less --uncertainty-penalty x variance)."""
    uncertainty_penalty: float = 0.5
    """For --ensemble-aggregation uncertain: weight of the variance of the members' scores."""
    gold: str = ""
    """Gold rewards: logged, never optimised; they show when the others are gamed. Read by rl on held-out tasks. The
    best checkpoint and --stop-after go by gold, where it is given."""
    gold_model: str = ""
    """A reward model as gold reward, such as a larger one; with --gold their weighted sum counts."""
    environment: str = ""
    """Multi-turn environment: FILE.py:CLASS or an installed one. Default: one question, one
    answer. Unless --reward is given, the reward is what the environment says that its policy earned."""
    environment_args: str = ""
    """Arguments of the environment, such as "highest=100 max_turns=6"."""
    max_episode_tokens: int = 0
    """Token budget of a seat in an episode, prompts and replies; then its replies are empty. 0: the model's context."""
    max_lost: float = 0.1
    """Largest share of a batch's episodes that may fail; above it the run stops, with a checkpoint."""
    schedule: str = "auto"
    """Sampling of turns: lockstep (those of all episodes together, reproducible), continuous (each when it is asked
    for, so that a slow tool delays its own episode alone), or auto: what the environment asks for."""
    completions_per_prompt: int = 8
    """Completions of each prompt: the group. A batch is prompts x completions."""
    max_new_tokens: int = 256
    """Tokens of the longest completion."""
    max_prompt_tokens: int = 1024
    """Longer prompts are left out, and counted."""
    temperature: float = 1.0
    """Sampling temperature; the loss uses the same."""
    precision: str = "auto"
    """float32, bfloat16, or auto: what this machine computes faster. Master weights are float32 in any case."""
    microbatch_tokens: int = 4096
    """Tokens of one forward and backward pass; bounds memory, never changes the result."""
    engine: str = "embedded"
    """Sampler: embedded, vllm, or a server's address. vllm is to be installed first; the address is that of a vLLM
    server."""
    cache_gb: float = 1.5
    """Memory for keys and values while sampling."""
    columns: str = ""
    """Columns to read, such as "prompt=question answer=final"."""
    limit: int | None = None
    """Use only so many tasks; of a gym: source, make so many."""
    system: str | None = None
    """A system message, in place of the data's own."""
    prompt_template: str = "{prompt}"
    """Text around each question."""
    chat_template: str = ""
    """A Jinja file in place of the tokenizer's own chat template; it is saved with the model."""
    seed: int = 0
    """Seed of every random choice of the run."""


@dataclass(frozen=True)
class OnlineOptions(SampledOptions):
    """How to learn from what is sampled, and what to hold out."""

    HELP: ClassVar[Mapping[str, str]] = {
        "model": "model lora_rank",
        "sampling": "prompts_per_step",
        "optimisation": "lr microbatch_tokens",
        "evaluation": "eval_dataset eval_every",
    }
    prompts_per_step: int = 16
    """Different prompts in a batch."""
    lr: float = 1e-5
    """Peak learning rate; 1e-6 is usual for larger models. LoRA usually needs about ten times as much."""
    warmup_steps: int = 3
    """Steps until the peak."""
    decay: str = "constant"
    """What comes after the warmup: constant, linear or cosine."""
    weight_decay: float = 0.0
    """Of AdamW."""
    max_grad_norm: float = 1.0
    """Clip the global gradient norm to this value."""
    optim: str = "adamw"
    """The optimiser: adamw, or adamw-8bit: both moments of Adam in block-wise quantised 8 bits, 2 bytes per parameter
    instead of 8, and a slower update; input embedding, norms and matrices below 4,096 elements stay float32."""
    gradient_checkpointing: bool = False
    """Recompute activations layer by layer in the backward pass: less memory, about a third more
    time. Gradients are the same to the last bit."""
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
    eval_dataset: str = ""
    """Held-out tasks; for a gym: source its held-out split, which never meets the training split."""
    eval_limit: int = 100
    """Held-out tasks to use."""
    eval_samples: int = 4
    """Samples of each in an evaluation."""
    eval_every: int = 0
    """Steps between evaluations on held-out tasks, 0: none. Also before the first step and after the last."""
    stop_after: int = 0
    """Stop after this many evaluations without gain, 0: never. By gold, accuracy or reward, the first that there is."""
    save_every: int = 20
    """Save a checkpoint every so many steps, besides after an evaluation and after the last."""
    keep_last: int = 2
    """Checkpoints to keep, besides the best."""


SCHEDULES = ("auto", "lockstep", "continuous")

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
    """Refuse what cannot be sampled with, or judged by.

    Raises:
        UserError: names the option, and what it must be.
    """
    if not 0 < config.temperature < math.inf:
        raise UserError(
            f"--temperature must be above 0, or every completion of a group is the same; got {config.temperature}"
        )
    check_reward_models(config.reward_model, config.ensemble_aggregation, config.uncertainty_penalty)
    if not config.cache_gb > 0:
        raise UserError(f"--cache-gb must be above 0; got {config.cache_gb}")
    if not (config.dataset or config.environment):
        raise UserError("say which prompts with --dataset: a hub id, a file or folder, or gym:NAME")
    if config.environment_args and not config.environment:
        raise UserError("--environment-args are arguments of an --environment; type that too")
    if config.schedule not in SCHEDULES:
        raise unknown("schedule", config.schedule, SCHEDULES)
    if config.max_episode_tokens < 0 or not 0 <= config.max_lost <= 1:
        raise UserError("--max-episode-tokens must be 0 or more, and --max-lost a share from 0 to 1")


def check_reward_models(models: str, use: str, penalty: float) -> None:
    """Refuse options of reward models that mean nothing without another one.

    Raises:
        UserError: names the option, and what it must be.
    """
    if use != "uncertain" and penalty != SampledOptions.uncertainty_penalty:
        raise UserError("--uncertainty-penalty is for --ensemble-aggregation uncertain; type that too, or leave it out")
    if not models and use != SampledOptions.ensemble_aggregation:
        raise UserError("--ensemble-aggregation says how a reward model is used; name one with --reward-model")
    if not 0 <= penalty < math.inf:
        raise UserError(f"--uncertainty-penalty must be 0 or more; got {penalty}")


def check_evaluations(config: OnlineOptions) -> None:
    """Refuse what is read in evaluations where there are none.

    Raises:
        UserError: names the option, and what it must be.
    """
    if config.stop_after < 0 or (config.stop_after and not config.eval_every):
        raise UserError("--stop-after counts evaluations, and must be 0 or more; give --eval-every too")
    if (config.gold or config.gold_model) and not config.eval_every:
        raise UserError("--gold and --gold-model are read on held-out tasks; give --eval-every, and --eval-dataset")
