import pytest

from posttrain.environments import Environment, Seat, SingleTurn, need_seats, trained_seats
from posttrain.errors import UserError
from posttrain.testing import ScriptedSeat


def test_a_missing_seat_is_named():
    need_seats(SingleTurn(), {"policy": ScriptedSeat(["x"])})
    with pytest.raises(UserError, match="SingleTurn needs the seats policy; got polcy, so policy is missing"):
        need_seats(SingleTurn(), {"polcy": ScriptedSeat(["x"])})
    with pytest.raises(UserError, match="got none"):
        need_seats(SingleTurn(), {})


def test_the_implementations_have_what_the_interfaces_ask_for():
    assert isinstance(SingleTurn(), Environment)
    assert isinstance(ScriptedSeat(["x"]), Seat)


def test_unless_it_says_otherwise_the_first_seat_learns():
    class Two(SingleTurn):
        seats = ("policy", "critic")

    class Both(Two):
        trained = ("critic", "policy")

    assert trained_seats(Two()) == ("policy",) and trained_seats(Both()) == ("critic", "policy")
