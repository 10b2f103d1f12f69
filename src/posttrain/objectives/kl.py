"""Estimators of KL(policy || reference) from the tokens that the policy sampled, and what each does inside a loss.

Schulman 2020, "Approximating KL divergence" (http://joschu.net/blog/kl-approx.html) compares three estimators of the
*value*. With p the policy's probability of the sampled token and q the reference's,

    k1 = log p - log q        k2 = (log p - log q)^2 / 2        k3 = q/p - log(q/p) - 1

k1 and k3 are unbiased, k2 is not, and k3 has the least variance of the unbiased two. An estimator placed in a loss is
differentiated, though, and the gradient of an unbiased estimate need not be an unbiased estimate of the gradient (Tang
and Munos 2025, https://arxiv.org/abs/2506.09477; Liu et al. 2025, https://arxiv.org/abs/2510.01555). For tokens
sampled from the policy itself, in expectation:

    | estimator | gradient of one token | expected gradient    |
    |-----------|-----------------------|----------------------|
    | k1        | grad log p            | 0: it does nothing   |
    | k2        | log(p/q) grad log p   | grad KL(p || q)      |
    | k3        | (1 - q/p) grad log p  | grad KL(q || p)      |

Each follows in a line from E_p[grad log p] = 0 and grad KL(p || q) = E_p[log(p/q) grad log p]. So k2 is the one that
descends the divergence it is named after; k3, GRPO's choice, descends the other direction, whose gradient agrees to
first order where p is near q. All hold per token: how a token changes the states of later tokens is not differentiated.

Any shape goes, as long as both arguments share it. In nats. The gradient reaches `logprobs` alone.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from posttrain.objectives.shapes import require_one_shape


def k1(logprobs: Float[Tensor, "..."], reference_logprobs: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Estimate the KL by the log-ratio itself: unbiased in value, negative for many tokens.

        k1 = log p - log q

    For the reward (PPO's KL penalty), where it is not differentiated. In a loss its expected gradient is zero.

    Example:
        >>> k1(torch.tensor([-1.0]), torch.tensor([-1.5]))
        tensor([0.5000])
    """
    return _log_ratio("k1", logprobs, reference_logprobs)


def k2(logprobs: Float[Tensor, "..."], reference_logprobs: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Estimate the KL by half the squared log-ratio: biased in value, right in gradient.

        k2 = (log p - log q)^2 / 2

    In a loss its expected gradient is that of KL(p || q), the divergence from the reference that RL penalises.

    Example:
        >>> k2(torch.tensor([-1.0]), torch.tensor([-1.5]))
        tensor([0.1250])
    """
    return 0.5 * _log_ratio("k2", logprobs, reference_logprobs).square()


def k3(logprobs: Float[Tensor, "..."], reference_logprobs: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Estimate the KL by a sum that is never negative: unbiased in value, the other direction's gradient.

        k3 = q/p - log(q/p) - 1

    GRPO's penalty, Shao et al. 2024, eq. 4 (https://arxiv.org/abs/2402.03300). In a loss its expected gradient is that
    of KL(q || p). A token that the reference likes far more than the policy does makes q/p, and the loss, very large.

    Example:
        >>> k3(torch.tensor([-1.0]), torch.tensor([-1.5]))  # e^-0.5 + 0.5 - 1
        tensor([0.1065])
    """
    log_ratio = _log_ratio("k3", logprobs, reference_logprobs)
    return torch.expm1(-log_ratio) + log_ratio  # expm1: near p = q the terms cancel, and exp(x) - 1 would lose digits


def _log_ratio(where: str, logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    require_one_shape(where, logprobs=logprobs, reference_logprobs=reference_logprobs)
    return logprobs - reference_logprobs.detach()


ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType({"k1": k1, "k2": k2, "k3": k3})
"""By the name that a configuration gives."""
