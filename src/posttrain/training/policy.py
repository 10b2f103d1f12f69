"""One step of policy optimisation, for any online algorithm.

Shape letters: N sampled tokens of a micro-batch.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import OnlineAlgorithm, Tokens
from posttrain.data.packing import Example, PackedRow
from posttrain.errors import TrainingError
from posttrain.models.language_model import LanguageModel
from posttrain.objectives.reduce import sequence_sum
from posttrain.training.critic import TrainedCritic
from posttrain.training.inputs.context import by_example
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
    brings you off-policy RL training"). Where an algorithm's ratio is a whole completion's, so is the weight. A KL or a
    likelihood in the loss is not weighted.

    With an adapter's dropout on (`LanguageModel.dropping`), all updates on the batch drop the same inputs, and the
    denominator is the policy under that dropout: the ratio is still 1 on the first update, and later measures how far
    the weights have moved, not what was dropped. Nothing was dropped in sampling, so `logprob_gap` and the importance
    weights compare the sampler with the policy without dropout, which takes one more forward pass.

    `pretraining` text has the weight of the algorithm's extra loss, `PretrainingNLL`. Nothing is updated by a gradient
    that is not finite, neither policy nor critic.
    """
    old: dict[int, Tensor] = {}  # by the first example of a row: rows are cut alike in every update
    whole = _without_dropout(model, batch, microbatch_tokens, temperature) if model.drops else None
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

            row_N = torch.tensor(row.rows, device=old_N.device)
            trainer_N = old_N if whole is None else of_row(whole, row, old_N)
            gap_N = trainer_N - of_row(batch.sampler_logprobs, row, old_N)
            advantages_N = of_row(batch.advantages, row, old_N)
            per_token = {"entropy": found.entropy, "logprob_gap": gap_N.abs()}
            if importance_cap:
                log_weight_N = of_completions(gap_N, row_N) if algorithm.sequence_ratio else gap_N
                per_token["importance"] = log_weight_N.exp().clamp(max=importance_cap)
                advantages_N = advantages_N * per_token["importance"]
            tokens = Tokens(
                found.logprobs,
                old_N,
                advantages_N,
                row_N,
                reference_N=column(batch.reference_logprobs),
                entropy_N=found.entropy,
                values_N=None if critic is None else critic.critic.values(row, states),
                old_values_N=column(batch.values),
                returns_N=column(batch.returns),
                imitation_N=column(batch.imitation),
            )
            loss_N, told = algorithm.loss(tokens)
            seen.add(per_token | dict(told))
            return algorithm.reduce(loss_N, row_N, batch.counts)

        accumulate = partial(accumulate_gradients, optimizer, microbatch_tokens=microbatch_tokens, beside=beside)
        metrics = {"loss": accumulate(batch.examples, loss_of), **seen.summary()}
        for extra in algorithm.extra_losses if pretraining else ():
            text = likelihood_of(model, pretraining, weight=extra.weight)
            metrics["pretraining_loss"] = accumulate(pretraining, text) / extra.weight
        if beside:
            _both_finite(optimizer, *beside)
        metrics["grad_norm"] = optimizer.step(lr)
        if critic is not None:
            metrics["critic_grad_norm"] = critic.optimizer.step(critic.lr)
    return metrics


def _without_dropout(
    model: LanguageModel, batch: PolicyBatch, microbatch_tokens: int, temperature: float
) -> list[tuple[float, ...]]:
    """What the policy says of the batch when nothing is dropped, as in sampling."""
    with model.dropping(None):
        return by_example(batch.examples, microbatch_tokens, lambda row: model.logprobs(row, temperature).logprobs)


def of_completions(values_N: Tensor, row_N: Tensor) -> Tensor:
    """The sum over its completion for each token, [N]."""
    return sequence_sum(values_N, row_N, int(row_N.max()) + 1 if len(row_N) else 0)[row_N]


def _both_finite(*optimizers: MasterAdamW) -> None:
    """Look at every gradient before a weight is moved; if one is not finite, all are forgotten.

    Raises:
        TrainingError: one is not.
    """
    try:
        for each in optimizers:
            each.finite_norm()
    except TrainingError:
        for each in optimizers:
            each.discard()
        raise
