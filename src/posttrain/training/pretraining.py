"""Pretraining text for an auxiliary loss: loading, and selection per step."""

from collections.abc import Sequence

from posttrain.data import load_texts
from posttrain.data.chat import ChatFormat
from posttrain.data.order import batch_indices, seed_for
from posttrain.data.packing import Example
from posttrain.errors import UserError
from posttrain.options.online import RL


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
