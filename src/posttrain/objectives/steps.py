"""Process rewards: what the steps of a completion earn, and what that says of its tokens.

Shape legend: R rows; N tokens of all rows, flat; those of a row are next to each other, in order. `row_N` says which
row a token belongs to. A step ends at a token, at which its reward is paid.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor, where
from torch.nn.functional import softplus

from posttrain.objectives.reduce import sequence_sum
from posttrain.objectives.shapes import require_one_shape
from posttrain.objectives.values import returns

DECIMALS = 12  # of a remainder: a sum that is taken off again leaves rounding


def outcome_rewards(
    rewards_R: Float[Tensor, "R"], step_rewards_N: Float[Tensor, "N"], row_N: Int[Tensor, "N"]
) -> Float[Tensor, "R"]:
    """What a row earns besides its steps.

        o_i = r_i - sum_t s_it

    r_i is all that it earns and s_it what is paid at its token t. Rounded to 12 decimals, in float64, where anything is
    taken off: with nothing but steps it is 0, and not a rounding error.

    Example:
        >>> import torch
        >>> outcome_rewards(torch.tensor([1.5, 1.0]), torch.tensor([0.25, 0.25, 0.0]), torch.tensor([0, 0, 1]))
        tensor([1., 1.])
    """
    paid_R = sequence_sum(step_rewards_N, row_N, len(rewards_R))
    return rewards_R.where(paid_R == 0, (rewards_R - paid_R).double().round(decimals=DECIMALS).to(rewards_R.dtype))


def process_advantages(normalised_N: Float[Tensor, "N"], row_N: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
    """Add up, for each token, the normalised rewards of the steps that end at it or after it.

        A_it = sum_{j : index(j) >= t} r~_ij

    GRPO with process supervision, Shao et al. 2024, section 4.1.3 (https://arxiv.org/abs/2402.03300). index(j) is the
    token that step j of row i ends at, where `normalised_N` has r~_ij, its reward compared with those of all steps of
    the group; it is 0 at other tokens.

    Example:
        >>> import torch
        >>> process_advantages(torch.tensor([0.0, 1.0, 0.0, -0.5, 2.0]), torch.tensor([0, 0, 0, 0, 1]))
        tensor([ 0.5000,  0.5000, -0.5000, -0.5000,  2.0000])
    """
    return returns(normalised_N, row_N)


def step_correctness(logits_S: Float[Tensor, "..."], right_S: Bool[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Binary cross-entropy of a process reward model at each labelled step, in nats.

        L_s = -y_s log sigma(z_s) - (1 - y_s) log(1 - sigma(z_s))

    z_s is the logit that step s is right, read at its end, and y_s whether it is. Uesato et al. 2022
    (https://arxiv.org/abs/2211.14275) and Lightman et al. 2023 (https://arxiv.org/abs/2305.20050) train so, on steps up
    to the first wrong one.

    Example:
        >>> import torch
        >>> step_correctness(torch.tensor([0.0, 2.0, 2.0]), torch.tensor([True, True, False]))
        tensor([0.6931, 0.1269, 2.1269])
    """
    require_one_shape("step_correctness", logits_S=logits_S, right_S=right_S)
    return softplus(where(right_S, -logits_S, logits_S))
