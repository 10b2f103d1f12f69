"""A reward model that says why: a head for each attribute that people rated, and a gate that makes one score of them.

    posttrain reward-model --ratings ratings.jsonl --eval-share 0.1 --weights "helpfulness=1 verbosity=-0.4"
    posttrain reward-model --ratings ratings.jsonl --dataset pairs.jsonl --eval-share 0.1 --apart verbosity

The heads learn the ratings by regression; then trunk and heads are held fixed, and the gate learns from pairs what each
attribute counts for after a prompt (Wang et al. 2024, https://arxiv.org/abs/2406.12845). Without pairs the weights are
those that are given. The gate is learned whenever held-out rows are judged and after the last step; what is saved
between has weights alone. Left out: rows that are rated for a part of a response.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean

from posttrain.data import (
    ChatFormat,
    Graded,
    batch_indices,
    load_tokenizer,
    question_of,
    save_for_scores,
)
from posttrain.data.packing import Ranked
from posttrain.errors import UserError, unknown
from posttrain.evaluation.pairs import ScoredPair, accuracy, crossfitted_error, fit_temperature, measures, scored_pairs
from posttrain.evaluation.ratings import correlations
from posttrain.models.attributes import AttributeModel, Mixture, Reading, Units, load_attributes
from posttrain.models.load import locate
from posttrain.models.precision import default_device, dtype_of
from posttrain.monitoring import Progress, RunDirectory, write_report
from posttrain.monitoring.cost import step_cost
from posttrain.objectives.attributes import shares
from posttrain.training import checkpoint, feedback, pair_options
from posttrain.training.attributes import rating_step, read_all
from posttrain.training.failure import kept_batch
from posttrain.training.feedback import RANKINGS, RATINGS, Sides
from posttrain.training.gate import choices_of, fit_gate
from posttrain.training.interrupt import stop_requests
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.pair_options import PairOptions
from posttrain.training.reward import sequences_of
from posttrain.training.saved import saved_model
from posttrain.training.schedule import learning_rate
from posttrain.training.settings import check_settings
from posttrain.training.state import restore_latest, writer
from posttrain.types import Preference, Rated, Task


@dataclass(frozen=True)
class Attributes(PairOptions):
    """Train a reward model on ratings of several attributes."""

    ratings: str = ""
    """Rated responses: a hub id, or a jsonl or parquet file or folder with prompt, completion and ratings
    (HelpSteer2's and UltraFeedback's, too)."""
    dataset: str = ""
    """Pairs, from which a gate learns what each attribute counts for after a prompt; without them --weights says it."""
    weights: str = ""
    """What each attribute counts for, such as "helpfulness=1 verbosity=-0.4": 1 unless it is said, and 0 leaves it
    out. With pairs the gate begins there, and keeps the signs."""
    apart: str = ""
    """An attribute that the score is not to follow, such as verbosity: what the others have in common with it is taken
    from them, and it does not count itself."""
    pairs_per_step: int = 16
    """Rated responses in a batch."""
    lr: float = 1e-5
    """Peak learning rate."""
    gate_width: int = 64
    """Hidden units of the gate; 0: the attributes count for the same after every prompt."""
    calibrate: bool = True
    """Divide the scores by what makes their differences the log-odds that people agree, as held-out pairs say."""


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
    parts = _prepare(config)
    optimizer, graded, model = parts.optimizer, parts.graded.learned, parts.model
    directory, step, notes = _open(config, parts, output, resume)
    steps = parts.graded.steps
    with directory, stop_requests() as stop, Progress("reward-model", steps, start=step, quiet=quiet) as progress:
        for note in notes:
            progress.say(note)
        if parts.judges and step == 0:
            directory.log_metrics(0, _conclude(config, parts, progress))

        while step < steps and not stop.requested:
            began = time.perf_counter()
            batch = [graded[i] for i in batch_indices(len(graded), config.pairs_per_step, step, config.seed)]
            sequences = [one.example for one in batch]
            lr = learning_rate(step, steps=steps, peak=config.lr, warmup=config.warmup_steps, decay=config.decay)
            with progress.phase("update"), kept_batch(step + 1, sequences, directory.path, directory.checkpoints):
                metrics = rating_step(optimizer, model, batch, lr=lr, microbatch_tokens=config.microbatch_tokens)
            metrics |= step_cost(began, sum(len(example.continuation) for example in sequences)) | {"lr": lr}
            step += 1
            last = step == steps
            if last or (config.eval_every and step % config.eval_every == 0):
                metrics |= _conclude(config, parts, progress)
            else:
                model.mixture = parts.begins
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
    units = parts.model.units
    return AttributesResult(directory.path, step, cause, len(graded), parts.graded.dropped, units.names, before, after)


@dataclass(frozen=True)
class _Parts:
    graded: feedback.Units[Graded]
    pairs: feedback.Units[Ranked] | None
    model: AttributeModel
    begins: Mixture  # before anything is known of what people choose
    chat: ChatFormat
    optimizer: MasterAdamW
    notes: tuple[str, ...]  # what to tell the user

    @property
    def judges(self) -> bool:
        """Whether anything is held out."""
        return bool(self.graded.heldout or (self.pairs and self.pairs.heldout))

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder."""
        ends = {one.example.continuation[-1] for one in self.graded.learned}
        self.model.save(folder, padding=save_for_scores(self.chat.tokenizer, folder, ends))


