"""A reward model: a language model with one number for a head, which learns from pairs what people choose.

    posttrain reward-model --dataset pairs.jsonl
    posttrain reward-model --dataset train.jsonl --eval-share 0.1 --model runs/sft-2026-01-31-1 --lr 1e-5
    posttrain reward-model --dataset train.jsonl --eval-share 0.1 --ensemble 5
    posttrain reward-model --dataset train.jsonl --eval-share 0.1 --length-debias 1
    posttrain reward-model --dataset train.jsonl --eval-share 0.1 --model OWNER/NAME --lora-rank 16 --lr 1e-4

Bradley and Terry's loss on the scores of the responses to a prompt, which is computed once with all its pairs. With
held-out pairs the scores come out calibrated: a difference of 1 means odds of 2.7 to 1 that people prefer the one. The
result is a Hugging Face folder: a sequence classifier with one label, or one for each member of an ensemble, whose chat
template ends where the score is read. An adapter that was trained is merged into it. Attributes that were rated apart:
recipes/reward_attributes.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np

from posttrain.data import ChatFormat, load_tokenizer, save_for_scores
from posttrain.data.digests import digests
from posttrain.data.order import batch_indices, seed_for
from posttrain.data.packing import Ranked
from posttrain.errors import UserError
from posttrain.evaluation.pairs import HOTTEST, ScoredPair, crossfitted_error, fit_temperature, measures, scored_pairs
from posttrain.models.gradient_checkpointing import checkpoint_layers
from posttrain.models.heads import Calibration, RewardModel, load_reward_model, with_length_head
from posttrain.models.load import tokenizer_of
from posttrain.models.lora import lora_of
from posttrain.models.precision import compute_of, default_device, dtype_of
from posttrain.monitoring import Progress, announce, machine_line, write_report
from posttrain.monitoring.cost import step_cost
from posttrain.monitoring.opening import open_run
from posttrain.rollouts.scorer import scores_of
from posttrain.training import checkpoint, feedback, pair_options
from posttrain.training.failure import kept_batch
from posttrain.training.feedback import RANKINGS, Units
from posttrain.training.interrupt import stop_requests
from posttrain.training.optimizer import MasterAdamW, optimizer_for
from posttrain.training.pair_options import ScoreOptions
from posttrain.training.reward import RewardLoss, reward_step, sequences_of
from posttrain.training.saved import began_from
from posttrain.training.schedule import learning_rate, rescheduled
from posttrain.training.state import restore_latest, writer


@dataclass(frozen=True)
class Scoring(ScoreOptions):
    """Train a reward model on preferences. On ratings of attributes: posttrain reward-model --ratings FILE --help."""

    pairs_per_step: int = 16
    """Pairs in a batch; all of one prompt that follow each other, as a ranking makes them, count as one."""
    label_smoothing: float = 0.0
    """How often a choice is taken to be the wrong way round; below 0.5."""
    margin: float = 0.0
    """Ask for scores that differ by this times the pair's `strength` or `margin` at least; 1 is usual."""
    centring: float = 0.0
    """Hold the two scores of a pair around 0 with this weight, so that scores of other prompts compare; 0.01."""
    ensemble: int = 1
    """Members: heads on one trunk, each of which learns from its own sample of the pairs. Their disagreement says
    where the scores are not to be trusted."""
    length_debias: float = 0.0
    """Learn the length of responses apart, with this weight, and leave it out of the score; 1 is usual."""
    calibrate: bool = True
    """Divide the scores by what makes their differences the log-odds that people agree, as held-out pairs say."""


@dataclass(frozen=True)
class ScoringResult:
    """Where a finished or interrupted run is, and what it found."""

    run: Path
    steps: int
    interrupted: str  # the signal that stopped it early, such as SIGINT; empty if none did
    pairs: int
    dropped: int  # pairs that were too long
    before: dict[str, float] | None  # loss, accuracy and so on of the held-out pairs, where there are any
    after: dict[str, float] | None


