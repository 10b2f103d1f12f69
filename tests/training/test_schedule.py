import pytest

from posttrain.errors import UserError
from posttrain.training.schedule import LearningRate, learning_rate, unreached


def rates(steps, warmup, decay):
    return [learning_rate(s, steps=steps, peak=2.0, warmup=warmup, decay=decay) for s in range(steps)]


def test_a_warmup_that_the_run_does_not_outlast_is_said():
    assert unreached(warmup=9, steps=10) == unreached(warmup=0, steps=1) == unreached(warmup=1, steps=1) == []
    (note,) = unreached(warmup=10, steps=10)
    assert "`warmup_steps=10` of 10 steps" in note


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


def test_a_run_of_another_length_says_what_happens_to_its_learning_rate():
    (line,) = LearningRate(2.0, 0, "linear", 8).changed(4, 4)  # (8 - 4) / 8 of 2, where the last of four had 1/4 of it
    assert line == (
        "8 steps now, 4 when it began: the linear decay of the learning rate now ends after step 8, not 4; "
        "it was 0.5 at step 4 and is 1 at step 5"
    )
    (line,) = LearningRate(2.0, 0, "cosine", 4).changed(8, 2)
    assert "the cosine decay" in line and line.endswith("it was 1.92 at step 2 and is 1 at step 3")
    (line,) = LearningRate(2.0, 0, "constant", 8).changed(4, 4)
    assert line.startswith("8 steps now, 4 when it began: the learning rate is constant after its warmup")


@pytest.mark.parametrize(("before", "steps", "done"), [(4, 4, 2), (None, 8, 4), (4, 8, 0), (8, 4, 4), (8, 4, 6)])
def test_there_is_nothing_to_say_of_a_run_of_the_same_length_or_one_that_is_done(before, steps, done):
    assert LearningRate(2.0, 0, "linear", steps).changed(before, done) == []


def test_a_delay_comes_before_the_schedule():
    rate = LearningRate(2.0, 0, "linear", steps=6, delay=2)
    assert [rate(step) for step in range(6)] == [2.0, 2.0, 2.0, 1.5, 1.0, 0.5]
    (line,) = rate.changed(4, 3)  # of the two steps after the delay one is done, of four now
    assert line.endswith("it was 2 at step 1 and is 1.5 at step 2") and line.startswith("4 steps now, 2 when it began")
    assert rate.changed(None, 3) == rate.changed(6, 3) == rate.changed(4, 2) == []
