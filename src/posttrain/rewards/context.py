"""Reward context: judges by name, the policy as a chat model, and the run's seed."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from posttrain.errors import UserError, unknown
from posttrain.types import ChatModel, Message


@runtime_checkable
class ContinuationScorer(Protocol):
    """A chat model that gives logprobs of given answers: models that run here, not those behind an API."""

    async def logprobs(self, messages: Sequence[Message], continuations: Sequence[str]) -> list[tuple[float, ...]]:
        """The logprob of each token of how the assistant's next message may begin, in nats, at temperature 1.

        That of a continuation is their sum; it has no stop token. If the conversation ends with the assistant, they go
        on in that message.

        Raises:
            UserError: a continuation has no tokens, or the conversation leaves no room for it.
        """
        ...


@dataclass(frozen=True)
class RewardContext:
    """Given to a reward function with a parameter `reward_context`.

    Attributes:
        seed: of the run.
        judges: models that can be asked, by the names that the run gives them.
        policy: the model whose episodes are scored, with the weights that sampled them; None where there is none.
    """

    seed: int = 0
    judges: Mapping[str, ChatModel] = field(default_factory=dict[str, ChatModel])
    policy: ChatModel | None = None

    def judge(self, name: str) -> ChatModel:
        """The judge of that name.

        Raises:
            UserError: there is none (nearest name given).
        """
        if name in self.judges:
            return self.judges[name]
        if not self.judges:
            raise UserError(f"a reward asks the judge '{name}', and there are none; type `judge=\"{name}=MODEL\"`")
        raise unknown("judge", name, self.judges)

    def scorer(self, name: str) -> ContinuationScorer:
        """The judge of that name, for the logprobs of given answers.

        Raises:
            UserError: there is none, or it gives no logprobs.
        """
        model = self.judge(name)
        if isinstance(model, ContinuationScorer):
            return model
        raise UserError(
            f"the judge '{name}' gives no logprobs of given answers, as models behind an API do not; name a model that "
            f'runs here: `judge="{name}=MODEL"`'
        )

    def seed_for(self, *parts: int | str) -> int:
        """A seed that depends on the run's seed and all parts, such as a task's id and the request.

        It does not depend on request order, so that a resumed run repeats the requests, and hits the cache.
        """
        return seed_of(self.seed, *parts)


def seed_of(*parts: int | str) -> int:
    """63 bits that depend on all parts and their order."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1
