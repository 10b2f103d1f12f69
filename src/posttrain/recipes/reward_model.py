"""Reward models: a language model with a scalar head, trained on preference pairs.

    posttrain reward-model --dataset pairs.jsonl
    posttrain reward-model --dataset train.jsonl --eval-share 0.1 --model runs/sft-2026-01-31-1 --lr 1e-5
    posttrain reward-model --dataset train.jsonl --eval-share 0.1 --ensemble 5
    posttrain reward-model --dataset train.jsonl --eval-share 0.1 --length-debias 1
    posttrain reward-model --dataset train.jsonl --eval-share 0.1 --model OWNER/NAME --lora-rank 16 --lr 1e-4

Bradley and Terry's loss on the scores of the responses to a prompt, which is computed once with all its pairs. With
held-out pairs the scores come out calibrated: a difference of 1 means odds of 2.7 to 1 that people prefer the one. The
result is a Hugging Face folder: a sequence classifier with one label, or one for each member of an ensemble, whose chat
template ends where the score is read. An adapter that was trained is merged into it. Ratings of
attributes: recipes/reward_attributes.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, Unpack

import numpy as np

from posttrain.data import ChatFormat, load_tokenizer, save_for_scores
from posttrain.data.order import batch_indices, seed_for
from posttrain.data.packing import Ranked
from posttrain.errors import UserError
from posttrain.evaluation.pairs import HOTTEST, ScoredPair, crossfitted_error, fit_temperature, measures, scored_pairs
from posttrain.models.gradient_checkpointing import checkpoint_layers
from posttrain.models.heads import (
    Calibration,
    RewardModel,
    complete,
    load_reward_model,
    members_of,
    with_length_head,
)
from posttrain.models.language_model import LanguageModel
from posttrain.models.load import tokenizer_of
from posttrain.models.precision import default_device, dtype_of
from posttrain.options.option import as_written
from posttrain.options.training import Scoring
from posttrain.planning import Plan, plan_of, unloaded
from posttrain.planning.work import feedback_work
from posttrain.session.restarts import restarted
from posttrain.session.result import FeedbackResult, heldout_of
from posttrain.session.session import Session, open_session
from posttrain.session.training import RunOptions
from posttrain.setup import feedback
from posttrain.setup.backend import Backend, offline_backend
from posttrain.setup.cluster_options import ONE_PROCESS, TrainerOptions, settings_of
from posttrain.setup.feedback import RANKINGS, Units
from posttrain.setup.feedback_session import feedback_training
from posttrain.setup.lora_options import lora_of
from posttrain.training.learner import POLICY, Learner
from posttrain.training.local_learner import learner_for
from posttrain.training.ranks import Ranks
from posttrain.training.resolve_model import began_from, precision_of
from posttrain.training.reward import RewardLoss, reward_gradient, sequences_of


class ScoringResult(FeedbackResult):
    """A run on pairs."""


def run(config: Scoring, cluster: TrainerOptions = ONE_PROCESS, **where: Unpack[RunOptions]) -> ScoringResult:
    """Train a reward model in a new run directory, or resume the run in `resume`."""
    return restarted(partial(_run, config, cluster), where)


def _run(config: Scoring, cluster: TrainerOptions, where: RunOptions) -> ScoringResult:
    parts = _prepare(config, cluster, where)
    learner, pairs = parts.backend.learner, parts.pairs

    def examine() -> dict[str, float]:
        scored = _judge(parts)
        if session.step == 0:
            return _measures(scored)
        parts.calibration = _calibration(scored) if config.calibrate else None
        if parts.calibration and parts.calibration.temperature >= HOTTEST * 0.99:
            session.progress.say("held-out accuracy is at chance; calibration shrank the scores to 0")
        return _measures(scored, parts.calibration)

    with parts.backend.stack, _open(config, cluster, parts, where) as session:
        parts.backend.log_in(session.directory.path)
        session.evaluate(examine)
        for step in session.steps():
            chosen = batch_indices(len(pairs.learned), config.pairs_per_step, step, config.seed)
            batch = [pairs.learned[i] for i in chosen]
            seed = seed_for(config.seed, "dropout", step)
            with session.update(sequences_of(batch)):
                parts.calibration = None
                metrics = reward_gradient(learner, batch, parts.loss, seed=seed)
                metrics |= learner.optim_step({POLICY: session.lr})
            session.finish_step(metrics)
            session.evaluate(examine)
    return ScoringResult(*session.ended, len(pairs.learned), pairs.dropped, *heldout_of(session.rows))


def _open(
    config: Scoring, cluster: TrainerOptions, parts: "_Parts", where: RunOptions
) -> AbstractContextManager[Session]:
    settings, about = as_written(config) | settings_of(cluster), {**parts.backend.compute, "model": parts.begun}
    training = feedback_training(config, parts.pairs, parts, settings=settings, environment=about, notes=parts.notes)
    return open_session("reward-model", settings, training, **where)


@dataclass
class _Parts:
    pairs: Units[Ranked]
    members: int
    backend: Backend
    loss: RewardLoss
    begun: str  # where what is trained was loaded from
    notes: tuple[str, ...]  # what to tell the user
    calibration: Calibration | None = None  # of the weights as they are now

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder, and the state of the learner."""
        self.backend.learner.save(folder)
        ends = {example.continuation[-1] for example in sequences_of(self.pairs.learned)}
        padding = save_for_scores(self.backend.chat.tokenizer, folder, ends)
        complete(folder, padding=padding, calibration=self.calibration)

    def restore(self, folder: Path) -> None:
        """Restore the state of the learner."""
        self.backend.learner.restore(folder)


