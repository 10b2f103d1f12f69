"""Items 1 and 2: logprobs and gradients, against float64, and in every layout of a batch."""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from posttrain import fast_paths
from posttrain.data.packing import Example, pack
from posttrain.models.float64_reference import exact_gradient, exact_logits, float64_copy, padded_logprobs
from posttrain.models.language_model import LanguageModel
from posttrain.models.reference import AdapterOff
from posttrain.recipes.verify.subject import ALGORITHM, Gradients, Item, Subject, longest
from posttrain.training.learner import POLICY, Batch
from posttrain.training.local_learner import LocalLearner
from posttrain.training.policy import PolicyLoss

LOGPROB = 1e-4
"""Float32 logprobs from float64 ones, in nats. Float32 has 24 bits: logits of size 20 are off by some 1e-6 each, and
tens of layers add up to 1e-5. A wrong mask, position or temperature shows as 1e-2 or more."""

GRADIENT = 1e-5
"""Length of the difference of two gradients over the gradient's own length, in float32. Sums in another order differ by
1e-7 to 1e-6, by 8e-6 where the library takes another kernel for rows of another length; one token that is lost, doubled
or weighed otherwise shows as 1e-2 or more."""

EXACT_GRADIENT = 1e-3
"""The same from a float64 gradient, through tens of layers in float32. A wrong term in a backward pass that we wrote
ourselves shows as 1e-2 or more."""

ROUNDED_GRADIENT = 1.5
"""How much further from the float32 gradient one with shared prompts may be than one without, both in the format that
is computed in, as 1 - cosine. Bfloat16 alone makes 1.5e-3 of a model of 30 layers; 5% of a wrong term adds 1.2e-3."""


def logprobs(subject: Subject) -> Item:
    """Packed rows against a slow float64 reading of the model, one sequence at a time, at two temperatures."""
    batch, network = subject.batch, float64_copy(subject.exact.model)
    # logits once for all temperatures: this is most of the time that the item takes
    logits = torch.cat(
        [exact_logits(network, [*e.prefix, *e.continuation])[len(e.prefix) - 1 : -1] for e in batch.examples]
    )
    targets = torch.tensor([t for e in batch.examples for t in e.continuation], device=logits.device)
    details: list[str] = []
    worst = 0.0
    for temperature in (1.0, subject.config.temperature):
        exact = (logits / temperature).log_softmax(-1).gather(1, targets[:, None])[:, 0]
        gap = (packed_logprobs(subject.exact.model, batch, temperature).double() - exact).abs()
        worst = max(worst, gap.max().item())
        details.append(f"float32 {gap.max().item():.1e} at temperature {temperature:g}")
        if subject.dtype != torch.float32:
            coarse = (packed_logprobs(subject.policy.model, batch, temperature).double() - exact).abs()
            details.append(f"{subject.format} {coarse.mean().item():.3f} mean, {coarse.max().item():.2f} max")
    detail = f"largest distance from float64 over {len(targets)} tokens, in nats: {', '.join(details)}"
    return Item.within("logprobs", worst, LOGPROB, detail)


@torch.no_grad()
def packed_logprobs(model: LanguageModel | AdapterOff, batch: Batch, temperature: float) -> Tensor:
    """Logprobs of all learned tokens by the fast path, in the order of the examples; in several rows."""
    found: dict[int, list[Tensor]] = {}
    for row in pack(batch.examples, 2 * longest(batch)):
        values = model.logprobs(row, temperature)
        values = values if isinstance(values, Tensor) else values.logprobs
        for number, value in zip(row.rows, values, strict=True):
            found.setdefault(number, []).append(value)
    return torch.stack([value for number in sorted(found) for value in found[number]])


