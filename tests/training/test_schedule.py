import pytest

from posttrain.errors import UserError
from posttrain.training.schedule import learning_rate, unreached


def rates(steps, warmup, decay):
    return [learning_rate(s, steps=steps, peak=2.0, warmup=warmup, decay=decay) for s in range(steps)]


def test_a_warmup_that_the_run_does_not_outlast_is_said():
    assert unreached(warmup=9, steps=10) == unreached(warmup=0, steps=1) == unreached(warmup=1, steps=1) == []
    (note,) = unreached(warmup=10, steps=10)
    assert "--warmup-steps 10 of 10 steps" in note


def test_warmup_goes_up_in_a_line_to_the_peak():
    assert rates(6, 4, "constant") == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_linear_goes_down_to_one_step_before_nothing():
    assert rates(5, 1, "linear") == [2.0, 2.0, 1.5, 1.0, 0.5]


def test_cosine_goes_down_in_half_a_wave():
    assert rates(4, 0, "cosine") == pytest.approx([2.0, 1 + 2**-0.5, 1.0, 1 - 2**-0.5])


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
def test_without_warmup_the_first_step_has_the_peak(decay):
    assert rates(3, 0, decay)[0] == 2.0


def test_a_warmup_longer_than_the_run_never_reaches_the_peak():
    assert rates(2, 4, "linear") == [0.5, 1.0]


def test_an_unknown_decay_is_named_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'cosine'"):
        learning_rate(0, steps=10, peak=1.0, warmup=3, decay="cosin")
