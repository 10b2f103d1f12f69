"""Forms of the recipes that sample from a policy."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar, Literal

from posttrain.errors import UserError
from posttrain.options.groups import Computing, Control, Ensemble, Judges, Playing, Rendering, TrainingOptions
from posttrain.options.kinds import Algorithm, EngineName, Judge, Model, Rewards, Rows
from posttrain.options.option import Job, Range

ALIKE = "or all completions of a group are equal"
JOB_ALGORITHMS = (
    *("grpo", "dr-grpo", "dapo", "gspo", "grpo-bucketed", "reinforce", "reinforce++", "rloo", "remax"),
    *("ppo", "ppo-penalty", "vapo", "vineppo"),
    *("maxrl", "pass-at-k", "gdpo", "cispo", "sapo", "gmpo", "dppo", "clip-cov", "kl-cov", "prime"),
)
"""Those that need no other model and no further data."""
_GOLD: Mapping[str, tuple[str, str]] = dict.fromkeys(
    ("gold", "gold_model"), ("eval_every", "held-out evaluations: pass `eval_every` and `eval_dataset`")
)


@dataclass(frozen=True)
class SampledOptions(Judges, Ensemble, Playing, Rendering, Computing):
    """Options of prompts, sampling and rewards."""

    NEEDS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "seats": ("environment", "an `environment` with several seats; pass it too")
    }

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset environment",
        "model": "model",
        "rewards": "reward reward_model judge gold",
        "sampling": "completions_per_prompt max_new_tokens temperature engine",
        "run": "seed",
    }
    dataset: Rows = ""
    """Prompts: a file, folder, glob, hub id, or gym:NAME?option=value. Or a weighted mixture such as "a.jsonl=0.7
    b.parquet=0.3". Optional for environments with tasks of their own."""
    model: Model = "smollm2-135m-instruct"
    """Policy: hub id, folder or run. A run means its best checkpoint, or else its latest; adapters and packaged models
    work too."""
    _: KW_ONLY
    reward: Rewards = ""
    """Rewards and weights, such as "numbers=1.0 tags=0.1" or FILE.py:NAME. Also https://HOST/PATH, an address that is
    asked for scores. Default for gym: sources: gym=1.0."""
    reward_model: str = ""
    """Reward models, added to `reward`. Runs, folders or hub ids, space-separated. Truncated completions are scored as
    they are; `reward="length=1"` penalises them."""
    gold: Rewards = ""
    """Gold rewards: logged, never optimised. Read by rl on held-out tasks. The best checkpoint and `stop_after` go by
    gold, where it is given."""
    gold_model: Model = ""
    """Reward model as gold reward, such as a larger one. With `gold`, their weighted sum."""
    seats: Judge = ""
    """Models that play other seats of the environment: NAME=MODEL, NAME=URL#MODEL or NAME=FILE.py:CLASS. Such as
    "opponent=runs/rl-2026-01-31-1 judge=http://localhost:8000/v1#MODEL"; they are not trained. In rl also
    "opponent=policy?behind=4", the policy of four updates ago. Default: the policy plays all seats."""
    max_episode_tokens: Annotated[int, Range(0)] = 0
    """Token budget per seat and episode, 0: the model's context. Prompts count; past the budget replies are empty."""
    max_lost: Annotated[float, Range(0, 1)] = 0.1
    """Maximum fraction of failed episodes per batch; above it the run stops. It saves a checkpoint."""
    schedule: Literal["auto", "lockstep", "continuous", "pipelined"] = "auto"
    """Turn scheduling: lockstep, continuous, pipelined, or auto (the environment's choice). lockstep samples a turn of
    all episodes together (reproducible); continuous samples each turn when it is requested, so that a slow tool delays
    only its own episode. pipelined is continuous, and scores each group as soon as its episodes have ended,
    while others are sampled: for slow judges and sandboxes. Not with `max_staleness`, where the next step is sampled
    meanwhile."""
    completions_per_prompt: Annotated[int, Range(1), Job(high=256)] = 8
    """Completions per prompt (group size). The batch is prompts x completions."""
    max_new_tokens: Annotated[int, Range(1), Job(high=65_536)] = 256
    """Maximum tokens per completion."""
    max_prompt_tokens: Annotated[int, Range(1), Job(high=131_072)] = 1024
    """Maximum tokens per prompt; longer prompts are left out, and counted."""
    temperature: Annotated[float, Range(0, out="low", hint=ALIKE), Job(0.01, 10)] = 1.0
    """Sampling temperature; the loss uses the same."""
    engine: EngineName = "embedded"
    """Engine: embedded, vllm, or a vLLM server's URL; with `trainers` one for each sampler, as "http://A:8000
    http://B:8000". vllm must be installed."""
    cache_gb: Annotated[float, Range(0, out="low", infinite=True)] = 1.5
    """KV cache size, in GB."""
    columns: str = ""
    """Column mapping, such as "prompt=question answer=final"."""
    limit: Annotated[int | None, Job(1, 10_000_000)] = None
    """Maximum number of tasks; for gym: sources, the number to generate."""


