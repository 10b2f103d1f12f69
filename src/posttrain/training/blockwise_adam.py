"""AdamW with block-wise 8-bit moments.

Dettmers et al. 2021 (https://arxiv.org/abs/2110.02861). Both moments of a matrix of 4,096 numbers or more are kept as
codes and scales (models/blockwise.py). An update reads a piece of them back in float32, does what AdamW does, and
quantises them again. As in the paper the input embedding, whose gradients are the most uneven, keeps its moments in
float32; so do norms, biases and small matrices. Nothing is drawn at random, so a run is as repeatable as with AdamW.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from posttrain.models.blockwise import BLOCK, blocks_of, dequantize, quantize, worth_quantizing
from posttrain.models.rounding import block_rows

MOMENTS = {"exp_avg": True, "exp_avg_sq": False}  # by torch's names; whether one can be below 0
SCALES = "_scales"


class BlockwiseAdamW(torch.optim.Optimizer):
    """AdamW as torch computes it, with the state of large matrices in 8 bits.

    Args:
        groups: torch's parameter groups; `lr` and `weight_decay` are read from them.
        betas, eps: of AdamW.
        full: parameters whose moments stay in float32, whatever their size.
    """

    def __init__(
        self, groups: list[dict[str, Any]], *, betas: tuple[float, float], eps: float, full: Iterable[Tensor] = ()
    ) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": betas, "eps": eps, "weight_decay": 0.0})
        wide = {id(p) for p in full}
        params: list[nn.Parameter] = [p for group in self.param_groups for p in group["params"]]
        self._quantized = {id(p) for p in params if id(p) not in wide and worth_quantizing(p)}

    def quantizes(self, parameter: Tensor) -> bool:
        """Whether this parameter's moments are kept in 8 bits."""
        return id(parameter) in self._quantized

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            params: list[nn.Parameter] = [p for p in group["params"] if p.grad is not None]
            for p in params:
                if p not in self.state:
                    self.state[p] = self._fresh(p)
            _adamw(group, [(p, p.grad, self.state[p]) for p in params if not self.quantizes(p)])
            for p in params:
                if self.quantizes(p):
                    _quantized_adamw(group, p, self.state[p])

    def _fresh(self, p: Tensor) -> dict[str, Tensor]:
        state = {"step": torch.zeros((), dtype=torch.float32, device=p.device)}
        for name, signed in MOMENTS.items():
            if not self.quantizes(p):
                state[name] = torch.zeros_like(p)
                continue
            state[name], state[name + SCALES] = (
                torch.empty(p.shape, dtype=torch.uint8, device=p.device),
                torch.zeros(blocks_of(p.numel()), device=p.device),
            )
            state[name].fill_(quantize(torch.zeros(1, device=p.device), signed=signed)[0].item())
        return state


def _quantized_adamw(group: dict[str, Any], p: nn.Parameter, state: dict[str, Tensor]) -> None:
    """Update one parameter in chunks of whole blocks, so that only one chunk is held in float32."""
    assert p.grad is not None
    rows = block_rows(BLOCK, p.device)
    pieces = zip(
        *(x.view(-1).split(rows * BLOCK) for x in (p.detach(), p.grad.contiguous(), *(state[n] for n in MOMENTS))),
        *(state[name + SCALES].split(rows) for name in MOMENTS),
        strict=True,
    )
    for weight, grad, *kept in pieces:
        codes, scales = dict(zip(MOMENTS, kept[:2], strict=True)), dict(zip(MOMENTS, kept[2:], strict=True))
        wide = {name: dequantize(codes[name], scales[name], signed=MOMENTS[name]).to(p.dtype) for name in MOMENTS}
        _adamw(group, [(weight, grad, {"step": state["step"].clone(), **wide})])
        for name, signed in MOMENTS.items():
            new_codes, new_scales = quantize(wide[name], signed=signed)
            codes[name].copy_(new_codes)
            scales[name].copy_(new_scales)
    state["step"] += 1


def _adamw(group: dict[str, Any], parts: list[tuple[Tensor, Tensor | None, dict[str, Tensor]]]) -> None:
    """Torch's own update, in place: weights, gradients and the state of each."""
    if not parts:
        return
    adamw(
        [weight for weight, _, _ in parts],
        [grad for _, grad, _ in parts if grad is not None],
        [state["exp_avg"] for _, _, state in parts],
        [state["exp_avg_sq"] for _, _, state in parts],
        [],
        [state["step"] for _, _, state in parts],
        fused=True,
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )
