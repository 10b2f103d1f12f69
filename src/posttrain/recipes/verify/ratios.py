"""Item 4: the first update of a batch is on-policy, and engine and trainer agree on what was likely."""

import torch

from posttrain.algorithms.algorithm import TokenLoss
from posttrain.algorithms.grpo import GRPO
from posttrain.recipes.verify.bounds import GAP_MAX, GAP_MEAN
from posttrain.recipes.verify.item import Item, within
from posttrain.recipes.verify.logprobs import format_name
from posttrain.recipes.verify.subject import Gradients, Subject, batch_of, longest
from posttrain.rollouts.policy import Policy
from posttrain.training.policy import policy_step


class _Watched(GRPO):
    """GRPO that counts the tokens whose ratio is not exactly 1, or that are clipped."""

    rows = off = 0

    def loss(self, logprobs_N: torch.Tensor, **given: torch.Tensor | None) -> TokenLoss:  # type: ignore[override]
        found = super().loss(logprobs_N, **given)  # type: ignore[arg-type]
        _Watched.rows += 1
        _Watched.off += int(((found.metrics["ratio"] != 1) | (found.metrics["clip_fraction"] != 0)).sum())
        return found


def first_update(subject: Subject) -> Item:
    """One update of a batch in several micro-batches, in every format that is in use."""
    details: list[str] = []
    holds = True
    largest = 0.0
    for policy in dict.fromkeys((subject.exact, subject.policy)):
        dtype = policy.model.dtype
        mean, largest, rows, off = _measure(subject, policy)
        holds = holds and off == 0 and rows > 1 and mean <= GAP_MEAN[dtype] and largest <= GAP_MAX[dtype]
        details.append(
            f"{format_name(dtype)}: ratio exactly 1 and nothing clipped but for {off} tokens in {rows} micro-batches, "
            f"logprobs of engine and trainer apart by {mean:.1e} mean (bound {GAP_MEAN[dtype]:g}), {largest:.1e} max"
        )
    return within("first update", largest, GAP_MAX[subject.dtype], "; ".join(details), besides=holds)


def _measure(subject: Subject, policy: Policy) -> tuple[float, float, int, int]:
    """Mean and largest distance, micro-batches, and tokens that are off-policy."""
    batch = batch_of(subject.sample(policy, temperature=subject.temperature))
    _Watched.rows = _Watched.off = 0
    found = policy_step(
        policy.model,
        Gradients(policy.model),
        _Watched(kl_coefficient=0.0),
        batch,
        lr=0.0,
        microbatch_tokens=2 * longest(batch),
        temperature=subject.temperature,
    )
    return found["logprob_gap/mean"], found["logprob_gap/max"], _Watched.rows, _Watched.off
