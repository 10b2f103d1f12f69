"""Iterated preference optimisation: the policy samples, a reward judges, pairs are made of that, and it learns; again.

    posttrain preference --iterate 20 --dataset gym:chain_sum
    posttrain preference --iterate 5 --updates-per-round 8 --warmup-steps 0 --dataset train.jsonl --reward numbers

Online DPO is the limit of one update a round (Guo et al. 2024, https://arxiv.org/abs/2402.04792), iterated DPO has many
(Xiong et al. 2023, https://arxiv.org/abs/2312.11456; Dong et al. 2024, https://arxiv.org/abs/2405.07863). The pairs are
the tokens that were sampled, never encoded again. A round is a step of the run: its checkpoints lie between rounds.
Left out: algorithms that learn from single responses.
"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from posttrain.algorithms.algorithm import PreferenceAlgorithm, UnpairedAlgorithm
from posttrain.data import Pair, batch_indices, seed_for
from posttrain.data.digests import digests
from posttrain.errors import UserError, unknown
from posttrain.evaluation.heldout import (
    HeldOut,
    HeldOutReward,
    chosen_by,
    goodness,
    held_out,
    heldout_groups,
    heldout_metrics,
)
from posttrain.models.precision import compute_of
from posttrain.models.reference import AdapterOff, FrozenAdapter, FrozenCopy, reference_for
from posttrain.monitoring import Progress, RunDirectory, announce, machine_line, read_run, write_report
from posttrain.monitoring.cost import rollout_cost
from posttrain.monitoring.samples import samples_of
from posttrain.rewards import TIME_LIMITS
from posttrain.rollouts.measures import HEADLINE, rollout_metrics
from posttrain.rollouts.options import COUNTS, OnlineOptions, check_evaluations, check_sampling
from posttrain.rollouts.setup import Setup, set_up
from posttrain.training import checkpoint
from posttrain.training.failure import kept_batch
from posttrain.training.interrupt import stop_requests
from posttrain.training.learner import Learner, learner_for
from posttrain.training.optimizer import MasterAdamW, optimizer_for
from posttrain.training.pairing import PAIRINGS, pairs_of
from posttrain.training.pairwise import examples_of
from posttrain.training.saved import began_from, saved_model
from posttrain.training.schedule import learning_rate, rescheduled, unreached
from posttrain.training.settings import check_settings
from posttrain.training.state import REFERENCE, restore_latest, writer


@dataclass(frozen=True)
class Iterated(OnlineOptions):
    """Train a policy on pairs of its own completions."""

    algorithm: str = "dpo"
    """Which algorithm; `posttrain algorithms` lists them, `posttrain explain NAME` tells all about one."""
    iterate: int = 20
    """Rounds of sampling, pairing and learning."""
    updates_per_round: int = 1
    """Updates on the pairs of a round; with one, each learns from what the policy is now: online."""
    pairs_per_step: int = 16
    """Pairs in an update, if the round has as many."""
    pairing: str = "best-worst"
    """Which completions of a prompt make pairs: best-worst, or all of which one earned more."""
    margin: float = 0.0
    """Leave out pairs whose rewards differ by less."""
    renew_reference: int = 0
    """Every so many rounds the reference becomes the policy as it is then; 0: it stays the policy before training."""
    lr: float = 1e-6
    """Peak learning rate, reached over the first --warmup-steps rounds. LoRA usually needs about ten times as much."""


@dataclass(frozen=True)
class IteratedResult:
    """Where a finished or interrupted run is, and what it found."""

    run: Path
    steps: int  # rounds
    interrupted: str  # the signal that stopped it early, such as SIGINT; empty if none did
    before: HeldOut | HeldOutReward | None  # where there are held-out tasks
    after: HeldOut | HeldOutReward | None


def run(
    config: Iterated,
    algorithm: PreferenceAlgorithm | UnpairedAlgorithm,
    *,
    output: Path | None = None,
    resume: Path | None = None,
    quiet: bool = False,
) -> IteratedResult:
    """Train a policy in a new run directory, or go on with the run in `resume`."""
    parts = _prepare(config, algorithm, resume)
    setup, policy, optimizer, reference = parts.setup, parts.setup.policy, parts.optimizer, parts.reference
    directory, step, notes = _open(config, algorithm, parts, output, resume)
    announce(machine_line(directory.environment), quiet=quiet)
    with (
        directory,
        TIME_LIMITS.kept_in(directory.path / "timeouts.jsonl"),
        stop_requests() as stop,
        Progress("preference", config.iterate, start=step, quiet=quiet) as progress,
    ):
        for note in notes:
            progress.say(note)
        sampler = setup.sampler(config, progress.tokens)
        if config.eval_every and step == 0:
            directory.log_metrics(0, _examine(config, setup, directory, 0, progress))

        told = False
        while step < config.iterate and not stop.requested:
            began = time.perf_counter()
            with progress.phase("rollout") as rollout:
                rolled = sampler.roll_out(step)
            sampled = time.perf_counter()
            pairs = pairs_of(rolled.groups, config.pairing, margin=config.margin)
            lr = learning_rate(
                step, steps=config.iterate, peak=config.lr, warmup=config.warmup_steps, decay=config.decay
            )
            metrics: dict[str, float] = {}
            with (
                progress.phase("update"),
                kept_batch(step + 1, examples_of(pairs), directory.path, directory.checkpoints),
            ):
                for update, batch in enumerate(_batches(config, pairs, step)):
                    with policy.model.dropping(seed_for(config.seed, "dropout", step, update)):
                        found = parts.learner.step(batch, lr)
                    for name, value in found.items():
                        metrics[name] = metrics.get(name, 0.0) + value / config.updates_per_round
            if not pairs and not told:
                told = True
                progress.say("no pairs in this round: no prompt has completions that earned enough more than others")
            metrics |= {f"pairs/{name}": metrics.pop(name) for name in ("accuracy", "margin") if name in metrics}
            metrics |= rollout_metrics(rolled.sampled, setup.environment.outcome) | {"lr": lr, "pairs/made": len(pairs)}
            metrics |= rollout_cost(began, sampled, rollout.tokens)
            step += 1
            last = step == config.iterate
            if reference and config.renew_reference and step % config.renew_reference == 0:
                reference.renew(dict(policy.model.trainable()))
            if config.eval_every and (step % config.eval_every == 0 or last):
                metrics |= _examine(config, setup, directory, step, progress)
            directory.log_metrics(step, metrics)
            directory.log_samples(step, samples_of(rolled.sampled, per_group=1))
            progress.step(step, **{name: metrics[key] for name, key in HEADLINE.items() if key in metrics})
            score = goodness(metrics, by=chosen_by(setup))
            if step % config.save_every == 0 or score is not None or last or stop.requested:
                kept = reference.kept() if reference and config.renew_reference else None
                save = writer(policy.save, optimizer, reference=kept)
                state = {"unbounded": setup.environment.reward.unbounded}
                checkpoint.save(directory.checkpoints, step, save, state, keep_last=config.keep_last, score=score)
    done = directory.read()
    write_report(done)
    before, after = held_out(done.metrics)
    return IteratedResult(directory.path, step, stop.cause if step < config.iterate else "", before, after)


def _batches(config: Iterated, pairs: list[Pair], step: int) -> list[list[Pair]]:
    """What each update of a round learns from; nothing where there are no pairs."""
    if not pairs:
        return []
    size, seed = min(config.pairs_per_step, len(pairs)), seed_for(config.seed, "round", step)
    updates = range(config.updates_per_round)
    return [[pairs[i] for i in batch_indices(len(pairs), size, update, seed)] for update in updates]


@dataclass(frozen=True)
class _Parts:
    setup: Setup
    optimizer: MasterAdamW
    reference: FrozenCopy | AdapterOff | FrozenAdapter | None
    learner: Learner
    model: str  # where the policy was loaded from
    notes: tuple[str, ...]  # what to tell the user


def _examine(
    config: Iterated, setup: Setup, directory: RunDirectory, step: int, progress: Progress
) -> dict[str, float]:
    """What the policy is worth on the held-out tasks."""
    with progress.phase("evaluation"):
        groups = heldout_groups(setup, config, progress.tokens)
        directory.log_heldout(step, samples_of(groups, per_group=1))
        return heldout_metrics(setup, groups)


def _prepare(config: Iterated, algorithm: PreferenceAlgorithm | UnpairedAlgorithm, resume: Path | None) -> _Parts:
    """Load everything; whatever is wrong with the options shows here, before anything is written."""
    check_settings(
        config,
        counts=("iterate", "updates_per_round", "pairs_per_step", *COUNTS),
        zero_or_more=("margin", "renew_reference", "eval_every"),
    )
    check_sampling(config)
    check_evaluations(config)
    if config.stop_after:
        raise UserError("--stop-after is for posttrain rl; rounds are as many as --iterate says")
    if isinstance(algorithm, UnpairedAlgorithm):
        raise UserError(f"{config.algorithm} learns from single responses; --iterate makes pairs: type --algorithm dpo")
    if config.renew_reference and not algorithm.needs_reference:
        raise UserError(f"{config.algorithm} has no reference with these knobs; leave out --renew-reference")
    if config.pairing not in PAIRINGS:
        raise unknown("pairing", config.pairing, PAIRINGS)
    if config.completions_per_prompt < 2:
        raise UserError(
            f"a pair needs two completions of a prompt; type --completions-per-prompt 2 or more, not "
            f"{config.completions_per_prompt}"
        )
    saved = began_from(config.model, resume)
    setup = set_up(config, saved.where, together=2, where=lambda name: saved_model(name).where)
    model = setup.policy.model
    optimizer = optimizer_for(config, model.trainable(), embedding=model.embedding)
    reference = reference_for(model, renewed=config.renew_reference > 0) if algorithm.needs_reference else None
    learner = learner_for(algorithm, model, optimizer, reference, microbatch_tokens=config.microbatch_tokens)
    notes = (*saved.notes(), *setup.notes, *unreached(config.warmup_steps, config.iterate))
    return _Parts(setup, optimizer, reference, learner, saved.where, notes)


def _open(
    config: Iterated, algorithm: Any, parts: _Parts, output: Path | None, resume: Path | None
) -> tuple[RunDirectory, int, tuple[str, ...]]:
    """The run directory, new or gone on with, the round to go on from, and what to tell the user."""
    settings = asdict(config) | {"knobs": asdict(algorithm)}
    model = parts.setup.policy.model
    about = compute_of(model, config.precision)
    about |= {"model": parts.model, "steps": config.iterate, "judges": parts.setup.judges}
    about["data"] = digests(settings)
    if resume is None:
        return RunDirectory.create(output, "preference", settings, environment=about), 0, parts.notes
    parts.setup.refuse_other_judges(read_run(resume).environment.get("judges", {}))
    directory = RunDirectory.resume(resume, settings, may_differ=("iterate",), environment=about)
    found = restore_latest(directory.checkpoints, parts.optimizer)
    if parts.reference and config.renew_reference:
        parts.reference.renew(checkpoint.load_tensors(found.path / REFERENCE))
    directory.rewind(found.step)
    parts.setup.environment.reward.restore(found.state.get("unbounded", {}))
    before = directory.before.get("steps")
    knobs = {"peak": config.lr, "warmup": config.warmup_steps, "decay": config.decay}
    changed = rescheduled(before, config.iterate, found.step, **knobs)
    return directory, found.step, (*parts.notes, *found.skipped, *changed)
