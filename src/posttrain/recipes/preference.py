"""Preference optimisation: learn from pairs which of two responses people chose, without a reward model.

    posttrain preference --dataset pairs.jsonl
    posttrain preference --dataset train.jsonl --eval-share 0.1 --algorithm dpo --beta 0.1 --lora-rank 16 --lr 1e-5

The prompt of a pair is computed once for both responses. What differs between algorithms is in `algorithms/`, one file
each. Left out so far: pairs that the policy itself samples (iterated and online DPO), and unpaired feedback.
"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from posttrain.algorithms.algorithm import PreferenceAlgorithm
from posttrain.data.order import batch_indices
from posttrain.models.reference import reference_for
from posttrain.monitoring import Progress, RunDirectory, write_report
from posttrain.monitoring.cost import step_cost
from posttrain.rollouts.policy import Policy, load_policy
from posttrain.training import checkpoint, pair_options
from posttrain.training.failure import kept_batch
from posttrain.training.interrupt import stop_requests
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.pair_options import PairOptions, Pairs
from posttrain.training.pairwise import PairLossOf, examples_of, pairwise_loss, pairwise_step, preference_loss
from posttrain.training.saved import saved_model
from posttrain.training.schedule import learning_rate
from posttrain.training.state import restore_latest, writer


@dataclass(frozen=True)
class Preferences(PairOptions):
    """Train a policy on preferences."""

    algorithm: str = "dpo"
    """Which algorithm; `posttrain algorithms` lists them, `posttrain explain NAME` tells all about one."""
    lora_rank: int = 0
    """Train an adapter of this rank instead of all weights; 0: all weights."""


@dataclass(frozen=True)
class PreferencesResult:
    """Where a finished or interrupted run is, and what it found."""

    run: Path
    steps: int
    interrupted: str  # the signal that stopped it early, such as SIGINT; empty if none did
    pairs: int
    dropped: int  # pairs that were too long
    before: dict[str, float] | None  # loss, accuracy and so on of the held-out pairs, where there are any
    after: dict[str, float] | None


def run(
    config: Preferences,
    algorithm: PreferenceAlgorithm,
    *,
    output: Path | None = None,
    resume: Path | None = None,
    quiet: bool = False,
) -> PreferencesResult:
    """Train a policy in a new run directory, or go on with the run in `resume`."""
    parts = _prepare(config, algorithm)
    policy, optimizer, pairs = parts.policy, parts.optimizer, parts.pairs
    directory, step, notes = _open(config, algorithm, parts, output, resume)
    with directory, stop_requests() as stop, Progress("preference", pairs.steps, start=step, quiet=quiet) as progress:
        for note in notes:
            progress.say(note)
        if pairs.heldout and step == 0:
            directory.log_metrics(0, _heldout(config, parts, progress))

        while step < pairs.steps and not stop.requested:
            began = time.perf_counter()
            batch = [
                pairs.learned[i] for i in batch_indices(len(pairs.learned), config.pairs_per_step, step, config.seed)
            ]
            sequences = examples_of(batch)
            lr = learning_rate(step, steps=pairs.steps, peak=config.lr, warmup=config.warmup_steps, decay=config.decay)
            with progress.phase("update"), kept_batch(step + 1, sequences, directory.path, directory.checkpoints):
                metrics = pairwise_step(
                    optimizer, batch, parts.loss_of, lr=lr, microbatch_tokens=config.microbatch_tokens
                )
            metrics |= step_cost(began, sum(len(example.continuation) for example in sequences)) | {"lr": lr}
            step += 1
            last = step == pairs.steps
            if pairs.heldout and (last or (config.eval_every and step % config.eval_every == 0)):
                metrics |= _heldout(config, parts, progress)
            directory.log_metrics(step, metrics)
            progress.step(step, loss=metrics["loss"], accuracy=metrics["accuracy"])
            if step % config.save_every == 0 or "evaluation/accuracy" in metrics or last or stop.requested:
                save = writer(policy.save, optimizer)
                score = metrics.get("evaluation/accuracy")
                checkpoint.save(directory.checkpoints, step, save, {}, keep_last=config.keep_last, score=score)
    done = directory.read()
    write_report(done)
    cause = stop.cause if step < pairs.steps else ""
    before, after = pair_options.heldout_of(done.metrics)
    return PreferencesResult(directory.path, step, cause, len(pairs.learned), pairs.dropped, before, after)


@dataclass(frozen=True)
class _Parts:
    pairs: Pairs
    policy: Policy
    optimizer: MasterAdamW
    loss_of: PairLossOf
    notes: tuple[str, ...]  # what to tell the user


def _prepare(config: Preferences, algorithm: PreferenceAlgorithm) -> _Parts:
    """Load everything; whatever is wrong with the options shows here, before anything is written."""
    pair_options.check(config, lora_rank=config.lora_rank)
    sides = pair_options.read_preferences(config)
    saved = saved_model(config.model)
    policy = load_policy(saved.where, precision=config.precision, lora_rank=config.lora_rank, seed=config.seed)
    pairs = pair_options.tokenize(config, sides, policy.chat, policy.model.context)
    optimizer = MasterAdamW(
        policy.model.trainable(), weight_decay=config.weight_decay, max_grad_norm=config.max_grad_norm
    )
    reference = reference_for(policy.model) if algorithm.needs_reference else None
    notes = (*saved.notes(), *pairs.notes)
    return _Parts(pairs, policy, optimizer, preference_loss(policy.model, algorithm, reference), notes)


def _open(
    config: Preferences, algorithm: PreferenceAlgorithm, parts: _Parts, output: Path | None, resume: Path | None
) -> tuple[RunDirectory, int, tuple[str, ...]]:
    """The run directory, new or gone on with, the step to go on from, and what to tell the user."""
    settings = asdict(config) | {"knobs": asdict(algorithm)}
    about = {"device": str(parts.policy.model.device), "precision": str(parts.policy.model.dtype)}
    if resume is None:
        return RunDirectory.create(output, "preference", settings, environment=about), 0, parts.notes
    directory = RunDirectory.resume(resume, settings, may_differ=("steps", "epochs"), environment=about)
    found = restore_latest(directory.checkpoints, parts.optimizer)
    directory.rewind(found.step)
    return directory, found.step, parts.notes + found.skipped


def _heldout(config: Preferences, parts: _Parts, progress: Progress) -> dict[str, float]:
    with progress.phase("evaluation"):
        found = pairwise_loss(parts.pairs.heldout, parts.loss_of, microbatch_tokens=config.microbatch_tokens)
    return {f"evaluation/{name}": value for name, value in found.items()}
