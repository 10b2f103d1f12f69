from posttrain.environments import Environment, Seat, SingleTurn, trained_seats
from posttrain.testing import ScriptedSeat


def test_the_implementations_have_what_the_interfaces_ask_for():
    assert isinstance(SingleTurn(), Environment)
    assert isinstance(ScriptedSeat(["x"]), Seat)


def test_unless_it_says_otherwise_the_first_seat_learns():
    class Two(SingleTurn):
        seats = ("policy", "critic")

    class Both(Two):
        trained = ("critic", "policy")

    assert trained_seats(Two()) == ("policy",) and trained_seats(Both()) == ("critic", "policy")
