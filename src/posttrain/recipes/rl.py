"""Reinforcement learning from rewards: sample groups of completions, score them, update, repeat.

    posttrain rl --dataset gym:chain_sum --reward "gym=1.0 tags=0.1"
    posttrain rl --dataset train.jsonl --eval-dataset test.jsonl --reward numbers --model OWNER/NAME --lora-rank 16
    posttrain rl --algorithm ppo --dataset prompts.jsonl --reward-model runs/reward-model-2026-01-31-1

The loop in `run` is the whole method: what differs between algorithms is in `algorithms/`, one file each. Left out:
asynchronous rollouts, so the policy that samples is always the one that is trained.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from posttrain.algorithms.algorithm import ActorCritic, OnlineAlgorithm, enough
from posttrain.data import load_texts
from posttrain.data.digests import digests
from posttrain.data.order import batch_indices, seed_for
from posttrain.data.packing import Example
from posttrain.errors import UserError, unknown
from posttrain.evaluation.heldout import (
    KL,
    PREFIX,
    HeldOut,
    HeldOutReward,
    chosen_by,
    goodness,
    held_out,
    heldout_groups,
    heldout_metrics,
    past_best,
    past_budget,
)
from posttrain.models.critic import CRITICS
from posttrain.models.precision import compute_of
from posttrain.models.reference import AdapterOff, FrozenAdapter, FrozenCopy, reference_for
from posttrain.monitoring import Progress, RunDirectory, announce, machine_line, read_run, write_report
from posttrain.monitoring.cost import rollout_cost
from posttrain.monitoring.samples import samples_of
from posttrain.rewards import TIME_LIMITS
from posttrain.rollouts.measures import HEADLINE, rollout_metrics
from posttrain.rollouts.options import COUNTS, OnlineOptions, check_evaluations, check_sampling
from posttrain.rollouts.policy import Policy
from posttrain.rollouts.setup import Setup, set_up
from posttrain.training import checkpoint
from posttrain.training.critic import TrainedCritic, critic_step
from posttrain.training.failure import kept_batch
from posttrain.training.interrupt import stop_requests
from posttrain.training.optimizer import MasterAdamW, optimizer_for
from posttrain.training.policy import policy_step
from posttrain.training.policy_batch import distance, policy_batch, shortened
from posttrain.training.saved import began_from, saved_model
from posttrain.training.schedule import learning_rate, rescheduled, unreached
from posttrain.training.settings import OPTIMIZERS, check_settings
from posttrain.training.state import REFERENCE, restore_latest, writer
from posttrain.types import Group


@dataclass(frozen=True)
class RL(OnlineOptions):
    """Train a policy by reinforcement learning."""

    algorithm: str = "grpo"
    """Which algorithm; `posttrain algorithms` lists them, `posttrain explain NAME` tells all about one."""
    steps: int = 100
    """How many batches to sample and learn from."""
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
    kl_budget: float = 0.0
    """Stop once the policy is so many nats per answer from where it began, on held-out tasks; the best checkpoint is
    then the best of those within. 0: it may go as far as it likes."""
    critic: str = "trunk"
    """For an algorithm with a critic: a row on the policy's own trunk, or a network of its own (trunk or own)."""
    critic_lr: float = 1e-4
    """Learning rate of what is the critic's own; constant. For --critic own of a larger model 2e-6 is usual."""
    pretraining_dataset: str = ""
    """For an algorithm that learns text beside (ppo-ptx): a file, folder, glob or hub id with a column `text`."""
    pretraining_per_step: int = 16
    """Texts in each update; each is cut at --max-prompt-tokens."""


# what a run begins with: draws of prompts, knobs that moved, rewards that gave a score outside 0 to 1
_FRESH: dict[str, Any] = {"draws": 0, "adapted": {}, "unbounded": {}}


@dataclass(frozen=True)
class RLResult:
    """Where a finished or interrupted run is, and what it found."""

    run: Path
    steps: int
    interrupted: str  # the signal that stopped it early, such as SIGINT; empty if none did
    finished: bool  # whether held-out tasks said that it was done (--stop-after, --kl-budget)
    before: HeldOut | HeldOutReward | None  # where there are held-out tasks
    after: HeldOut | HeldOutReward | None  # of the last evaluation within the budget of KL, where there is one


