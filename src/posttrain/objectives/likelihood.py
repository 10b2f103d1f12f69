"""The likelihood of given tokens, for supervised fine-tuning: one loss value per token."""

from jaxtyping import Float
from torch import Tensor


def negative_log_likelihood(logprobs: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Maximum likelihood: the loss of a token is how surprised the model is by it, in nats.

        L_t = -log p(y_t | x, y_<t)

    `logprobs` are those of the target tokens alone; whatever must not be learned is left out before this.
    `reduce.token_mean` of it over all target tokens is the usual cross-entropy.

    Example:
        >>> import torch
        >>> negative_log_likelihood(torch.tensor([-0.5, -2.0]))
        tensor([0.5000, 2.0000])
    """
    return -logprobs
