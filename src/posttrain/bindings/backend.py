"""Where a policy is trained and sampled: in this process, or in processes of a Ray cluster."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from posttrain.bindings.cluster_options import (
    ONE_PROCESS,
    AsyncOptions,
    ClusterOptions,
    TrainerOptions,
    check_cluster,
    reserved,
    reserved_by_all,
    servers_in,
    settings_of,
    shards_of,
    starting,
)
from posttrain.data.chat import ChatFormat
from posttrain.data.tokenizer import load_tokenizer
from posttrain.engine.policy import Policy, load_policy
from posttrain.engine.scheduler import Scheduler
from posttrain.episodes.ahead import Ahead
from posttrain.episodes.sampler import Rollouts
from posttrain.errors import UserError
from posttrain.models.fused import checkpoint_layers
from posttrain.models.language_model import LanguageModel
from posttrain.models.load import tokenizer_of
from posttrain.models.lora import Lora, need_peft
from posttrain.models.precision import compute_of
from posttrain.options.groups import Adapter, TrainingOptions
from posttrain.options.online import OnlineOptions
from posttrain.runs.resuming import announce_start
from posttrain.runs.run import Span
from posttrain.training.learner import Learner
from posttrain.training.local_learner import learner_for
from posttrain.training.ranks import ALONE, Ranks
from posttrain.types import Engine

Load = Callable[..., Any]
"""From options to what they train, on `device`: a policy or a reward model, with `model`, `chat` and `engine`."""
Build = Callable[[Any, Ranks], Learner]
"""From what was loaded and the ranks of its learner to that learner. Both are sent to other processes, so functions of
modules."""
MakesLearner = Callable[[Any], Learner]
"""From the policy (`model`, `chat`, `save`) to what trains it."""
T = TypeVar("T")


@dataclass(frozen=True)
class Backend:
    """A policy, and the processes in which it is trained and sampled."""

    chat: ChatFormat  # its messages as tokens
    context: int  # maximum tokens of a sequence
    compute: Mapping[str, Any]  # the compute environment, see `compute_of`
    stack: ExitStack  # what ends with it
    trained: Learner | None = None
    sampled: Engine | Scheduler | None = None  # from its current weights: a scheduler where steps are sampled ahead
    groups: Sequence[Any] = ()  # of processes, with `metrics`, and `log_in` a folder of what they write
    spans: Callable[[], Sequence[Span]] | None = None  # what samplers in other processes did since the last call
    staleness: int = 0  # how many steps old the weights may be from which a step was sampled
    ahead: Callable[..., Ahead[Any]] | None = None  # makes rollouts of steps that are sampled while others are trained
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])  # what a configuration says of the processes
    model: LanguageModel | None = None  # the policy's, where it is trained in this process and from it

    def metrics(self) -> dict[str, float]:
        """Metrics of the last step."""
        return {name: value for group in self.groups for name, value in group.metrics().items()}

    def log_in(self, run: Path) -> None:
        """Have the processes append what they write to standard output and error to files in the run's directory."""
        for group in self.groups:
            group.log_in(run / "logs")

    def rollouts(self, rollouts: Rollouts[T], *, steps: int, at: int) -> AbstractContextManager[Rollouts[T] | Ahead[T]]:
        """The rollouts of the steps from `at` to `steps`, which may be sampled in threads."""
        return self.ahead(rollouts, steps=steps, at=at) if self.ahead else nullcontext(rollouts)

    @property
    def learner(self) -> Learner:
        """Trains it."""
        assert self.trained is not None, "this policy is not trained"
        return self.trained

    @property
    def engine(self) -> Engine | Scheduler:
        """Samples from its current weights."""
        assert self.sampled is not None, "this policy is not sampled"
        return self.sampled


def online_backend(
    options: OnlineOptions,
    where: str,
    build: Build | None = None,
    cluster: ClusterOptions = ONE_PROCESS,
    learner: Learner | MakesLearner | None = None,
) -> Backend:
    """Load the policy in the folder `where`, with an engine, and with the learner that `build` makes, or `learner`."""
    check_cluster(cluster, options.engine)
    if learner is not None:
        check_learner(learner, cluster)
        if not callable(learner) and (isinstance(options.engine, str) or callable(options.engine)):
            raise UserError(
                "'learner' has weights of its own, which the engine would not see: give `engine` an object that "
                "samples from them, too, or give a function that makes a learner from the policy"
            )
        build = partial(_handed, learner)
    load = partial(_loaded, where=where)  # of trainers: an engine that they do not use would take memory
    if not cluster.trainers or build is None:
        found = _in_process(options, partial(load, engine=options.engine, cache_gb=options.cache_gb), build)
        return found if learner is None or callable(learner) else replace(found, model=None)
    with ExitStack() as stack:
        found, alike = _trainers(options, where, load, build, cluster, stack)
        ahead = cluster if isinstance(cluster, AsyncOptions) and cluster.max_staleness else None
        source: Any = found.learner
        servers, share = servers_in(options.engine), share_of(cluster, "sampler")
        if servers and share.gpus is None:
            share = share._replace(gpus=0.0)  # they have GPUs of their own
        engine = stack.enter_context(
            importlib.import_module("posttrain.distributed.samplers").SamplerGroup(
                cluster.samplers,
                partial(load, alike, cache_gb=options.cache_gb),
                source,
                engines=servers or [options.engine] * cluster.samplers,
                share=share,
                timeout_s=cluster.cluster_timeout,
            )
        )
        compute, groups = {**found.compute, "samplers": cluster.samplers}, (*found.groups, engine)
        found = replace(found, compute=compute, sampled=engine, groups=groups, spans=engine.ledger.spans)
        if ahead:
            scheduler = Scheduler(engine, own_thread=True, in_flight=ahead.in_flight_updates)
            made = partial(
                Ahead,
                scheduler=scheduler,
                publish=source.publish,
                check=source.check,
                staleness=ahead.max_staleness,
                evict=ahead.evict_stale,
            )
            found = replace(found, sampled=scheduler, staleness=ahead.max_staleness, ahead=made)
        return replace(found, stack=stack.pop_all())


