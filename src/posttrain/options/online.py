"""Forms of the recipes that sample from a policy."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from posttrain.options.groups import Computing, Ensemble, Judges, Playing, Rendering, TrainingOptions


@dataclass(frozen=True)
class SampledOptions(Judges, Ensemble, Playing, Rendering, Computing):
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
    _: KW_ONLY
    reward: str = ""
    """Rewards and weights, such as "numbers=1.0 tags=0.1" or FILE.py:NAME. Also https://HOST/PATH, an address that is
    asked for scores. Default for gym: sources: gym=1.0."""
    reward_model: str = ""
    """Reward models, added to --reward. Runs, folders or hub ids, space-separated. Truncated completions are scored as
    they are; --reward length=1 penalises them."""
    gold: str = ""
    """Gold rewards: logged, never optimised. Read by rl on held-out tasks. The best checkpoint and --stop-after go by
    gold, where it is given."""
    gold_model: str = ""
    """Reward model as gold reward, such as a larger one. With --gold, their weighted sum."""
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
    engine: str = "embedded"
    """Engine: embedded, vllm, or a vLLM server's URL; with --trainers one for each sampler, as "http://A:8000
    http://B:8000". vllm must be installed."""
    cache_gb: float = 1.5
    """KV cache size, in GB."""
    columns: str = ""
    """Column mapping, such as "prompt=question answer=final"."""
    limit: int | None = None
    """Maximum number of tasks; for gym: sources, the number to generate."""
    prompt_template: str = "{prompt}"
    """Template of each question."""


@dataclass(frozen=True)
class OnlineOptions(SampledOptions, TrainingOptions):
    """Options of optimisation and held-out tasks."""

    HELP: ClassVar[Mapping[str, str]] = {
        "model": "model lora_rank",
        "sampling": "prompts_per_step",
        "optimisation": "lr microbatch_tokens",
        "evaluation": "eval_dataset eval_every",
    }

    _: KW_ONLY
    prompts_per_step: int = 16
    """Prompts per batch."""
    lr: float = 1e-5
    """Peak learning rate; 1e-6 is usual for larger models. LoRA usually needs about ten times as much."""
    warmup_steps: int = 3
    decay: str = "constant"
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


@dataclass(frozen=True)
class RL(OnlineOptions):
    """Reinforcement learning from rewards."""

    HELP: ClassVar[Mapping[str, str]] = {
        "optimisation": "algorithm steps updates_per_step",
    }

    _: KW_ONLY
    algorithm: str = "grpo"
    """Algorithm; `posttrain algorithms` lists all. `posttrain explain NAME` describes one."""
    steps: int = 100
    """RL steps: batches sampled."""
    max_refills: int = 3
    """Dynamic sampling (dapo): maximum number of times to resample filtered groups."""
    updates_per_step: int = 1
    """Updates per batch (PPO epochs). Above 1, the later ones are off-policy."""
    length_penalty: float = 0.0
    """Maximum length penalty, 0: off. Grows with a completion's length and with the success rate of its prompt."""
    ref_sync_every: int = 0
    """Copy the policy into the reference every N steps, 0: never."""
    tis_cap: float | None = None
    """Truncated importance sampling: cap of the token ratio trainer / engine, 0: off. Corrects for the mismatch between
    the engine's and the trainer's logprobs, and for the age of the weights. Default: 2 with --max-staleness, else 0."""
    kl_budget: float = 0.0
    """Stop when the KL of the policy to the initial policy on held-out tasks exceeds this, in nats per completion, 0:
    off. The best checkpoint is then the best one within the budget."""
    critic: str = "trunk"
    """Critic of actor-critic algorithms: trunk or own. trunk is a value head on the policy's trunk, own a separate
    network."""
    critic_lr: float = 1e-4
    """Learning rate of the critic; constant. 2e-6 is usual for --critic own with larger models."""
    pretraining_dataset: str = ""
    """Pretraining corpus of ppo-ptx: a file, folder, glob or hub id with a column `text`."""
    pretraining_per_step: int = 16
    """Pretraining texts per update; each is truncated at --max-prompt-tokens."""
    teacher: str = ""
    """Teacher model of algorithms that need one (opd): hub id, folder, run or packaged; tokenizer as the policy's."""


@dataclass(frozen=True)
class OnlinePreference(OnlineOptions):
    """Online or iterated DPO: preference optimisation on the policy's own completions, ranked by a reward."""

    HELP: ClassVar[Mapping[str, str]] = {
        "optimisation": "algorithm rounds updates_per_round pairs_per_step",
    }

    _: KW_ONLY
    algorithm: str = "dpo"
    """Algorithm; `posttrain algorithms` lists all. `posttrain explain NAME` describes one."""
    rounds: int = 20
    """Rounds of sampling, pairing and updates."""
    updates_per_round: int = 1
    """Updates per round, 1: fully online."""
    pairs_per_step: int = 16
    """Pairs per update, if the round has as many."""
    pairing: str = "best-worst"
    """Pairs per prompt: best-worst, or all (every two completions of unequal reward)."""
    margin: float = 0.0
    """Minimum reward difference of a pair."""
    ref_sync_every: int = 0
    """Copy the policy into the reference every N rounds, 0: never."""
    lr: float = 1e-6
    """Peak learning rate. Warmup counts rounds. LoRA usually needs about ten times as much."""


@dataclass(frozen=True)
class BestOfN(SampledOptions):
    """Best-of-n sampling: keep the completions of highest reward (rejection sampling)."""

    HELP: ClassVar[Mapping[str, str]] = {
        "sampling": "keep at_least",
        "run": "output adversarial_pairs annotation_items",
    }

    _: KW_ONLY
    completions_per_prompt: int = 16
    """Completions per prompt (n)."""
    keep: int = 1
    """Completions to keep per prompt, the best first; equal texts count once."""
    at_least: float | None = None
    """Minimum reward to be kept; 1 keeps what a verifier accepts. Default: none."""
    output: str = ""
    """Output file (.jsonl) of conversations, for sft. Finished chunks are kept in a .part file, from which the same
    command resumes."""
    adversarial_pairs: str = ""
    """Output file for adversarial pairs, for reward-model; needs a gold reward. (chosen: highest gold, rejected:
    highest reward), where the two rewards rank them differently."""
    annotation_items: str = ""
    """Output file for items of two completions, for annotate import. The one of highest reward, and a random one."""
