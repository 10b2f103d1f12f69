"""How many tokens an episode may have after its prompt, before any is played."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

from posttrain.data.chat import ChatFormat
from posttrain.environments.env import Environment
from posttrain.environments.user_methods import demonstrations_of
from posttrain.errors import TemplateError
from posttrain.types import Message

FEW = 100  # demonstrations that are read


@dataclass(frozen=True)
class EpisodeLength:
    """The tokens of an episode after its prompt, at most, and how they were counted, in words."""

    tokens: int
    counted: str


def episode_length(environment: Environment, chat: ChatFormat, max_new_tokens: int, seed: int) -> EpisodeLength:
    """All turns that the environment allows, each as long as it may be.

    What the environment says between two turns is as long as in its demonstrations, on average; without any it is not
    counted.
    """
    turns = environment.max_turns
    if turns == 1:
        return EpisodeLength(max_new_tokens, f"completions taken to be as long as they may be, {max_new_tokens}")
    replies = f"episodes taken to have all {turns} turns of {max_new_tokens} tokens each"
    between = _observed(demonstrations_of(environment, seed), chat)
    if between is None:
        return EpisodeLength(turns * max_new_tokens, f"{replies}; what the environment says is not counted")
    said = f"{replies}, and {between} of the environment between two, as in its demonstrations"
    return EpisodeLength(turns * max_new_tokens + (turns - 1) * between, said)


def _observed(demonstrations: Sequence[Sequence[Message]], chat: ChatFormat) -> int | None:
    """The mean number of tokens between two turns of the policy; None where no demonstration says."""
    found: list[float] = []
    for messages in islice(demonstrations, FEW):
        try:
            _, mask = chat.training_ids(messages)
        except TemplateError:
            continue
        if after := sum(message.role == "assistant" for message in messages) - 1:
            found.append((len(mask) - mask.index(True) - sum(mask)) / after)
    return math.ceil(fmean(found)) if found else None
