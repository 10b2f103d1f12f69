"""Sums with worked demonstrations, for the cold start of the shipped pipelines: those of quickstart."""

from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.environments.env import SingleTurn
from posttrain.options.tools import Quickstart
from posttrain.recipes.quickstart import conversations, problems
from posttrain.types import Message


@dataclass(frozen=True)
class Worked(SingleTurn):
    """`count` demonstrations: the first half think in steps, of the others a share of `thinking` do."""

    count: int = 960
    thinking: float = 0.15

    def demonstrations(self, seed: int) -> Sequence[Sequence[Message]]:
        """Each a problem with its answer, of the training split."""
        config = Quickstart(demonstrations=self.count, thinking=self.thinking, seed=seed)
        return conversations(config, problems(config, "train", self.count))
