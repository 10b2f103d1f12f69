"""Item 4: the first update of a batch is on-policy, and engine and trainer agree on what was likely."""

from collections.abc import Mapping

from torch import Tensor

from posttrain.algorithms.algorithm import TokenLoss, Tokens
from posttrain.algorithms.grpo import GRPO
from posttrain.engine.policy import Policy
from posttrain.recipes.verify.bounds import GAP_MAX, GAP_MEAN
from posttrain.recipes.verify.item import Item, within
from posttrain.recipes.verify.logprobs import format_name
from posttrain.recipes.verify.subject import GoesOn, Gradients, Subject, batch_of, longest
from posttrain.training.learner import POLICY
from posttrain.training.local_learner import LocalLearner
from posttrain.training.policy import PolicyLoss


def first_update(subject: Subject) -> Item:
    """One update of a batch in several micro-batches, in every format that is in use; engine and trainer compared.

    Among it are messages that stop at a string and go on, and turns at a temperature of their own.
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

    plain, other = (
        subject.sample(policy, temperature=subject.temperature, environment=played) for played in (None, GoesOn())
    )
    batch = batch_of([*plain, *other])
    learner = LocalLearner(policy.model, Gradients(policy.model), microbatch_tokens=2 * longest(batch))
    found = learner.forward_backward(batch, PolicyLoss(Watched(kl_coefficient=0.0), subject.temperature))
    learner.optim_step({POLICY: 0.0})
    return seen, found
