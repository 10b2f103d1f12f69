"""Reward models: a language model with heads that are read at the last token of a response, or of each step.

    posttrain reward-model --dataset pairs.jsonl
    posttrain reward-model --dataset train.jsonl --eval-share 0.1 --model runs/sft-2026-01-31-1 --lr 1e-5
    posttrain reward-model --dataset train.jsonl --eval-share 0.1 --ensemble 5
    posttrain reward-model --dataset train.jsonl --eval-share 0.1 --model OWNER/NAME --lora-rank 16 --lr 1e-4
    posttrain reward-model --heads attributes --ratings ratings.jsonl --dataset pairs.jsonl --decorrelate verbosity
    posttrain reward-model --heads steps --dataset steps.jsonl --eval-share 0.1

`--heads preference` are scores, `--heads attributes` ratings and a gate that makes one score of them (attributes.py),
`--heads steps` say of each step whether it is right. With held-out pairs the scores come out calibrated: a difference
of 1 means odds of 2.7 to 1 that people prefer the one. The result is a Hugging Face folder: a sequence classifier with
a label for each head, whose chat template ends where the heads are read. An adapter that was trained is merged into it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Unpack

from posttrain.bindings.backend import lora_of, offline_backend
from posttrain.bindings.cluster_options import ONE_PROCESS, TrainerOptions, settings_of
from posttrain.bindings.feedback import feedback_training
from posttrain.data import ChatFormat, load_tokenizer, seed_for
from posttrain.errors import UserError
from posttrain.evaluation.pairs import HOTTEST
from posttrain.models.fused import checkpoint_layers
from posttrain.models.language_model import LanguageModel
from posttrain.models.load import tokenizer_of
from posttrain.models.precision import default_device, dtype_of
from posttrain.options.option import as_written, options_of
from posttrain.options.training import Scoring
from posttrain.planning import Plan, plan_of, unloaded
from posttrain.planning.work import feedback_work
from posttrain.recipes.reward_model.attributes import Attributes
from posttrain.recipes.reward_model.heads import Heads, Preference, Steps
from posttrain.runs.result import FeedbackResult, heldout_of
from posttrain.runs.resuming import restarted
from posttrain.runs.session import open_session
from posttrain.runs.training import RunOptions
from posttrain.training.learner import POLICY, Learner
from posttrain.training.local_learner import learner_for
from posttrain.training.ranks import Ranks
from posttrain.training.resolve_model import began_from, precision_of

HEADS: Mapping[str, type[Heads]] = MappingProxyType(
    {"preference": Preference, "attributes": Attributes, "steps": Steps}
)
"""By the name that --heads gives."""


@dataclass(frozen=True)
class ScoringResult(FeedbackResult):
    """A trained reward model."""

    attributes: tuple[str, ...] = ()  # that --heads attributes rate


@restarted
def run(config: Scoring, cluster: TrainerOptions = ONE_PROCESS, **where: Unpack[RunOptions]) -> ScoringResult:
    """Train a reward model in a new run directory, or resume the run in `resume`."""
    heads = _heads(config, cluster)
    exact = replace(config, precision=precision_of(config.precision, where.get("resume")))
    saved = began_from(config.model, where.get("resume"))
    load = partial(_load, where=saved.where, load_heads=heads.loader(saved.where))
    build = partial(_learner, exact)
    backend = offline_backend(exact, saved.where, build, cluster, load, where.get("learner"))
    with backend.stack:
        learner, units = backend.learner, heads.tokenize(backend.chat, backend.context)
        heads.begin(learner)
        settings = {name: value for name, value in as_written(config).items() if name not in _of_others(config)}
        settings |= settings_of(cluster)
        training = feedback_training(
            config,
            units,
            heads,
            settings=settings,
            environment={**backend.compute, "model": saved.where},
            notes=(*saved.notes(), *units.notes),
            evaluated=heads.evaluated,
        )

        def examine() -> dict[str, float]:
            found = heads.evaluate(session.step, session.progress.say)
            if session.step and found.get("temperature", 0.0) >= HOTTEST * 0.99:
                session.progress.say("held-out accuracy is at chance; calibration shrank the scores to 0")
            return {f"evaluation/{name}": value for name, value in found.items()}

        with open_session("reward-model", settings, training, **where) as session:
            backend.log_in(session.directory.path)
            session.evaluate(examine)
            for step in session.steps():
                batch = units.batch(step)
                with session.update(heads.kind.examples(batch)):
                    metrics = heads.gradient(batch, seed_for(config.seed, "dropout", step))
                    metrics |= learner.optim_step({POLICY: session.lr})
                session.finish_step(metrics)
                session.evaluate(examine)
    return ScoringResult(*session.ended, len(units.learned), units.dropped, *heldout_of(session.rows), heads.names)


def dry_run(
    config: Scoring, cluster: TrainerOptions = ONE_PROCESS, resume: Path | None = None, *, measure: bool = True
) -> Plan:
    """What a run with these options will take; no weights are read, and nothing is written."""
    heads = _heads(config, cluster)
    model = unloaded(config, resume, scored=True)
    units = heads.tokenize(model.chat, model.shape.context)
    words = {"per_step": units.per_step, "microbatch_tokens": config.microbatch_tokens, "head": False}
    words |= {"reads": heads.reads, "notes": (*model.notes, *units.notes)}
    work = feedback_work("reward-model", model.shape, heads.kind, units, **words)
    return plan_of(config, work, cluster, measure=measure)


def _heads(config: Scoring, cluster: TrainerOptions) -> Heads:
    """The heads that the options name; raises `UserError` for options of others."""
    for name, other in _of_others(config).items():
        if getattr(config, name) != options_of(Scoring)[name].default:
            raise UserError(f"`{name}` is for `heads` {other}; leave it out, or type `heads` {other}")
    lora_of(config)  # its package is asked for before anything is loaded
    kind = HEADS[config.heads]
    if cluster.trainers and not kind.on_clusters:
        raise UserError(f"`heads` {config.heads} trains in one process; leave out `trainers`")
    return kind(config)


def _of_others(config: Scoring) -> dict[str, str]:
    """The options that are for other heads alone, each with their name."""
    others = {name: kind for name, kind in HEADS.items() if name != config.heads}
    return {option: name for name, kind in others.items() for option in options_of(kind.options)}


class _Loaded(NamedTuple):
    heads: Any
    chat: ChatFormat
    engine: None = None

    @property
    def model(self) -> LanguageModel:
        """What reads."""
        return self.heads.body


def _load(config: Scoring, where: str, load_heads: Callable[..., Any], device: str = "auto") -> _Loaded:
    device = default_device() if device == "auto" else device
    dtype = dtype_of(config.precision, device)
    heads = load_heads(where, dtype=dtype, device=device, seed=config.seed, adapter=lora_of(config))
    if config.gradient_checkpointing:
        checkpoint_layers(heads.body.network)
    tokenizer = load_tokenizer(tokenizer_of(where), config.chat_template, config.template_args)
    return _Loaded(heads, ChatFormat(tokenizer, heads.body.stop_ids))


def _learner(config: Scoring, loaded: _Loaded, ranks: Ranks) -> Learner:
    heads = loaded.heads
    return learner_for(config, heads, heads.write, body=heads.body, ranks=ranks)
