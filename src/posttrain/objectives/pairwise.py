"""Pairwise preference losses: one value per (chosen, rejected) pair.

Shape legend: B pairs.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.objectives.shapes import require_one_shape


def bradley_terry(
    chosen_B: Float[Tensor, "..."],
    rejected_B: Float[Tensor, "..."],
    *,
    margin_B: Float[Tensor, "..."] | None = None,
    label_smoothing: float = 0.0,
) -> Float[Tensor, "..."]:
    """Maximum likelihood of the choices under Bradley and Terry's model, in nats per pair.

        h_b = r(chosen_b) - r(rejected_b) - m_b
        L_b = -(1 - e) log sigmoid(h_b) - e log sigmoid(-h_b)

    With m = e = 0 it is eq. 1 of Ouyang et al. 2022 (https://arxiv.org/abs/2203.02155) for one pair, and on implicit
    rewards DPO (eq. 7 of https://arxiv.org/abs/2305.18290). The margin m is eq. 2 of Touvron et al. 2023
    (https://arxiv.org/abs/2307.09288): how much better the chosen one is, in the units of the reward. The smoothing e
    is how often a label is taken to be the wrong way round (conservative DPO, https://ericmitchell.ai/cdpo.pdf).

    `chosen_B` and `rejected_B` are rewards, in the unit in which a difference of 1 means odds of 2.718 to 1. Both
    carry the gradient. Raises `ValueError` for unequal shapes, and for a smoothing of 0.5 or more: it teaches nothing.

    Example:
        >>> import torch
        >>> bradley_terry(torch.tensor([2.0]), torch.tensor([2.0]))  # even odds: log 2
        tensor([0.6931])
    """
    require_one_shape("bradley_terry", chosen_B=chosen_B, rejected_B=rejected_B)
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing is a probability below 0.5; got {label_smoothing}")
    h_B = chosen_B - rejected_B
    if margin_B is not None:
        require_one_shape("bradley_terry", chosen_B=chosen_B, margin_B=margin_B)
        h_B = h_B - margin_B
    return -(1 - label_smoothing) * logsigmoid(h_B) - label_smoothing * logsigmoid(-h_B)


@torch.no_grad()
def wins(one_B: Float[Tensor, "..."], other_B: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """1 where `one_B` is larger than `other_B`, 1/2 where they are equal, and 0 where it is smaller.

        w_b = [x_b > y_b] + 1/2 [x_b = y_b]

    A tie counts half, as in the Mann-Whitney statistic: scores that tell nothing apart have a mean of 1/2, not 0.
    Carries no gradient. Raises `ValueError` for unequal shapes.

    Example:
        >>> import torch
        >>> wins(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 1.0]))
        tensor([1.0000, 0.5000, 0.0000])
    """
    require_one_shape("wins", one_B=one_B, other_B=other_B)
    return (one_B > other_B).to(one_B.dtype) + 0.5 * (one_B == other_B)


def implicit_reward(
    logprob_B: Float[Tensor, "..."], reference_B: Float[Tensor, "..."], beta: float
) -> Float[Tensor, "..."]:
    """The reward for which the policy would be the best one that stays close to the reference, up to a constant.

        r(x, y) = beta log( pi(y | x) / pi_ref(y | x) )

    Rafailov et al. 2023, eq. 5 without its term in x alone, which cancels in a pair (https://arxiv.org/abs/2305.18290).
    Logprobs are sums over the tokens of a response, in nats. Raises `ValueError` for unequal shapes.

    Example:
        >>> import torch
        >>> implicit_reward(torch.tensor([-3.0]), torch.tensor([-5.0]), beta=0.1)
        tensor([0.2000])
    """
    require_one_shape("implicit_reward", logprob_B=logprob_B, reference_B=reference_B)
    return beta * (logprob_B - reference_B)


def squared_distance(value_B: Float[Tensor, "..."], target: float) -> Float[Tensor, "..."]:
    """How far a number is from where it should be, squared: it is pulled back once it has gone too far.

        L_b = (v_b - c)^2

    On the difference of two log-ratios, with c = 1/(2 tau), this is IPO: eq. 17 of Azar et al. 2023
    (https://arxiv.org/abs/2310.12036). On the log-ratio of one response, with c = eta (P - 1/2), it is SPPO: eq. 4.7 of
    Wu et al. 2024 (https://arxiv.org/abs/2405.00675).

    Example:
        >>> squared_distance(torch.tensor([2.0]), 5.0)
        tensor([9.])
    """
    return (value_B - target).square()


def log_odds(mean_logprob_B: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The logarithm of the odds of a response whose tokens have this mean logprob.

        log odds(y | x) = log( p / (1 - p) ),   log p = 1/|y| sum_t log pi(y_t | x, y_<t)

    Hong et al. 2024, eq. 4 (https://arxiv.org/abs/2403.07691). `mean_logprob_B` is in nats, at most 0. Where rounding
    makes p 1 the odds would be infinite; p is taken to be below 1 by one part in 10^7 then.

    Example:
        >>> log_odds(torch.tensor([0.5]).log())
        tensor([0.])
    """
    below_B = mean_logprob_B.clamp(max=-1e-7)
    return below_B - torch.log(-torch.expm1(below_B))  # log(1 - e^x), which cancels where p is near 1


def prospect(
    reward_B: Float[Tensor, "..."], good_B: Bool[Tensor, "..."], point: float, *, good: float, bad: float
) -> Float[Tensor, "..."]:
    """What a person loses by a response, in the eyes of prospect theory: gains and losses count from a reference point.

        L_b = w_g (1 - sigmoid(r_b - z))   for a good response
        L_b = w_b (1 - sigmoid(z - r_b))   for a bad one

    Ethayarajh et al. 2024, eq. 8 (https://arxiv.org/abs/2402.01306). `reward_B` carries the gradient; z is `point`, in
    the same units; the weights w are `good` and `bad`. Raises `ValueError` for unequal shapes.

    Example:
        >>> prospect(torch.tensor([1.0, 1.0]), torch.tensor([True, False]), 1.0, good=1.0, bad=3.0)
        tensor([0.5000, 1.5000])
    """
    require_one_shape("prospect", reward_B=reward_B, good_B=good_B)
    loss_B = torch.sigmoid(torch.where(good_B, point - reward_B, reward_B - point))
    return torch.where(good_B, good * loss_B, bad * loss_B)
