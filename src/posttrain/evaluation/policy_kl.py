"""KL of a policy from an earlier one, per prompt, on its own samples."""

from collections.abc import Callable, Sequence

import torch

from posttrain.data.chat import ChatFormat
from posttrain.data.packing import Example, pack, size_of
from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import ModelError, UserError
from posttrain.models.footprint import read_shape
from posttrain.models.language_model import LanguageModel
from posttrain.models.load import tokenizer_of
from posttrain.models.logprobs import token_divergence
from posttrain.types import Task


def refuse_incomparable(earlier: str, policy: str, tasks: Sequence[Task], max_new_tokens: int) -> None:
    """Check by tokenizers and configurations, before any weights are read, that `kl_from` can compare two models."""
    before, now = read_shape(earlier), read_shape(policy)
    words = load_tokenizer(tokenizer_of(policy))
    if load_tokenizer(tokenizer_of(earlier)).get_vocab() != words.get_vocab():
        raise ModelError(f"'{earlier}' and '{policy}' have other tokens; pass an earlier state of the model")
    if before.vocabulary != now.vocabulary:
        raise ModelError(
            f"'{earlier}' gives logits of {before.vocabulary:,} tokens and '{policy}' of {now.vocabulary:,}; name an "
            "earlier state of the same model"
        )
    if before.context < now.context:
        chat = ChatFormat(words)
        longest = max((len(chat.prompt_ids(task.prompt)) for task in tasks), default=0)
        if longest + max_new_tokens > before.context:
            raise UserError(
                f"a prompt of {longest} tokens with an answer of up to {max_new_tokens} does not fit '{earlier}', "
                f"which holds {before.context}; type a smaller `max_new_tokens`, or leave long prompts out"
            )


@torch.no_grad()
def kl_from(
    earlier: LanguageModel,  # pi_0
    policy: LanguageModel,  # pi
    prompts: Sequence[Sequence[int]],  # the tokens of x, one prompt for each response
    said: Sequence[Sequence[int]],  # the tokens of y, at least one
    *,
    microbatch_tokens: int = 4096,  # of a forward pass, at most; a longer sequence has its own
    on_tokens: Callable[[int], None] | None = None,  # called with the number of newly computed tokens
) -> list[float]:
    """The sequential KL of the policy to the earlier one along each response, in nats.

        D(y) = sum_t KL(pi(. | x, y_<t) || pi_0(. | x, y_<t))
             = sum_t sum_v pi(v | x, y_<t) log( pi(v | x, y_<t) / pi_0(v | x, y_<t) )

    Over responses that are drawn from pi(. | x) at temperature 1 its mean is KL(pi(. | x) || pi_0(. | x)). It is never
    below 0, and varies less than log pi(y | x) / pi_0(y | x), whose mean is the same: Amini et al. 2025
    (https://arxiv.org/abs/2504.10637).
    """
    examples = [Example(tuple(x), tuple(y), (True,) * len(y)) for x, y in zip(prompts, said, strict=True)]
    longest = max(map(size_of, examples), default=0)
    found = [0.0] * len(examples)
    for row in pack(examples, max(microbatch_tokens, longest)):
        mine, theirs = policy.learned_states(row), earlier.learned_states(row)
        apart = token_divergence(theirs, earlier.head, mine, policy.head, policy.readout)
        for number, nats in zip(row.rows, apart.tolist(), strict=True):
            found[number] += nats
        if on_tokens is not None:
            on_tokens(len(row.token_ids))
    return found