def run(
    config: RL,
    algorithm: OnlineAlgorithm,
    *,
    output: Path | None = None,
    resume: Path | None = None,
    quiet: bool = False,
) -> RLResult:
    """Train a policy in a new run directory, or go on with the run in `resume`."""
    parts = _prepare(config, algorithm, resume)
    setup, policy, optimizer = parts.setup, parts.setup.policy, parts.optimizer
    critic, reference = parts.critic, parts.reference
    directory, step, state, notes = _open(config, algorithm, parts, output, resume)
    announce(machine_line(directory.environment), quiet=quiet)
    setup.environment.reward.restore(state["unbounded"])
    draws, knobs = state["draws"], asdict(algorithm)
    alone = _warmup_of_critic(algorithm)
    algorithm = replace(algorithm, **state["adapted"])
    with (
        directory,
        TIME_LIMITS.kept_in(directory.path / "timeouts.jsonl"),
        stop_requests() as stop,
        Progress("rl", config.steps, start=step, quiet=quiet) as progress,
    ):
        for note in notes:
            progress.say(note)
        sampler = setup.sampler(config, progress.tokens)

        def accepts(rewards: Sequence[float]) -> bool:
            return algorithm.accepts(torch.tensor(rewards))

        def shaped(group: Group) -> Group:
            return shortened(group, config.length_penalty, config.max_new_tokens)

        if config.eval_every and step == 0:
            directory.log_metrics(0, _examine(config, parts, directory, 0, progress))

        finished = _finished(config, parts, directory, step)
        while step < config.steps and not stop.requested and not finished:
            began = time.perf_counter()
            with progress.phase("rollout") as rollout:
                rolled = sampler.roll_out(draws, accepts, shaped, max_refills=config.max_refills)
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
                microbatch_tokens=config.microbatch_tokens,
                temperature=config.temperature,
            )
            lr = learning_rate(
                max(0, step - alone),
                steps=config.steps - alone,
                peak=config.lr,
                warmup=config.warmup_steps,
                decay=config.decay,
            )
            with progress.phase("update"), kept_batch(step + 1, batch.examples, directory.path, directory.checkpoints):
                if critic and isinstance(algorithm, ActorCritic) and step < alone:
                    metrics |= critic_step(critic, algorithm, batch, microbatch_tokens=config.microbatch_tokens)
                else:
                    with policy.model.dropping(seed_for(config.seed, "dropout", step)):
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
                    algorithm = algorithm if batch.kl is None else algorithm.adapted(batch.kl)
            metrics |= rollout_metrics(rolled.sampled, setup.environment.outcome) | {"lr": lr}
            metrics |= {"groups/thrown_away": rolled.thrown_away} | (
                {"groups/lost": rolled.lost} if rolled.lost else {}
            )
            metrics |= rollout_cost(began, sampled, rollout.tokens)
            step += 1
            last = step == config.steps
            if reference and config.renew_reference and step % config.renew_reference == 0:
                reference.renew(dict(policy.model.trainable()))
            if config.eval_every and (step % config.eval_every == 0 or last):
                metrics |= _examine(config, parts, directory, step, progress)
            directory.log_metrics(step, metrics)
            directory.log_samples(step, samples_of(rolled.sampled, per_group=1))
            progress.step(step, **{name: metrics[key] for name, key in HEADLINE.items() if key in metrics})
            score = goodness(metrics, config.kl_budget, chosen_by(setup))
            evaluated = PREFIX + "reward" in metrics
            if step % config.save_every == 0 or evaluated or last or stop.requested:
                behind = reference.kept() if reference and config.renew_reference else None
                save = writer(policy.save, optimizer, critic.optimizer if critic else None, behind)
                adapted = {name: value for name, value in asdict(algorithm).items() if value != knobs[name]}
                state = {"draws": draws, "adapted": adapted, "unbounded": setup.environment.reward.unbounded}
                checkpoint.save(directory.checkpoints, step, save, state, keep_last=config.keep_last, score=score)
            finished = _finished(config, parts, directory, step)
        if finished and step < config.steps:
            progress.say(f"stopped after step {step}: {finished}")
        done = finished or step == config.steps
        if config.kl_budget and done and checkpoint.best(directory.checkpoints) is None:
            progress.say(
                "no evaluation after a step was within --kl-budget, so there is no best checkpoint; evaluate "
                "more often with --eval-every, or learn more slowly with --lr"
            )
    written = directory.read()
    write_report(written)
    before, after = held_out(row for row in written.metrics if not past_budget(row, config.kl_budget))
    return RLResult(directory.path, step, stop.cause if step < config.steps else "", bool(finished), before, after)


