"""How far a policy has moved from an earlier one, prompt by prompt, along what it says itself."""

from collections.abc import Sequence

import torch

from posttrain.data.packing import Example, pack, size_of
from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import ModelError, UserError
from posttrain.models.language_model import LanguageModel
from posttrain.models.load import load_model, locate
from posttrain.models.logprobs import token_divergence
from posttrain.rollouts.policy import Policy


def load_earlier(name: str, policy: Policy) -> LanguageModel:
    """The model that a policy is measured from: beside it, and in its precision.

    Raises:
        ModelError: there is no such model, or its tokens are others.
    """
    earlier = load_model(name, dtype=policy.model.dtype, device=str(policy.model.device))
    words = policy.chat.tokenizer.get_vocab(), load_tokenizer(locate(name)).get_vocab()
    if words[0] != words[1] or len(policy.model.head) != len(earlier.head):
        raise ModelError(f"'{name}' and '{policy.model.name}' have other tokens, so they cannot be compared")
    return earlier


@torch.no_grad()
def kl_from(
    earlier: LanguageModel,
    policy: LanguageModel,
    prompts: Sequence[Sequence[int]],
    said: Sequence[Sequence[int]],
    *,
    microbatch_tokens: int = 4096,
) -> list[float]:
    """How far the policy is from the earlier one along each response, in nats.

        D(y) = sum_t KL(pi(. | x, y_<t) || pi_0(. | x, y_<t))
             = sum_t sum_v pi(v | x, y_<t) log( pi(v | x, y_<t) / pi_0(v | x, y_<t) )

    Over responses that are drawn from pi(. | x) at temperature 1 its mean is KL(pi(. | x) || pi_0(. | x)). It is never
    below 0, and varies less than log pi(y | x) / pi_0(y | x), whose mean is the same: Amini et al. 2025
    (https://arxiv.org/abs/2504.10637).

    Args:
        earlier: pi_0.
        policy: pi.
        prompts: the tokens of x, one prompt for each response.
        said: the tokens of y, one at least.
        microbatch_tokens: how much is computed at once; a longer sequence is computed alone.

    Raises:
        UserError: a response ends where the earlier model's context does not reach.
    """
    examples = [Example(tuple(x), tuple(y), (True,) * len(y)) for x, y in zip(prompts, said, strict=True)]
    longest = max(map(size_of, examples), default=0)
    if longest > earlier.context:
        raise UserError(
            f"an answer ends at token {longest} of its conversation, and '{earlier.name}' holds {earlier.context}; "
            "type a smaller --max-new-tokens"
        )
    found = [0.0] * len(examples)
    for row in pack(examples, max(microbatch_tokens, longest)):
        mine, theirs = policy.learned_states(row), earlier.learned_states(row)
        apart = token_divergence(theirs, earlier.head, mine, policy.head)
        for number, nats in zip(row.rows, apart.tolist(), strict=True):
            found[number] += nats
    return found
