"""Learning from comparisons: one loss value per pair of a chosen and a rejected response.

Shape legend: B pairs.
"""

from jaxtyping import Float
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
