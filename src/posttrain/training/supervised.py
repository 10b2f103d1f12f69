"""Negative log-likelihood of demonstrations, and of pretraining text for an auxiliary loss."""

from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.algorithms.algorithm import SupervisedAlgorithm
from posttrain.data import load_texts
from posttrain.data.chat import ChatFormat
from posttrain.data.order import batch_indices, seed_for
from posttrain.data.packing import Example, PackedRow
from posttrain.errors import UserError
from posttrain.models.language_model import LanguageModel
from posttrain.objectives import likelihood, reduce
from posttrain.options.online import RL
from posttrain.training.learner import Batch, Loss, Models, Share, counts_of


@dataclass(frozen=True)
class NLL(Loss[LanguageModel]):
    """`weight` times the mean of a loss over all learned tokens of the batch, in nats; by default of -log p."""

    weight: float = 1.0
    algorithm: SupervisedAlgorithm | None = None

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[LanguageModel]) -> Share:
        """As in `Loss`."""
        logprobs_N = parts.model.logprobs(row).logprobs
        loss_of = self.algorithm.loss_of_tokens if self.algorithm else likelihood.negative_log_likelihood
        loss_N = loss_of(logprobs_N)
        return Share(self.weight * reduce.token_mean(loss_N, batch.counts.tokens), {})


def supervised_batch(examples: Sequence[Example], *, seed: int | None = None) -> Batch:
    """A batch of demonstrations, or of any text with a loss mask; `seed` as in `Batch`."""
    return Batch(examples, counts_of(examples), seed=seed)


def pretraining_texts(options: RL) -> list[str]:
    """The texts of at least two words; raises `UserError` where there are none."""
    found = [text for text in load_texts(options.pretraining_dataset, seed=options.seed) if len(text.split()) > 1]
    if not found:
        raise UserError(f"no text in {options.pretraining_dataset} has two words or more")
    return found


def longest_text(options: RL, context: int) -> int:
    """Maximum tokens of a text, for a model with this context length."""
    return min(options.max_prompt_tokens, context, options.microbatch_tokens)


def pretraining_examples(options: RL, texts: Sequence[str], chat: ChatFormat, context: int, step: int) -> list[Example]:
    """The texts of a step, truncated at `longest_text`; the loss is on all tokens of a text but its first."""
    seed = seed_for(options.seed, "pretraining")
    chosen = batch_indices(len(texts), options.pretraining_per_step, step, seed)
    tokens = [chat.text_ids(texts[i])[: longest_text(options, context)] for i in chosen]
    return [Example.whole(ids, (False, *[True] * (len(ids) - 1))) for ids in tokens]
