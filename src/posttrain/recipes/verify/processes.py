"""Item 12, on a cluster: its trainers and samplers compute what one process does."""

from functools import partial
from typing import Any, cast

from posttrain.bindings.backend import online_backend, trained_policy
from posttrain.bindings.cluster_options import ClusterOptions
from posttrain.engine.policy import Policy
from posttrain.engine.scheduler import Scheduler
from posttrain.options.online import OnlineOptions
from posttrain.recipes.verify.bounds import GAP_MAX, PROCESSES
from posttrain.recipes.verify.item import Item, within
from posttrain.recipes.verify.logprobs import format_name
from posttrain.recipes.verify.subject import ALGORITHM, Subject, batch_of
from posttrain.training.learner import POLICY, Learner
from posttrain.training.local_learner import learner_for
from posttrain.training.policy import PolicyLoss
from posttrain.training.ranks import ALONE, Ranks
from posttrain.training.resolve_model import saved_model
from posttrain.types import Request, Sampling

RATE = 1e-5


def processes(subject: Subject, cluster: ClusterOptions) -> Item:
    """One update of the same batch in both; then logprobs of the batch, and samples of the updated weights."""
    where, dtype = saved_model(subject.name).where, subject.dtype
    options = OnlineOptions(model=subject.name, precision=cast(Any, format_name(dtype)))
    policy = trained_policy(options, where)
    here = _learner(options, policy, ALONE)
    batch = batch_of(subject.sample(policy))
    asked = [
        Request(tuple(policy.chat.prompt_ids(task.prompt)), Sampling(subject.max_new_tokens), subject.seed + number)
        for task in subject.tasks
        for number in range(subject.completions)
    ]
    backend = online_backend(options, where, partial(_learner, options), cluster)
    with backend.stack:
        there, found = backend.learner, []
        for learner in (here, there):
            learner.forward_backward(batch, PolicyLoss(ALGORITHM))
            learner.optim_step({POLICY: RATE})
            found.append(learner.logprobs(batch.examples))
        assert not isinstance(backend.engine, Scheduler)  # nothing is sampled ahead
        samples = policy.engine.generate(asked), backend.engine.generate(asked)
    gap = max(abs(a - b) for one, other in zip(*found, strict=True) for a, b in zip(one, other, strict=True))
    pairs = list(zip(*samples, strict=True))
    alike = [(one, other) for one, other in pairs if one.token_ids == other.token_ids]
    far = max([0.0, *(abs(a - b) for x, y in alike for a, b in zip(x.logprobs, y.logprobs, strict=True))])
    exact = dtype.itemsize < 4 or len(alike) == len(pairs)
    same = cluster.trainers == 1 and not cluster.fsdp_offload  # whose AdamW computes elsewhere than this one's
    bound = 0.0 if same and dtype.itemsize == 4 else PROCESSES[dtype]
    detail = (
        f"{format_name(dtype)}, {cluster.trainers} trainers and {cluster.samplers} samplers against one process: "
        f"logprobs after an update; of {len(pairs)} samples {len(alike)} are the same, "
        f"their logprobs {far:.1e} apart at most"
    )
    return within("processes", gap, bound, detail, besides=exact and bool(alike) and far <= GAP_MAX[dtype])


def _learner(options: OnlineOptions, policy: Policy, ranks: Ranks) -> Learner:
    return learner_for(options, policy.model, policy.save, ranks=ranks)
