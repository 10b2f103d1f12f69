from posttrain.rewards import LanguageConsistency
from posttrain.rewards.rules import scripts
from posttrain.types import Episode, Message, Task
from tests.rewards.episodes import score, value


def asked(question: str, completion: str) -> Episode:
    prompt = (Message("user", question),)
    return Episode(Task(prompt), (*prompt, Message("assistant", completion)))


def test_the_value_is_the_share_of_letters_in_the_script():
    assert value(LanguageConsistency("latin"), "abc абв1 2!") == 0.5
    assert value(LanguageConsistency("cyrillic"), "a абв") == 0.75
    assert value(LanguageConsistency("latin"), "答え abc") == 0.6
    assert value(LanguageConsistency("han"), "答え abc") == 0.4  # kana belong to it
    assert value(LanguageConsistency("han"), "カナ ab") == 0.5
    assert value(LanguageConsistency("greek"), "π r r r") == 0.25
    assert value(LanguageConsistency("hangul"), "한국어") == 1.0


def test_what_is_not_expected_is_named():
    assert score(LanguageConsistency("latin"), "abc абв").explanation == "not latin: cyrillic 3"


def test_the_prompt_decides_when_nothing_else_does():
    from_prompt = LanguageConsistency()
    assert from_prompt._score_one(asked("Сколько будет x + x?", "два x")).value == 0.75
    assert from_prompt._score_one(asked("How much is x + x?", "два x")).value == 0.25
    assert from_prompt._score_one(asked("x?", "два и два")).value == 0.0  # the completion has no say in it


def test_without_letters_nothing_is_inconsistent():
    assert value(LanguageConsistency("latin"), "2 + 2 = 4") == 1.0
    assert value(LanguageConsistency("latin"), "") == 1.0
    assert LanguageConsistency()._score_one(asked("2 + 2 =", "four")).value == 1.0


def test_letters_are_counted_by_script():
    assert scripts("Ответ: x = 7, 答え") == {"cyrillic": 5, "han": 2, "latin": 1}
