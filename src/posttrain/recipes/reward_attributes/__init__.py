"""Multi-attribute reward model with a prompt-conditioned gate (ArmoRM).

    posttrain reward-model-attributes --ratings ratings.jsonl --eval-share 0.1 --weights "helpfulness=1 verbosity=-0.4"
    posttrain reward-model-attributes --ratings ratings.jsonl --dataset pairs.jsonl --decorrelate verbosity

The heads learn the ratings by regression; then trunk and heads are held fixed, and the gate learns from pairs what each
attribute counts for after a prompt (Wang et al. 2024, https://arxiv.org/abs/2406.12845). Without pairs the weights are
those that are given. The gate is learned whenever held-out rows are judged after a step, and after the last one; what
is saved between cannot score yet, and is there to go on from. Left out: ratings and pairs of parts of a response.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from posttrain.data import ChatFormat, batch_indices, load_tokenizer, save_for_scores, seed_for
from posttrain.data.digests import digests
from posttrain.data.packing import Ranked
from posttrain.errors import UserError
from posttrain.models.attributes import load_attributes
from posttrain.models.gradient_checkpointing import checkpoint_layers
from posttrain.models.load import tokenizer_of
from posttrain.models.precision import compute_of, default_device, dtype_of
from posttrain.options.option import as_written
from posttrain.planning import Plan, plan_of, unloaded
from posttrain.planning.work import feedback_work
from posttrain.recipes.reward_attributes.data import Attributes, of_these, read, units_of, weights_of
from posttrain.recipes.reward_attributes.gating import Parts, evaluate, mix
from posttrain.session.early_stopping import patience
from posttrain.session.result import RunResult, heldout_of
from posttrain.session.session import Session, open_session
from posttrain.session.training import Evaluations, RunOptions, Training
from posttrain.setup import feedback
from posttrain.setup.feedback import RANKINGS, RATINGS, Sides, Units
from posttrain.setup.lora_options import lora_of
from posttrain.training.attributes import RatingLoss, rated_batch
from posttrain.training.learner import POLICY
from posttrain.training.local_learner import learner_for
from posttrain.training.resolve_model import began_from, precision_of
from posttrain.training.schedule import LearningRate
from posttrain.types import Preference

__all__ = ["Attributes", "AttributesResult", "run"]


@dataclass(frozen=True)
class AttributesResult(RunResult):
    """A run on rated responses."""

    responses: int  # rated ones that were learned from
    dropped: int  # those that were too long
    attributes: tuple[str, ...]
    before: dict[str, float] | None  # correlation of each attribute, accuracy and so on of what is held out
    after: dict[str, float] | None


def run(config: Attributes, **where: Unpack[RunOptions]) -> AttributesResult:
    """Train a reward model in a new run directory, or resume the run in `resume`."""
    parts = _prepare(config, where.get("resume"))
    graded, model, learner = parts.graded, parts.model, parts.learner

    def examine() -> dict[str, float]:
        if session.step:
            mix(config, parts)
        return evaluate(config, parts, session.progress)

    with _open(config, parts, where) as session:
        session.evaluate(examine)
        for step in session.steps():
            chosen = batch_indices(len(graded.learned), config.pairs_per_step, step, config.seed)
            batch = rated_batch([graded.learned[i] for i in chosen], seed=seed_for(config.seed, "dropout", step))
            with session.update(batch.examples):
                metrics = learner.forward_backward(batch, RatingLoss()) | learner.optim_step({POLICY: session.lr})
                model.mixture = parts.begins
            session.finish_step(metrics)
            session.evaluate(examine)
    found, names = heldout_of(session.rows), model.units.names
    return AttributesResult(*session.ended, len(graded.learned), graded.dropped, names, *found)


def _open(config: Attributes, parts: Parts, where: RunOptions) -> AbstractContextManager[Session]:
    def score(row: Mapping[str, float]) -> float | None:
        return row.get("evaluation/accuracy", row.get("evaluation/correlation"))

    steps = parts.graded.steps
    about = compute_of(parts.model.body, config.precision)
    training = Training(
        steps=steps,
        trained=parts.learner,
        rate=LearningRate(config.lr, config.warmup_steps, config.decay, steps),
        evaluations=Evaluations(config.eval_every, parts.holds_out, True, score, patience(config.stop_after, score)),
        environment=about | {"model": parts.begun, "steps": steps, "data": digests(as_written(config))},
        save_every=config.save_every,
        keep_last=config.keep_last,
        may_differ=("steps", "epochs", "stop_after"),
        notes=parts.notes,
        headline={"loss": "loss"},
    )
    return open_session("reward-model-attributes", as_written(config), training, **where)


def _prepare(config: Attributes, resume: Path | None) -> Parts:
    """Load everything; whatever is wrong with the options shows here, before anything is written."""
    _check(config)
    rated, pairs = read(config)
    weights = weights_of(config, {name for one in rated.learned for name in one.ratings})
    rated = of_these(rated, weights.keys())
    config = replace(config, precision=precision_of(config.precision, resume))
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
    chat = ChatFormat(
        load_tokenizer(tokenizer_of(saved.where), config.chat_template, config.template_args), model.body.stop_ids
    )
    graded = feedback.tokenize(config, RATINGS, rated, chat, model.body.context)
    model.units = units_of(list(weights), graded.learned)
    compared = _compared(config, pairs, chat, model.body.context) if pairs else None
    if config.gradient_checkpointing:
        checkpoint_layers(model.body.network)
    told = " ".join(f"{name}={weight:g}" for name, weight in weights.items())
    says = "pairs change that" if pairs else "no pairs say otherwise; give some with --dataset"
    notes = (*saved.notes(), *graded.notes, *(compared.notes if compared else ()), f"weights: {told}; {says}")
    begins = model.mixture._replace(finished=not (pairs or config.decorrelate))
    ends = {one.example.continuation[-1] for one in graded.learned}

    def save(folder: Path) -> None:
        model.save(folder, padding=save_for_scores(chat.tokenizer, folder, ends))

    learner = learner_for(config, model, save, body=model.body)
    return Parts(graded, compared, model, begins, chat, learner, saved.where, notes)


def dry_run(config: Attributes, resume: Path | None = None, *, measure: bool = True) -> Plan:
    """What a run with these options will take, but for the gate; no weights are read, and nothing is written."""
    _check(config)
    rated, pairs = read(config)
    weights = weights_of(config, {name for one in rated.learned for name in one.ratings})
    begun = unloaded(config, resume, scored=True)
    graded = feedback.tokenize(config, RATINGS, of_these(rated, weights.keys()), begun.chat, begun.shape.context)
    units_of(list(weights), graded.learned)
    notes = [*begun.notes, *graded.notes]
    if pairs:
        notes += _compared(config, pairs, begun.chat, begun.shape.context).notes
    load = {"per_step": config.pairs_per_step, "microbatch_tokens": config.microbatch_tokens}
    work = feedback_work(
        "reward-model-attributes", begun.shape, RATINGS, graded, head=False, notes=tuple(notes), **load
    )
    return plan_of(config, work, measure=measure)


def _compared(
    config: Attributes, pairs: Sides[tuple[Preference, ...]], chat: ChatFormat, context: int
) -> Units[Ranked]:
    """The pairs as tokens; the gate learns from all of them at once."""
    return feedback.tokenize(replace(config, pairs_per_step=1, warmup_steps=0), RANKINGS, pairs, chat, context)


def _check(config: Attributes) -> None:
    if not config.ratings:
        raise UserError("--ratings is required: a file, folder, glob or hub id")
    if config.eval_dataset and not config.dataset:
        raise UserError("--eval-dataset are held-out pairs; pass training pairs too, with --dataset")
