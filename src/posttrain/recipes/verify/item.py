"""One item of the contract with its result, and the tolerances: how far each may be off, and why."""

from dataclasses import dataclass

import torch

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


@dataclass(frozen=True, slots=True)
class Item:
    """What was measured, and how far it may be off; both are None where it could not be measured.

    Where `bound` is 0, `measured` counts violations.
    """

    name: str
    passed: bool
    measured: float | None
    bound: float | None
    detail: str

    def line(self) -> str:
        """The item in one line, for people."""
        found = "not measured" if self.measured is None else f"{self.measured:.3g} (bound {self.bound:g})"
        return f"{'passed' if self.passed else 'FAILED'}  {self.name}: {found}; {self.detail}"


def within(name: str, measured: float, bound: float, detail: str, *, besides: bool = True) -> Item:
    """An item that holds if `measured` is within `bound`, and whatever is checked `besides` holds too."""
    return Item(name, besides and measured <= bound, measured, bound, detail)


def violations(name: str, found: list[str], detail: str) -> Item:
    """An item that holds if nothing was found against it."""
    return within(name, len(found), 0, "; ".join(found) or detail)


def format_name(dtype: torch.dtype) -> str:
    """A number format without the library's name."""
    return str(dtype).removeprefix("torch.")