@dataclass(frozen=True, kw_only=True)
class OnlineOptions(SampledOptions, TrainingOptions):
    """Options of optimisation and held-out tasks."""

    NEEDS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "stop_after": ("eval_every", "evaluations: pass `eval_every` too")
    }

    HELP: ClassVar[Mapping[str, str]] = {
        "model": "model lora_rank",
        "sampling": "prompts_per_step",
        "optimisation": "lr microbatch_tokens",
        "evaluation": "eval_dataset eval_every",
    }

    prompts_per_step: Annotated[int, Range(1), Job(high=4096)] = 16
    """Prompts per batch."""
    lr: Annotated[float, Range(0), Job(high=1)] = 1e-5
    """Peak learning rate; 1e-6 is usual for larger models. LoRA usually needs about ten times as much."""
    warmup_steps: Annotated[int, Range(0), Job(high=100_000)] = 3
    decay: Annotated[Literal["constant", "linear", "cosine"], Job()] = "constant"
    eval_dataset: Rows = ""
    """Held-out tasks; for gym: sources, their disjoint held-out split."""
    eval_limit: Annotated[int, Range(1), Job(high=10_000)] = 100
    """Maximum number of held-out tasks."""
    eval_samples: Annotated[int, Range(1), Job(high=256)] = 4
    """Samples per held-out task."""
    eval_every: Annotated[int, Range(0), Job(high=1_000_000)] = 0
    """Steps between evaluations, 0: none. Also before the first step and after the last."""
    stop_after: Annotated[int, Range(0), Job(high=1000)] = 0
    """Early stopping patience in evaluations, 0: off. By gold reward, else accuracy, else reward."""
    save_every: Annotated[int, Range(1), Job(high=1_000_000)] = 20


