"""Offline preference optimisation, without a reward model.

    posttrain preference --dataset pairs.jsonl
    posttrain preference --dataset train.jsonl --eval-share 0.1 --algorithm dpo --beta 0.1 --lora-rank 16 --lr 1e-5
    posttrain preference --dataset thumbs.jsonl --algorithm kto

Most algorithms are trained on pairs of a chosen and a rejected response; kto on single responses labelled good or bad,
or on pairs. The prompt of a pair is computed once for both responses. The differences between algorithms are in
`algorithms/`, one file each. Pairs of the policy's own completions: online_preference.py.
"""

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Unpack

from posttrain.algorithms.algorithm import PreferenceAlgorithm, UnpairedAlgorithm
from posttrain.algorithms.inputs import ReferenceLogprobs, declared
from posttrain.bindings import feedback
from posttrain.bindings.backend import Backend, lora_of, offline_backend
from posttrain.bindings.cluster_options import ONE_PROCESS, TrainerOptions, settings_of
from posttrain.bindings.feedback import Feedback, Units, feedback_for, feedback_training
from posttrain.data.order import seed_for
from posttrain.engine.policy import Policy
from posttrain.models.language_model import LanguageModel
from posttrain.models.lora import is_adapter
from posttrain.models.reference import reference_for
from posttrain.options.option import as_written
from posttrain.options.training import Preferences
from posttrain.planning import Plan, plan_of, unloaded
from posttrain.planning.work import feedback_work
from posttrain.runs.progress import Progress
from posttrain.runs.restarts import restarted
from posttrain.runs.result import FeedbackResult, heldout_of
from posttrain.runs.session import Session, open_session
from posttrain.runs.training import RunOptions
from posttrain.training.learner import POLICY, REFERENCE
from posttrain.training.local_learner import LocalLearner, learner_for
from posttrain.training.preference import (
    Objective,
    ReferenceOf,
    may_be_remembered,
    needs_column,
    objective_for,
    remember,
)
from posttrain.training.ranks import Ranks
from posttrain.training.resolve_model import began_from, precision_of


class PreferencesResult(FeedbackResult):
    """A run on pairs or judged rows."""


def run(
    config: Preferences,
    algorithm: PreferenceAlgorithm | UnpairedAlgorithm,
    cluster: TrainerOptions = ONE_PROCESS,
    **where: Unpack[RunOptions],
) -> PreferencesResult:
    """Train a policy in a new run directory, or resume the run in `resume`."""
    return restarted(partial(_run, config, algorithm, cluster), where)


def _run(
    config: Preferences,
    algorithm: PreferenceAlgorithm | UnpairedAlgorithm,
    cluster: TrainerOptions,
    where: RunOptions,
) -> PreferencesResult:
    parts = _prepare(config, algorithm, cluster, where)
    learner, units = parts.backend.learner, parts.units

    def examine() -> dict[str, float]:
        found = parts.objective.evaluate(units.heldout) | {"pairs": len(units.heldout)}
        return {f"evaluation/{name}": value for name, value in found.items()}

    with parts.backend.stack, _open(config, algorithm, cluster, parts, where) as session:
        parts.backend.log_in(session.directory.path)
        session.evaluate(examine)
        for step in session.steps():
            chosen = units.batch(step)
            with session.update(parts.feedback.examples(chosen)):
                batch = parts.objective.batch(chosen, seed=seed_for(config.seed, "dropout", step))
                metrics = learner.forward_backward(batch, parts.objective.loss)
                metrics |= learner.optim_step({POLICY: session.lr}) | dict(batch.scalars)
            session.finish_step(metrics)
            session.evaluate(examine)
    return PreferencesResult(*session.ended, len(units.learned), units.dropped, *heldout_of(session.rows))


@dataclass
class _Parts:
    feedback: Feedback[Any, Any]
    units: Units[Any]
    backend: Backend
    model: str  # where the policy was loaded from
    notes: tuple[str, ...]  # messages to the user
    objective: Objective = field(init=False)  # from when the run's directory is open


