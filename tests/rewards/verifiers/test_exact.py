import pytest

from posttrain.errors import RewardError
from posttrain.rewards import ExactVerifier
from posttrain.rewards.verifiers.boxes import doubt_around_tag
from tests.rewards.episodes import score, value


def test_white_space_is_forgiven_and_nothing_else():
    exact = ExactVerifier()
    assert value(exact, "<answer> New\n  York </answer>", "New York") == 1.0
    for other in ("new york", "New York.", "New York City", "NewYork"):
        got = score(exact, f"<answer>{other}</answer>", "New York")
        assert (got.value, got.unparsed, got.explanation) == (0.0, False, "expected New York")


def test_what_is_not_seen_is_forgiven():
    exact = ExactVerifier()
    assert value(exact, "<answer>\u200bcafe\u0301\ufeff</answer>", "caf\u00e9") == 1.0
    assert value(exact, "<answer>ca\u200bf\u00e9</answer>", "caf\u00e9") == 0.0
    assert value(exact, "<answer>\u0440aris</answer>", "paris") == 0.0  # a Cyrillic letter


def test_case_is_forgiven_when_asked():
    assert value(ExactVerifier(ignore_case=True), "<answer>STRASSE</answer>", "straße") == 1.0


def test_any_of_several_answers():
    assert [value(ExactVerifier(), f"<answer>{a}</answer>", ["one", "1"]) for a in ("1", "one", "2")] == [1.0, 1.0, 0.0]
    assert value(ExactVerifier(), "<answer>7</answer>", 7) == 1.0


def test_no_answer_is_unparsed():
    assert score(ExactVerifier(), "New York", "New York").unparsed


@pytest.mark.parametrize("answer", [None, "", [], " ", "\u200b", float("nan"), [None, ""], ["\ufeff", float("nan")]])
def test_a_task_without_answer_raises(answer):
    with pytest.raises(RewardError, match=r"'exact' needs task\.answer; task 't'"):
        score(ExactVerifier(), "<answer>x</answer>", answer)


@pytest.mark.parametrize(
    ("answers", "said"), [([None, "x"], "None"), ([float("nan"), "x"], "nan"), (["\u200b", "x"], "\u200b")]
)
def test_what_is_missing_is_no_answer_to_be_paid_for(answers, said):
    assert value(ExactVerifier(), f"<answer>{said}</answer>", answers) == 0.0
    assert value(ExactVerifier(), "<answer>x</answer>", answers) == 1.0


@pytest.mark.parametrize("answer", [{"a": 1}, [["x"]], [{"a": 1}, "x"]])
def test_an_answer_that_is_no_text_raises(answer):
    with pytest.raises(RewardError, match=r"an answer of task 't' is a (dict|list)"):
        score(ExactVerifier(), f"<answer>{answer}</answer>", answer)


def test_what_stands_beside_the_tags_is_read():
    assert doubt_around_tag("So <answer>Rome</answer>.") is None
    assert doubt_around_tag("It is not <answer>Rome</answer>.") == "what stands beside the tags"
