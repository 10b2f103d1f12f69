"""Items 4, 6, 11, 12: engine, trainer and a cluster's processes agree, also after updates; samples depend on no others.

An update reaches the sampler, with all weights and with an adapter, and a small one is not lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from posttrain.algorithms.algorithm import TokenLoss, Tokens
from posttrain.algorithms.grpo import GRPO
from posttrain.bindings.backend import online_backend, policy_learner, trained_policy
from posttrain.bindings.cluster_options import ClusterOptions
from posttrain.engine.engine import finish_all
from posttrain.engine.policy import Policy
from posttrain.engine.scheduler import Scheduler
from posttrain.engine.transformers import TransformersEngine
from posttrain.errors import UserError, as_typed
from posttrain.models.language_model import LanguageModel
from posttrain.models.lora import add_lora
from posttrain.models.reference import AdapterOff
from posttrain.options.online import OnlineOptions
from posttrain.recipes.verify.numerics import LOGPROB, packed_logprobs
from posttrain.recipes.verify.subject import ALGORITHM, LONGEST, GoesOn, Gradients, Item, Subject, batch_of, longest
from posttrain.training.learner import POLICY, Batch
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import PolicyLoss
from posttrain.training.ranks import ALONE
from posttrain.training.resolve_model import saved_model
from posttrain.training.supervised import NLL, supervised_batch
from posttrain.types import Completion, Engine, Group, Request

GAP_MEAN = {torch.float32: 1e-5, torch.bfloat16: 0.03}
"""Mean distance of the engine's logprobs from the trainer's, in nats. They take the same products in other shapes. A
bfloat16 number has 8 bits, so a logit of size 16 to 32 is rounded to a multiple of 0.125."""

GAP_MAX = {torch.float32: 1e-3, torch.bfloat16: 0.5}
"""The largest such distance of any token: a few of those roundings, for tokens that are almost never drawn more."""

PROCESSES = {torch.float32: 1e-4, torch.bfloat16: 0.5}
"""Logprobs after an update by several trainers from those after the same update by one process, in nats. Gradients are
summed in another order, and Adam's first step has the sign of each, which for gradients near 0 is chance."""

SMALL_STEPS = 500
"""Updates of 1e-6 after which most weights have to have moved in bfloat16 too: those below 0.25 have neighbours at most
9.8e-4 away, so half of that, 490 updates, rounds them to the next one."""

MOVED = 0.5
"""The share of weights that has to have moved."""

SMALL_GB = 1e-4  # of keys and values: hardly one sequence, and nothing is remembered for long
RATE = 1e-5
SMALL = 1e-6  # a usual learning rate
SIDE = 256  # of the part of a weight matrix on which small steps are repeated


def first_update(subject: Subject) -> Item:
    """The first update is on-policy, also of messages that go on, and engine and trainer agree on its logprobs."""
    details: list[str] = []
    holds, largest = True, 0.0
    for name, policy in subject.policies.items():
        dtype = policy.model.dtype
        seen, found = _watched(subject, policy)
        off = sum(int(((m["ratio"] != 1) | (m["clip_fraction"] != 0)).sum()) for m in seen)
        mean, largest = found["logprob_gap/mean"], found["logprob_gap/max"]
        holds = holds and off == 0 and len(seen) > 1 and mean <= GAP_MEAN[dtype] and largest <= GAP_MAX[dtype]
        details.append(
            f"{name}: {off} tokens with a ratio other than exactly 1 or clipped, in {len(seen)} "
            f"micro-batches; logprobs of engine and trainer {mean:.1e} apart on average (bound {GAP_MEAN[dtype]:g}) "
            f"and {largest:.1e} at most"
        )
    return Item.within("first update", largest, GAP_MAX[subject.dtype], "; ".join(details), besides=holds)


def _watched(subject: Subject, policy: Policy) -> tuple[list[Mapping[str, Tensor]], dict[str, float]]:
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
    for name, policy in subject.policies.items():
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
        details.append(f"{name}: {same} of {tokens} tokens are the same, logprobs {largest:.1e} apart at most")
    told = "asked together or one by one, with what earlier turns left or without"
    return Item.within("arrivals", largest, GAP_MAX[subject.dtype], f"{'; '.join(details)}; {told}", besides=holds)


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
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def processes(subject: Subject, cluster: ClusterOptions) -> Item:
    """One update of the same batch in both; then logprobs of the batch, and samples of the updated weights."""
    where, dtype = saved_model(subject.config.model).where, subject.dtype
    options = OnlineOptions(model=subject.config.model, precision=cast(Any, subject.format))
    policy = trained_policy(options, where)
    here = policy_learner(options, policy, ALONE)
    batch, asked = batch_of(subject.sample(policy)), subject.requests(policy)
    backend = online_backend(options, where, partial(policy_learner, options), cluster)
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
        f"{subject.format}, {cluster.trainers} trainers and {cluster.samplers} samplers against one process: "
        f"logprobs after an update; of {len(pairs)} samples {len(alike)} are the same, "
        f"their logprobs {far:.1e} apart at most"
    )
    return Item.within("processes", gap, bound, detail, besides=exact and bool(alike) and far <= GAP_MAX[dtype])


