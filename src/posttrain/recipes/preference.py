"""Preference optimisation: learn from what people said of responses, without a reward model.

    posttrain preference --dataset pairs.jsonl
    posttrain preference --dataset train.jsonl --eval-share 0.1 --algorithm dpo --beta 0.1 --lora-rank 16 --lr 1e-5
    posttrain preference --dataset thumbs.jsonl --algorithm kto

Most algorithms learn from pairs, of which one response was chosen; kto learns from single responses, each good or bad,
and takes pairs as well. The prompt of a pair is computed once for both. What differs between algorithms is in
`algorithms/`, one file each. Pairs that the policy itself samples are `iterate.py`'s.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from posttrain.algorithms.algorithm import PreferenceAlgorithm, UnpairedAlgorithm
from posttrain.data.digests import digests
from posttrain.data.order import batch_indices, seed_for
from posttrain.data.packing import Example
from posttrain.models.gradient_checkpointing import checkpoint_layers
from posttrain.models.lora import lora_of
from posttrain.models.precision import compute_of
from posttrain.models.reference import reference_for
from posttrain.monitoring import Progress, RunDirectory, announce, machine_line, write_report
from posttrain.monitoring.cost import step_cost
from posttrain.rollouts.policy import Policy, load_policy
from posttrain.training import checkpoint, feedback, pair_options
from posttrain.training.failure import kept_batch
from posttrain.training.feedback import Feedback, Units
from posttrain.training.interrupt import stop_requests
from posttrain.training.learner import Learner, feedback_for, learner_for, needs_only_logprobs
from posttrain.training.optimizer import MasterAdamW, optimizer_for
from posttrain.training.pair_options import PairOptions
from posttrain.training.remembered import remember
from posttrain.training.saved import began_from
from posttrain.training.schedule import learning_rate, rescheduled
from posttrain.training.state import restore_latest, writer


@dataclass(frozen=True)
class Preferences(PairOptions):
    """Train a policy on preferences. On pairs of its own completions: posttrain preference --iterate 1 --help."""

    algorithm: str = "dpo"
    """Which algorithm; `posttrain algorithms` lists them, `posttrain explain NAME` tells all about one."""


@dataclass(frozen=True)
class PreferencesResult:
    """Where a finished or interrupted run is, and what it found."""

    run: Path
    steps: int
    interrupted: str  # the signal that stopped it early, such as SIGINT; empty if none did
    pairs: int  # or judged rows
    dropped: int  # those that were too long
    before: dict[str, float] | None  # loss, accuracy and so on of the held-out pairs, where there are any
    after: dict[str, float] | None


def run(
    config: Preferences,
    algorithm: PreferenceAlgorithm | UnpairedAlgorithm,
    *,
    output: Path | None = None,
    resume: Path | None = None,
    quiet: bool = False,
) -> PreferencesResult:
    """Train a policy in a new run directory, or go on with the run in `resume`."""
    parts = _prepare(config, algorithm, resume)
    policy, optimizer, units = parts.policy, parts.optimizer, parts.units
    directory = _open(config, algorithm, parts, output, resume)
    announce(machine_line(directory.environment), quiet=quiet)
    learner = _learner(config, algorithm, parts, quiet)
    step, notes = (0, parts.notes) if resume is None else _restore(config, directory, parts)
    with directory, stop_requests() as stop, Progress("preference", units.steps, start=step, quiet=quiet) as progress:
        for note in notes:
            progress.say(note)
        if units.heldout and step == 0:
            directory.log_metrics(0, _heldout(parts, learner, progress))

        while step < units.steps and not stop.requested:
            began = time.perf_counter()
            batch = _batch(config, parts, step)
            sequences = _sequences(parts, batch)
            lr = learning_rate(step, steps=units.steps, peak=config.lr, warmup=config.warmup_steps, decay=config.decay)
            with (
                progress.phase("update"),
                kept_batch(step + 1, sequences, directory.path, directory.checkpoints),
                policy.model.dropping(seed_for(config.seed, "dropout", step)),
            ):
                metrics = learner.step(batch, lr)
            metrics |= step_cost(began, sum(len(example.continuation) for example in sequences)) | {"lr": lr}
            step += 1
            last = step == units.steps
            if units.heldout and (last or (config.eval_every and step % config.eval_every == 0)):
                metrics |= _heldout(parts, learner, progress)
            directory.log_metrics(step, metrics)
            progress.step(step, loss=metrics["loss"], accuracy=metrics["accuracy"])
            if step % config.save_every == 0 or "evaluation/accuracy" in metrics or last or stop.requested:
                save = writer(policy.save, optimizer)
                score = metrics.get("evaluation/accuracy")
                checkpoint.save(directory.checkpoints, step, save, {}, keep_last=config.keep_last, score=score)
    done = directory.read()
    write_report(done)
    cause = stop.cause if step < units.steps else ""
    before, after = pair_options.heldout_of(done.metrics)
    return PreferencesResult(directory.path, step, cause, len(units.learned), units.dropped, before, after)


@dataclass(frozen=True)
class _Parts:
    feedback: Feedback[Any, Any]
    units: Units[Any]
    policy: Policy
    optimizer: MasterAdamW
    model: str  # where the policy was loaded from
    notes: tuple[str, ...]  # what to tell the user


def _prepare(config: Preferences, algorithm: PreferenceAlgorithm | UnpairedAlgorithm, resume: Path | None) -> _Parts:
    """Load everything; whatever is wrong with the options shows here, before anything is written."""
    pair_options.check(config)
    kind = feedback_for(algorithm)
    sides = feedback.read(config, kind)
    saved = began_from(config.model, resume)
    policy = load_policy(
        saved.where,
        precision=config.precision,
        chat_template=config.chat_template,
        lora=lora_of(config),
        seed=config.seed,
    )
    units = feedback.tokenize(config, kind, sides, policy.chat, policy.model.context)
    if config.gradient_checkpointing:
        checkpoint_layers(policy.model.network)
    optimizer = optimizer_for(config, policy.model.trainable(), embedding=policy.model.embedding)
    return _Parts(kind, units, policy, optimizer, saved.where, (*saved.notes(), *units.notes))


def _batch(config: Preferences, parts: _Parts, step: int) -> list[Any]:
    """The units of a step."""
    units = parts.units.learned
    return [units[i] for i in batch_indices(len(units), config.pairs_per_step, step, config.seed)]


def _sequences(parts: _Parts, units: Sequence[Any]) -> list[Example]:
    return [example for unit in units for example in parts.feedback.sequences(unit)]


def _learner(
    config: Preferences, algorithm: PreferenceAlgorithm | UnpairedAlgorithm, parts: _Parts, quiet: bool
) -> Learner:
    """How the algorithm learns, beside the policy as it is now, before any update.

    Where all weights are trained, what the reference says of every response is taken first, if that is all that is
    needed of it: no second model is held then. Under an adapter the base is at hand.
    """
    model, reference = parts.policy.model, None
    if algorithm.needs_reference and model.adapter is None and needs_only_logprobs(algorithm):
        heldout = [parts.units.heldout] if parts.units.heldout else []
        batches = chain((_batch(config, parts, step) for step in range(parts.units.steps)), heldout)
        with Progress("reference", parts.units.steps + len(heldout), quiet=quiet) as progress:
            reference = remember(
                model,
                (_sequences(parts, batch) for batch in batches),
                microbatch_tokens=config.microbatch_tokens,
                together=2,
                on_batch=progress.step,
            )
    elif algorithm.needs_reference:
        reference = reference_for(model)
    return learner_for(algorithm, model, parts.optimizer, reference, microbatch_tokens=config.microbatch_tokens)


def _open(
    config: Preferences,
    algorithm: PreferenceAlgorithm | UnpairedAlgorithm,
    parts: _Parts,
    output: Path | None,
    resume: Path | None,
) -> RunDirectory:
    """The run directory, new or gone on with."""
    settings = asdict(config) | {"knobs": asdict(algorithm)}
    about = compute_of(parts.policy.model, config.precision) | {"model": parts.model, "steps": parts.units.steps}
    about["data"] = digests(settings)
    if resume is None:
        return RunDirectory.create(output, "preference", settings, environment=about)
    return RunDirectory.resume(resume, settings, may_differ=("steps", "epochs"), environment=about)


def _restore(config: Preferences, directory: RunDirectory, parts: _Parts) -> tuple[int, tuple[str, ...]]:
    """Put the newest checkpoint in place: the step to go on from, and what to tell the user."""
    found = restore_latest(directory.checkpoints, parts.optimizer)
    directory.rewind(found.step)
    changed = rescheduled(
        directory.before.get("steps"),
        parts.units.steps,
        found.step,
        peak=config.lr,
        warmup=config.warmup_steps,
        decay=config.decay,
    )
    return found.step, (*parts.notes, *found.skipped, *changed)


def _heldout(parts: _Parts, learner: Learner, progress: Progress) -> dict[str, float]:
    with progress.phase("evaluation"):
        found = learner.judge(parts.units.heldout)
    return {f"evaluation/{name}": value for name, value in found.items()} | {
        "evaluation/pairs": len(parts.units.heldout)
    }
