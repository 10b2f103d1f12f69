"""DPPO: Divergence Proximal Policy Optimization.

Qi et al. 2026, Rethinking the Trust Region in LLM Reinforcement Learning (https://arxiv.org/abs/2602.04879).

A clip holds back rare tokens, whose ratio is large though little probability moves. Here a token is left out once its
probability has moved too far from that at which it was sampled, mu:

    w_it = pi(o_it | q, o_i,<t) / mu(o_it | q, o_i,<t)
    D_it = |pi - mu|                                                                       tv, binary total variation
           mu log(mu / pi) + (1 - mu) log((1 - mu) / (1 - pi))                             kl, binary KL
    M_it = 0 where A_i > 0, w_it > 1 and D_it > eps_high, or A_i < 0, w_it < 1 and D_it > eps_low; else 1
    L    = -1/G sum_i 1/|o_i| sum_t M_it w_it A_i

averaged over prompts, with A_i as in GRPO and no KL. The authors' code in verl has thresholds of 0.2, and truncates w
at 20, which is not done here. Checked against that code; of the paper only the abstract could be read.
The ratio is to the sampler itself: it makes up for an engine's rounding and for old weights, and `--tis-cap`, which
would do so a second time, is refused.
"""

from dataclasses import dataclass

from posttrain import errors
from posttrain.algorithms.algorithm import Tokens
from posttrain.algorithms.grpo import GRPOWithoutKL
from posttrain.objectives.off_policy import divergence_masked
from posttrain.objectives.policy import PolicyLoss


@dataclass(frozen=True)
class DPPO(GRPOWithoutKL):
    """Hyperparameters of DPPO; an `OnlineAlgorithm`."""

    clip_low: float = 0.2
    """Divergence from which on a token of negative advantage may not become less likely."""

    clip_high: float = 0.2
    """Divergence from which on a token of positive advantage may not become more likely."""

    divergence: str = "tv"
    """Binary divergence from the sampler: tv (total variation, 0 to 1) or kl (in nats)."""

    changes = "correction"
    corrects = True
    paper = "2602.04879"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.divergence not in ("tv", "kl"):
            raise errors.unknown("divergence", self.divergence, ("tv", "kl"))

    def surrogate(self, tokens: Tokens) -> PolicyLoss:
        """Each token's ratio to the sampler, within the trust region; raises `ValueError` without `sampler_N`."""
        if tokens.sampler_N is None:
            raise ValueError("DPPO needs the sampler's logprobs, sampler_N; got None")
        bounds = {"lowest": self.clip_low, "highest": self.clip_high}
        loss_N, out_N = divergence_masked(
            tokens.logprobs_N, tokens.sampler_N, tokens.advantages_N, divergence=self.divergence, **bounds
        )
        return PolicyLoss(loss_N, (tokens.logprobs_N - tokens.sampler_N).detach().exp(), out_N)
