"""Reinforcement learning from rewards: sample groups of completions, score them, update, repeat.

    posttrain rl --dataset gym:chain_sum --reward "gym=1.0 tags=0.1"
    posttrain rl --dataset train.jsonl --eval-dataset test.jsonl --reward numbers --model OWNER/NAME --lora-rank 16

The loop in `run` is the whole method: what differs between algorithms is in `algorithms/`, one file each. Left out:
asynchronous rollouts, so the policy that samples is always the one that is trained, and learned rewards.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from posttrain.algorithms.algorithm import ActorCritic, OnlineAlgorithm, enough
from posttrain.data import load_texts
from posttrain.data.order import batch_indices, seed_for
from posttrain.data.packing import Example
from posttrain.environments import SingleTurn
from posttrain.errors import UserError, unknown
from posttrain.evaluation.accuracy import evaluate
from posttrain.models.critic import CRITICS
from posttrain.models.reference import AdapterOff, FrozenAdapter, FrozenCopy, reference_for
from posttrain.monitoring import Progress, RunDirectory, write_report
from posttrain.monitoring.memory import peak_gb
from posttrain.monitoring.samples import samples_of
from posttrain.rewards import parse_rewards
from posttrain.rollouts.dynamic import Sampler
from posttrain.rollouts.measures import rollout_metrics
from posttrain.rollouts.policy import Policy, load_policy
from posttrain.training import checkpoint
from posttrain.training.critic import TrainedCritic, critic_step
from posttrain.training.failure import kept_batch
from posttrain.training.interrupt import stop_requests
from posttrain.training.online_options import OnlineOptions, check, read_tasks, rewards_of
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import policy_step
from posttrain.training.policy_batch import policy_batch
from posttrain.training.saved import saved_model
from posttrain.training.schedule import learning_rate, unreached
from posttrain.training.state import REFERENCE, restore_latest, writer
from posttrain.types import Sampling, Task


@dataclass(frozen=True)
class RL(OnlineOptions):
    """Train a policy by reinforcement learning."""

    algorithm: str = "grpo"
    """Which algorithm; `posttrain algorithms` lists them, `posttrain explain NAME` tells all about one."""
    max_refills: int = 3
    """For an algorithm that throws groups away (dapo): how often others are sampled in their place, at most."""
    updates_per_step: int = 1
    """Updates on each batch; above 1 the later ones are off-policy, which is what clipping is for."""
    length_penalty: float = 0.0
    """Take so much off for the longest completion of an easy prompt; less for shorter ones and harder prompts."""
    renew_reference: int = 0
    """Every so many steps the reference becomes the policy as it is then; 0: it stays the policy before training."""
    importance_cap: float = 0.0
    """Weigh tokens by policy over sampler, at most this (2 is usual), where engine and trainer differ; 0: no."""
    critic: str = "trunk"
    """For an algorithm with a critic: a row on the policy's own trunk, or a network of its own (trunk or own)."""
    critic_lr: float = 1e-4
    """Learning rate of what is the critic's own; constant. For --critic own of a larger model 2e-6 is usual."""
    pretraining_dataset: str = ""
    """For an algorithm that learns text beside (ppo-ptx): a hub id, jsonl or parquet with a column `text`."""
    pretraining_per_step: int = 16
    """Texts in each update; each is cut at --max-prompt-tokens."""


_FRESH: dict[str, Any] = {"draws": 0, "adapted": {}}  # what a run begins with: draws of prompts, knobs that moved


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
    policy, optimizer, critic, reference = parts.policy, parts.optimizer, parts.critic, parts.reference
    directory, step, state, notes = _open(config, algorithm, parts, output, resume)
    draws, knobs = state["draws"], asdict(algorithm)
    algorithm = replace(algorithm, **state["adapted"])
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
                states = sampler.state_values(rolled.groups, algorithm.states, draws) if algorithm.states else None
            sampled = time.perf_counter()
            batch, metrics = policy_batch(
                rolled.groups,
                algorithm,
                longest=config.max_new_tokens,
                greedy=greedy,
                states=states,
                reference=reference,
                critic=None if critic is None else critic.critic,
                length_penalty=config.length_penalty,
                microbatch_tokens=config.microbatch_tokens,
                temperature=config.temperature,
            )
            lr = learning_rate(step, steps=config.steps, peak=config.lr, warmup=config.warmup_steps, decay=config.decay)
            with progress.phase("update"), kept_batch(step + 1, batch.examples, directory.path, directory.checkpoints):
                if critic and isinstance(algorithm, ActorCritic) and step < algorithm.critic_warmup:
                    metrics |= critic_step(
                        policy.model, critic, algorithm, batch, microbatch_tokens=config.microbatch_tokens
                    )
                else:
                    metrics |= policy_step(
                        policy.model,
                        optimizer,
                        algorithm,
                        batch,
                        lr=lr,
                        microbatch_tokens=config.microbatch_tokens,
                        temperature=config.temperature,
                        updates=config.updates_per_step,
                        importance_cap=config.importance_cap,
                        critic=critic,
                        pretraining=_texts(config, parts, step),
                    )
            if batch.kl is not None:
                algorithm = algorithm.adapted(batch.kl)
            metrics |= rollout_metrics(rolled.sampled, parts.environment.outcome) | {"lr": lr}
            metrics |= {"groups/thrown_away": rolled.thrown_away}
            metrics |= _cost(began, sampled, rolled.tokens)
            step += 1
            last = step == config.steps
            if reference and config.renew_reference and step % config.renew_reference == 0:
                reference.renew(dict(policy.model.trainable()))
            if config.eval_every and (step % config.eval_every == 0 or last):
                metrics |= _evaluate(config, parts, progress)
            directory.log_metrics(step, metrics)
            directory.log_samples(step, samples_of(rolled.sampled, per_group=1))
            progress.step(step, reward=metrics["reward/mean"], accuracy=metrics["accuracy"])
            if step % config.save_every == 0 or "evaluation/accuracy" in metrics or last or stop.requested:
                behind = reference.kept() if reference and config.renew_reference else None
                save = writer(policy.save, optimizer, critic.optimizer if critic else None, behind)
                score = metrics.get("evaluation/accuracy")
                adapted = {name: value for name, value in asdict(algorithm).items() if value != knobs[name]}
                state = {"draws": draws, "adapted": adapted}
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
    reference: FrozenCopy | AdapterOff | FrozenAdapter | None
    critic: TrainedCritic | None
    pretraining: list[Example]
    notes: tuple[str, ...]  # what to tell the user


