"""Policy-gradient objectives: tensors in, one loss value per token out.

Any shape goes, as long as all arguments share it; training passes N completion tokens, flat and without padding.
Nothing here reduces, logs, talks to another process, or reads a config object.
See `objectives/reduce.py` for the mean over tokens or sequences.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from posttrain.objectives.shapes import require_one_shape


class PolicyLoss(NamedTuple):
    """A loss before reduction, with the numbers a recipe may want to log."""

    loss: Float[Tensor, "..."]
    ratio: Float[Tensor, "..."]
    clipped: Float[Tensor, "..."]  # 1.0 where the clip changed the value, else 0.0


def clipped_surrogate(
    logprobs: Float[Tensor, "..."],
    old_logprobs: Float[Tensor, "..."],
    advantages: Float[Tensor, "..."],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> PolicyLoss:
    """PPO's clipped surrogate, one value per token.

        L_t = -min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t),   r_t = exp(logprob_t - old_logprob_t)

    Schulman et al. 2017, eq. 7 (https://arxiv.org/abs/1707.06347). `clip_high > clip_low` is DAPO's
    clip-higher (https://arxiv.org/abs/2503.14476). The gradient reaches `logprobs` alone. Logprobs are in nats.

    Raises `ValueError` if the shapes differ, since broadcasting would give a plausible wrong number.

    Example:
        >>> logprobs, old = torch.tensor([0.0]), torch.tensor([-1.0])
        >>> clipped_surrogate(logprobs, old, torch.tensor([1.0])).loss  # r = e, clipped to 1.2
        tensor([-1.2000])
    """
    require_one_shape("clipped_surrogate", logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    advantages = advantages.detach()
    ratio = torch.exp(logprobs - old_logprobs.detach())
    unclipped = -ratio * advantages
    clipped = -ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    return PolicyLoss(torch.maximum(unclipped, clipped), ratio.detach(), (clipped > unclipped).to(ratio.dtype))