class _Loaded(NamedTuple):
    """A reward model where it is trained."""

    heads: RewardModel
    chat: ChatFormat
    engine: None = None

    @property
    def model(self) -> LanguageModel:
        """What reads."""
        return self.heads.body


def _prepare(config: Scoring, cluster: TrainerOptions, where: RunOptions) -> _Parts:
    """Load everything; whatever is wrong with the options shows here, before anything is written."""
    resume = where.get("resume")
    sides = feedback.read(config, RANKINGS)
    config = replace(config, precision=precision_of(config.precision, resume))
    saved = began_from(config.model, resume)
    members = config.ensemble if config.ensemble > 1 else members_of(saved.where)
    if config.length_debias and members > 1:
        raise UserError(f"--length-debias needs a single head; {config.model} has {members}")
    build, load = partial(_learner, config), partial(_load, where=saved.where)
    backend = offline_backend(config, saved.where, build, cluster, load, where.get("learner"))
    with backend.ended_by_errors():
        pairs = feedback.tokenize(config, RANKINGS, sides, backend.chat, backend.context)
    if members > 1:
        pairs = replace(pairs, learned=_in_bags(pairs.learned, members, config.seed))
    loss = RewardLoss(config.label_smoothing, config.margin, config.center_rewards, config.length_debias)
    notes = [*saved.notes(), *pairs.notes]
    strengths = {strength for unit in pairs.learned for *_, strength in unit.pairs}
    if len(strengths) > 1 and not config.margin:
        notes.append("the pairs say how much better the chosen response is; --margin 1 learns from that, too")
    if config.margin and len(strengths) == 1:
        notes.append(f"all pairs are of strength {strengths.pop():g}; --margin asks the same of each of them")
    if members > 1 and not (pairs.heldout and config.calibrate):
        notes.append("not calibrated on held-out pairs, the members' scores do not compare; only their mean is of use")
    return _Parts(pairs, members, backend, loss, saved.where, tuple(notes))


def _load(config: Scoring, where: str, device: str = "auto") -> _Loaded:
    """The model in the folder `where` with its heads."""
    device = default_device() if device == "auto" else device
    heads = load_reward_model(
        where,
        dtype=dtype_of(config.precision, device),
        device=device,
        seed=config.seed,
        members=config.ensemble if config.ensemble > 1 else 0,
        adapter=lora_of(config),
    )
    if config.length_debias:
        heads = with_length_head(heads, seed=config.seed)
    if config.gradient_checkpointing:
        checkpoint_layers(heads.body.network)
    tokenizer = load_tokenizer(tokenizer_of(where), config.chat_template, config.template_args)
    return _Loaded(heads, ChatFormat(tokenizer, heads.body.stop_ids))


def _learner(config: Scoring, loaded: _Loaded, ranks: Ranks) -> Learner:
    """The learner of a reward model."""
    heads = loaded.heads
    return learner_for(config, heads, heads.write, body=heads.body, ranks=ranks)


def dry_run(
    config: Scoring, cluster: TrainerOptions = ONE_PROCESS, resume: Path | None = None, *, measure: bool = True
) -> Plan:
    """What a run with these options will take; no weights are read, and nothing is written."""
    sides = feedback.read(config, RANKINGS)
    model = unloaded(config, resume, scored=True)
    pairs = feedback.tokenize(config, RANKINGS, sides, model.chat, model.shape.context)
    words = {"per_step": config.pairs_per_step, "microbatch_tokens": config.microbatch_tokens, "head": False}
    words |= {"reads": int(config.length_debias > 0), "notes": (*model.notes, *pairs.notes)}  # it is scored once before
    work = feedback_work("reward-model", model.shape, RANKINGS, pairs, **words)
    return plan_of(config, work, cluster, measure=measure)


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


def _judge(parts: _Parts) -> list[ScoredPair]:
    """The held-out pairs with their scores."""
    units = parts.pairs.heldout
    return scored_pairs(
        units, [scores[: parts.members] for scores in parts.backend.learner.scores(sequences_of(units))]
    )


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
