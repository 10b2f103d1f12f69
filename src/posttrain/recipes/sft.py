"""Supervised fine-tuning on demonstrations.

    posttrain sft --dataset demonstrations.jsonl
    posttrain sft --dataset train.jsonl --eval-share 0.05 --model OWNER/NAME --lora-rank 16 --lr 2e-4

The loss of a step is the mean negative log-likelihood of all tokens in the batch that the assistant must produce, stop
tokens included; prompts, system messages and tool results have no loss. Examples are packed into rows without padding,
with attention within an example only. Not supported: a loss on prompts, and a loss averaged per example.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Unpack

from posttrain.data import ChatFormat, Example, divide, load_demonstrations, parse_columns
from posttrain.data.digests import digests, rows_digest
from posttrain.data.given import Source
from posttrain.data.order import batch_indices, seed_for
from posttrain.environments.load import load_environment
from posttrain.environments.user_methods import demonstrations_of
from posttrain.errors import UserError
from posttrain.models.language_model import LanguageModel
from posttrain.options.option import as_written, given
from posttrain.options.training import SFT
from posttrain.planning import Plan, plan_of, unloaded
from posttrain.planning.work import supervised_work
from posttrain.rollouts.policy import Policy
from posttrain.session.early_stopping import patience
from posttrain.session.restarts import restarted
from posttrain.session.result import RunResult
from posttrain.session.session import Session, open_session
from posttrain.session.training import Evaluations, RunOptions, Training
from posttrain.setup.backend import Backend, offline_backend
from posttrain.setup.cluster_options import MAY_DIFFER, ONE_PROCESS, TrainerOptions, settings_of
from posttrain.training.learner import POLICY
from posttrain.training.local_learner import LocalLearner, learner_for
from posttrain.training.ranks import Ranks
from posttrain.training.resolve_model import began_from, precision_of
from posttrain.training.schedule import LearningRate, unreached
from posttrain.training.supervised import NLL, supervised_batch
from posttrain.types import Message, Task

Conversation = tuple[Message, ...]
LOSS = "evaluation/loss"


@dataclass(frozen=True)
class SFTResult(RunResult):
    """The results of a run."""

    examples: int
    dropped: int  # examples that were too long
    before: float | None  # held-out loss in nats per token, if there are held-out data
    after: float | None


def run(config: SFT, cluster: TrainerOptions = ONE_PROCESS, **where: Unpack[RunOptions]) -> SFTResult:
    """Fine-tune a model in a new run directory, or resume the run in `resume`."""
    return restarted(partial(_run, config, cluster), where)


def _run(config: SFT, cluster: TrainerOptions, where: RunOptions) -> SFTResult:
    parts = _prepare(config, cluster, where)
    learner = parts.backend.learner

    def examine() -> dict[str, float]:
        return {LOSS: learner.forward(supervised_batch(parts.data.heldout), NLL())["loss"]}

    with parts.backend.stack, _open(config, cluster, parts, where) as session:
        parts.backend.log_in(session.directory.path)
        session.evaluate(examine)
        for step in session.steps():
            indices = batch_indices(len(parts.data.examples), config.examples_per_step, step, config.seed)
            examples = [parts.data.examples[i] for i in indices]
            batch = supervised_batch(examples, seed=seed_for(config.seed, "dropout", step))
            with session.update(examples):
                metrics = learner.forward_backward(batch, NLL())
                metrics |= learner.optim_step({POLICY: session.lr}) | {"tokens": batch.counts.tokens}
            session.finish_step(metrics, tokens=batch.counts.tokens)
            session.evaluate(examine)
    losses = [row[LOSS] for row in session.rows if LOSS in row] or [None]
    return SFTResult(*session.ended, len(parts.data.examples), parts.data.dropped, losses[0], losses[-1])


def _open(config: SFT, cluster: TrainerOptions, parts: "_Parts", where: RunOptions) -> AbstractContextManager[Session]:
    def score(row: Mapping[str, float | None]) -> float | None:
        loss = row.get(LOSS)  # None where it was not finite
        return None if loss is None else -loss

    held = bool(parts.data.heldout)
    settings = as_written(config) | settings_of(cluster)
    about = {**parts.backend.compute, "model": parts.model, "steps": parts.data.steps, "data": digests(settings)}
    about |= {"examples": len(parts.data.examples), "dropped": parts.data.dropped, "heldout": len(parts.data.heldout)}
    about |= {"rows": rows_digest(parts.data.examples), "given": parts.data.given}
    training = Training(
        steps=parts.data.steps,
        trained=parts.backend.learner,
        rate=LearningRate(config.lr, config.warmup_steps, config.decay, parts.data.steps),
        evaluations=Evaluations(config.eval_every, held, held, score, patience(config.stop_after, score)),
        environment=about,
        save_every=config.save_every,
        keep_last=config.keep_last,
        may_differ=("steps", "epochs", "stop_after", *MAY_DIFFER),
        notes=parts.notes,
        headline={"loss": "loss", "lr": "lr"},
    )
    return open_session("sft", settings, training, **where)


@dataclass(frozen=True)
class _Parts:
    data: "_Data"
    backend: Backend
    model: str  # where the model was loaded from
    notes: tuple[str, ...]  # messages to the user


def _prepare(config: SFT, cluster: TrainerOptions, where: RunOptions) -> _Parts:
    """Load all parts and validate all options, before anything is written."""
    resume = where.get("resume")
    conversations, heldout, notes = _conversations(config)
    config = replace(config, precision=precision_of(config.precision, resume))
    saved = began_from(config.model, resume)
    build = partial(_learner, config)
    backend = offline_backend(config, saved.where, build, cluster, learner=where.get("learner"))
    with backend.ended_by_errors():
        data = _tokenized(config, backend.chat, backend.context, conversations, heldout)
    return _Parts(data, backend, saved.where, (*saved.notes(), *notes, *data.notes))


def _learner(config: SFT, policy: Policy, ranks: Ranks) -> LocalLearner[LanguageModel]:
    return learner_for(config, policy.model, policy.save, ranks=ranks)


def dry_run(
    config: SFT, cluster: TrainerOptions = ONE_PROCESS, resume: Path | None = None, *, measure: bool = True
) -> Plan:
    """Plan the resources of a run with these options; no weights are read, and nothing is written."""
    conversations, heldout, notes = _conversations(config)
    model = unloaded(config, resume)
    data = _tokenized(config, model.chat, model.shape.context, conversations, heldout)
    words = {"per_step": config.examples_per_step, "microbatch_tokens": config.microbatch_tokens}
    work = supervised_work("sft", model.shape, data.examples, steps=data.steps, **words)
    return plan_of(config, replace(work, notes=(*model.notes, *notes, *data.notes)), cluster, measure=measure)


@dataclass(frozen=True)
class _Data:
    examples: list[Example]
    heldout: list[Example]
    dropped: int
    steps: int
    given: bool  # whether an assistant's turn is not learned, by what its row says
    notes: tuple[str, ...]  # messages to the user


def _tokenized(
    config: SFT, chat: ChatFormat, context: int, conversations: Sequence[Conversation], heldout: Sequence[Conversation]
) -> _Data:
    """The demonstrations as tokens, without those that are too long."""
    longest = min(config.max_tokens, context)
    examples, dropped = _examples(chat, conversations, config.train_on, longest)
    kept, unheard = _examples(chat, heldout, config.train_on, longest)
    if not examples or (heldout and not kept):
        raise UserError(
            f"all {dropped if not examples else len(heldout)} {'' if not examples else 'held-out '}examples are longer "
            f"than {longest} tokens, the smaller of --max-tokens {config.max_tokens} and the model's context "
            f"{context}; shorten them, or raise what limits them"
        )
    if (most := max(len(example.continuation) for example in examples + kept)) > config.microbatch_tokens:
        raise UserError(
            f"the longest example has {most} tokens, but --microbatch-tokens is {config.microbatch_tokens}; "
            f"type --microbatch-tokens {most} or more, or leave longer ones out with --max-tokens"
        )
    if len(examples) < config.examples_per_step:
        raise UserError(
            f"--examples-per-step {config.examples_per_step} is more than there are examples; "
            f"type --examples-per-step {len(examples)} or less"
        )
    steps = config.steps or math.ceil(config.epochs * len(examples) / config.examples_per_step)
    too_long = [
        f"{left_out} of {left_out + len(used)} {kind} are over {longest} tokens and were left out"
        for kind, used, left_out in (("examples", examples, dropped), ("held-out examples", kept, unheard))
        if left_out
    ]
    given = any(message.role == "assistant" and not message.learned for one in conversations for message in one)
    notes = (*too_long, *chat.notes, *unreached(config.warmup_steps, steps))
    return _Data(examples, kept, dropped, steps, given, notes)


def _conversations(config: SFT) -> tuple[list[Conversation], list[Conversation], tuple[str, ...]]:
    """Training and held-out demonstrations, with messages to the user about dropped ones."""
    if given(config.dataset) == given(config.environment):
        raise UserError("`dataset` or `environment` is required; `dataset` is a file, folder, glob or hub id")
    columns = parse_columns(config.columns) if config.columns else None

    notes: list[str] = []

    def tasks(source: Source, limit: int | None = None) -> list[Task]:
        if not source:
            return [_task(conversation) for conversation in _shown(config)[:limit]]
        found = load_demonstrations(
            source,
            columns=columns,
            limit=limit,
            system=config.system,
            prompt_template=config.prompt_template,
            seed=config.seed,
        )
        notes.extend(note for note in found.notes if note not in notes)
        return [_task(conversation) for conversation in found]

    sides = divide(
        tasks(config.dataset, config.limit),
        share=config.eval_share,
        offered=(lambda: tasks(config.eval_dataset)) if config.eval_dataset else None,
        limit=config.eval_limit,
        seed=config.seed,
    )
    learned, heldout = ([task.answer for task in side] for side in (sides.learned, sides.heldout))
    return learned, heldout, (*notes, *sides.notes)


def _shown(config: SFT) -> list[Conversation]:
    """The environment's demonstrations; raises `UserError` if there are none."""
    environment = load_environment(config.environment, config.environment_args)
    found = demonstrations_of(environment, config.seed)
    if not found:
        raise UserError(f"{config.environment} has no demonstrations of its own; pass --dataset")
    return [*found]


def _task(conversation: Conversation) -> Task:
    """A demonstration as a question: what stands before the assistant's first turn; all of it is the answer."""
    roles = [message.role for message in conversation]
    return Task(conversation[: roles.index("assistant")], answer=conversation)


def _examples(
    chat: ChatFormat, conversations: Sequence[Conversation], train_on: str, longest: int
) -> tuple[list[Example], int]:
    """Tokenised conversations, and the number of examples dropped because they are longer than `longest`."""
    found = [
        Example.whole(*ids)
        for conversation in conversations
        for ids in (
            [chat.training_ids(conversation, train_on="last")]
            if train_on == "last"
            else chat.training_examples(conversation)
        )
    ]
    kept = [example for example in found if len(example.continuation) <= longest]
    return kept, len(found) - len(kept)
