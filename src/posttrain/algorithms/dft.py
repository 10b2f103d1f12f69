"""DFT: Dynamic Fine-Tuning, SFT with each token weighted by its probability.

Wu et al. 2025, On the Generalization of SFT: A Reinforcement Learning Perspective with Reward Rectification
(https://arxiv.org/abs/2508.05629).

The gradient of -log pi is a policy gradient with a reward of 1 / pi for the demonstrated token, which is large if the
model finds it unlikely. Multiplied by pi, the reward is the same for all tokens:

    L = -mean_t sg[pi(y_t | x, y_<t)] log pi(y_t | x, y_<t)

over all tokens of the batch that the assistant produces; sg stops the gradient.

Published settings: learning rate 5e-5, 256 examples a batch, at most 2048 tokens. Checked against the abstract and
TRL's documentation, which has the loss; the paper's equation number could not be read.

What to know about it:
- For a model that can nearly do the task: a token of probability near 0 has almost no gradient, so that what is new to
  the model, such as a format or a language, is hardly learned. Use SFT for that.
- The held-out loss, `evaluation/loss`, is -log p as for SFT, so that the two can be compared.

TRL's SFTTrainer has it as `loss_type="dft"`.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from posttrain.algorithms.sft import MaximumLikelihood
from posttrain.objectives.likelihood import probability_weighted


@dataclass(frozen=True)
class DFT(MaximumLikelihood):
    """DFT, without hyperparameters; a `SupervisedAlgorithm`."""

    paper = "2508.05629"

    def loss_of_tokens(self, logprobs_N: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        """-p log p of each token, in nats."""
        return probability_weighted(logprobs_N)