@dataclass(frozen=True, kw_only=True)
class RL(Control, OnlineOptions):
    """Reinforcement learning from rewards."""

    NEEDS: ClassVar[Mapping[str, tuple[str, str]]] = {
        **_GOLD,
        "kl_budget": ("eval_every", "evaluations: pass `eval_every` too"),
    }

    HELP: ClassVar[Mapping[str, str]] = {"optimisation": "algorithm steps updates_per_step"}

    algorithm: Annotated[Algorithm, Job(names=JOB_ALGORITHMS)] = "grpo"
    """Algorithm; `posttrain algorithms` lists all. `posttrain explain NAME` describes one."""
    steps: Annotated[int, Range(1), Job(high=1_000_000)] = 100
    """RL steps: batches sampled."""
    curriculum: str = ""
    """Which tasks are drawn: success (those solved about half of the time), length (short prompts first), or a column
    of numbers, low first. success not with `max_staleness`. Default: all alike."""
    max_refills: Annotated[int, Range(0), Job(high=20)] = 3
    """Dynamic sampling (dapo, --min-reward-std): maximum number of times to resample filtered groups."""
    min_reward_std: Annotated[float, Range(0), Job(high=1000)] = 0.0
    """Filter groups whose rewards have a smaller standard deviation, 0: off. They are resampled; RLPR's filter for
    --reward rlpr."""
    updates_per_step: Annotated[int, Range(1), Job(high=64)] = 1
    """Updates per batch (PPO epochs). Above 1, the later ones are off-policy."""
    length_penalty: Annotated[float, Range(0), Job(high=1000)] = 0.0
    """Maximum length penalty, 0: off. Grows with a completion's length and with the success rate of its prompt."""
    ref_sync_every: Annotated[int, Range(0), Job(high=1_000_000)] = 0
    """Copy the policy into the reference every N steps, 0: never."""
    tis_cap: Annotated[float | None, Range(0), Job(high=1000)] = None
    """Truncated importance sampling: cap of the token ratio trainer / engine, 0: off. Corrects for the mismatch between
    the engine's and the trainer's logprobs, and for the age of the weights. Default: 2 with `max_staleness`, else 0."""
    importance: Annotated[Literal["truncated", "masked"], Job()] = "truncated"
    """Importance weights beyond `tis_cap` (or below `importance_floor`): truncated, or masked (weight 0; IcePop)."""
    importance_level: Annotated[Literal["auto", "token", "product", "mean"], Job()] = "auto"
    """Importance weights of tokens, or of completions: token, product or mean (geometric) of ratios, or auto. auto is
    product for algorithms with a sequence-level ratio, else token. The product drifts with the length; see
    'log_importance/long'."""
    importance_floor: Annotated[float, Range(0), Job(high=1)] = 0.0
    """Least importance weight; IcePop masks below 0.5 and above 5 (`tis_cap=5`)."""
    kl_budget: Annotated[float, Range(0), Job(high=1e6)] = 0.0
    """Stop when the KL of the policy to the initial policy on held-out tasks exceeds this, in nats per completion, 0:
    off. The best checkpoint is then the best one within the budget."""
    critic: Annotated[Literal["trunk", "own"], Job()] = "trunk"
    """Critic of actor-critic algorithms: trunk or own. trunk is a value head on the policy's trunk, own a separate
    network."""
    critic_lr: Annotated[float, Range(0, out="low"), Job(high=1)] = 1e-4
    """Learning rate of the critic; constant. 2e-6 is usual for `critic="own"` with larger models."""
    pretraining_dataset: Rows = ""
    """Pretraining corpus of ppo-ptx: a file, folder, glob or hub id with a column `text`."""
    pretraining_per_step: Annotated[int, Range(1)] = 16
    """Pretraining texts per update; each is truncated at `max_prompt_tokens`."""
    teacher: Model = ""
    """Teacher model of algorithms that need one (opd, gkd): hub id, folder, run or packaged; tokenizer as the policy's.
    Several teach the rows whose column `teacher` names them: "math=runs/a code=runs/b". policy is the policy itself
    with its current weights, which `teacher_prompt` shows more."""
    prover: Model = ""
    """Prover of algorithms that need one (pav): a model whose continuations measure progress. Hub id, folder, run or
    packaged; tokenizer as the policy's, and another model than it."""
    teacher_prompt: str = ""
    """What teachers see in place of the last user message. It has the fields {prompt} (that message), {answer}, {gold}
    and other columns: "{prompt} The solution is: {answer}". Also {better}, the group's completion of highest reward,
    and {feedback}, the explanations of the completion's own scores. Default: what the policy sees."""