def _prepare(config: Attributes) -> _Parts:
    """Load everything; whatever is wrong with the options shows here, before anything is written."""
    _check(config)
    rated, pairs = _read(config)
    units = _units(rated.learned)
    weights = _weights(config, units.names)
    saved = saved_model(config.model)
    device = default_device()
    model = load_attributes(
        saved.where,
        units,
        weights,
        dtype=dtype_of(config.precision, device),
        device=device,
        seed=config.seed,
        width=config.gate_width,
    )
    chat = ChatFormat(load_tokenizer(locate(saved.where)), model.body.stop_ids)
    graded = feedback.tokenize(config, RATINGS, rated, chat, model.body.context)
    alone = replace(config, pairs_per_step=1, warmup_steps=0)  # the gate learns from all pairs at once
    compared = feedback.tokenize(alone, RANKINGS, pairs, chat, model.body.context) if pairs else None
    optimizer = MasterAdamW(model.trainable(), weight_decay=config.weight_decay, max_grad_norm=config.max_grad_norm)
    notes = [*saved.notes(), *graded.notes, *(compared.notes if compared else ())]
    if compared is None:
        told = " ".join(f"{name}={weight:g}" for name, weight in zip(units.names, weights, strict=True))
        notes.append(f"no pairs say what the attributes count for, so it is {told}; give pairs with --dataset")
    return _Parts(graded, compared, model, model.mixture, chat, optimizer, tuple(notes))


def _check(config: Attributes) -> None:
    pair_options.check(config)
    check_settings(config, zero_or_more=("gate_width",), lora_rank=0)
    if config.eval_dataset and not config.dataset:
        raise UserError("--eval-dataset are held-out pairs; give those to learn from, too, with --dataset")


def _read(config: Attributes) -> tuple[Sides[Rated], Sides[tuple[Preference, ...]] | None]:
    """Ratings and pairs; nothing that is held out of the one is learned from the other."""
    rated = feedback.read(replace(config, dataset=config.ratings, eval_dataset=""), RATINGS)
    if not config.dataset:
        return rated, None
    pairs = feedback.read(config, RANKINGS)
    asked = {question_of(Task(preferences[0].prompt)) for preferences in pairs.heldout}
    kept = [one for one in rated.learned if question_of(Task(one.prompt)) not in asked]
    if not kept:
        raise UserError("all rated responses answer prompts of held-out pairs; hold out other pairs")
    if len(kept) < len(rated.learned):
        note = f"{len(rated.learned) - len(kept)} rated responses answer prompts of held-out pairs, and were left out"
        rated = replace(rated, learned=kept, notes=(*rated.notes, note))
    return rated, pairs


def _units(rated: Sequence[Rated]) -> Units:
    """The attributes in the order in which they come, and mean and spread of their ratings."""
    names = tuple(dict.fromkeys(chain.from_iterable(one.ratings for one in rated)))
    given = [[one.ratings[name] for one in rated if name in one.ratings] for name in names]
    means = tuple(map(fmean, given))
    spreads = tuple(
        fmean((value - mean) ** 2 for value in values) ** 0.5 for values, mean in zip(given, means, strict=True)
    )
    for name, spread in zip(names, spreads, strict=True):
        if spread == 0:
            raise UserError(f"every rating of '{name}' is the same, so there is nothing to learn of it; leave it out")
    return Units(names, means, spreads)


