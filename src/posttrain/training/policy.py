"""Policy loss of a batch of samples, for any online algorithm.

Shape letters: N sampled tokens of a micro-batch.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import OnlineAlgorithm, Tokens
from posttrain.data.packing import PackedRow
from posttrain.models.language_model import LanguageModel
from posttrain.objectives.reduce import sequence_sum
from posttrain.training.learner import CRITIC, POLICY, Batch, Models, Share


@dataclass(frozen=True)
class PolicyLoss:
    """The loss of an online algorithm on a batch of `policy_batch`.

    The ratio's denominator is the policy before the batch's first update, as the learner computes it: on the first
    update it equals the numerator, so the ratio is exactly 1. Its difference from the sampler's logprobs is logged as
    `logprob_gap`, which detects a mismatch between engine and learner.

    With an adapter's dropout on (`Batch.seed`), all updates on the batch use the same dropout mask, and the denominator
    is the policy under that mask: the ratio is still 1 on the first update, and later reflects only weight changes.
    Sampling has no dropout, so `logprob_gap` and the importance weights compare the sampler with the policy without
    dropout, which takes one more forward pass.

    Attributes:
        algorithm: whose loss it is.
        temperature: of sampling.
        tis_cap: above 0, each token's advantage is weighted by the policy before the first update over the
            sampler, min(pi_old / pi_sampler, cap): truncated importance sampling, which corrects the mismatch between
            engine and policy (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
            training"). For algorithms with a sequence-level ratio the weight is sequence-level too. KL and NLL terms
            of the loss are not weighted.
    """

    algorithm: OnlineAlgorithm
    temperature: float = 1.0
    tis_cap: float = 0.0

    reaches: ClassVar[tuple[str, ...]] = (POLICY, CRITIC)
    extremes: ClassVar[tuple[str, ...]] = ("ratio", "logprob_gap", "importance")

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[LanguageModel]) -> Share:
        """As in `Loss`."""
        model, algorithm = parts.model, self.algorithm
        states = model.learned_states(row)
        found = model.logprobs_at(states, row, self.temperature, entropy_gradient=algorithm.needs_entropy)
        old_N = parts.keep("old", row, found.logprobs.detach)
        trainer_N = parts.keep("undropped", row, lambda: self._undropped(model, row)) if model.drops else old_N

        def column(name: str) -> Tensor | None:
            return batch.column(name, row, old_N)

        def present(name: str) -> Tensor:
            numbers_N = column(name)
            assert numbers_N is not None, f"the batch has no {name}"
            return numbers_N

        branch_N = torch.tensor(row.rows, dtype=torch.long, device=old_N.device)
        gap_N = trainer_N - present("sampler_logprobs")
        advantages_N = present("advantages")
        per_token = {"entropy": found.entropy, "logprob_gap": gap_N.abs()}
        if self.tis_cap:
            log_weight_N = of_branches(gap_N, branch_N) if algorithm.sequence_ratio else gap_N
            weight_N = log_weight_N.exp()
            per_token["importance"] = weight_N.clamp(max=self.tis_cap)
            per_token["importance_capped"] = (weight_N > self.tis_cap).to(weight_N.dtype)
            per_token["sampler_kl"] = -gap_N
            advantages_N = advantages_N * per_token["importance"]
        tokens = Tokens(
            found.logprobs,
            old_N,
            advantages_N,
            branch_N,
            reference_N=column("reference_logprobs"),
            entropy_N=found.entropy,
            values_N=None if parts.critic is None else parts.critic.values(row, states),
            old_values_N=column("values"),
            returns_N=column("returns"),
            imitation_N=column("imitation"),
        )
        loss_N, told = algorithm.loss(tokens)
        length_N = batch.column("length", row, like=branch_N)
        assert length_N is not None, "the batch has no length"
        return Share(algorithm.reduce(loss_N, length_N, batch.counts), per_token | dict(told))

    @torch.no_grad()
    def _undropped(self, model: LanguageModel, row: PackedRow) -> Tensor:
        """The policy's logprobs of the row without dropout, as in sampling."""
        with model.dropping(None):
            return model.logprobs(row, self.temperature).logprobs


def of_branches(values_N: Tensor, branch_N: Tensor) -> Tensor:
    """The sum over its branch for each token, [N]."""
    return sequence_sum(values_N, branch_N, int(branch_N.max()) + 1 if len(branch_N) else 0)[branch_N]
