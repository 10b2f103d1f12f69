"""Reinforcement learning from rewards: sample groups of completions, score them, update, repeat.

    posttrain rl --dataset gym:chain_sum --reward "gym=1.0 tags=0.1"
    posttrain rl --dataset train.jsonl --eval-dataset test.jsonl --reward numbers --model OWNER/NAME --lora-rank 16

The loop in `run` is the whole method: what differs between algorithms is in `algorithms/`, one file each. Left out:
asynchronous rollouts, so the policy that samples is always the one that is trained, and learned rewards.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from posttrain.algorithms.algorithm import OnlineAlgorithm, enough
from posttrain.data import disjoint, load_tasks, met_before, parse_columns
from posttrain.data.order import seed_for
from posttrain.environments import SingleTurn
from posttrain.errors import UserError
from posttrain.evaluation.accuracy import evaluate
from posttrain.models.reference import reference_for
from posttrain.monitoring import Progress, RunDirectory, write_report
from posttrain.monitoring.memory import peak_gb
from posttrain.monitoring.samples import samples_of
from posttrain.rewards import parse_rewards
from posttrain.rollouts.dynamic import Sampler
from posttrain.rollouts.measures import rollout_metrics
from posttrain.rollouts.policy import Policy, load_policy
from posttrain.training import checkpoint
from posttrain.training.failure import kept_batch
from posttrain.training.interrupt import stop_requests
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import Reference, policy_batch, policy_step
from posttrain.training.saved import saved_model
from posttrain.training.schedule import learning_rate, unreached
from posttrain.training.settings import check_settings
from posttrain.training.state import restore_latest, writer
from posttrain.types import Sampling, Task


@dataclass(frozen=True)
class RL:
    """Train a policy by reinforcement learning."""

    dataset: str = ""
    """What to train on: a hub id, a jsonl or parquet file or folder, or gym:NAME?option=value."""
    model: str = "smollm2-135m-instruct"
    """The policy: a hub id, a folder, a run (its best or latest checkpoint), an adapter, or a packaged model."""
    algorithm: str = "grpo"
    """Which algorithm; `posttrain algorithms` lists them, `posttrain explain NAME` tells all about one."""
    reward: str = ""
    """Rewards and weights, such as "numbers=1.0 tags=0.1" or path/to/file.py:function; for gym: sources gym=1.0."""
    steps: int = 100
    """How many batches to sample and learn from."""
    prompts_per_step: int = 16
    """Different prompts in a batch."""
    completions_per_prompt: int = 8
    """Completions of each prompt: the group. The rollout batch is prompts x completions."""
    max_refills: int = 3
    """For an algorithm that throws groups away (dapo): how often others are sampled in their place, at most."""
    updates_per_step: int = 1
    """Updates on each batch; above 1 the later ones are off-policy, which is what clipping is for."""
    max_new_tokens: int = 256
    """The longest completion."""
    max_prompt_tokens: int = 1024
    """Longer prompts are left out, and counted."""
    temperature: float = 1.0
    """Of sampling; the loss uses the same."""
    lr: float = 1e-5
    """Peak learning rate; 1e-6 is usual for larger models, ten times as much with an adapter."""
    warmup_steps: int = 3
    """Steps until the peak."""
    decay: str = "constant"
    """What comes after the warmup: constant, linear or cosine."""
    weight_decay: float = 0.0
    """Of AdamW."""
    max_grad_norm: float = 1.0
    """Longer gradients are scaled to this."""
    lora_rank: int = 0
    """Train an adapter of this rank instead of all weights; 0: all weights."""
    precision: str = "auto"
    """float32, bfloat16, or auto: what this machine computes faster. Master weights are float32 in any case."""
    microbatch_tokens: int = 4096
    """Tokens of one forward and backward pass: bounds memory, never changes the result."""
    engine: str = "embedded"
    """What samples: embedded, vllm (to be installed first), or a vLLM server's address."""
    cache_gb: float = 1.5
    """Memory for keys and values while sampling."""
    columns: str = ""
    """Which columns to read, such as "prompt=question answer=final"."""
    limit: int | None = None
    """Use only so many tasks; of a gym: source, make so many."""
    system: str | None = None
    """A system message, in place of the data's own."""
    prompt_template: str = "{prompt}"
    """Text around each question."""
    eval_dataset: str = ""
    """Held-out tasks; for a gym: source its held-out split, which never meets the training split."""
    eval_limit: int = 100
    """Held-out tasks to use."""
    eval_samples: int = 4
    """Samples of each in an evaluation."""
    eval_every: int = 0
    """Evaluate every so many steps, besides before the first and after the last; 0: not at all."""
    save_every: int = 20
    """Save a checkpoint every so many steps, besides after an evaluation and after the last."""
    keep_last: int = 2
    """Checkpoints to keep, besides the best."""
    seed: int = 0
    """Decides every random choice of the run."""


