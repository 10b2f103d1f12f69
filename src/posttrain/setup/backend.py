"""Where a policy is trained and sampled: in this process, or in processes of a Ray cluster."""

import importlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, cast

from posttrain.data.chat import ChatFormat
from posttrain.data.tokenizer import load_tokenizer
from posttrain.models.gradient_checkpointing import checkpoint_layers
from posttrain.models.load import tokenizer_of
from posttrain.models.precision import compute_of
from posttrain.rollouts.policy import Policy
from posttrain.setup.cluster_options import ONE_PROCESS, ClusterOptions
from posttrain.setup.policy import Trained, trained_policy
from posttrain.training.learner import Learner
from posttrain.training.ranks import ALONE, Ranks
from posttrain.types import Engine

Build = Callable[[Policy, Ranks], Learner]
"""From a policy and the ranks of its learner to that learner; sent to other processes, so a function of a module."""


class Options(Trained, Protocol):
    """The options of a policy that is trained on its own samples."""

    @property
    def engine(self) -> str: ...  # noqa: D102
    @property
    def cache_gb(self) -> float: ...  # noqa: D102
    @property
    def gradient_checkpointing(self) -> bool: ...  # noqa: D102


@dataclass(frozen=True)
class Backend:
    """A policy that is sampled, and maybe trained.

    Attributes:
        engine: samples from its current weights.
        chat: its messages as tokens.
        context: maximum tokens of a sequence.
        compute: the compute environment, see `compute_of`.
        stack: what ends with it.
        trained: its learner; None where it is not trained.
        metrics: of the last step.
    """

    engine: Engine
    chat: ChatFormat
    context: int
    compute: Mapping[str, Any]
    stack: ExitStack
    trained: Learner | None = None
    metrics: Callable[[], Mapping[str, float]] = dict

    @property
    def learner(self) -> Learner:
        """Trains it."""
        assert self.trained is not None, "this policy is not trained"
        return self.trained


def backend_for(
    options: Options, where: str, build: Build | None = None, cluster: ClusterOptions = ONE_PROCESS
) -> Backend:
    """Load the policy in the folder `where`, with its engine, and with the learner that `build` makes.

    Raises:
        UserError: Ray is not installed, or the cluster has no room.
    """
    if cluster.trainers and build is not None:
        return _on_cluster(options, where, build, cluster)
    policy = _loaded(options, where)
    model, compute = policy.model, compute_of(policy.model, options.precision)
    trained = build(policy, ALONE) if build else None
    return Backend(policy.engine, policy.chat, model.context, compute, ExitStack(), trained)


def _loaded(options: Options, where: str) -> Policy:
    policy = trained_policy(options, where, engine=options.engine, cache_gb=options.cache_gb)
    if options.gradient_checkpointing:
        checkpoint_layers(policy.model.network)
    return policy


def _on_cluster(options: Options, where: str, build: Build, cluster: ClusterOptions) -> Backend:
    trainers, samplers = (importlib.import_module(f"posttrain.distributed.{room}") for room in ("trainers", "samplers"))
    importlib.import_module("posttrain.distributed.cluster").connect(
        cluster.address, cluster.trainers * cluster.trainer_cpus + cluster.samplers * cluster.sampler_cpus
    )
    with ExitStack() as stack:
        ranks = stack.enter_context(
            trainers.RankActors(
                cluster.trainers,
                cpus=cluster.trainer_cpus,
                threads=cluster.trainer_threads,
                timeout_s=cluster.cluster_timeout,
            )
        )
        precision, reason = ranks.first("precision", options.precision)
        alike: Any = replace(cast(Any, options), precision=precision)  # each would measure by itself what is fastest
        learner = trainers.LearnerGroup(ranks, partial(_of_rank, alike, where, build))
        engine = stack.enter_context(
            samplers.SamplerGroup(
                cluster.samplers,
                partial(_loaded, alike, where),
                learner,
                bundle={"CPU": cluster.sampler_cpus},
                threads=cluster.sampler_threads,
                timeout_s=cluster.cluster_timeout,
            )
        )
        chat = ChatFormat(load_tokenizer(tokenizer_of(where), options.chat_template), engine.facts.stop_ids)
        processes = {"trainers": cluster.trainers, "samplers": cluster.samplers}
        compute = {**engine.facts.compute, "precision_reason": reason, **processes}
        return Backend(engine, chat, engine.facts.context, compute, stack.pop_all(), learner, engine.metrics)


def _of_rank(options: Options, where: str, build: Build, ranks: Ranks) -> Learner:
    """The learner of one rank."""
    return build(_loaded(options, where), ranks)
