import pytest

from posttrain.engine.budget import Budget
from posttrain.errors import RewardError, UserError
from posttrain.types import Message, Reply, StopReason, Usage

REPLY = Reply(Message("assistant", ""), StopReason.STOP, Usage(1_000_000, 500_000))


def test_what_was_paid_for_before_counts():
    budget = Budget(requests=3, money=10.0, prices=(1.0, 4.0), sent=7)
    budget.begin([REPLY, REPLY])
    assert (budget.sent, budget.spent) == (2, 6.0)
    budget.take()
    with pytest.raises(RewardError, match="3 requests, is used up"):
        budget.take()
    assert budget.sent == 3


def test_money():
    budget = Budget(money=6.0, prices=(1.0, 4.0))
    for _ in range(2):
        budget.take()
        budget.pay(REPLY.usage)
    with pytest.raises(RewardError, match="budget of judges, 6, is used up: 6 is spent"):
        budget.take()


def test_without_limits_nothing_ends():
    budget = Budget(prices=(1.0, 4.0))
    for _ in range(1000):
        budget.take()
        budget.pay(REPLY.usage)
    assert (budget.sent, budget.spent) == (1000, 3000.0)


@pytest.mark.parametrize("wrong", [{"requests": -1}, {"money": -1.0}, {"money": float("nan")}, {"prices": (-1.0, 1.0)}])
def test_less_than_nothing_is_refused(wrong):
    with pytest.raises(UserError, match="must be 0 or more"):
        Budget(**wrong)


def test_money_needs_prices():
    with pytest.raises(UserError, match="needs the prices"):
        Budget(money=1.0)
