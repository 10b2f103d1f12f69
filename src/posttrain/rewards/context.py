"""Reward context: judges by name, the policy as a chat model, and the run's seed."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from posttrain.errors import UserError, unknown
from posttrain.types import ChatModel


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

    def seed_for(self, *parts: int | str) -> int:
        """A seed that depends on the run's seed and all parts, such as a task's id and the request.

        It does not depend on request order, so that a resumed run repeats the requests, and hits the cache.
        """
        return seed_of(self.seed, *parts)


def seed_of(*parts: int | str) -> int:
    """63 bits that depend on all parts and their order."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1