class HeldOut(NamedTuple):
    """Held-out accuracy, and its interval."""

    accuracy: float
    ci95: tuple[float, float]


@dataclass(frozen=True)
class RLResult:
    """Where a finished or interrupted run is, and what it found."""

    run: Path
    steps: int
    interrupted: str  # the signal that stopped it early, such as SIGINT; empty if none did
    before: HeldOut | None  # where there are held-out tasks
    after: HeldOut | None


def run(
    config: RL,
    algorithm: OnlineAlgorithm,
    *,
    output: Path | None = None,
    resume: Path | None = None,
    quiet: bool = False,
) -> RLResult:
    """Train a policy in a new run directory, or go on with the run in `resume`."""
    parts = _prepare(config, algorithm)
    policy, optimizer = parts.policy, parts.optimizer
    directory, step, draws, notes = _open(config, algorithm, parts, output, resume)
    with directory, stop_requests() as stop, Progress("rl", config.steps, start=step, quiet=quiet) as progress:
        for note in notes:
            progress.say(note)
        sampler = _sampler(config, parts, progress)

        def accepts(rewards: Sequence[float]) -> bool:
            return algorithm.accepts(torch.tensor(rewards))

        if config.eval_every and step == 0:
            directory.log_metrics(0, _evaluate(config, parts, progress))

        while step < config.steps and not stop.requested:
            began = time.perf_counter()
            with progress.phase("rollout"):
                rolled = sampler.roll_out(draws, accepts, max_refills=config.max_refills)
                draws += rolled.draws
                greedy = sampler.greedy_rewards(rolled.groups) if algorithm.needs_greedy else None
            sampled = time.perf_counter()
            batch, metrics = policy_batch(
                rolled.groups,
                algorithm,
                longest=config.max_new_tokens,
                greedy=greedy,
                reference=parts.reference,
                microbatch_tokens=config.microbatch_tokens,
                temperature=config.temperature,
            )
            lr = learning_rate(step, steps=config.steps, peak=config.lr, warmup=config.warmup_steps, decay=config.decay)
            with progress.phase("update"), kept_batch(step + 1, batch.examples, directory.path, directory.checkpoints):
                metrics |= policy_step(
                    policy.model,
                    optimizer,
                    algorithm,
                    batch,
                    lr=lr,
                    microbatch_tokens=config.microbatch_tokens,
                    temperature=config.temperature,
                    updates=config.updates_per_step,
                )
            metrics |= rollout_metrics(rolled.sampled, parts.environment.outcome) | {"lr": lr}
            metrics |= {"groups/thrown_away": rolled.thrown_away}
            metrics |= _cost(began, sampled, rolled.tokens)
            step += 1
            last = step == config.steps
            if config.eval_every and (step % config.eval_every == 0 or last):
                metrics |= _evaluate(config, parts, progress)
            directory.log_metrics(step, metrics)
            directory.log_samples(step, samples_of(rolled.sampled, per_group=1))
            progress.step(step, reward=metrics["reward/mean"], accuracy=metrics["accuracy"])
            if step % config.save_every == 0 or "evaluation/accuracy" in metrics or last or stop.requested:
                save = writer(policy.save, optimizer)
                score = metrics.get("evaluation/accuracy")
                state = {"draws": draws}
                checkpoint.save(directory.checkpoints, step, save, state, keep_last=config.keep_last, score=score)
    done = directory.read()
    write_report(done)
    found = [_held_out(row) for row in done.metrics if "evaluation/accuracy_low" in row] or [None]
    return RLResult(directory.path, step, stop.cause if step < config.steps else "", found[0], found[-1])


