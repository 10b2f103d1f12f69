"""One step of supervised fine-tuning."""

from collections.abc import Sequence

import torch
from torch import Tensor

from posttrain.data.packing import Example, PackedRow, pack
from posttrain.models.language_model import LanguageModel
from posttrain.objectives import likelihood, reduce
from posttrain.training.microbatch import LossOf, accumulate_gradients
from posttrain.training.optimizer import MasterAdamW


def supervised_step(
    model: LanguageModel, optimizer: MasterAdamW, examples: Sequence[Example], *, lr: float, microbatch_tokens: int
) -> dict[str, float]:
    """One update on the negative log-likelihood of what is learned: the mean over all learned tokens of the batch."""
    loss = accumulate_gradients(
        optimizer, examples, likelihood_of(model, examples), microbatch_tokens=microbatch_tokens
    )
    return {"loss": loss, "grad_norm": optimizer.step(lr), "tokens": _learned(examples)}


def likelihood_of(model: LanguageModel, examples: Sequence[Example], *, weight: float = 1.0) -> LossOf:
    """A row's share of the loss: weight times the mean over all learned tokens of the batch of -log p."""
    tokens = _learned(examples)

    def loss_of(row: PackedRow) -> Tensor:
        return weight * reduce.token_mean(likelihood.negative_log_likelihood(model.logprobs(row).logprobs), tokens)

    return loss_of


@torch.inference_mode()
def supervised_loss(model: LanguageModel, examples: Sequence[Example], *, microbatch_tokens: int) -> float:
    """Negative log-likelihood per learned token, in nats, without training."""
    total = sum(-model.logprobs(row).logprobs.sum().item() for row in pack(examples, microbatch_tokens))
    return total / _learned(examples)


def _learned(examples: Sequence[Example]) -> int:
    return sum(sum(example.learned) for example in examples)
