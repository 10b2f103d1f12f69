"""Loss reductions, whose gradients do not depend on micro-batches.

Shape legend: B sequences, T tokens with padding, N completion tokens of all sequences, flat and without padding.

The denominator is a number that the caller counts over the *whole* batch of an update: all micro-batches, all
accumulation steps, all workers. Each part then contributes a plain sum, and the sums add up to the same loss and the
same gradient for every cut. A mean over what happens to be in one micro-batch would not.

Tokens come flat, with `row_N` saying which sequence each belongs to, or `length_N` how many tokens that has. A padded
batch becomes flat by choosing, before the loss is computed: `values_BT[mask_BT]` with `rows(mask_BT)`. What is not
chosen is not computed, so a NaN or an overflow in the padding reaches neither the loss nor, as 0 * inf, its gradient;
multiplying by a mask has neither property.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from posttrain.objectives.shapes import require_one_shape


def token_mean(values_N: Float[Tensor, "N"], denominator: float) -> Float[Tensor, ""]:
    """Add up all tokens and divide by `denominator`: every token weighs the same, so long sequences weigh more.

        L = 1/denominator sum_n values_n

    With the batch's number of tokens as the denominator this is the token mean (SFT, DAPO); with its number of
    sequences times a constant length, Dr. GRPO's. Raises `ValueError` for a denominator that is not above 0.

    Example:
        >>> import torch
        >>> token_mean(torch.tensor([1.0, 2.0, 6.0]), denominator=3)
        tensor(3.)
    """
    return values_N.sum() / _positive(denominator)


def sequence_mean(values_N: Float[Tensor, "N"], length_N: Int[Tensor, "N"], denominator: float) -> Float[Tensor, ""]:
    """Average over the tokens of each sequence, then add up the sequences and divide by `denominator`.

        L = 1/denominator sum_i 1/|o_i| sum_{n in o_i} values_n

    With the batch's number of sequences as the denominator this is GRPO's reduction, Shao et al. 2024, eq. 3
    (https://arxiv.org/abs/2402.03300): every sequence weighs the same, so a token of a long one weighs less.
    `length_N[n]` is |o_i| of token n's sequence, counted over the whole batch, so that a sequence need not be here as a
    whole: a batch may be cut inside sequences. Raises `ValueError` for a denominator that is not above 0.

    Example:
        >>> import torch
        >>> sequence_mean(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([2, 2, 1]), denominator=2)  # (2 + 5) / 2
        tensor(3.5000)
    """
    require_one_shape("sequence_mean", values_N=values_N, length_N=length_N)
    return (values_N / length_N).sum() / _positive(denominator)


def sequence_sum(values_N: Float[Tensor, "N"], row_N: Int[Tensor, "N"], sequences: int) -> Float[Tensor, "B"]:
    """Add up the tokens of each sequence: one value for each of `sequences`, 0 for one that has no token here.

        s_b = sum_{n in o_b} values_n

    Of logprobs it is the logprob of the whole sequence, in nats. `row_N[n]` is the number of token n's sequence, below
    `sequences`, in any order.

    Example:
        >>> import torch
        >>> sequence_sum(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 2]), sequences=3)
        tensor([4., 0., 5.])
    """
    require_one_shape("sequence_sum", values_N=values_N, row_N=row_N)
    return values_N.new_zeros(sequences).index_add(0, row_N, values_N)


def pair_mean(values_B: Float[Tensor, "B"], denominator: float) -> Float[Tensor, ""]:
    """Add up all pairs and divide by `denominator`, the batch's number of pairs: every pair weighs the same.

        L = 1/denominator sum_b values_b

    Raises `ValueError` for a denominator that is not above 0.

    Example:
        >>> import torch
        >>> pair_mean(torch.tensor([1.0, 2.0]), denominator=4)  # the other two are in another micro-batch
        tensor(0.7500)
    """
    return values_B.sum() / _positive(denominator)


def rows(mask_BT: Bool[Tensor, "B T"]) -> Int[Tensor, "N"]:
    """Name the sequence of each chosen token of a padded batch, in the order of `values_BT[mask_BT]`.

    Example:
        >>> import torch
        >>> rows(torch.tensor([[True, True, False], [False, False, True]]))
        tensor([0, 0, 1])
    """
    return mask_BT.nonzero()[:, 0]


def _positive(denominator: float) -> float:
    if not denominator > 0:
        raise ValueError(
            f"the denominator counts the tokens or sequences of a batch, so it is above 0; got {denominator}"
        )
    return denominator