def gradients(subject: Subject) -> Item:
    """The gradient of one batch, laid out in four ways; and its logprobs against padded batches."""
    batch = subject.batch
    finest, whole = longest(batch), sum(len(e.prefix) + len(e.continuation) for e in batch.examples)
    expected, turned = _gradient(subject, batch, whole), batch.chosen(range(len(batch.examples))[::-1])
    found = {
        "micro-batches of one example": difference(_gradient(subject, batch, finest), expected),
        "reversed order": difference(_gradient(subject, turned, whole), expected),
    }
    with fast_paths.without("shared prefix"):  # which would share what all sequences begin with
        found["no shared prompts"] = difference(_gradient(subject, _apart(batch), 2 * finest), expected)
        naive = _gradient(subject, _apart(batch), 2 * finest, model=subject.policy.model)
    ours = _gradient(subject, batch, whole, model=subject.policy.model)
    rounding, naive_rounding = (1 - cosine(gradient, expected) for gradient in (ours, naive))
    # those in float32 differ in their last bits; with sharing switched off both are naive, of other micro-batches
    as_near = not fast_paths.on("shared prefix") or rounding <= ROUNDED_GRADIENT * naive_rounding + GRADIENT
    padding = _padding(subject)
    exact = difference(expected, _exact(subject))
    detail = ", ".join(f"{name} {value:.1e}" for name, value in found.items())
    rounded = (
        f"in {subject.format} with and without shared prompts cosine {cosine(ours, naive):.6f} to each "
        f"other, {1 - rounding:.6f} and {1 - naive_rounding:.6f} to float32"
    )
    return Item.within(
        "gradients",
        max(found.values()),
        GRADIENT,
        f"relative difference from one micro-batch: {detail}; {rounded}; from the plain float64 network {exact:.1e} "
        f"(bound {EXACT_GRADIENT:g}); there is no padding, and logprobs are those of left- and right-padded batches "
        f"within {padding:.1e} (bound {LOGPROB:g})",
        besides=padding <= LOGPROB and exact <= EXACT_GRADIENT and as_near,
    )


def difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The length of the difference of two gradients over the length of the second."""
    if found.keys() != expected.keys():
        return math.inf
    apart = sum((found[name] - expected[name]).double().square().sum().item() for name in found)
    return math.sqrt(apart / sum(grad.double().square().sum().item() for grad in expected.values()))


def cosine(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> float:
    """Of the angle between two gradients."""

    def inner(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
        return sum((a[name].double() * b[name].double()).sum().item() for name in one)

    return inner(one, two) / math.sqrt(inner(one, one) * inner(two, two))


def _gradient(
    subject: Subject, batch: Batch, microbatch_tokens: int, *, model: LanguageModel | None = None
) -> dict[str, Tensor]:
    model = model or subject.exact.model
    optimizer = Gradients(model)
    learner = LocalLearner(model, optimizer, microbatch_tokens=microbatch_tokens)
    learner.forward_backward(batch, PolicyLoss(ALGORITHM, subject.config.temperature))
    learner.optim_step({POLICY: 0.0})
    return optimizer.found


def _exact(subject: Subject) -> dict[str, Tensor]:
    """The same gradient by autograd through transformers' own modules.

    On a first update the ratio is 1, so a token's weight in the loss is minus its advantage, over its completion's
    length and the number of completions.
    """
    batch, sequences = subject.batch, list[tuple[list[int], list[float]]]()
    for example, advantages in zip(batch.examples, batch.tokens["advantages"], strict=True):
        share = 1 / sum(example.learned) / batch.counts.sequences
        following = iter(advantages)
        learned = [*[False] * len(example.prefix), *example.learned][1:]
        weights = [-next(following) * share if flag else 0.0 for flag in learned]
        sequences.append(([*example.prefix, *example.continuation], weights))
    network = float64_copy(subject.exact.model)
    found = exact_gradient(network, sequences, subject.config.temperature)
    return {name: found[name] for name, _ in subject.exact.model.trainable()}


def _apart(batch: Batch) -> Batch:
    """The same sequences, each with a prompt of its own."""
    whole = [
        Example.whole((*e.prefix, *e.continuation), (*[False] * len(e.prefix), *e.learned)) for e in batch.examples
    ]
    return replace(batch, examples=whole)


def _padding(subject: Subject) -> float:
    """The largest distance of our logprobs from those of padded batches, over one completion of each prompt."""
    kept = slice(None, None, subject.config.completions_per_prompt)
    batch = replace(subject.batch, examples=subject.batch.examples[kept])
    network = float64_copy(subject.exact.model)
    ours = packed_logprobs(subject.exact.model, batch, subject.config.temperature).double()
    sequences = [[*e.prefix, *e.continuation] for e in batch.examples]
    worst = 0.0
    for side in ("left", "right"):
        padded = padded_logprobs(network, sequences, side, subject.config.temperature)
        theirs = torch.cat([p[len(e.prefix) - 1 :] for p, e in zip(padded, batch.examples, strict=True)])
        worst = max(worst, (ours - theirs).abs().max().item())
    return worst
