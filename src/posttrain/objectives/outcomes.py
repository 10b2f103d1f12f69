"""Advantages of outcomes: of several rewards, of right and wrong completions, and of sets of them.

Shape legend: P groups of G completions each (the group is always the last dimension); N tokens of a batch. As in
`objectives/advantages.py` a group never sees another group's rewards, and one of equal rewards gets exactly 0.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posttrain.objectives.advantages import mean_centred


def applicable_normalised(rewards_PG: Float[Tensor, "*P G"], *, epsilon: float = 1e-4) -> Float[Tensor, "*P G"]:
    """As `group_normalised`, of the numbers that are not NaN: the others of a group do not count, and get 0.

    With fewer than two numbers a group has nothing to compare, and gets 0.

    Example:
        >>> applicable_normalised(torch.tensor([1.0, 0.0, float("nan")]), epsilon=0.0)
        tensor([ 0.7071, -0.7071,  0.0000])
    """
    here_PG = ~rewards_PG.isnan()
    count_P = here_PG.sum(dim=-1, keepdim=True)
    known_PG = rewards_PG.masked_fill(~here_PG, 0.0)
    centred_PG = (known_PG - known_PG.sum(dim=-1, keepdim=True) / count_P.clamp(min=1)).masked_fill(~here_PG, 0.0)
    least_P = known_PG.masked_fill(~here_PG, torch.inf).amin(dim=-1, keepdim=True)
    most_P = known_PG.masked_fill(~here_PG, -torch.inf).amax(dim=-1, keepdim=True)
    std_P = (centred_PG.square().sum(dim=-1, keepdim=True) / (count_P - 1).clamp(min=1)).sqrt()
    return (centred_PG / (std_P + epsilon)).masked_fill(least_P >= most_P, 0.0)


def by_success_rate(rewards_PG: Float[Tensor, "*P G"]) -> Float[Tensor, "*P G"]:
    """Subtract the group's mean and divide by it.

        A_i = (r_i - mean(r)) / mean(r)

    MaxRL, Tajwar et al. 2026 (https://arxiv.org/abs/2602.02710), of rewards 0 and 1, whose mean is the share of right
    completions. 0 where the mean is not above 0.

    Example:
        >>> by_success_rate(torch.tensor([1.0, 0.0, 0.0, 0.0]))
        tensor([ 3., -1., -1., -1.])
    """
    centred_PG, mean_P = mean_centred(rewards_PG), rewards_PG.mean(dim=-1, keepdim=True)
    return torch.where(mean_P > 0, centred_PG / torch.where(mean_P > 0, mean_P, 1.0), 0.0)


def pass_at_k(right_PG: Bool[Tensor, "*P G"], k: int) -> Float[Tensor, "*P G"]:
    """The advantage of pass@k in closed form, over all sets of k completions of a group of G, of which W are wrong.

        R = 1 - C(W, k) / C(G, k),   std = sqrt(R (1 - R))
        A = (1 - R) / std for a right one,   (1 - R - C(W - 1, k - 1) / C(G - 1, k - 1)) / std for a wrong one

    Chen et al. 2025 (https://arxiv.org/abs/2508.10751). R is the group's pass@k; 0 where it is 0 or 1. Raises
    `ValueError` for k outside 1 to G.

    Example:
        >>> pass_at_k(torch.tensor([True, False, False, False]), 2)
        tensor([ 1.0000, -0.3333, -0.3333, -0.3333], dtype=torch.float64)
    """
    size = right_PG.shape[-1]
    if not 1 <= k <= size:
        raise ValueError(f"pass@k compares sets of k completions of a group of {size}, so k is 1 to {size}; got {k}")
    failed_W = torch.tensor(
        [math.comb(wrong, k) / math.comb(size, k) for wrong in range(size + 1)], dtype=torch.float64
    )
    others_W = torch.tensor(
        [0.0, *(math.comb(wrong - 1, k - 1) / math.comb(size - 1, k - 1) for wrong in range(1, size + 1))],
        dtype=torch.float64,
    )
    wrong_P = (~right_PG).sum(dim=-1, keepdim=True)
    failed_P, others_P = failed_W.to(right_PG.device)[wrong_P], others_W.to(right_PG.device)[wrong_P]
    std_P = (failed_P * (1 - failed_P)).sqrt()
    gain_PG = torch.where(right_PG, failed_P, failed_P - others_P)
    return torch.where(std_P > 0, gain_PG / torch.where(std_P > 0, std_P, 1.0), 0.0)


def covariance(advantages_N: Float[Tensor, "N"], logprobs_N: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    """Each token's share of the covariance of advantage and logprob over a batch, in nats.

        C_n = (A_n - mean(A)) (log p_n - mean(log p))

    Cui et al. 2025 (https://arxiv.org/abs/2505.22617): a likely token with a high advantage lowers the entropy.

    Example:
        >>> covariance(torch.tensor([1.0, -1.0]), torch.tensor([-1.0, -3.0]))
        tensor([1., 1.])
    """
    return (advantages_N - advantages_N.mean()) * (logprobs_N - logprobs_N.mean())
