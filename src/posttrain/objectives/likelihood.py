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


def probability_weighted(logprobs: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """DFT: the negative log-likelihood, weighted by the token's own probability, which carries no gradient.

        L_t = -sg[p(y_t | x, y_<t)] log p(y_t | x, y_<t)

    Wu et al. 2025 (https://arxiv.org/abs/2508.05629).

    Example:
        >>> import torch
        >>> probability_weighted(torch.tensor([0.5]).log())
        tensor([0.3466])
    """
    return logprobs.detach().exp() * -logprobs