@dataclass(frozen=True)
class _Parts:
    tasks: list[Task]
    heldout: list[Task]
    environment: SingleTurn
    policy: Policy
    optimizer: MasterAdamW
    reference: Reference | None
    notes: tuple[str, ...]  # what to tell the user


def _prepare(config: RL, algorithm: OnlineAlgorithm) -> _Parts:
    """Load everything; whatever is wrong with the options shows here, before anything is written."""
    _check(config)
    enough(algorithm, config.completions_per_prompt)
    environment = SingleTurn(parse_rewards(_rewards(config)))
    tasks, heldout, met = _tasks(config)
    saved = saved_model(config.model)
    policy = load_policy(
        saved.where,
        precision=config.precision,
        lora_rank=config.lora_rank,
        engine=config.engine,
        cache_gb=config.cache_gb,
        seed=config.seed,
    )
    most = min(config.max_prompt_tokens, policy.model.context - 1)
    lengths = [len(policy.chat.prompt_ids(task.prompt)) for task in tasks]
    fitting = [task for task, length in zip(tasks, lengths, strict=True) if length <= most]
    if not fitting:
        raise UserError(
            f"all {len(tasks)} prompts are longer than {most} tokens, the smaller of --max-prompt-tokens "
            f"{config.max_prompt_tokens} and what the model's context of {policy.model.context} leaves room for"
        )
    whole = min(max(n for n in lengths if n <= most) + config.max_new_tokens, policy.model.context)
    if whole > config.microbatch_tokens:
        raise UserError(
            f"a prompt and its completion may have {whole} tokens, but --microbatch-tokens is "
            f"{config.microbatch_tokens}; type --microbatch-tokens {whole} or more, or a smaller --max-new-tokens"
        )
    optimizer = MasterAdamW(
        policy.model.trainable(), weight_decay=config.weight_decay, max_grad_norm=config.max_grad_norm
    )
    reference = reference_for(policy.model) if algorithm.needs_reference else None
    notes = [*saved.notes(), *met, *unreached(config.warmup_steps, config.steps)]
    if config.prompts_per_step > len(fitting):
        notes.append(f"--prompts-per-step {config.prompts_per_step} of {len(fitting)} tasks: some are in a step twice")
    if len(fitting) < len(tasks):
        notes.append(f"{len(tasks) - len(fitting)} prompts are over {most} tokens and were left out")
    return _Parts(fitting, heldout, environment, policy, optimizer, reference, tuple(notes))


def _sampler(config: RL, parts: _Parts, progress: Progress) -> Sampler:
    return Sampler(
        parts.environment,
        parts.tasks,
        parts.policy.engine,
        parts.policy.chat,
        Sampling(config.max_new_tokens, config.temperature),
        prompts=config.prompts_per_step,
        completions=config.completions_per_prompt,
        seed=config.seed,
        on_tokens=progress.tokens,
    )