def weight_update(subject: Subject) -> Item:
    """Sample, update, sample again with the same seeds; with all weights, then with an adapter."""
    found: list[str] = []
    model = subject.policy.model
    before = subject.sample(subject.policy)
    optimizer = MasterAdamW(model.trainable())
    small = _small_updates(model, optimizer, batch_of(before), found)
    _update(model, optimizer, batch_of(before), lr=1e-3)
    _look_again(subject, subject.policy, before, "all weights", found)
    del optimizer  # its memory is needed for the next one
    adapter = _adapter(subject, found)
    return Item.unless("weight update", found, f"the next samples come from the new weights; {adapter}; {small}")


def _update(model: LanguageModel, optimizer: MasterAdamW, batch: Batch, *, lr: float) -> None:
    learner = LocalLearner(model, optimizer, microbatch_tokens=2 * longest(batch))
    learner.forward_backward(supervised_batch(batch.examples), NLL())
    learner.optim_step({POLICY: lr})


def _look_again(subject: Subject, policy: Policy, before: Sequence[Group], what: str, found: list[str]) -> None:
    """The same requests get other samples than before, and the trainer's new logprobs are the sampler's."""
    after = subject.sample(policy)
    said, said_before = ([row.trajectory.token_ids for group in of for row in group.rows] for of in (after, before))
    if said == said_before:
        found.append(f"{what}: the sampler emits the same as before the update")
    batch = batch_of(after)
    sampler = torch.tensor([value for values in batch.tokens["sampler_logprobs"] for value in values])
    gap = (packed_logprobs(policy.model, batch, 1.0).cpu() - sampler).abs().max().item()
    if gap > GAP_MAX[policy.model.dtype]:
        found.append(f"{what}: after the update, the logprobs of sampler and trainer are {gap:.2g} apart")


def _adapter(subject: Subject, found: list[str]) -> str:
    """The same with a fresh adapter, whose base has to stay as it was."""
    exact = subject.exact
    if exact.model.adapter is not None:
        return "the model is an adapter, so that is what was updated"
    before = subject.sample(exact)
    batch = batch_of(before)
    base = packed_logprobs(exact.model, batch, 1.0)
    try:
        model = add_lora(exact.model, subject.config.lora_rank, seed=subject.config.seed)
    except UserError as error:
        return f"an adapter's updates were not checked: {as_typed(str(error))}"
    adapted = replace(exact, model=model, engine=TransformersEngine(model, exact.chat.stop_ids))
    if (packed_logprobs(model, batch, 1.0) - base).abs().max() > LOGPROB:
        found.append("a fresh adapter changes the policy")
    optimizer = MasterAdamW(model.trainable())
    for _ in range(2):  # the first update reaches B alone, which starts at 0
        _update(model, optimizer, batch, lr=1e-2)
    _look_again(subject, adapted, before, "adapter", found)
    if (packed_logprobs(AdapterOff(model), batch, 1.0) - base).abs().max() > LOGPROB:
        found.append("with the adapter off, the policy is not its base")
    return f"so they do with an adapter of rank {subject.config.lora_rank}, whose base stays the reference"


def _small_updates(model: LanguageModel, optimizer: MasterAdamW, batch: Batch, found: list[str]) -> str:
    """One update of 1e-6 on the float32 masters; many on a part of a matrix kept in bfloat16."""
    name, master = next((n, m) for n, m in reversed(optimizer.named_masters().items()) if m.dim() == 2)
    start = master.detach().clone()
    _update(model, optimizer, batch, lr=SMALL)
    moved = _share(master.detach() != start)
    if moved < MOVED:
        found.append(f"an update of {SMALL:g} changed {moved:.0%} of the float32 masters of '{name}'")
    part = start[:SIDE, :SIDE].bfloat16()
    ours, plain = nn.Parameter(part.clone()), nn.Parameter(part.clone())
    masters, naive = MasterAdamW([(name, ours)]), torch.optim.AdamW([plain], lr=SMALL, weight_decay=0.0)
    for _ in range(SMALL_STEPS):
        with masters.collecting():
            (ours.sum() + plain.sum()).backward()
        masters.step(SMALL)
        naive.step()
        naive.zero_grad()
    kept, lost = _share(ours.detach() != part), _share(plain.detach() != part)
    if kept < MOVED:
        found.append(f"{SMALL_STEPS} updates of {SMALL:g} changed {kept:.0%} of the bfloat16 weights of '{name}'")
    return (
        f"an update of {SMALL:g} changes {moved:.0%} of the float32 masters of '{name}', and {SMALL_STEPS} of them "
        f"{kept:.0%} of its weights in bfloat16 ({lost:.0%} without masters)"
    )


def _share(changed: Tensor) -> float:
    return changed.float().mean().item()