def _prepare(
    config: Preferences,
    algorithm: PreferenceAlgorithm | UnpairedAlgorithm,
    cluster: TrainerOptions,
    where: RunOptions,
) -> _Parts:
    """Load all parts and validate all options, before anything is written."""
    resume = where.get("resume")
    kind = feedback_for(algorithm)
    sides = feedback.read(config, kind)
    config = replace(config, precision=precision_of(config.precision, resume))
    saved = began_from(config.model, resume)
    build = partial(_learner, config, algorithm, saved.where)
    backend = offline_backend(config, saved.where, build, cluster, learner=where.get("learner"))
    with backend.ended_by_errors():
        units = feedback.tokenize(config, kind, sides, backend.chat, backend.context)
    return _Parts(kind, units, backend, saved.where, (*saved.notes(), *units.notes))


def _learner(
    config: Preferences,
    algorithm: PreferenceAlgorithm | UnpairedAlgorithm,
    where: str,
    policy: Policy,
    ranks: Ranks,
) -> LocalLearner[LanguageModel]:
    """The learner of a policy, with a reference model where its logprobs are not precomputed."""
    held = declared(algorithm, ReferenceLogprobs) and not _remembers(config, algorithm, where)
    references = {REFERENCE: reference_for(policy.model)} if held else {}
    return learner_for(config, policy.model, policy.save, references=references, ranks=ranks)


def dry_run(
    config: Preferences,
    algorithm: PreferenceAlgorithm | UnpairedAlgorithm,
    cluster: TrainerOptions = ONE_PROCESS,
    resume: Path | None = None,
    *,
    measure: bool = True,
) -> Plan:
    """Plan the resources of a run with these options; no weights are read, and nothing is written."""
    kind = feedback_for(algorithm)
    sides = feedback.read(config, kind)
    model = unloaded(config, resume)
    units = feedback.tokenize(config, kind, sides, model.chat, model.shape.context)
    compared = declared(algorithm, ReferenceLogprobs) is not None
    work = feedback_work(
        "preference",
        model.shape,
        kind,
        units,
        per_step=config.pairs_per_step,
        microbatch_tokens=config.microbatch_tokens,
        references=int(compared and not may_be_remembered(algorithm)),
        reads=compared * (3 if isinstance(algorithm, UnpairedAlgorithm) else 1),
        notes=(*model.notes, *units.notes),
    )
    return plan_of(config, work, cluster, measure=measure)


def _remembers(config: Preferences, algorithm: PreferenceAlgorithm | UnpairedAlgorithm, where: str) -> bool:
    """Whether the logprobs of the reference, which is in the folder `where`, are precomputed: no second model is held.

    With an adapter, the base model is the reference, and precomputing is not needed.
    """
    adapted = lora_of(config) is not None or is_adapter(where)
    return not adapted and needs_column(algorithm) and may_be_remembered(algorithm)


def _remembered(config: Preferences, parts: _Parts, *, quiet: bool) -> ReferenceOf:
    """Precompute the logprobs of every response under the initial policy."""
    units = parts.units
    heldout = [units.heldout] if units.heldout else []
    batches = chain((units.batch(step) for step in range(units.steps)), heldout)
    with Progress("reference", units.steps + len(heldout), quiet=quiet) as progress:
        return remember(
            parts.backend.learner,
            map(parts.feedback.examples, batches),
            microbatch_tokens=config.microbatch_tokens,
            on_batch=progress.step,
        )


def _open(
    config: Preferences,
    algorithm: PreferenceAlgorithm | UnpairedAlgorithm,
    cluster: TrainerOptions,
    parts: _Parts,
    where: RunOptions,
) -> AbstractContextManager[Session]:
    def prepare() -> None:
        remembers = _remembers(config, algorithm, parts.model)
        known = _remembered(config, parts, quiet=where.get("quiet", False)) if remembers else None
        parts.objective = objective_for(algorithm, parts.backend.learner, known)

    settings = as_written(config) | {"knobs": asdict(algorithm)} | settings_of(cluster)
    about = {**parts.backend.compute, "model": parts.model}
    words = {"settings": settings, "environment": about, "notes": parts.notes, "prepare": prepare}
    training = feedback_training(config, parts.units, parts.backend.learner, **words)
    return open_session("preference", settings, training, **where)