def run(
    config: Scoring, *, output: Path | None = None, resume: Path | None = None, quiet: bool = False
) -> ScoringResult:
    """Train a reward model in a new run directory, or go on with the run in `resume`."""
    parts = _prepare(config, resume)
    optimizer, pairs, model = parts.optimizer, parts.pairs, parts.model
    about = compute_of(model.body, config.precision) | {"model": parts.begun, "steps": pairs.steps}
    about["data"] = digests(asdict(config))
    restore = partial(restore_latest, optimizer=optimizer)
    directory, step, skipped = open_run(
        "reward-model", asdict(config), restore, environment=about, output=output, resume=resume
    )
    announce(machine_line(directory.environment), quiet=quiet)
    changed = rescheduled(
        directory.before.get("steps"), pairs.steps, step, peak=config.lr, warmup=config.warmup_steps, decay=config.decay
    )
    with directory, stop_requests() as stop, Progress("reward-model", pairs.steps, start=step, quiet=quiet) as progress:
        for note in (*parts.notes, *skipped, *changed):
            progress.say(note)
        if pairs.heldout and step == 0:
            directory.log_metrics(0, _measures(_judge(config, parts, progress)))

        while step < pairs.steps and not stop.requested:
            began = time.perf_counter()
            batch = [
                pairs.learned[i] for i in batch_indices(len(pairs.learned), config.pairs_per_step, step, config.seed)
            ]
            sequences = sequences_of(batch)
            lr = learning_rate(step, steps=pairs.steps, peak=config.lr, warmup=config.warmup_steps, decay=config.decay)
            with (
                progress.phase("update"),
                kept_batch(step + 1, sequences, directory.path, directory.checkpoints),
                model.body.dropping(seed_for(config.seed, "dropout", step)),
            ):
                metrics = reward_step(
                    optimizer, model, batch, parts.loss, lr=lr, microbatch_tokens=config.microbatch_tokens
                )
            metrics |= step_cost(began, sum(len(example.continuation) for example in sequences)) | {"lr": lr}
            step += 1
            last, calibration = step == pairs.steps, None
            if pairs.heldout and (last or (config.eval_every and step % config.eval_every == 0)):
                scored = _judge(config, parts, progress)
                calibration = _calibration(scored) if config.calibrate else None
                if calibration and calibration.temperature >= HOTTEST * 0.99:
                    progress.say("the scores say nothing of what people choose in held-out pairs; they are near 0 now")
                metrics |= _measures(scored, calibration)
            directory.log_metrics(step, metrics)
            progress.step(step, loss=metrics["loss"], accuracy=metrics["accuracy"])
            if step % config.save_every == 0 or "evaluation/accuracy" in metrics or last or stop.requested:
                save = writer(partial(parts.save, calibration=calibration), optimizer)
                score = metrics.get("evaluation/accuracy")
                checkpoint.save(directory.checkpoints, step, save, {}, keep_last=config.keep_last, score=score)
    done = directory.read()
    write_report(done)
    cause = stop.cause if step < pairs.steps else ""
    before, after = pair_options.heldout_of(done.metrics)
    return ScoringResult(directory.path, step, cause, len(pairs.learned), pairs.dropped, before, after)


@dataclass(frozen=True)
class _Parts:
    pairs: Units[Ranked]
    model: RewardModel
    chat: ChatFormat
    optimizer: MasterAdamW
    loss: RewardLoss
    begun: str  # where what is trained was loaded from
    notes: tuple[str, ...]  # what to tell the user

    def save(self, folder: Path, *, calibration: Calibration | None) -> None:
        """Write a Hugging Face folder."""
        ends = {example.continuation[-1] for example in sequences_of(self.pairs.learned)}
        padding = save_for_scores(self.chat.tokenizer, folder, ends)
        self.model.save(folder, padding=padding, calibration=calibration)