@dataclass(frozen=True, kw_only=True)
class OnlinePreference(OnlineOptions):
    """Online or iterated DPO: preference optimisation on the policy's own completions, ranked by a reward."""

    NEEDS: ClassVar[Mapping[str, tuple[str, str]]] = _GOLD

    HELP: ClassVar[Mapping[str, str]] = {"optimisation": "algorithm rounds updates_per_round pairs_per_step"}

    algorithm: Algorithm = "dpo"
    """Algorithm; `posttrain algorithms` lists all. `posttrain explain NAME` describes one."""
    rounds: Annotated[int, Range(1)] = 20
    """Rounds of sampling, pairing and updates."""
    updates_per_round: Annotated[int, Range(1)] = 1
    """Updates per round, 1: fully online."""
    pairs_per_step: Annotated[int, Range(1), Job(high=4096)] = 16
    """Pairs per update, if the round has as many."""
    pairing: Literal["best-worst", "all"] = "best-worst"
    """Pairs per prompt: best-worst, or all (every two completions of unequal reward)."""
    margin: Annotated[float, Range(0), Job(high=1000)] = 0.0
    """Minimum reward difference of a pair."""
    ref_sync_every: Annotated[int, Range(0), Job(high=1_000_000)] = 0
    """Copy the policy into the reference every N rounds, 0: never."""
    lr: Annotated[float, Range(0), Job(high=1)] = 1e-6
    """Peak learning rate. Warmup counts rounds. LoRA usually needs about ten times as much."""

    def together(self) -> None:
        """A pair has two completions."""
        super().together()
        if self.completions_per_prompt < 2:
            raise UserError(
                f"a pair needs two completions of a prompt; type `completions_per_prompt=2` or more, not "
                f"{self.completions_per_prompt}"
            )


@dataclass(frozen=True, kw_only=True)
class BestOfN(SampledOptions):
    """Best-of-n sampling: keep the completions of highest reward (rejection sampling)."""

    NEEDS: ClassVar[Mapping[str, tuple[str, str]]] = dict.fromkeys(
        ("label_by", "continuations", "label_per_prompt"), ("step_labels", "labels of steps: pass `step_labels` too")
    )

    HELP: ClassVar[Mapping[str, str]] = {
        "sampling": "keep at_least",
        "run": "output pairs step_labels adversarial_pairs annotation_items",
    }

    completions_per_prompt: Annotated[int, Range(1), Job(high=256)] = 16
    """Completions per prompt (n)."""
    keep: Annotated[int, Range(1)] = 1
    """Completions to keep per prompt, the best first; equal texts count once."""
    at_least: Annotated[float | None, Range()] = None
    """Minimum reward to be kept; 1 keeps what a verifier accepts. Default: none."""
    output: str = ""
    """Output file (.jsonl) of conversations, for sft. Finished chunks are kept in a .part file, from which the same
    command resumes."""
    pairs: str = ""
    """Output file of preference pairs, for preference and reward-model. (chosen: highest reward, rejected: lowest), of
    prompts with unequal ones; `at_least` is of the chosen."""
    adversarial_pairs: str = ""
    """Output file for adversarial pairs, for reward-model; needs a gold reward. (chosen: highest gold, rejected:
    highest reward), where the two rewards rank them differently."""
    annotation_items: str = ""
    """Output file for items of two completions, for annotate import. The one of highest reward, and a random one."""
    step_labels: str = ""
    """Output file of labelled steps (lines), for reward-model. There with `heads="steps"`; needs a verifier in
    `reward`."""
    label_by: Literal["soft", "hard", "rule"] = "soft"
    """Labels of steps: soft, hard or rule. soft is the share of continuations from a step that end right, hard whether
    any does (Math-Shepherd); rule checks equations, without sampling."""
    continuations: Annotated[int, Range(1)] = 8
    """Continuations sampled from each step, with `label_by` soft or hard."""
    label_per_prompt: Annotated[int, Range(0)] = 0
    """Completions of a prompt whose steps are labelled, 0: all. With a `reward_model` the wrong ones that it rates
    highest first (active learning), else random ones."""
