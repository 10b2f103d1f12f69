import json
from dataclasses import replace

import pytest

from posttrain.evaluation.accuracy import Examination, numbers, pass_at_interval
from tests.evaluation.test_intervals import accuracy

SAMPLED = accuracy([0.25, 1.0, 0.0])
GREEDY = accuracy([0.0, 1.0, 1.0], samples=1, greedy=True)


def with_passes(found, **passes):
    return replace(found, pass_at={int(k[1:]): v for k, v in passes.items()}, unparsed=0.125, truncated=0.5)


BOTH = Examination("a model", with_passes(SAMPLED, k1=5 / 12, k2=0.5, k4=2 / 3), with_passes(GREEDY, k1=2 / 3))


def test_the_headline_is_sampled_where_there_are_samples():
    assert BOTH.headline is BOTH.sampled
    assert list(BOTH.answers) == ["sampled", "greedy"]
    only = Examination("a model", greedy=BOTH.greedy)
    assert only.headline is BOTH.greedy and list(only.answers) == ["greedy"]
    with pytest.raises(ValueError, match="neither"):
        Examination("a model")


def test_numbers_are_json_and_say_everything():
    found = numbers(BOTH.headline)
    assert json.loads(json.dumps(found)) == found
    assert found["accuracy"] == pytest.approx(5 / 12) and (found["n"], found["samples_per_task"]) == (3, 4)
    assert found["pass_at"] == {"1": 5 / 12, "2": 0.5, "4": 2 / 3}
    assert found["pass_at_ci95"] == {k: list(pass_at_interval(BOTH.headline, int(k))) for k in ("1", "2", "4")}
    assert (found["unparsed"], found["truncated"], found["mean_tokens"]) == (0.125, 0.5, 5.0)
    assert found["ci95"] == [0.1, 0.9]


def test_metrics_are_named_by_how_was_answered():
    found = BOTH.metrics()
    assert found["sampled/accuracy"] == pytest.approx(5 / 12) and found["greedy/accuracy"] == pytest.approx(2 / 3)
    assert found["sampled/pass_at_4"] == pytest.approx(2 / 3) and found["greedy/truncated"] == 0.5
    assert found["sampled/tokens"] == 5.0 and found["sampled/unparsed"] == 0.125


def test_one_model_over_another():
    before = Examination("before", accuracy([0.0, 0.0, 0.0]), accuracy([0.0, 0.0, 0.0], samples=1, greedy=True))
    over = BOTH.over(before)
    assert over["sampled"].value == pytest.approx(1.25 / 3) and over["greedy"].value == pytest.approx(2 / 3)
