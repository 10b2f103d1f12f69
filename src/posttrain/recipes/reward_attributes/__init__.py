"""A reward model that says why: a head for each attribute that people rated, and a gate that makes one score of them.

    posttrain reward-model --ratings ratings.jsonl --eval-share 0.1 --weights "helpfulness=1 verbosity=-0.4"
    posttrain reward-model --ratings ratings.jsonl --dataset pairs.jsonl --eval-share 0.1 --apart verbosity

The heads learn the ratings by regression; then trunk and heads are held fixed, and the gate learns from pairs what each
attribute counts for after a prompt (Wang et al. 2024, https://arxiv.org/abs/2406.12845). Without pairs the weights are
those that are given. The gate is learned whenever held-out rows are judged after a step, and after the last one; what
is saved between cannot score yet, and is there to go on from. Left out: ratings and pairs of parts of a response.
"""

import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from posttrain.data import ChatFormat, batch_indices, load_tokenizer, seed_for
from posttrain.data.digests import digests
from posttrain.errors import UserError
from posttrain.models.attributes import load_attributes
from posttrain.models.gradient_checkpointing import checkpoint_layers
from posttrain.models.load import tokenizer_of
from posttrain.models.lora import lora_of
from posttrain.models.precision import compute_of, default_device, dtype_of
from posttrain.monitoring import Progress, announce, machine_line, write_report
from posttrain.monitoring.cost import step_cost
from posttrain.monitoring.opening import open_run
from posttrain.recipes.reward_attributes.asked import Attributes, of_these, read, units_of, weights_of
from posttrain.recipes.reward_attributes.mixing import Parts, judge, mix
from posttrain.training import checkpoint, feedback, pair_options
from posttrain.training.attributes import rating_step
from posttrain.training.failure import kept_batch
from posttrain.training.feedback import RANKINGS, RATINGS
from posttrain.training.interrupt import stop_requests
from posttrain.training.optimizer import optimizer_for
from posttrain.training.saved import began_from
from posttrain.training.schedule import learning_rate, rescheduled
from posttrain.training.state import restore_latest, writer

__all__ = ["Attributes", "AttributesResult", "run"]


@dataclass(frozen=True)
class AttributesResult:
    """Where a finished or interrupted run is, and what it found."""

    run: Path
    steps: int
    interrupted: str  # the signal that stopped it early, such as SIGINT; empty if none did
    responses: int  # rated ones that were learned from
    dropped: int  # those that were too long
    attributes: tuple[str, ...]
    before: dict[str, float] | None  # correlation of each attribute, accuracy and so on of what is held out
    after: dict[str, float] | None


def run(
    config: Attributes, *, output: Path | None = None, resume: Path | None = None, quiet: bool = False
) -> AttributesResult:
    """Train a reward model in a new run directory, or go on with the run in `resume`."""
    parts = _prepare(config, resume)
    optimizer, graded, model = parts.optimizer, parts.graded.learned, parts.model
    about = compute_of(model.body, config.precision) | {"model": parts.begun, "steps": parts.graded.steps}
    about["data"] = digests(asdict(config))
    restore = partial(restore_latest, optimizer=optimizer)
    directory, step, skipped = open_run(
        "reward-model", asdict(config), restore, environment=about, output=output, resume=resume
    )
    steps = parts.graded.steps
    announce(machine_line(directory.environment), quiet=quiet)
    changed = rescheduled(
        directory.before.get("steps"), steps, step, peak=config.lr, warmup=config.warmup_steps, decay=config.decay
    )
    with directory, stop_requests() as stop, Progress("reward-model", steps, start=step, quiet=quiet) as progress:
        for note in (*parts.notes, *skipped, *changed):
            progress.say(note)
        if parts.judges and step == 0:
            directory.log_metrics(0, judge(config, parts, progress))

        while step < steps and not stop.requested:
            began = time.perf_counter()
            batch = [graded[i] for i in batch_indices(len(graded), config.pairs_per_step, step, config.seed)]
            sequences = [one.example for one in batch]
            lr = learning_rate(step, steps=steps, peak=config.lr, warmup=config.warmup_steps, decay=config.decay)
            with (
                progress.phase("update"),
                kept_batch(step + 1, sequences, directory.path, directory.checkpoints),
                model.body.dropping(seed_for(config.seed, "dropout", step)),
            ):
                metrics = rating_step(optimizer, model, batch, lr=lr, microbatch_tokens=config.microbatch_tokens)
            metrics |= step_cost(began, sum(len(example.continuation) for example in sequences)) | {"lr": lr}
            step += 1
            last = step == steps
            model.mixture = parts.begins
            if last or (config.eval_every and step % config.eval_every == 0):
                mix(config, parts, progress)
                metrics |= judge(config, parts, progress)
            directory.log_metrics(step, metrics)
            progress.step(step, loss=metrics["loss"])
            score = metrics.get("evaluation/accuracy", metrics.get("evaluation/correlation"))
            if step % config.save_every == 0 or score is not None or last or stop.requested:
                save = writer(parts.save, optimizer)
                checkpoint.save(directory.checkpoints, step, save, {}, keep_last=config.keep_last, score=score)
    done = directory.read()
    write_report(done)
    cause = stop.cause if step < steps else ""
    before, after = pair_options.heldout_of(done.metrics)
    names = model.units.names
    return AttributesResult(directory.path, step, cause, len(graded), parts.graded.dropped, names, before, after)


def _prepare(config: Attributes, resume: Path | None) -> Parts:
    """Load everything; whatever is wrong with the options shows here, before anything is written."""
    _check(config)
    rated, pairs = read(config)
    weights = weights_of(config, {name for one in rated.learned for name in one.ratings})
    rated = of_these(rated, weights.keys())
    saved = began_from(config.model, resume)
    device = default_device()
    model = load_attributes(
        saved.where,
        list(weights),
        list(weights.values()),
        dtype=dtype_of(config.precision, device),
        device=device,
        seed=config.seed,
        width=config.gate_width,
        adapter=lora_of(config),
    )
    chat = ChatFormat(load_tokenizer(tokenizer_of(saved.where), config.chat_template), model.body.stop_ids)
    graded = feedback.tokenize(config, RATINGS, rated, chat, model.body.context)
    model.units = units_of(list(weights), graded.learned)
    alone = replace(config, pairs_per_step=1, warmup_steps=0)  # the gate learns from all pairs at once
    compared = feedback.tokenize(alone, RANKINGS, pairs, chat, model.body.context) if pairs else None
    if config.gradient_checkpointing:
        checkpoint_layers(model.body.network)
    optimizer = optimizer_for(config, model.trainable(), embedding=model.body.embedding)
    told = " ".join(f"{name}={weight:g}" for name, weight in weights.items())
    says = "pairs change that" if pairs else "no pairs say otherwise; give some with --dataset"
    notes = (*saved.notes(), *graded.notes, *(compared.notes if compared else ()), f"weights: {told}; {says}")
    begins = model.mixture._replace(finished=not (pairs or config.apart))
    return Parts(graded, compared, model, begins, chat, optimizer, saved.where, notes)


def _check(config: Attributes) -> None:
    pair_options.check(config, zero_or_more=("gate_width",))
    if not config.ratings:
        raise UserError("say what to learn with --ratings: a file, folder, glob or hub id")
    if config.eval_dataset and not config.dataset:
        raise UserError("--eval-dataset are held-out pairs; give those to learn from, too, with --dataset")