def _check(config: RL) -> None:
    counts = ("steps", "prompts_per_step", "completions_per_prompt", "updates_per_step", "max_new_tokens")
    counts += ("max_prompt_tokens", "eval_limit", "eval_samples")
    check_settings(config, counts=counts, zero_or_more=("eval_every", "max_refills"), lora_rank=config.lora_rank)
    if not 0 < config.temperature < math.inf:
        raise UserError(
            f"--temperature must be above 0, or every completion of a group is the same; got {config.temperature}"
        )
    if not config.cache_gb > 0:
        raise UserError(f"--cache-gb must be above 0; got {config.cache_gb}")
    if not config.dataset:
        raise UserError("say what to train on with --dataset: a hub id, a file or folder, or gym:NAME")


def _rewards(config: RL) -> str:
    if config.reward:
        return config.reward
    if config.dataset.startswith("gym:"):
        return "gym=1.0"
    raise UserError(
        'say how answers are judged with --reward, such as "numbers" for GSM8K, "math", or FILE.py:function'
    )


def _tasks(config: RL) -> tuple[list[Task], list[Task], list[str]]:
    """What to train on, what to examine with, and what to tell the user of the rest."""
    words = {"system": config.system, "prompt_template": config.prompt_template}
    columns = parse_columns(config.columns) if config.columns else None
    tasks = load_tasks(config.dataset, columns=columns, limit=config.limit, seed=config.seed, **words)
    if config.eval_dataset and not config.eval_every:
        raise UserError("--eval-dataset is evaluated every --eval-every steps; give that too")
    if not config.eval_every:
        return tasks, [], []
    gym = config.dataset.startswith("gym:")
    if not (config.eval_dataset or gym):
        raise UserError("--eval-every needs held-out tasks; give them with --eval-dataset")
    heldout = load_tasks(
        config.eval_dataset or config.dataset,
        split="heldout" if gym and not config.eval_dataset else None,
        columns=columns,
        limit=config.eval_limit,
        seed=config.seed,
        **words,
    )
    kept = disjoint(tasks, heldout)
    return tasks, kept.tasks, met_before(kept.removed)


def _open(
    config: RL, algorithm: OnlineAlgorithm, parts: _Parts, output: Path | None, resume: Path | None
) -> tuple[RunDirectory, int, int, tuple[str, ...]]:
    """The run directory, new or gone on with, step and draw to go on from, and what to tell the user."""
    settings = asdict(config) | {"knobs": asdict(algorithm)}
    about = {"device": str(parts.policy.model.device), "precision": str(parts.policy.model.dtype)}
    if resume is None:
        return RunDirectory.create(output, "rl", settings, environment=about), 0, 0, parts.notes
    directory = RunDirectory.resume(resume, settings, may_differ=("steps",), environment=about)
    found = restore_latest(directory.checkpoints, parts.optimizer)
    directory.rewind(found.step)
    return directory, found.step, found.state["draws"], parts.notes + found.skipped


def _evaluate(config: RL, parts: _Parts, progress: Progress) -> dict[str, float]:
    with progress.phase("evaluation"):
        found = evaluate(
            parts.environment,
            parts.heldout,
            parts.policy.engine,
            parts.policy.chat,
            max_new_tokens=config.max_new_tokens,
            samples_per_task=config.eval_samples,
            seed=seed_for(config.seed, "evaluation"),
            on_tokens=progress.tokens,
        )
    low, high = found.ci95
    return {"evaluation/accuracy": found.accuracy, "evaluation/accuracy_low": low, "evaluation/accuracy_high": high}


def _held_out(row: Mapping[str, Any]) -> HeldOut:
    low, high = row["evaluation/accuracy_low"], row["evaluation/accuracy_high"]
    return HeldOut(row["evaluation/accuracy"], (low, high))


def _cost(began: float, sampled: float, tokens: int) -> dict[str, float]:
    now = time.perf_counter()
    return {
        "seconds/rollout": sampled - began,
        "seconds/train": now - sampled,
        "seconds/step": now - began,
        "tokens_per_second": tokens / (sampled - began),
        "memory_gb": peak_gb(),
    }
