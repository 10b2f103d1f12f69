"""Offline preference optimisation, without a reward model.

    posttrain preference --dataset pairs.jsonl
    posttrain preference --dataset train.jsonl --eval-share 0.1 --algorithm dpo --beta 0.1 --lora-rank 16 --lr 1e-5
    posttrain preference --dataset thumbs.jsonl --algorithm kto

Most algorithms are trained on pairs of a chosen and a rejected response; kto on single responses labelled good or bad,
or on pairs. The prompt of a pair is computed once for both responses. The differences between algorithms are in
`algorithms/`, one file each. Pairs of the policy's own completions: online_preference.py.
"""

from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Unpack

from posttrain.algorithms.algorithm import PreferenceAlgorithm, UnpairedAlgorithm
from posttrain.algorithms.inputs import ReferenceLogprobs, declared
from posttrain.bindings import feedback
from posttrain.bindings.backend import lora_of, offline_backend
from posttrain.bindings.cluster_options import ONE_PROCESS, TrainerOptions, settings_of
from posttrain.bindings.feedback import JUDGEMENTS, PAIRS, Feedback, feedback_training
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
from posttrain.runs.result import FeedbackResult, heldout_of
from posttrain.runs.resuming import restarted
from posttrain.runs.session import open_session
from posttrain.runs.training import RunOptions
from posttrain.training.learner import POLICY, REFERENCE
from posttrain.training.local_learner import LocalLearner, learner_for
from posttrain.training.preference import ReferenceOf, may_be_remembered, needs_column, objective_for, remember
from posttrain.training.ranks import Ranks
from posttrain.training.resolve_model import began_from, precision_of


class PreferencesResult(FeedbackResult):
    """A run on pairs or judged rows."""


PreferenceOptimizer = PreferenceAlgorithm | UnpairedAlgorithm
KINDS: dict[str, Feedback[Any, Any]] = {"pair": PAIRS, "response": JUDGEMENTS}  # by the unit of an algorithm


@restarted
def run(
    config: Preferences,
    algorithm: PreferenceOptimizer,
    cluster: TrainerOptions = ONE_PROCESS,
    **where: Unpack[RunOptions],
) -> PreferencesResult:
    """Train a policy in a new run directory, or resume the run in `resume`."""
    kind = KINDS[algorithm.unit]
    sides = feedback.read(config, kind)
    exact = replace(config, precision=precision_of(config.precision, where.get("resume")))
    saved = began_from(config.model, where.get("resume"))
    build = partial(_learner, exact, algorithm, saved.where)
    backend = offline_backend(exact, saved.where, build, cluster, learner=where.get("learner"))
    with backend.stack:
        learner, units = backend.learner, feedback.tokenize(config, kind, sides, backend.chat, backend.context)
        settings = as_written(config) | {"knobs": asdict(algorithm)} | settings_of(cluster)
        remembered: list[ReferenceOf] = []  # of the reference, from when the directory of the run is open

        def prepare() -> None:
            if not _remembers(config, algorithm, saved.where):
                return
            heldout = [units.heldout] if units.heldout else []
            batches = map(kind.examples, chain((units.batch(step) for step in range(units.steps)), heldout))
            most, quiet = config.microbatch_tokens, where.get("quiet", False)
            with Progress("reference", units.steps + len(heldout), quiet=quiet) as progress:
                remembered.append(remember(learner, batches, microbatch_tokens=most, on_batch=progress.step))

        training = feedback_training(
            config,
            units,
            learner,
            settings=settings,
            environment={**backend.compute, "model": saved.where},
            notes=(*saved.notes(), *units.notes),
            prepare=prepare,
        )

        def examine() -> dict[str, float]:
            found = objective.evaluate(units.heldout) | {"pairs": len(units.heldout)}
            return {f"evaluation/{name}": value for name, value in found.items()}

        with open_session("preference", settings, training, **where) as session:
            objective = objective_for(algorithm, learner, *remembered)
            backend.log_in(session.directory.path)
            session.evaluate(examine)
            for step in session.steps():
                chosen = units.batch(step)
                with session.update(kind.examples(chosen)):
                    batch = objective.batch(chosen, seed=seed_for(config.seed, "dropout", step))
                    metrics = learner.forward_backward(batch, objective.loss)
                    metrics |= learner.optim_step({POLICY: session.lr}) | dict(batch.scalars)
                session.finish_step(metrics)
                session.evaluate(examine)
    return PreferencesResult(*session.ended, len(units.learned), units.dropped, *heldout_of(session.rows))


def _learner(
    config: Preferences, algorithm: PreferenceOptimizer, where: str, policy: Policy, ranks: Ranks
) -> LocalLearner[LanguageModel]:
    """The learner of a policy, with a reference model where its logprobs are not precomputed."""
    held = declared(algorithm, ReferenceLogprobs) and not _remembers(config, algorithm, where)
    references = {REFERENCE: reference_for(policy.model)} if held else {}
    return learner_for(config, policy.model, policy.save, references=references, ranks=ranks)


def dry_run(
    config: Preferences,
    algorithm: PreferenceOptimizer,
    cluster: TrainerOptions = ONE_PROCESS,
    resume: Path | None = None,
    *,
    measure: bool = True,
) -> Plan:
    """Plan the resources of a run with these options; no weights are read, and nothing is written."""
    kind = KINDS[algorithm.unit]
    sides, model = feedback.read(config, kind), unloaded(config, resume)
    units = feedback.tokenize(config, kind, sides, model.chat, model.shape.context)
    compared = declared(algorithm, ReferenceLogprobs) is not None
    work = feedback_work(
        "preference",
        model.shape,
        kind,
        units,
        per_step=units.per_step,
        microbatch_tokens=config.microbatch_tokens,
        references=int(compared and not may_be_remembered(algorithm)),
        reads=compared * (3 if isinstance(algorithm, UnpairedAlgorithm) else 1),
        notes=(*model.notes, *units.notes),
    )
    return plan_of(config, work, cluster, measure=measure)


def _remembers(config: Preferences, algorithm: PreferenceOptimizer, where: str) -> bool:
    """Whether the logprobs of the reference, which is in the folder `where`, are precomputed: no second model is held.

    With an adapter, the base model is the reference, and precomputing is not needed.
    """
    adapted = lora_of(config) is not None or is_adapter(where)
    return not adapted and needs_column(algorithm) and may_be_remembered(algorithm)
