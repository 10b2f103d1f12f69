"""Rules of preference algorithms, of pairs and of single responses, for `check_algorithm`.

Shape legend: B pairs, or responses.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import PairLoss, PreferenceAlgorithm, Responses, UnpairedAlgorithm
from posttrain.algorithms.inputs import ReferenceDivergence, ReferenceLogprobs, declared
from posttrain.testing.gradients import apart, ill_formed, metric_faults, steep

B = 4
DIVERGENCE = 0.5  # of a policy from its reference, in nats per response
Either = PreferenceAlgorithm | UnpairedAlgorithm
Sides = list[Responses]
"""The policy's, then the reference's: of chosen and rejected responses, or of single ones."""


def _sides(algorithm: Either, *, at_rest: bool = False) -> tuple[Sides, Sides]:
    """The policy's responses and the reference's; `at_rest`: which say the same."""
    g = torch.Generator().manual_seed(0)
    policy, reference = Sides(), Sides()
    for _ in range(2 if isinstance(algorithm, PreferenceAlgorithm) else 1):
        length_B = torch.randint(2, 6, (B,), generator=g).double()
        logprob_B = -length_B * (0.2 + torch.rand(B, generator=g, dtype=torch.float64))
        moved_B = torch.rand(B, generator=g, dtype=torch.float64) - 0.5
        divergence_B = torch.rand(B, generator=g, dtype=torch.float64).requires_grad_()
        told_B = divergence_B if declared(algorithm, ReferenceDivergence) else None
        reference.append(Responses(logprob_B if at_rest else logprob_B + moved_B, length_B))
        policy.append(Responses(logprob_B.clone().requires_grad_(), length_B, told_B))
    return policy, reference


def _good_B() -> Tensor:
    return torch.arange(B) % 2 == 0


def _loss(algorithm: Either, policy: Sides, reference: Sides, good_B: Tensor | None = None) -> PairLoss:
    if isinstance(algorithm, UnpairedAlgorithm):
        good_B = _good_B() if good_B is None else good_B
        return algorithm.loss_of_each(policy[0], good_B, reference=reference[0], divergence=DIVERGENCE)
    anchors = (reference[0], reference[1]) if declared(algorithm, ReferenceLogprobs) else None
    return algorithm.loss(policy[0], policy[1], reference=anchors)


def _numbers_have_their_shapes(algorithm: Either) -> list[str]:
    policy, reference = _sides(algorithm)
    found = _loss(algorithm, policy, reference)
    if not isinstance(cast(object, found), PairLoss):
        return [f"loss returned {type(found).__name__}; expected PairLoss"]
    paired = isinstance(algorithm, PreferenceAlgorithm)
    faults = ill_formed("loss", found.loss_B, torch.Size((B,)))
    faults += metric_faults(found.metrics, torch.Size((B,)) if paired else None)
    if isinstance(algorithm, UnpairedAlgorithm):
        faults += ill_formed("rewards", algorithm.rewards(policy[0], reference[0]), torch.Size((B,)))
    if faults:
        return faults
    again = _loss(algorithm, policy, reference)
    return [] if torch.equal(again.loss_B, found.loss_B) else ["losses of the same batch differ from call to call"]


def _inputs_are_what_it_declares(algorithm: Either) -> list[str]:
    """Where a declared input is missing, it raises: what is silent would train on something else."""
    if isinstance(algorithm, UnpairedAlgorithm):
        return [] if declared(algorithm, ReferenceLogprobs) else ["it is given a reference; declare ReferenceLogprobs"]
    policy, reference = _sides(algorithm)
    missing: dict[type[Any], Callable[[], object]] = {
        ReferenceLogprobs: lambda: algorithm.loss(policy[0], policy[1]),
        ReferenceDivergence: lambda: _loss(algorithm, [side._replace(divergence_B=None) for side in policy], reference),
    }
    faults = list[str]()
    for need, asked in missing.items():
        if declared(algorithm, need):
            try:
                asked()
                faults.append(f"it declares {need.__name__}, and raises nothing where that is missing")
            except Exception:
                continue
    return faults


def _response(responses: Responses, b: int) -> Responses:
    numbers = responses._asdict().items()
    return responses._replace(**{name: None if each is None else each[b : b + 1] for name, each in numbers})


def _pairs_are_apart(algorithm: Either) -> list[str]:
    policy, reference = _sides(algorithm)
    together_B = _loss(algorithm, policy, reference).loss_B
    alone = list[Tensor]()
    for b in range(B):
        one_policy, one_reference = ([_response(each, b) for each in of] for of in (policy, reference))
        alone.append(_loss(algorithm, one_policy, one_reference, _good_B()[b : b + 1]).loss_B)
    gap = apart(together_B, torch.cat(alone))
    return [f"alone, a pair or response has a loss {gap:.1e} apart from that in a batch"] if gap > 1e-9 else []


def gradients_are_slopes(algorithm: Either) -> list[str]:
    """By finite differences."""
    policy, reference = _sides(algorithm)
    loss = _loss(algorithm, policy, reference).loss_B.sum()
    faults = list[str]()
    for side, responses in enumerate(policy):
        for field in ("logprob_B", "divergence_B"):
            leaf = getattr(responses, field)
            if leaf is None:
                continue

            def loss_of(numbers_B: Tensor, side: int = side, field: str = field) -> Tensor:
                moved = [each._replace(**{field: numbers_B}) if i == side else each for i, each in enumerate(policy)]
                return _loss(algorithm, moved, reference).loss_B.sum()

            (found_B,) = torch.autograd.grad(loss, leaf, retain_graph=True, allow_unused=True, materialize_grads=True)
            faults += steep(f"{field} of response {side + 1}", found_B, leaf, loss_of)
    return faults


def _a_policy_at_its_reference_moves_to_the_better(algorithm: Either) -> list[str]:
    policy, reference = _sides(algorithm, at_rest=True)
    loss = _loss(algorithm, policy, reference).loss_B.sum()
    slopes = torch.autograd.grad(loss, [side.logprob_B for side in policy], allow_unused=True, materialize_grads=True)
    if isinstance(algorithm, UnpairedAlgorithm):
        better_B, worse_B = slopes[0][_good_B()], slopes[0][~_good_B()]
        names = ("good", "bad")
    else:
        better_B, worse_B = slopes
        names = ("chosen", "rejected")
    faults = list[str]()
    if not (better_B < 0).all():
        faults.append(f"a policy that is its reference does not make the {names[0]} response more likely")
    if not (worse_B >= 0).all():
        faults.append(f"a policy that is its reference makes the {names[1]} response more likely")
    return faults


PREFERENCE = (
    _numbers_have_their_shapes,
    _inputs_are_what_it_declares,
    _pairs_are_apart,
    gradients_are_slopes,
    _a_policy_at_its_reference_moves_to_the_better,
)
