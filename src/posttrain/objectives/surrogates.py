"""Successors of PPO's clipped surrogate (`objectives/policy.py`), which hold back a policy in other ways.

Any shape goes, as long as all arguments share it. The gradient reaches the policy's logprobs alone.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posttrain.objectives.policy import PolicyLoss
from posttrain.objectives.reduce import sequence_sum
from posttrain.objectives.shapes import require_one_shape


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