def _prepare(config: Scoring, resume: Path | None) -> _Parts:
    """Load everything; whatever is wrong with the options shows here, before anything is written."""
    _check(config)
    sides = feedback.read(config, RANKINGS)
    saved = began_from(config.model, resume)
    device = default_device()
    tokenizer = load_tokenizer(tokenizer_of(saved.where), config.chat_template)
    model = load_reward_model(
        saved.where,
        dtype=dtype_of(config.precision, device),
        device=device,
        seed=config.seed,
        members=config.ensemble if config.ensemble > 1 else 0,
        adapter=lora_of(config),
    )
    if config.length_debias:
        if model.members > 1:
            raise UserError(f"--length-debias takes one score apart; {config.model} has {model.members}")
        model = with_length_head(model, seed=config.seed)
    chat = ChatFormat(tokenizer, model.body.stop_ids)
    pairs = feedback.tokenize(config, RANKINGS, sides, chat, model.body.context)
    if model.members > 1:
        pairs = replace(pairs, learned=_in_bags(pairs.learned, model.members, config.seed))
    if config.gradient_checkpointing:
        checkpoint_layers(model.body.network)
    optimizer = optimizer_for(config, model.trainable(), embedding=model.body.embedding)
    loss = RewardLoss(config.label_smoothing, config.margin, config.centring, config.length_debias)
    notes = [*saved.notes(), *pairs.notes]
    strengths = {strength for unit in pairs.learned for *_, strength in unit.pairs}
    if len(strengths) > 1 and not config.margin:
        notes.append("the pairs say how much better the chosen response is; --margin 1 learns from that, too")
    if config.margin and len(strengths) == 1:
        notes.append(f"all pairs are of strength {strengths.pop():g}; --margin asks the same of each of them")
    if model.members > 1 and not (pairs.heldout and config.calibrate):
        notes.append("not calibrated on held-out pairs, the members' scores do not compare; only their mean is of use")
    return _Parts(pairs, model, chat, optimizer, loss, saved.where, tuple(notes))


def _check(config: Scoring) -> None:
    pair_options.check(config, counts=("ensemble",), zero_or_more=("margin", "centring", "length_debias"))
    if not 0 <= config.label_smoothing < 0.5:
        raise UserError(f"--label-smoothing must be at least 0 and below 0.5; got {config.label_smoothing}")
    if config.length_debias and config.ensemble > 1:
        raise UserError("--length-debias takes one score apart into quality and length; leave out --ensemble")


def _in_bags(units: Sequence[Ranked], members: int, seed: int) -> list[Ranked]:
    """Each unit with how often each member meets it: as in a sample of as many units with replacement.

    The number is Poisson-distributed with mean 1, drawn for each unit alone (Oza and Russell 2001, "Online Bagging and
    Boosting"). Members that learned from the same pairs on the same trunk would agree wherever they are wrong.
    """
    found: list[Ranked] = []
    for number, unit in enumerate(units):
        bag = np.random.default_rng(seed_for(seed, "bag", number)).poisson(1.0, members)
        found.append(unit._replace(bag=tuple(float(times) for times in bag)))
    return found


def _judge(config: Scoring, parts: _Parts, progress: Progress) -> list[ScoredPair]:
    """The held-out pairs with their scores."""
    with progress.phase("evaluation"):
        units = parts.pairs.heldout
        scores = scores_of(parts.model, sequences_of(units), microbatch_tokens=config.microbatch_tokens)
    return scored_pairs(units, scores)


def _calibration(scored: Sequence[ScoredPair]) -> Calibration:
    """What makes the scores mean something: 0 is the mean of a response, and a difference its log-odds."""
    members = list(zip(*(side for pair in scored for side in (pair.chosen, pair.rejected)), strict=True))
    return Calibration(tuple(fmean(scores) for scores in members), fit_temperature(scored))


def _measures(scored: Sequence[ScoredPair], calibration: Calibration | None = None) -> dict[str, float]:
    """What is logged of them, before they are calibrated, and of a calibration how far it is off on other pairs."""
    found = measures(scored)
    if calibration is not None:
        found |= {"temperature": calibration.temperature, "calibration_error/calibrated": crossfitted_error(scored)}
    return {f"evaluation/{name}": value for name, value in found.items()}
