"""A reward model: a language model with one number for a head, which learns from pairs what people choose.

    posttrain reward-model --dataset pairs.jsonl
    posttrain reward-model --dataset train.jsonl --eval-share 0.1 --model runs/sft-2026-01-31-1 --lr 1e-5

Bradley and Terry's loss on the scores of the two responses of a pair, whose prompt is computed once. The result is a
Hugging Face folder: a sequence classifier with one label, whose chat template ends where the score is read. Left out so
far: rankings of more than two, margins from how much better a response was found, ensembles, adapters.
"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from posttrain.data import ChatFormat, ending_at_stop, load_tokenizer, padding_beside
from posttrain.data.order import batch_indices
from posttrain.data.packing import Pair
from posttrain.errors import UserError
from posttrain.models.heads import RewardModel, load_reward_model
from posttrain.models.load import locate
from posttrain.models.precision import default_device, dtype_of
from posttrain.monitoring import Progress, RunDirectory, write_report
from posttrain.monitoring.cost import step_cost
from posttrain.training import checkpoint, feedback, pair_options
from posttrain.training.failure import kept_batch
from posttrain.training.feedback import PAIRS, Units
from posttrain.training.interrupt import stop_requests
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.pair_options import PairOptions
from posttrain.training.pairwise import PairLossOf, examples_of, pairwise_loss, pairwise_step, reward_loss
from posttrain.training.saved import saved_model
from posttrain.training.schedule import learning_rate
from posttrain.training.state import restore_latest, writer


@dataclass(frozen=True)
class Scoring(PairOptions):
    """Train a reward model on preferences."""

    lr: float = 1e-5
    """Peak learning rate."""
    label_smoothing: float = 0.0
    """How often a choice is taken to be the wrong way round; below 0.5."""


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
    parts = _prepare(config)
    optimizer, pairs = parts.optimizer, parts.pairs
    directory, step, notes = _open(config, parts, output, resume)
    with directory, stop_requests() as stop, Progress("reward-model", pairs.steps, start=step, quiet=quiet) as progress:
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
                save = writer(parts.save, optimizer)
                score = metrics.get("evaluation/accuracy")
                checkpoint.save(directory.checkpoints, step, save, {}, keep_last=config.keep_last, score=score)
    done = directory.read()
    write_report(done)
    cause = stop.cause if step < pairs.steps else ""
    before, after = pair_options.heldout_of(done.metrics)
    return ScoringResult(directory.path, step, cause, len(pairs.learned), pairs.dropped, before, after)


@dataclass(frozen=True)
class _Parts:
    pairs: Units[Pair]
    model: RewardModel
    chat: ChatFormat
    optimizer: MasterAdamW
    loss_of: PairLossOf
    notes: tuple[str, ...]  # what to tell the user

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder."""
        tokenizer = self.chat.tokenizer
        ends = {example.continuation[-1] for example in examples_of(self.pairs.learned)}
        padding = padding_beside(tokenizer, ends)
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(padding)
        tokenizer.chat_template = ending_at_stop(tokenizer.chat_template)
        tokenizer.save_pretrained(str(folder))
        self.model.save(folder, padding=padding)


def _prepare(config: Scoring) -> _Parts:
    """Load everything; whatever is wrong with the options shows here, before anything is written."""
    pair_options.check(config)
    if not 0 <= config.label_smoothing < 0.5:
        raise UserError(f"--label-smoothing must be at least 0 and below 0.5; got {config.label_smoothing}")
    sides = feedback.read(config, PAIRS)
    saved = saved_model(config.model)
    device = default_device()
    tokenizer = load_tokenizer(locate(saved.where))
    model = load_reward_model(saved.where, dtype=dtype_of(config.precision, device), device=device, seed=config.seed)
    chat = ChatFormat(tokenizer, model.body.stop_ids)
    pairs = feedback.tokenize(config, PAIRS, sides, chat, model.body.context)
    optimizer = MasterAdamW(
        model.body.trainable(), weight_decay=config.weight_decay, max_grad_norm=config.max_grad_norm
    )
    notes = (*saved.notes(), *pairs.notes)
    return _Parts(pairs, model, chat, optimizer, reward_loss(model, label_smoothing=config.label_smoothing), notes)


def _open(
    config: Scoring, parts: _Parts, output: Path | None, resume: Path | None
) -> tuple[RunDirectory, int, tuple[str, ...]]:
    """The run directory, new or gone on with, the step to go on from, and what to tell the user."""
    about = {"device": str(parts.model.body.device), "precision": str(parts.model.body.dtype)}
    if resume is None:
        return RunDirectory.create(output, "reward-model", asdict(config), environment=about), 0, parts.notes
    directory = RunDirectory.resume(resume, asdict(config), may_differ=("steps", "epochs"), environment=about)
    found = restore_latest(directory.checkpoints, parts.optimizer)
    directory.rewind(found.step)
    return directory, found.step, parts.notes + found.skipped


def _heldout(config: Scoring, parts: _Parts, progress: Progress) -> dict[str, float]:
    with progress.phase("evaluation"):
        found = pairwise_loss(parts.pairs.heldout, parts.loss_of, microbatch_tokens=config.microbatch_tokens)
    return {f"evaluation/{name}": value for name, value in found.items()}