def _prepare(config: RL, algorithm: OnlineAlgorithm) -> _Parts:
    """Load everything; whatever is wrong with the options shows here, before anything is written."""
    check(config)
    _check(config, algorithm)
    enough(algorithm, config.completions_per_prompt)
    environment = SingleTurn(parse_rewards(rewards_of(config)))
    tasks, heldout, met = read_tasks(config)
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
    renewed = config.renew_reference > 0
    reference = reference_for(policy.model, renewed=renewed) if algorithm.needs_reference else None
    critic = _critic(config, policy) if isinstance(algorithm, ActorCritic) else None
    pretraining: list[Example] = []
    if algorithm.pretraining_weight:
        most_text = min(config.max_prompt_tokens, policy.model.context, config.microbatch_tokens)
        texts = [policy.chat.text_ids(text)[:most_text] for text in load_texts(config.pretraining_dataset)]
        pretraining = [Example.whole(ids, (False, *[True] * (len(ids) - 1))) for ids in texts if len(ids) > 1]
    notes = [*saved.notes(), *met, *unreached(config.warmup_steps, config.steps)]
    if config.prompts_per_step > len(fitting):
        notes.append(f"--prompts-per-step {config.prompts_per_step} of {len(fitting)} tasks: some are in a step twice")
    if len(fitting) < len(tasks):
        notes.append(f"{len(tasks) - len(fitting)} prompts are over {most} tokens and were left out")
    return _Parts(fitting, heldout, environment, policy, optimizer, reference, critic, pretraining, tuple(notes))


def _critic(config: RL, policy: Policy) -> TrainedCritic:
    made = CRITICS[config.critic](policy.model)
    optimizer = MasterAdamW(made.parameters(), weight_decay=config.weight_decay, max_grad_norm=config.max_grad_norm)
    return TrainedCritic(made, optimizer, config.critic_lr)


def _texts(config: RL, parts: _Parts, step: int) -> list[Example]:
    """The pretraining texts of a step."""
    if not parts.pretraining:
        return []
    seed = seed_for(config.seed, "pretraining")
    chosen = batch_indices(len(parts.pretraining), config.pretraining_per_step, step, seed)
    return [parts.pretraining[i] for i in chosen]


def _check(config: RL, algorithm: OnlineAlgorithm) -> None:
    counts = ("updates_per_step", "pretraining_per_step")
    for name in counts:
        if getattr(config, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be 1 or more; got {getattr(config, name)}")
    for name in ("max_refills", "length_penalty", "importance_cap", "renew_reference"):
        if not 0 <= getattr(config, name) < math.inf:
            raise UserError(f"--{name.replace('_', '-')} must be 0 or more; got {getattr(config, name)}")
    if not 0 < config.critic_lr < math.inf:
        raise UserError(f"--critic-lr must be above 0; got {config.critic_lr}")
    if config.critic not in CRITICS:
        raise unknown("critic", config.critic, CRITICS)
    if bool(config.pretraining_dataset) != bool(algorithm.pretraining_weight):
        raise UserError(
            f"{config.algorithm} learns from text beside; name it with --pretraining-dataset"
            if algorithm.pretraining_weight
            else f"{config.algorithm} learns from no text; leave out --pretraining-dataset, or type --algorithm ppo-ptx"
        )


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


def _open(
    config: RL, algorithm: OnlineAlgorithm, parts: _Parts, output: Path | None, resume: Path | None
) -> tuple[RunDirectory, int, dict[str, Any], tuple[str, ...]]:
    """The run directory, new or gone on with, step and state to go on from, and what to tell the user."""
    settings = asdict(config) | {"knobs": asdict(algorithm)}
    about = {"device": str(parts.policy.model.device), "precision": str(parts.policy.model.dtype)}
    if resume is None:
        return RunDirectory.create(output, "rl", settings, environment=about), 0, _FRESH, parts.notes
    directory = RunDirectory.resume(resume, settings, may_differ=("steps",), environment=about)
    found = restore_latest(
        directory.checkpoints, parts.optimizer, None if parts.critic is None else parts.critic.optimizer
    )
    if parts.reference and config.renew_reference:
        parts.reference.renew(checkpoint.load_tensors(found.path / REFERENCE))
    directory.rewind(found.step)
    return directory, found.step, _FRESH | found.state, parts.notes + found.skipped


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
