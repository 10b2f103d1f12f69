"""Supervised fine-tuning on demonstrations.

    posttrain sft --dataset demonstrations.jsonl
    posttrain sft --algorithm dft --dataset demonstrations.jsonl
    posttrain sft --dataset train.jsonl --eval-share 0.05 --model OWNER/NAME --lora-rank 16 --lr 2e-4

The loss of a step is the mean negative log-likelihood of all tokens in the batch that the assistant must produce, stop
tokens included, with `--algorithm dft` weighted by their probability; prompts, system messages and tool results have no
loss. Examples are packed into rows without padding, with attention within an example only. Not supported: a loss on
prompts, and a loss averaged per example.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Unpack

from posttrain.algorithms import SUPERVISED
from posttrain.bindings import feedback
from posttrain.bindings.backend import offline_backend, policy_learner
from posttrain.bindings.cluster_options import ONE_PROCESS, TrainerOptions, settings_of
from posttrain.bindings.feedback import Conversation, Sides, demonstrations, feedback_training
from posttrain.data import controls
from posttrain.data.order import seed_for
from posttrain.environments.user_methods import demonstrations_of, load_environment
from posttrain.errors import UserError
from posttrain.options.option import as_written, given
from posttrain.options.training import SFT
from posttrain.planning import Plan, plan_of, unloaded
from posttrain.planning.work import supervised_work
from posttrain.runs.result import RunResult
from posttrain.runs.resuming import restarted
from posttrain.runs.session import open_session
from posttrain.runs.training import RunOptions
from posttrain.training.learner import POLICY
from posttrain.training.resolve_model import began_from, precision_of
from posttrain.training.supervised import NLL, supervised_batch

LOSS = "evaluation/loss"


@dataclass(frozen=True)
class SFTResult(RunResult):
    """The results of a run."""

    examples: int
    dropped: int  # examples that were too long
    before: float | None  # held-out loss in nats per token, if there are held-out data
    after: float | None


@restarted
def run(config: SFT, cluster: TrainerOptions = ONE_PROCESS, **where: Unpack[RunOptions]) -> SFTResult:
    """Fine-tune a model in a new run directory, or resume the run in `resume`."""
    kind, sides = demonstrations(config.train_on), _read(config)
    exact = replace(config, precision=precision_of(config.precision, where.get("resume")))
    saved = began_from(config.model, where.get("resume"))
    backend = offline_backend(exact, saved.where, partial(policy_learner, exact), cluster, learner=where.get("learner"))
    with backend.stack:
        learner, units = backend.learner, feedback.tokenize(config, kind, sides, backend.chat, backend.context)
        loss, settings = NLL(algorithm=SUPERVISED[config.algorithm]()), as_written(config) | settings_of(cluster)
        turns = (message for conversation in sides.learned for message in conversation)
        marked = any(message.role == "assistant" and not message.learned for message in turns)
        about = {"examples": len(units.learned), "dropped": units.dropped, "heldout": len(units.heldout)}
        training = feedback_training(
            config,
            units,
            learner,
            settings=settings,
            environment={**about, **backend.compute, "model": saved.where, "given": marked},
            notes=(*saved.notes(), *units.notes),
            score=lambda row: None if row.get(LOSS) is None else -row[LOSS],  # None where it was not finite
            headline={"loss": "loss", "lr": "lr"},
        )

        def examine() -> dict[str, float]:
            return {LOSS: learner.forward(supervised_batch(units.heldout), NLL())["loss"]}

        with open_session("sft", settings, training, **where) as session:
            backend.log_in(session.directory.path)
            session.evaluate(examine)
            for step in session.steps():
                examples = units.batch(step)
                batch = supervised_batch(examples, seed=seed_for(config.seed, "dropout", step))
                with session.update(examples):
                    metrics = learner.forward_backward(batch, loss)
                    metrics |= learner.optim_step({POLICY: session.lr}) | {"tokens": batch.counts.tokens}
                session.finish_step(metrics, tokens=batch.counts.tokens)
                session.evaluate(examine)
    losses = [row[LOSS] for row in session.rows if LOSS in row] or [None]
    return SFTResult(*session.ended, len(units.learned), units.dropped, losses[0], losses[-1])


def dry_run(
    config: SFT, cluster: TrainerOptions = ONE_PROCESS, resume: Path | None = None, *, measure: bool = True
) -> Plan:
    """Plan the resources of a run with these options; no weights are read, and nothing is written."""
    sides, model = _read(config), unloaded(config, resume)
    units = feedback.tokenize(config, demonstrations(config.train_on), sides, model.chat, model.shape.context)
    words = {"per_step": units.per_step, "microbatch_tokens": config.microbatch_tokens}
    work = supervised_work("sft", model.shape, units.learned, steps=units.steps, **words)
    return plan_of(config, replace(work, notes=(*model.notes, *units.notes)), cluster, measure=measure)


def _read(config: SFT) -> Sides[Conversation]:
    """Training and held-out demonstrations: of a data set, or an environment's own."""
    if given(config.dataset) == given(config.environment):
        raise UserError("`dataset` or `environment` is required; `dataset` is a file, folder, glob or hub id")
    own: Sequence[Conversation] = ()
    if config.environment:
        own = demonstrations_of(load_environment(config.environment, config.environment_args), config.seed)
        if not own:
            raise UserError(f"{config.environment} has no demonstrations of its own; pass `dataset`")
    sides = feedback.read(config, demonstrations(config.train_on), own)
    if not config.reward_control:
        return sides
    learned = controls.answers_permuted(sides.learned, seed_for(config.seed, "control"))
    return Sides(learned, sides.heldout, (*sides.notes, f"{controls.SHUFFLED} the answers among the prompts"))
