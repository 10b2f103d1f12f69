"""Items 4, 11, 12: engine, trainer and the processes of a cluster agree; samples depend on their request alone."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from torch import Tensor

from posttrain.algorithms.algorithm import TokenLoss, Tokens
from posttrain.algorithms.grpo import GRPO
from posttrain.bindings.backend import online_backend, trained_policy
from posttrain.bindings.cluster_options import ClusterOptions
from posttrain.engine.engine import finish_all
from posttrain.engine.policy import Policy
from posttrain.engine.scheduler import Scheduler
from posttrain.engine.transformers import TransformersEngine
from posttrain.options.online import OnlineOptions
from posttrain.recipes.verify.item import GAP_MAX, GAP_MEAN, PROCESSES, Item, format_name, within
from posttrain.recipes.verify.subject import ALGORITHM, LONGEST, GoesOn, Gradients, Subject, batch_of, longest
from posttrain.training.learner import POLICY, Learner
from posttrain.training.local_learner import LocalLearner, learner_for
from posttrain.training.policy import PolicyLoss
from posttrain.training.ranks import ALONE, Ranks
from posttrain.training.resolve_model import saved_model
from posttrain.types import Completion, Engine, Request

SMALL_GB = 1e-4  # of keys and values: hardly one sequence, and nothing is remembered for long
RATE = 1e-5


def first_update(subject: Subject) -> Item:
    """The first update of a batch is on-policy, in several micro-batches, and engine and trainer agree on logprobs.

    In every format that is in use; messages that stop at a string and go on and turns at a temperature of their own are
    among it.
    """
    details: list[str] = []
    holds, largest = True, 0.0
    for policy in subject.policies:
        dtype = policy.model.dtype
        seen, found = _update(subject, policy)
        off = sum(int(((m["ratio"] != 1) | (m["clip_fraction"] != 0)).sum()) for m in seen)
        mean, largest = found["logprob_gap/mean"], found["logprob_gap/max"]
        holds = holds and off == 0 and len(seen) > 1 and mean <= GAP_MEAN[dtype] and largest <= GAP_MAX[dtype]
        details.append(
            f"{format_name(dtype)}: {off} tokens with a ratio other than exactly 1 or clipped, in {len(seen)} "
            f"micro-batches; logprobs of engine and trainer {mean:.1e} apart on average (bound {GAP_MEAN[dtype]:g}) "
            f"and {largest:.1e} at most"
        )
    return within("first update", largest, GAP_MAX[subject.dtype], "; ".join(details), besides=holds)


def _update(subject: Subject, policy: Policy) -> tuple[list[Mapping[str, Tensor]], dict[str, float]]:
    """The metrics per token of every micro-batch, and those of the update."""
    seen: list[Mapping[str, Tensor]] = []

    class Watched(GRPO):
        def loss(self, tokens: Tokens) -> TokenLoss:
            found = super().loss(tokens)
            seen.append(found.metrics)
            return found

    temperature = subject.config.temperature
    plain, other = (subject.sample(policy, one, temperature=temperature) for one in (None, GoesOn()))
    batch = batch_of([*plain, *other])
    learner = LocalLearner(policy.model, Gradients(policy.model), microbatch_tokens=2 * longest(batch))
    found = learner.forward_backward(batch, PolicyLoss(Watched(kl_coefficient=0.0), temperature))
    learner.optim_step({POLICY: 0.0})
    return seen, found


def arrivals(subject: Subject) -> Item:
    """Two turns of requests together, one by one, and with another cache, in every format that is in use."""
    details: list[str] = []
    holds, largest = True, 0.0
    for policy in subject.policies:
        dtype = policy.model.dtype
        first = subject.requests(policy, LONGEST)
        done = policy.engine.generate(first)
        later = [  # a second turn of each: what was shown and said, and the prompt again
            Request((*r.token_ids, *d.token_ids, *r.token_ids[1:]), r.sampling, r.seed + 1000)
            for r, d in zip(first, done, strict=True)
        ]
        ways = (
            (done, _one_by_one(policy.engine, first)),
            (policy.engine.generate(later), _remembered(policy, 1.5, first, later)),
            (policy.engine.generate(later), _remembered(policy, SMALL_GB, first, later)),
        )
        same, tokens, largest = 0, 0, 0.0
        for expected, found in ways:
            for one, other in zip(expected, found, strict=True):
                alike = _alike(one.token_ids, other.token_ids)
                same, tokens = same + alike, tokens + len(one.token_ids)
                gaps = zip(one.logprobs[:alike], other.logprobs[:alike], strict=True)
                largest = max([largest, *(abs(a - b) for a, b in gaps)])
        exact = dtype.itemsize < 4 or same == tokens
        holds = holds and exact and largest <= GAP_MAX[dtype]
        details.append(
            f"{format_name(dtype)}: {same} of {tokens} tokens are the same, logprobs {largest:.1e} apart at most"
        )
    told = "asked together or one by one, with what earlier turns left or without"
    return within("arrivals", largest, GAP_MAX[subject.dtype], f"{'; '.join(details)}; {told}", besides=holds)


def _one_by_one(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    """Requests arrive one step apart, while other requests join and leave the batch."""
    found: dict[int, Completion] = {}
    with engine.open() as decoding:
        for number, request in enumerate(requests):
            decoding.add(number, request)
            decoding.add(-1 - number, request)
            found |= decoding.step()
            decoding.cancel(-1 - number)
        while not all(number in found for number in range(len(requests))):
            found |= decoding.step()
    return [found[number] for number in range(len(requests))]


def _remembered(
    policy: Policy, cache_gb: float, first: Sequence[Request], later: Sequence[Request]
) -> list[Completion]:
    """The second turns, after the first ones on the same engine, in the opposite order."""
    engine = TransformersEngine(policy.model, policy.chat.stop_ids, cache_gb=cache_gb)
    with engine.open(turns=True) as decoding:
        finish_all(decoding, first[::-1])
        return finish_all(decoding, later[::-1])[::-1]


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def processes(subject: Subject, cluster: ClusterOptions) -> Item:
    """One update of the same batch in both; then logprobs of the batch, and samples of the updated weights."""
    where, dtype = saved_model(subject.config.model).where, subject.dtype
    options = OnlineOptions(model=subject.config.model, precision=cast(Any, format_name(dtype)))
    policy = trained_policy(options, where)
    here = _learner(options, policy, ALONE)
    batch, asked = batch_of(subject.sample(policy)), subject.requests(policy)
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
