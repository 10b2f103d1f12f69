"""Policy-gradient objectives: tensors in, one loss value per token out.

PPO's clipped surrogate, and successors that hold back a policy in other ways. Any shape goes, as long as all arguments
share it; training passes N completion tokens, flat and without padding. `objectives/reduce.py` has the means.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posttrain.objectives.reduce import sequence_sum
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


def sequence_surrogate(
    logprobs_N: Float[Tensor, "..."],
    old_N: Float[Tensor, "..."],
    advantages_N: Float[Tensor, "..."],
    row_N: Int[Tensor, "..."],
    *,
    clip_low: float,
    clip_high: float,
    by_length: bool,
) -> PolicyLoss:
    """The clipped surrogate with one ratio for a whole completion (or a branch); each of its tokens has the same value.

        L_i = -min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i)
        s_i = (pi(o_i | q) / pi_old(o_i | q))^(1/|o_i|)    with `by_length`: GSPO, Zheng et al. 2025, eq. 7
        s_i =  pi(o_i | q) / pi_old(o_i | q)               without: a completion is one action

    GSPO: https://arxiv.org/abs/2507.18071. `row_N` says which completion a token belongs to, from 0; all tokens of a
    completion are here and have the same advantage. Logprobs are in nats. Raises `ValueError` for unequal shapes.

    Example:
        >>> logprobs, old = torch.tensor([0.0, -1.0]), torch.tensor([-1.0, -2.0])
        >>> row, advantages = torch.tensor([0, 0]), torch.ones(2)
        >>> sequence_surrogate(logprobs, old, advantages, row, clip_low=1.0, clip_high=9.0, by_length=True).loss
        tensor([-2.7183, -2.7183])
    """
    require_one_shape("sequence_surrogate", logprobs_N=logprobs_N, old_N=old_N, advantages_N=advantages_N, row_N=row_N)
    rows = int(row_N.max()) + 1 if len(row_N) else 0
    log_ratio_B = sequence_sum(logprobs_N - old_N.detach(), row_N, rows)
    if by_length:
        log_ratio_B = log_ratio_B / sequence_sum(torch.ones_like(logprobs_N), row_N, rows).clamp(min=1.0)
    log_ratio_N = log_ratio_B[row_N]
    nothing_N = torch.zeros_like(log_ratio_N)
    return clipped_surrogate(log_ratio_N, nothing_N, advantages_N, clip_low=clip_low, clip_high=clip_high)


def geometric_surrogate(
    logprobs_N: Float[Tensor, "..."],
    old_N: Float[Tensor, "..."],
    advantages_N: Float[Tensor, "..."],
    row_N: Int[Tensor, "..."],
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyLoss:
    """GMPO: the geometric mean of a completion's ratios, each clipped first; each of its tokens has the same value.

        L_i = -A_i exp( 1/|o_i| sum_t c_t ),   s = sign(A_i),   c_t = s min(s l_t, s clip(l_t, -clip_low, clip_high))
        l_t = log pi(o_t | q, o_<t) - log pi_old(o_t | q, o_<t)

    Zhao et al. 2025 (https://arxiv.org/abs/2507.20673), with bounds of the log-ratio, in nats. All tokens of a
    completion (or branch) are here and have the same advantage, as in `sequence_surrogate`.

    Example:
        >>> logprobs, old, row = torch.tensor([0.0, -1.0]), torch.tensor([-1.0, -1.0]), torch.tensor([0, 0])
        >>> geometric_surrogate(logprobs, old, torch.ones(2), row, clip_low=0.4, clip_high=0.4).loss  # e^(0.4 / 2)
        tensor([-1.2214, -1.2214])
    """
    require_one_shape("geometric_surrogate", logprobs_N=logprobs_N, old_N=old_N, advantages_N=advantages_N, row_N=row_N)
    advantages_N = advantages_N.detach()
    log_ratio_N = logprobs_N - old_N.detach()
    near_N = log_ratio_N.clamp(-clip_low, clip_high)
    kept_N = torch.where(advantages_N < 0, torch.maximum(log_ratio_N, near_N), torch.minimum(log_ratio_N, near_N))
    rows = int(row_N.max()) + 1 if len(row_N) else 0
    length_B = sequence_sum(torch.ones_like(kept_N), row_N, rows).clamp(min=1.0)
    mean_N = torch.exp(sequence_sum(kept_N, row_N, rows) / length_B)[row_N]
    return PolicyLoss(-advantages_N * mean_N, mean_N.detach(), (kept_N != log_ratio_N).to(mean_N.dtype))


def soft_gated_surrogate(
    logprobs: Float[Tensor, "..."],
    old_logprobs: Float[Tensor, "..."],
    advantages: Float[Tensor, "..."],
    *,
    tau_positive: float,
    tau_negative: float,
) -> PolicyLoss:
    """SAPO: a sigmoid of the ratio in the place of the clip.

        L_t = -4 / tau sigmoid(tau (r_t - 1)) A_t,   tau = tau_positive where A_t > 0, else tau_negative

    Gao et al. 2025 (https://arxiv.org/abs/2511.20347). At r = 1 its slope is that of -r A, and it falls off to both
    sides, faster for a larger tau. Nothing is clipped.

    Example:
        >>> zero = torch.tensor([0.0])
        >>> soft_gated_surrogate(zero, zero, torch.tensor([1.0]), tau_positive=1.0, tau_negative=1.0).loss
        tensor([-2.])
    """
    require_one_shape("soft_gated_surrogate", logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    advantages = advantages.detach()
    ratio = torch.exp(logprobs - old_logprobs.detach())
    tau = torch.where(advantages > 0, tau_positive, tau_negative).to(ratio.dtype)
    gate = 4.0 / tau * torch.sigmoid(tau * (ratio - 1.0))
    return PolicyLoss(-gate * advantages, ratio.detach(), torch.zeros_like(ratio.detach()))
