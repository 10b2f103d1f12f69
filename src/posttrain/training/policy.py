"""One step of policy optimisation, for any online algorithm.

Shape letters: N sampled tokens of a micro-batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import OnlineAlgorithm, Tokens
from posttrain.data.packing import Example, PackedRow
from posttrain.models.language_model import LanguageModel
from posttrain.training.critic import TrainedCritic
from posttrain.training.means import Means
from posttrain.training.microbatch import accumulate_gradients
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy_batch import Column, PolicyBatch, of_row
from posttrain.training.supervised import likelihood_of


def policy_step(
    model: LanguageModel,
    optimizer: MasterAdamW,
    algorithm: OnlineAlgorithm,
    batch: PolicyBatch,
    *,
    lr: float,
    microbatch_tokens: int,
    temperature: float = 1.0,
    updates: int = 1,
    importance_cap: float = 0.0,
    critic: TrainedCritic | None = None,
    pretraining: Sequence[Example] = (),
) -> dict[str, float]:
    """`updates` updates on one batch.

    The ratio's denominator is the policy before the first of them, as this trainer computes it: on the first update it
    equals the numerator, so the ratio is exactly 1. How far the sampler's own logprobs are from it is measured
    (`logprob_gap`), for that is where silent wrongness would show. With an `importance_cap` each token's advantage is
    weighted by that policy over the sampler, min(pi_old / pi_sampler, cap): truncated importance sampling, which takes
    out the bias of an engine that is not quite the policy (Yao et al. 2025, "Your efficient RL framework secretly
    brings you off-policy RL training").

    `pretraining` text is learned beside, by the algorithm's `pretraining_weight`. Nothing is updated by a gradient that
    is not finite, neither policy nor critic.
    """
    old: dict[int, Tensor] = {}  # by the first example of a row: rows are cut alike in every update
    beside = [] if critic is None else [critic.optimizer]
    metrics: dict[str, float] = {}
    for _ in range(updates):
        seen = Means(extremes=("ratio", "logprob_gap"))

        def loss_of(row: PackedRow, seen: Means = seen) -> Tensor:
            states = model.learned_states(row)
            found = model.logprobs_at(states, row, temperature, entropy_gradient=algorithm.needs_entropy)
            old_N = old.setdefault(row.examples[0], found.logprobs.detach())

            def column(numbers: Column | None) -> Tensor | None:
                return None if numbers is None else of_row(numbers, row, old_N)

            gap_N = old_N - of_row(batch.sampler_logprobs, row, old_N)
            advantages_N = of_row(batch.advantages, row, old_N)
            per_token = {"entropy": found.entropy, "logprob_gap": gap_N.abs()}
            if importance_cap:
                per_token["importance"] = gap_N.exp().clamp(max=importance_cap)
                advantages_N = advantages_N * per_token["importance"]
            tokens = Tokens(
                found.logprobs,
                old_N,
                advantages_N,
                torch.tensor(row.rows, device=old_N.device),
                reference_N=column(batch.reference_logprobs),
                entropy_N=found.entropy,
                values_N=None if critic is None else critic.critic.values(row, states),
                old_values_N=column(batch.values),
                returns_N=column(batch.returns),
                imitation_N=column(batch.imitation),
            )
            loss_N, told = algorithm.loss(tokens)
            seen.add(per_token | dict(told))
            return algorithm.reduce(loss_N, tokens.row_N, batch.counts)

        loss = accumulate_gradients(
            optimizer, batch.examples, loss_of, microbatch_tokens=microbatch_tokens, beside=beside
        )
        metrics = {"loss": loss, **seen.summary()}
        if pretraining:
            text = likelihood_of(model, pretraining, weight=algorithm.pretraining_weight)
            found = accumulate_gradients(optimizer, pretraining, text, microbatch_tokens=microbatch_tokens)
            metrics["pretraining_loss"] = found / algorithm.pretraining_weight
        if beside:  # both, before one is moved
            for each in (optimizer, *beside):
                each.finite_norm()
        metrics["grad_norm"] = optimizer.step(lr)
        if critic is not None:
            metrics["critic_grad_norm"] = critic.optimizer.step(critic.lr)
    return metrics
