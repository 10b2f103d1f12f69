"""ORPO: Odds Ratio Preference Optimization.

Hong et al. 2024, eq. 6 and 7 (https://arxiv.org/abs/2403.07691).

Supervised fine-tuning on the chosen response and a preference term in one loss, without a reference policy:

    log p(y)  = 1/|y| sum_t log pi(y_t | x, y_<t),   odds(y) = p(y) / (1 - p(y))
    L         = -log p(y_w) - lambda log sigmoid( log odds(y_w) - log odds(y_l) )

averaged over pairs.

Published settings (section 6.1, appendix C): lambda 0.1 for Mistral, 0.2 for Llama-2, 0.25 for Phi-2, learning rate
8e-6, 10 epochs, keeping the best by evaluation loss (the authors' script for Mistral: 5e-6, 5 epochs). It
starts from a base model: the first term is the supervised stage.

What to know about it:
- Its NLL term imitates the chosen responses: use it where they are of high quality, as for supervised fine-tuning.
- The odds use the mean logprob: where p is small, 1 - p is nearly 1, and the second term is nearly reference-free DPO
  on mean logprobs.

TRL's `ORPOTrainer` takes the mean logprob of the prompt's tokens and the response's together for the first term, over
all tokens of a batch; here and in the paper's equation it is the response's, for each pair. Its beta is lambda.
"""

from dataclasses import dataclass

from posttrain.algorithms.algorithm import PairLoss, PreferenceAlgorithm, Responses, compared, positive
from posttrain.objectives.likelihood import negative_log_likelihood
from posttrain.objectives.pairwise import bradley_terry, log_odds


@dataclass(frozen=True)
class ORPO(PreferenceAlgorithm):
    """Hyperparameters of ORPO; a `PreferenceAlgorithm`."""

    odds_weight: float = 0.1
    """Weight of the odds-ratio loss relative to the NLL loss (lambda)."""

    paper = "2403.07691"

    def __post_init__(self) -> None:
        positive(self, "odds_weight")

    def loss(
        self, chosen: Responses, rejected: Responses, *, reference: tuple[Responses, Responses] | None = None
    ) -> PairLoss:
        """NLL of the chosen response plus the odds-ratio loss; see `PreferenceAlgorithm.loss`. Ignores `reference`.

        The rewards in its metrics are log-odds; `likelihood` is the first term, in nats per token.
        """
        mean_B, other_B = (r.logprob_B / r.length_B for r in (chosen, rejected))
        imitation_B = negative_log_likelihood(mean_B)
        odds = log_odds(mean_B), log_odds(other_B)
        metrics = compared(*odds) | {"likelihood": imitation_B.detach()}
        return PairLoss(imitation_B + self.odds_weight * bradley_terry(*odds), metrics)
