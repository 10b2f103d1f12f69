"""Budgets of chat-model APIs: requests, money."""

from collections.abc import Iterable
from dataclasses import dataclass

from posttrain.errors import RewardError, UserError
from posttrain.types import Reply, Usage


@dataclass
class Budget:
    """Counts requests when they are sent, failed ones included, and cost when replies arrive.

    Nothing is sent beyond it. What requests that are under way cost is known when they are answered: by that the money
    may be exceeded.

    Args:
        requests: at most; 0: no limit.
        money: at most; 0: no limit.
        prices: of a million prompt tokens, and of a million completion tokens, in the same currency.
    """

    requests: int = 0
    money: float = 0.0
    prices: tuple[float, float] = (0.0, 0.0)
    sent: int = 0
    spent: float = 0.0

    def __post_init__(self) -> None:
        if self.requests < 0 or not self.money >= 0 or not min(self.prices) >= 0:
            raise UserError("a budget, and prices, must be 0 or more")
        if self.money and not any(self.prices):
            raise UserError("a budget of money needs the prices of a million prompt and completion tokens")

    def begin(self, replies: Iterable[Reply]) -> None:
        """Reset the count to the usage of these cached replies."""
        self.sent, self.spent = 0, 0.0
        for reply in replies:
            self.sent += 1
            self.pay(reply.usage)

    def take(self) -> None:
        """Count a request that is about to be sent.

        Raises:
            RewardError: the budget is used up, so it must not be sent.
        """
        if self.requests and self.sent >= self.requests:
            raise RewardError(
                f"the budget of judges, {self.requests} requests, is used up; their replies are cached: raise "
                "`judge_budget` to go on"
            )
        if self.money and self.spent >= self.money:
            raise RewardError(f"the budget of judges, {self.money:g}, is used up: {self.spent:.4g} is spent")
        self.sent += 1

    def pay(self, usage: Usage) -> None:
        """Add the usage of a reply."""
        tokens = (usage.prompt_tokens, usage.completion_tokens)
        self.spent += sum(price * n for price, n in zip(self.prices, tokens, strict=True)) / 1e6
