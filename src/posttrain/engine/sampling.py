"""Token sampling: one uniform number per row, from the row's seed.

Shape letters: B rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from posttrain.errors import TrainingError
from posttrain.models.rounding import block_rows

_GAMMA, _MIX_1, _MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """One number in [0, 1) per (seed, position): SplitMix64 (Steele et al. 2014) of the two, top 53 bits.

    So a draw depends on the request's seed and its number of tokens alone, not on the batch or on earlier draws.
    """
    x = np.asarray(seeds, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for salt in (np.uint64(0), np.asarray(positions, dtype=np.uint64)):
            x = x + (salt + np.uint64(1)) * _GAMMA
            x = (x ^ (x >> np.uint64(30))) * _MIX_1
            x = (x ^ (x >> np.uint64(27))) * _MIX_2
            x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Draw(NamedTuple):
    """One token per row, and its logprob in nats under the distribution it was drawn from."""

    tokens: Tensor  # [B] long
    logprobs: Tensor  # [B] float32


def draw(logits_BV: Tensor, uniform_B: Tensor, *, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Draw:
    """Sample each row of softmax(logits / temperature) by inverting its distribution function at `uniform_B`.

    Temperature 0 takes the most likely token, whose logprob is that of temperature 1. `top_k` and `top_p` (nucleus)
    truncate the distribution, which is renormalised; the logprob is that of the truncated distribution. Raises
    `TrainingError` if a logit is nan or infinite.
    """
    rows = block_rows(logits_BV.shape[1], logits_BV.device)
    blocks = zip(logits_BV.split(rows), uniform_B.split(rows), strict=True)
    drawn = [_draw(logits, uniform, temperature, top_k, top_p) for logits, uniform in blocks]
    return Draw(torch.cat([d.tokens for d in drawn]), torch.cat([d.logprobs for d in drawn]))


def _draw(logits_BV: Tensor, uniform_B: Tensor, temperature: float, top_k: int, top_p: float) -> Draw:
    """As `draw`, for rows that are few enough to stay in the cache from one operation to the next."""
    logits = logits_BV.float()
    if temperature == 0:
        tokens = logits.argmax(dim=1)
        return Draw(tokens, logits.gather(1, tokens[:, None])[:, 0] - torch.logsumexp(logits, dim=1))
    if temperature != 1:
        logits = logits / temperature
    if top_k > 0 or top_p < 1:
        logits = _cut(logits, top_k, top_p)
    peak = logits.amax(dim=1, keepdim=True)
    mass = torch.cumsum(torch.exp(logits - peak), dim=1)
    total = mass[:, -1:]
    if not torch.isfinite(total).all():
        raise TrainingError(
            "the model's logits are not finite, so no token can be drawn; its weights may have diverged"
        )
    # rounding can leave the last bins equal; `right=True` passes over tokens of zero mass to the last one that has some
    point = torch.minimum(uniform_B[:, None].to(total.dtype) * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(mass, point, right=True)
    logprobs = logits.gather(1, tokens) - peak - total.log()
    return Draw(tokens[:, 0], logprobs[:, 0])


def _cut(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    ordered, order = logits.sort(dim=1, descending=True)
    dropped = torch.zeros_like(ordered, dtype=torch.bool)
    if top_k > 0:
        dropped[:, top_k:] = True
    if top_p < 1:
        probs = ordered.masked_fill(dropped, -torch.inf).softmax(dim=1)
        dropped |= probs.cumsum(dim=1) - probs >= top_p  # keep the token that crosses the line
        dropped[:, 0] = False  # also where `top_p` is 0 in float32
    return logits.masked_fill(torch.zeros_like(dropped).scatter(1, order, dropped), -torch.inf)