@dataclass(frozen=True)
class _Parts:
    setup: Setup
    optimizer: MasterAdamW
    reference: FrozenCopy | AdapterOff | FrozenAdapter | None
    start: FrozenCopy | AdapterOff | FrozenAdapter | None  # the policy before training, where the distance is told
    critic: TrainedCritic | None
    pretraining: list[str]
    model: str  # where the policy was loaded from
    notes: tuple[str, ...]  # what to tell the user


def _prepare(config: RL, algorithm: OnlineAlgorithm, resume: Path | None) -> _Parts:
    """Load everything; whatever is wrong with the options shows here, before anything is written."""
    _check(config, algorithm)
    enough(algorithm, config.completions_per_prompt)
    saved = began_from(config.model, resume)
    setup = set_up(config, saved.where, where=lambda name: saved_model(name).where)
    model = setup.policy.model
    optimizer = optimizer_for(config, model.trainable(), embedding=model.embedding)
    reference = reference_for(model, renewed=config.renew_reference > 0) if algorithm.needs_reference else None
    stays = reference if not config.renew_reference else None
    start = (stays or reference_for(model)) if setup.gold or config.kl_budget else None
    critic = _critic(config, setup.policy) if isinstance(algorithm, ActorCritic) else None
    pretraining: list[str] = []
    if algorithm.pretraining_weight:
        pretraining = [
            text for text in load_texts(config.pretraining_dataset, seed=config.seed) if len(text.split()) > 1
        ]
        if not pretraining:
            raise UserError(f"no text in {config.pretraining_dataset} has two words or more; there is nothing to learn")
    notes = (*saved.notes(), *setup.notes, *unreached(config.warmup_steps, config.steps))
    return _Parts(setup, optimizer, reference, start, critic, pretraining, saved.where, notes)


def _finished(config: RL, parts: _Parts, directory: RunDirectory, step: int) -> str:
    """Why training on would only game the reward, by what the last evaluations found; "" where it would not."""
    if not (config.stop_after or config.kl_budget) or step % config.eval_every:
        return ""
    rows = directory.read().metrics
    if rows and past_budget(rows[-1], config.kl_budget):
        return f"{rows[-1][PREFIX + KL]:.1f} nats from where it began (--kl-budget {config.kl_budget:g})"
    if past_best(rows, config.stop_after, chosen_by(parts.setup)):
        return f"no better for {config.stop_after} evaluations (--stop-after)"
    return ""


def _examine(config: RL, parts: _Parts, directory: RunDirectory, step: int, progress: Progress) -> dict[str, float]:
    """What the policy is worth on the held-out tasks and, with gold rewards or a budget of KL, how far it has gone."""
    with progress.phase("evaluation"):
        groups = heldout_groups(parts.setup, config, progress.tokens)
        directory.log_heldout(step, samples_of(groups, per_group=1))
        found = heldout_metrics(parts.setup, groups)
        if parts.start:
            found[PREFIX + KL] = distance(groups, parts.start, microbatch_tokens=config.microbatch_tokens)
    return found


def _critic(config: RL, policy: Policy) -> TrainedCritic:
    made = CRITICS[config.critic](policy.model)
    optimizer = MasterAdamW(
        made.parameters(),
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        moment_bits=OPTIMIZERS[config.optim],
        embedding=made.embedding,
    )
    return TrainedCritic(made, optimizer, config.critic_lr)


