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

import math
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


def generalised_jsd(
    student_NK: Float[Tensor, "N K"], teacher_NK: Float[Tensor, "N K"], *, beta: float
) -> Float[Tensor, "N"]:
    """The generalised Jensen-Shannon divergence of a student's distributions from a teacher's, one number each.

        JSD_beta = beta KL(T || M) + (1 - beta) KL(S || M),   M = beta T + (1 - beta) S     0 < beta < 1
        beta = 0:  KL(T || S), forward                          beta = 1:  KL(S || T), reverse

    Agarwal et al. 2024, GKD, eq. 1 (https://arxiv.org/abs/2306.13649). At the ends the divergence itself is 0; there it
    stands for its limits over beta and over 1 - beta, as in TRL's GKDTrainer. Logprobs of K outcomes, in nats, whose
    probabilities sum to 1; -inf is no logprob here. The gradient reaches the student's alone.

    Example:
        >>> student, teacher = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
        >>> generalised_jsd(student, teacher, beta=0.5)  # at most log 2
        tensor([0.0338])
        >>> generalised_jsd(student, teacher, beta=1.0)  # 0.5 log 2 + 0.5 log(2/3)
        tensor([0.1438])
    """
    require_one_shape("generalised_jsd", student_NK=student_NK, teacher_NK=teacher_NK)
    teacher_NK = teacher_NK.detach()
    if beta == 0:
        return (teacher_NK.exp() * (teacher_NK - student_NK)).sum(-1)
    if beta == 1:
        return (student_NK.exp() * (student_NK - teacher_NK)).sum(-1)
    mixed_NK = torch.logaddexp(teacher_NK + math.log(beta), student_NK + math.log1p(-beta))
    teacher_N = (teacher_NK.exp() * (teacher_NK - mixed_NK)).sum(-1)
    return beta * teacher_N + (1 - beta) * (student_NK.exp() * (student_NK - mixed_NK)).sum(-1)


def _log_ratio(where: str, logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    require_one_shape(where, logprobs=logprobs, reference_logprobs=reference_logprobs)
    return logprobs - reference_logprobs.detach()


ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType({"k1": k1, "k2": k2, "k3": k3})
"""By the name that a configuration gives."""