def offline_backend(
    options: TrainingOptions,
    where: str,
    build: Build,
    cluster: TrainerOptions = ONE_PROCESS,
    load: Load | None = None,
    learner: Learner | MakesLearner | None = None,
) -> Backend:
    """Load the policy in the folder `where`, or what else `load` gives, with the learner of `build`, or `learner`."""
    check_cluster(cluster)
    if learner is not None:
        check_learner(learner, cluster)
        build = partial(_handed, learner)
    load = load or partial(_loaded, where=where)
    if not cluster.trainers:
        return _in_process(options, load, build)
    with ExitStack() as stack:
        found, _ = _trainers(options, where, load, build, cluster, stack)
        return replace(found, stack=stack.pop_all())


def check_learner(learner: object, cluster: TrainerOptions) -> None:
    """Raise `UserError` for what is no learner, and for one beside processes of a cluster."""
    if cluster.trainers:
        raise UserError("'learner' trains in this process; leave out `trainers`")
    missing = [name for name in ("forward_backward", "optim_step", "save", "restore") if not hasattr(learner, name)]
    if missing and not callable(learner):
        raise UserError(
            f"'learner' is an object with the methods of 'Learner', or a function that makes one from the policy; "
            f"{type(learner).__name__} has no {missing[0]}"
        )


def _handed(learner: Learner | MakesLearner, policy: Any, ranks: Ranks) -> Learner:
    made = learner(policy) if callable(learner) else learner
    check_learner(made, ONE_PROCESS)
    return made


def _loaded(options: TrainingOptions, where: str, **sampling: Any) -> Policy:
    policy = trained_policy(options, where, **sampling)
    if options.gradient_checkpointing:
        checkpoint_layers(policy.model.network)
    return policy


def _in_process(options: TrainingOptions, load: Load, build: Build | None) -> Backend:
    policy = load(options)
    model, trained = policy.model, build(policy, ALONE) if build else None
    compute = compute_of(model, options.precision)
    return Backend(policy.chat, model.context, compute, ExitStack(), trained, policy.engine, model=model)


def connect(cluster: TrainerOptions, stack: ExitStack) -> None:
    """Connect to the cluster of these options, with CPUs for all its processes, until `stack` ends; says so before."""
    ray, said = importlib.import_module("posttrain.distributed.cluster"), partial(announce_start, starting(cluster))
    if ray.connect(cluster.address, reserved_by_all(cluster, "cpus"), said):
        stack.callback(ray.disconnect)
        announce_start("connected to Ray; the processes start and load their models")


def share_of(cluster: TrainerOptions, kind: str) -> Any:
    """The `distributed.pool.Share` of each process of a kind."""
    return importlib.import_module("posttrain.distributed.pool").Share(**reserved(cluster, kind))


def _trainers(
    options: TrainingOptions, where: str, load: Load, build: Build, cluster: TrainerOptions, stack: ExitStack
) -> tuple[Backend, Any]:
    """The trainers of a cluster, and the options by which all other processes load the same policy."""
    trainers = importlib.import_module("posttrain.distributed.trainers")
    connect(cluster, stack)
    made = trainers.RankActors(cluster.trainers, share=share_of(cluster, "trainer"), timeout_s=cluster.cluster_timeout)
    ranks = stack.enter_context(made)
    precision, reason = ranks.first("precision", options.precision)
    alike = replace(cast(Any, options), precision=precision)  # each process would measure for itself what is fastest
    held = {"shards": shards_of(cluster), "offload": cluster.fsdp_offload}
    learner = trainers.LearnerGroup(ranks, partial(_of_rank, alike, load, build), **held)
    facts = learner.facts()
    chat = ChatFormat(load_tokenizer(tokenizer_of(where), options.chat_template, options.template_args), facts.stop_ids)
    compute = {**facts.compute, "precision_reason": reason, "trainers": cluster.trainers}
    settings = settings_of(cluster)
    return Backend(chat, facts.context, compute, stack, learner, groups=(ranks,), settings=settings), alike


def _of_rank(options: TrainingOptions, load: Load, build: Build, ranks: Ranks) -> Learner:
    return build(load(options, device=ranks.loads_on), ranks)


def trained_policy(options: TrainingOptions, where: str, **sampling: Any) -> Policy:
    """Load the policy in the folder `where` for training by the options; `sampling` as in `load_policy`."""
    return load_policy(
        where,
        precision=options.precision,
        chat_template=options.chat_template,
        template_args=options.template_args,
        lora=lora_of(options),
        seed=options.seed,
        **sampling,
    )


def policy_learner(options: TrainingOptions, policy: Policy, ranks: Ranks) -> Learner:
    """The learner of a policy without a reference model, critic or other auxiliary models."""
    return learner_for(options, policy.model, policy.save, ranks=ranks)


def lora_of(options: Adapter) -> Lora | None:
    """The adapter; None for `lora_rank` 0. Nothing is loaded. Raises `UserError` where peft is not installed."""
    if not options.lora_rank:
        return None
    need_peft()
    targets, saved = (
        tuple(dict.fromkeys(text.replace(",", " ").split()))
        for text in (options.lora_targets, options.lora_modules_to_save)
    )
    return Lora(
        options.lora_rank,
        options.lora_alpha,
        options.lora_dropout,
        targets,
        options.lora_rslora,
        options.lora_dora,
        saved,
    )