def _weights(config: Attributes, names: Sequence[str]) -> list[float]:
    """What each attribute counts for at the beginning."""
    weights = dict.fromkeys(names, 1.0)
    for word in config.weights.split():
        name, equals, number = word.partition("=")
        if name not in weights:
            raise unknown("attribute", name, names)
        weights[name] = _weight(word, number if equals else "")
    if config.apart:
        if config.apart not in weights:
            raise unknown("attribute", config.apart, names)
        weights[config.apart] = 0.0
    if not any(weights.values()):
        raise UserError("no attribute counts for anything; give one a --weights other than 0")
    return list(weights.values())


def _weight(word: str, number: str) -> float:
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise UserError(f"cannot read the weight '{word}'; write ATTRIBUTE=NUMBER")
    return weight


def _open(
    config: Attributes, parts: _Parts, output: Path | None, resume: Path | None
) -> tuple[RunDirectory, int, tuple[str, ...]]:
    """The run directory, new or gone on with, the step to go on from, and what to tell the user."""
    about = {"device": str(parts.model.body.device), "precision": str(parts.model.body.dtype)}
    if resume is None:
        return RunDirectory.create(output, "reward-model", asdict(config), environment=about), 0, parts.notes
    directory = RunDirectory.resume(resume, asdict(config), may_differ=("steps", "epochs"), environment=about)
    found = restore_latest(directory.checkpoints, parts.optimizer)
    directory.rewind(found.step)
    return directory, found.step, parts.notes + found.skipped


def _conclude(config: Attributes, parts: _Parts, progress: Progress) -> dict[str, float]:
    """Make one score of the attributes as they are now; returns what held-out rows say of them."""
    model, pairs, most = parts.model, parts.pairs, config.microbatch_tokens
    names = model.units.names
    model.mixture = parts.begins
    metrics: dict[str, float] = {}
    with progress.phase("evaluation"):
        if config.apart:
            seen = read_all(model, [one.example for one in parts.graded.learned], microbatch_tokens=most)
            apart = names.index(config.apart)
            left = tuple(shares(seen.attributes_EK, apart).tolist())
            model.mixture = model.mixture._replace(apart=apart, shares=left)
        if parts.graded.heldout:
            seen = read_all(model, [one.example for one in parts.graded.heldout], microbatch_tokens=most)
            found = correlations(names, seen.attributes_EK.tolist(), [one.ratings for one in parts.graded.heldout])
            metrics |= {f"correlation/{name}": value for name, value in found.items()}
            metrics |= {"correlation": fmean(found.values())} if found else {}
        if pairs is not None:
            seen = read_all(model, sequences_of(pairs.learned), microbatch_tokens=most)
            model.mixture = fit_gate(model.mixture, choices_of(model.mixture, seen, pairs.learned), seed=config.seed)
            if pairs.heldout:
                seen = read_all(model, sequences_of(pairs.heldout), microbatch_tokens=most)
                metrics |= _judged(config, model, pairs.heldout, seen)
    return {f"evaluation/{name}": value for name, value in metrics.items()}


def _judged(config: Attributes, model: AttributeModel, heldout: Sequence[Ranked], seen: Reading) -> Mapping[str, float]:
    """What held-out pairs say: of the score, of each attribute alone, and what each counts for on average."""
    mixture, names = model.mixture, model.units.names

    def scored(numbers: Sequence[float]) -> list[ScoredPair]:
        return scored_pairs(heldout, [(number,) for number in numbers])

    scores: list[float] = mixture.scores(*seen).tolist()
    together = scored(scores)
    found = measures(together)
    counted: list[list[float]] = mixture.counted(seen.attributes_EK).T.tolist()
    weights: list[float] = mixture.gate(seen.prompts_ED).mean(0).tolist()
    for name, numbers, weight in zip(names, counted, weights, strict=True):
        found |= {f"alone/{name}": accuracy(scored(numbers)).value, f"gate/{name}": weight}
    if config.calibrate:
        temperature = fit_temperature(together)
        model.mixture = mixture._replace(
            scale=mixture.scale / temperature, zero=(mixture.zero + fmean(scores)) / temperature, comparable=True
        )
        found |= {"temperature": temperature, "calibration_error/calibrated": crossfitted_error(together)}
    return found