def _texts(config: RL, parts: _Parts, step: int) -> list[Example]:
    """The pretraining texts of a step, each cut at what a prompt may have; all of it but the first token is learned."""
    if not parts.pretraining:
        return []
    model, chat = parts.setup.policy.model, parts.setup.policy.chat
    most = min(config.max_prompt_tokens, model.context, config.microbatch_tokens)
    seed = seed_for(config.seed, "pretraining")
    chosen = batch_indices(len(parts.pretraining), config.pretraining_per_step, step, seed)
    texts = [chat.text_ids(parts.pretraining[i])[:most] for i in chosen]
    return [Example.whole(ids, (False, *[True] * (len(ids) - 1))) for ids in texts]


def _check(config: RL, algorithm: OnlineAlgorithm) -> None:
    check_settings(
        config,
        counts=("steps", "updates_per_step", "pretraining_per_step", *COUNTS),
        zero_or_more=("max_refills", "length_penalty", "importance_cap", "renew_reference", "eval_every"),
    )
    check_sampling(config)
    check_evaluations(config)
    if not 0 <= config.kl_budget < math.inf or (config.kl_budget and not config.eval_every):
        raise UserError("--kl-budget is read on held-out tasks, and must be 0 or more; give --eval-every too")
    if not 0 < config.critic_lr < math.inf:
        raise UserError(f"--critic-lr must be above 0; got {config.critic_lr}")
    if config.critic not in CRITICS:
        raise unknown("critic", config.critic, CRITICS)
    if isinstance(algorithm, ActorCritic):
        if algorithm.critic_warmup >= config.steps:
            raise UserError(
                f"in all {config.steps} steps the critic would learn alone; type --steps above "
                f"{algorithm.critic_warmup}, or a smaller --critic-warmup-steps"
            )
    elif (config.critic, config.critic_lr) != (RL.critic, RL.critic_lr):
        raise UserError(f"{config.algorithm} has no critic; leave out --critic and --critic-lr")
    if config.renew_reference and not algorithm.needs_reference:
        raise UserError(f"{config.algorithm} has no reference with these knobs; leave out --renew-reference")
    if config.length_penalty and (algorithm.needs_greedy or algorithm.states):
        raise UserError(
            f"{config.algorithm} compares with completions that are not penalised; leave out --length-penalty"
        )
    if bool(config.pretraining_dataset) != bool(algorithm.pretraining_weight):
        raise UserError(
            f"{config.algorithm} learns from text beside; name it with --pretraining-dataset"
            if algorithm.pretraining_weight
            else f"{config.algorithm} learns from no text; leave out --pretraining-dataset, or type --algorithm ppo-ptx"
        )


def _open(
    config: RL, algorithm: OnlineAlgorithm, parts: _Parts, output: Path | None, resume: Path | None
) -> tuple[RunDirectory, int, dict[str, Any], tuple[str, ...]]:
    """The run directory, new or gone on with, step and state to go on from, and what to tell the user."""
    settings = asdict(config) | {"knobs": asdict(algorithm)}
    model = parts.setup.policy.model
    about = compute_of(model, config.precision)
    about |= {"model": parts.model, "steps": config.steps, "judges": parts.setup.judges}
    about["data"] = digests(settings)
    if resume is None:
        return RunDirectory.create(output, "rl", settings, environment=about), 0, _FRESH, parts.notes
    parts.setup.refuse_other_judges(read_run(resume).environment.get("judges", {}))
    directory = RunDirectory.resume(resume, settings, may_differ=("steps", "stop_after"), environment=about)
    found = restore_latest(
        directory.checkpoints, parts.optimizer, None if parts.critic is None else parts.critic.optimizer
    )
    if parts.reference and config.renew_reference:
        parts.reference.renew(checkpoint.load_tensors(found.path / REFERENCE))
    directory.rewind(found.step)
    alone = _warmup_of_critic(algorithm)
    changed = rescheduled(
        directory.before.get("steps", config.steps) - alone,
        config.steps - alone,
        found.step - alone,
        peak=config.lr,
        warmup=config.warmup_steps,
        decay=config.decay,
    )
    return directory, found.step, _FRESH | found.state, (*parts.notes, *found.skipped, *changed)


def _warmup_of_critic(algorithm: OnlineAlgorithm) -> int:
    """Steps in which the policy stays, and the critic learns alone."""
    return algorithm.critic_warmup if isinstance(algorithm, ActorCritic) else 0
