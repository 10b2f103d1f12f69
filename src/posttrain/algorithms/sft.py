"""SFT: maximum likelihood of demonstrations.

    L = -mean_t log pi(y_t | x, y_<t)

over all tokens of the batch that the assistant produces, its stop tokens included.

It is described as an objective by Ouyang et al. 2022, InstructGPT (https://arxiv.org/abs/2203.02155).

What to know about it:
- Tokens that the model finds unlikely have the largest gradients, 1 / pi. DFT (https://arxiv.org/abs/2508.05629) weighs
  each by its probability.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from posttrain.algorithms.algorithm import SupervisedAlgorithm
from posttrain.objectives.likelihood import negative_log_likelihood


@dataclass(frozen=True)
class MaximumLikelihood(SupervisedAlgorithm):
    """SFT, without hyperparameters; a `SupervisedAlgorithm`."""

    paper = "2203.02155"

    def loss_of_tokens(self, logprobs_N: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        """-log p of each token, in nats."""
        return negative_log_likelihood(logprobs_N)
