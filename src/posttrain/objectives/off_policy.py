"""Policy-gradient objectives for samples of another policy q: one loss value per token, to be summed.

Any shape goes, as long as all arguments share it. p is the policy that is trained, q the one that sampled; both
logprobs are in nats, and the gradient reaches those of p alone. `objectives/policy.py` has PPO's clipped surrogate.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posttrain.objectives.reduce import sequence_sum
from posttrain.objectives.shapes import require_one_shape


def importance_weighted(
    logprobs: Float[Tensor, "..."], sampling_logprobs: Float[Tensor, "..."], advantages: Float[Tensor, "..."]
) -> Float[Tensor, "..."]:
    """REINFORCE with importance weights, without a clip.

        L_t = -r_t A_t,   r_t = p(x_t) / q(x_t)

    Its gradient is -r_t A_t grad log p(x_t): that of REINFORCE (Williams 1992), corrected token by token for sampling
    from q. https://tinker-docs.thinkingmachines.ai/losses, importance_sampling.

    Example:
        >>> importance_weighted(torch.tensor([0.0]), torch.tensor([0.0]), torch.tensor([2.0]))
        tensor([-2.])
    """
    require_one_shape(
        "importance_weighted", logprobs=logprobs, sampling_logprobs=sampling_logprobs, advantages=advantages
    )
    return -torch.exp(logprobs - sampling_logprobs.detach()) * advantages.detach()


def clipped_weight(
    logprobs: Float[Tensor, "..."],
    sampling_logprobs: Float[Tensor, "..."],
    advantages: Float[Tensor, "..."],
    *,
    lowest: float = 0.8,
    highest: float = 1.2,
) -> Float[Tensor, "..."]:
    """CISPO: the importance weight is clipped and carries no gradient, so that no token loses its own.

        L_t = -sg[clip(r_t, lowest, highest)] A_t log p(x_t),   r_t = p(x_t) / q(x_t)

    Chen et al. 2025, eq. 4 (MiniMax-M1, https://arxiv.org/abs/2506.13585), with bounds of the ratio itself.

    Example:
        >>> clipped_weight(torch.tensor([-1.0]), torch.tensor([-3.0]), torch.tensor([1.0]))  # r = e^2, clipped to 1.2
        tensor([1.2000])
    """
    require_one_shape("clipped_weight", logprobs=logprobs, sampling_logprobs=sampling_logprobs, advantages=advantages)
    ratio = torch.exp(logprobs.detach() - sampling_logprobs.detach())
    return -ratio.clamp(lowest, highest) * advantages.detach() * logprobs


def quadratic_penalty(
    logprobs: Float[Tensor, "..."],
    sampling_logprobs: Float[Tensor, "..."],
    advantages: Float[Tensor, "..."],
    *,
    beta: float,
) -> Float[Tensor, "..."]:
    """DRO's policy loss: a squared log-ratio holds the policy near the sampler.

        L_t = -(A_t log p(x_t) - beta / 2 (log p(x_t) - log q(x_t))^2)

    Richemond et al. 2024 (https://arxiv.org/abs/2405.19107); token by token as in Kimi k1.5
    (https://arxiv.org/abs/2501.12599). Its soft advantage, with a value of the prompt, is the caller's.

    Example:
        >>> quadratic_penalty(torch.tensor([-1.0]), torch.tensor([-3.0]), torch.tensor([1.0]), beta=0.5)
        tensor([2.])
    """
    require_one_shape(
        "quadratic_penalty", logprobs=logprobs, sampling_logprobs=sampling_logprobs, advantages=advantages
    )
    return 0.5 * beta * (logprobs - sampling_logprobs.detach()) ** 2 - advantages.detach() * logprobs


def sequence_ratio_by_token(
    logprobs_N: Float[Tensor, "..."],
    sampling_N: Float[Tensor, "..."],
    advantages_N: Float[Tensor, "..."],
    row_N: Int[Tensor, "..."],
    counted_N: Float[Tensor, "..."],
    *,
    lowest: float = 0.8,
    highest: float = 1.2,
) -> Float[Tensor, "..."]:
    """GSPO-token: the ratio of a whole sequence, with the gradient of each token's own logprob.

        L_t = -min(s_t A_t, clip(s_t, lowest, highest) A_t),   s_t = sg[s] p(x_t) / sg[p(x_t)]
        s   = exp(1/|M| sum_{t in M} log p(x_t) / q(x_t))

    Zheng et al. 2025, eq. 13 to 15 (https://arxiv.org/abs/2507.18071). M are the tokens of the sequence where
    `counted_N` is not 0; of a sequence without any s is 1. `row_N` names each token's sequence, from 0.

    Example:
        >>> p, q, row = torch.tensor([0.0, -1.0]), torch.tensor([-1.0, -2.0]), torch.tensor([0, 0])
        >>> sequence_ratio_by_token(p, q, torch.tensor([1.0, -1.0]), row, torch.ones(2), lowest=0.8, highest=1.2)
        tensor([-1.2000,  2.7183])
    """
    require_one_shape(
        "sequence_ratio_by_token",
        logprobs_N=logprobs_N,
        sampling_N=sampling_N,
        advantages_N=advantages_N,
        row_N=row_N,
        counted_N=counted_N,
    )
    rows, advantages_N = int(row_N.max()) + 1 if len(row_N) else 0, advantages_N.detach()
    counted_N = (counted_N != 0).to(logprobs_N.dtype)
    fixed_N = logprobs_N.detach()
    total_B = sequence_sum((fixed_N - sampling_N.detach()) * counted_N, row_N, rows)
    mean_B = total_B / sequence_sum(counted_N, row_N, rows).clamp(min=1.0)
    ratio_N = torch.exp(mean_B[row_N] + logprobs_N - fixed_N)
    return torch.maximum(-ratio_N * advantages_N, -ratio_N.clamp(lowest, highest) * advantages_N)


def divergence_masked(
    logprobs: Float[Tensor, "..."],
    sampling_logprobs: Float[Tensor, "..."],
    advantages: Float[Tensor, "..."],
    *,
    lowest: float,
    highest: float,
    divergence: str,
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """DPPO: importance-weighted, without the tokens that would leave a trust region; and 1.0 where one would.

        L_t = -M_t r_t A_t,   r_t = p(x_t) / q(x_t)
        M_t = 0 where A_t > 0, r_t > 1 and D_t > highest, or A_t < 0, r_t < 1 and D_t > lowest; else 1

    The binary divergence D of "x_t or not" is tv, |p - q|, or kl, q log(q / p) + (1 - q) log((1 - q) / (1 - p)).
    Qi et al. 2026 (https://arxiv.org/abs/2602.04879).

    Example:
        >>> p, q = torch.tensor([0.5, 0.02]).log(), torch.tensor([0.2, 0.01]).log()
        >>> divergence_masked(p, q, torch.ones(2), lowest=0.2, highest=0.2, divergence="tv")[0]
        tensor([-0., -2.])
    """
    require_one_shape(
        "divergence_masked", logprobs=logprobs, sampling_logprobs=sampling_logprobs, advantages=advantages
    )
    p, q = logprobs.detach().exp(), sampling_logprobs.detach().exp()
    apart = (p - q).abs()
    if divergence == "kl":
        rest = torch.log1p(-q.clamp(max=1 - 1e-7)) - torch.log1p(-p.clamp(max=1 - 1e-7))
        apart = q * (sampling_logprobs - logprobs).detach() + (1 - q) * rest
    out = torch.where(advantages > 0, (p > q) & (apart > highest), (p < q) & (apart > lowest)).to(p.dtype)
    return importance_weighted(logprobs, sampling_logprobs, advantages) * (1 - out), out


LEVELS = ("token", "product", "mean")
"""Of what an importance weight is: a token, or a whole sequence by the product or the geometric mean of its tokens'."""


def importance_weights(
    log_ratio_N: Float[Tensor, "N"],
    row_N: Int[Tensor, "N"],
    *,
    level: str,
    masked: bool,
    highest: float,
    lowest: float = 0.0,
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"], Float[Tensor, "N"]]:
    """Weights that correct for a sampler other than the trained policy; 1.0 where one was outside; and their logs.

        token     w_t = p_t / q_t                    biased, low variance
        product   w_t = prod_{u in o} p_u / q_u      unbiased; its log grows with the length
        mean      w_t = (prod_{u in o} p_u / q_u)^(1/|o|)
        truncated min(max(w, lowest), highest)       TIS: Yao et al. 2025
        masked    w where lowest <= w <= highest, else 0

    Masked by token is IcePop, Ling team 2025 (https://arxiv.org/abs/2510.18855), with 0.5 and 5. `log_ratio_N` is
    log p - log q in nats, of the policy before its first update on the batch; the returned logs are of w itself. All
    tokens of a sequence are here. Raises `ValueError` for another level.

    Example:
        >>> ratio, row = torch.tensor([1.0, 3.0, 0.0]), torch.tensor([0, 0, 1])
        >>> importance_weights(ratio, row, level="mean", masked=True, highest=5.0)[0]
        tensor([0., 0., 1.])
    """
    if level not in LEVELS:
        raise ValueError(f"the level of importance weights is one of {', '.join(LEVELS)}; got {level}")
    if level != "token":
        rows = int(row_N.max()) + 1 if len(row_N) else 0
        log_ratio_B = sequence_sum(log_ratio_N, row_N, rows)
        if level == "mean":
            log_ratio_B = log_ratio_B / sequence_sum(torch.ones_like(log_ratio_N), row_N, rows).clamp(min=1.0)
        log_ratio_N = log_ratio_B[row_N]
    weight_N = log_ratio_N.exp()
    outside_N = (weight_N > highest) | (weight_N < lowest)
    kept_N = weight_N.masked_fill(outside_N, 0.0) if masked else weight_N.clamp(lowest, highest)
    return kept_N, outside_N.to(weight_N.dtype), log_ratio_N
