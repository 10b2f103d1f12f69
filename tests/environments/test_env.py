import pytest

from posttrain.environments import Environment, ScriptedSeat, Seat, SingleTurn, need_seats
from posttrain.errors import UserError
from posttrain.rewards import parse_rewards


def test_a_missing_seat_is_named():
    environment = SingleTurn(parse_rewards("exact"))
    need_seats(environment, {"policy": ScriptedSeat(["x"])})
    with pytest.raises(UserError, match="SingleTurn needs the seats policy; got polcy, so policy is missing"):
        need_seats(environment, {"polcy": ScriptedSeat(["x"])})
    with pytest.raises(UserError, match="got none"):
        need_seats(environment, {})


def test_the_implementations_have_what_the_interfaces_ask_for():
    assert isinstance(SingleTurn(parse_rewards("exact")), Environment)
    assert isinstance(ScriptedSeat(["x"]), Seat)
