import pytest

from posttrain.errors import UserError
from posttrain.rewards import VerificationPhrases
from tests.rewards.episodes import score, value


def test_checking_steps_are_counted_up_to_the_cap():
    rule = VerificationPhrases(cap=2)
    assert value(rule, "<think>2+2=5. Wait: 2+2=4.</think>4") == 0.5
    assert value(rule, "<think>2+2=5. Wait: 2+2=4. Check: 4-2=2.</think>4") == 1.0
    assert value(rule, "<think>Wait: 1. Check: 2. Actually 3. Hold on: 4.</think>4") == 1.0
    assert value(VerificationPhrases(cap=4), "<think>Wait: 1. Check: 2. Actually 3.</think>4") == 0.75
    assert value(rule, "<think>2+2=4</think>4") == 0.0


def test_it_cannot_be_farmed():
    rule = VerificationPhrases(cap=10)
    assert value(rule, "<think>" + "Wait. " * 50 + "</think>4") == 0.0  # bare
    assert value(rule, "<think>" + "Wait wait, check, actually. " * 50 + "</think>4") == 0.0  # bare, several
    assert value(rule, "<think>" + "Wait: 2+2=4.\n" * 50 + "</think>4") == 0.1  # repeated
    assert value(rule, "<think>Wait: 2+2=4. Check: 2+2=4. Actually 2+2=4.</think>4") == 0.1  # in other words
    assert value(rule, "<think>a</think>Wait: 1. Check: 2. Actually 3.") == 0.0  # not in the reasoning


def test_phrases_are_whole_words_in_any_case():
    rule = VerificationPhrases(cap=1)
    assert value(rule, "the waiter has a checkbook and is actualised") == 0.0
    assert value(rule, "await the paycheck") == 0.0
    assert value(rule, "ON SECOND THOUGHT it is 4") == 1.0
    assert value(VerificationPhrases(("hm+",), cap=1), "hmm it is 4") == 0.0  # text, not a pattern
    assert value(VerificationPhrases(("Aha",), cap=1), "aha it is 4") == 1.0
    assert score(VerificationPhrases(("aha",), cap=2), "aha it is 4").explanation == "1 checking steps"


@pytest.mark.parametrize("phrases, cap", [((), 2), (("wait",), 0)])
def test_nothing_to_count_is_refused(phrases, cap):
    with pytest.raises(UserError, match=f"cap={cap}, {len(phrases)} phrases"):
        VerificationPhrases(phrases, cap)
