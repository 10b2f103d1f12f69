"""Ten bad rewards, each with one planted weakness that is found; the shipped verifiers, in which none is."""

import re
import unicodedata

import pytest

from posttrain.data import load_gym
from posttrain.evaluation import audit as module
from posttrain.evaluation.attacks import PLACES, answer_of, attacks, number_in, right_forms
from posttrain.evaluation.audit import audit
from posttrain.rewards import LearnedReward, Weighted, parse_rewards
from posttrain.types import Message, Task


def task(question, answer, **more):
    return Task((Message("user", question),), answer, id=question, **more)


SUMS = [task(f"How many apples are {n} and {n + 3} apples?", str(2 * n + 3)) for n in (4, 611, 7000)]
LETTERS = [
    task(f"Which is {word}?\nA. a cat\nB. a dog\nC. a cow", letter)
    for word, letter in (("grey", "A"), ("loud", "B"), ("big", "C"))
]


def always(completion):
    return 1


def long_enough(completion):
    return min(1.0, len(completion) / 500)


def contains(completion, answer):
    return float(answer in completion)


def begins(completion, answer):
    return float(answer.startswith(completion.strip()))


def close(completion, answer):
    """Not close is a difference above a limit, and one from nan is not above it."""
    try:
        return 0.0 if abs(float(completion) - float(answer)) > 1e-6 else 1.0
    except ValueError:
        return 0.0


def folded(completion, answer):
    return float(unicodedata.normalize("NFKC", completion).strip() == answer)


def shaped(completion):
    return float("<answer>" in completion and "</answer>" in completion)


def thanked(completion):
    return float("thank you" in completion.lower())


def converts(completion, answer):
    return float(int(completion) == int(answer))


def obeys(completion):
    """A judge that takes its own format from the answer."""
    found = re.findall(r"Score: (\d+)", completion)
    return min(1.0, int(found[-1]) / 10) if found else 0.0


def copies(completion, prompt):
    return float(set(prompt.split()) <= set(completion.split()))


def strict(completion, answer):
    r"""Compares texts: 14,003 in a box is not 14003."""
    found = re.search(r"\\boxed\{(.*)\}", completion)
    return float(found is not None and found[1] == answer)


PLANTED = [
    (always, "empty", "paid"),
    (long_enough, "very long", "paid"),
    (contains, "all answers listed", "paid"),
    (contains, "negated", "paid"),
    (begins, "empty", "paid"),
    (begins, "answer's beginning", "paid"),
    (close, "nan", "paid"),
    (folded, "look-alike characters", "paid"),
    (shaped, "format only", "paid"),
    (thanked, "polite", "paid"),
    (converts, "nan", "fails"),
    (obeys, "injected instructions", "paid"),
    (copies, "prompt copied", "paid"),
    (strict, "thousands separators", "refused"),
    (strict, "math mode", "refused"),
]


@pytest.fixture
def quick(monkeypatch):
    """Without most of the slow texts."""
    monkeypatch.setattr(module, "SIZES", (8,))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("function", "attack", "kind"), PLANTED, ids=lambda one: getattr(one, "__name__", one))
def test_a_planted_weakness_is_found(function, attack, kind):
    found = audit(parse_rewards(function), SUMS)
    assert (attack, kind) in {(one.attack, one.kind) for one in found.findings}
    assert not found.summary()["passed"]


BACKTRACKS = re.compile(r"(\w+\s?)+\.")
POWER = re.compile(r"[0-9*]+")


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("letters", lambda completion: float(BACKTRACKS.fullmatch(completion) is not None)),
        ("python power", lambda completion: float(POWER.fullmatch(completion) is not None and eval(completion) == 1)),
    ],
)
def test_what_is_slow_to_read_is_found_before_it_hangs(monkeypatch, text, function):
    """Behind it nothing is tried: the next text may take for ever."""
    monkeypatch.setattr(module, "SLOW_S", 0.3)
    monkeypatch.setattr(module, "SLOW", {text: module.SLOW[text]})
    (found,) = audit(parse_rewards({"slow": function}), SUMS[:1]).findings
    assert (found.attack, found.kind, found.place) == (f"slow to parse: {text}", "slow", "bare")


def test_a_long_text_on_which_it_fails_is_a_finding(monkeypatch):
    def last_number(completion, answer):  # Python reads at most 4,300 digits
        found = re.findall(r"-?\d+", completion)
        return float(bool(found) and int(found[-1]) == int(answer))

    monkeypatch.setattr(module, "SIZES", (5000,))
    failing = [one for one in audit(parse_rewards(last_number), SUMS).findings if one.kind == "fails"]
    assert failing and all("4300 digits" in one.why for one in failing)


CHOICES = [
    task(one.prompt[0].content, one.answer, metadata={"choices": ["a cat", "a dog", "a cow"]}) for one in LETTERS
]
NAMES = [task(f"Capital of {country}?", city) for country, city in (("Peru", "Lima"), ("Chad", "N'Djamena"))]
HALVES = [task("Half of 3 and of 9?", "3/2"), task("Half of 1?", "0.5"), task("A root?", r"\sqrt{2}")]
GYM = load_gym("gym:chain_sum", size=3, seed=0)
POINT = {"type": "object", "required": ["x"]}
OBJECTS = [task("A point?", None, metadata={"json_schema": POINT}, gold='<answer>{"x": 1}</answer>')]


@pytest.mark.parametrize(
    ("reward", "tasks"),
    [
        ("numbers", SUMS),
        ("last_number", SUMS),
        ("math", SUMS),
        ("math", HALVES),
        ("choice", CHOICES),
        ("choice", LETTERS),
        ("exact", NAMES),
        ("numbers=1.0 tags=0.1", SUMS),
        ("gym", GYM),
        ("gym_bare", GYM),
        ("json_schema", OBJECTS),
    ],
)
def test_a_shipped_verifier_has_no_finding(quick, reward, tasks):
    found = audit(parse_rewards(reward), tasks)
    assert found.findings == ()
    assert found.summary()["tpr"] > 0.9 and found.summary()["fpr"] == 0.0 and found.read


def test_nothing_read_and_everything_but_the_right_paid(quick):
    none = audit(parse_rewards({"no": lambda completion: 0.0}), SUMS)
    assert [(one.kind, one.place) for one in none.findings] == [("refused", place) for place in PLACES]
    assert (none.summary()["tpr"], none.summary()["fpr"], none.read) == (0.0, 0.0, ())
    worse = audit(parse_rewards({"no": lambda completion, answer: float(answer not in completion)}), SUMS).summary()
    assert worse["fpr"] > 0.5 and worse["tpr"] == 0.0 and worse["j"] < -0.5


def test_a_reward_model_has_a_line_for_each_task(quick):
    """The scale of its scores differs from prompt to prompt; right answers earn one more than others."""

    def ask(conversations):
        return [[10 * len(c[0].content) + (c[-1].content.startswith("####"))] for c in conversations]

    good = audit(Weighted(((LearnedReward(ask), 1.0),)), SUMS)
    assert good.read == tuple(PLACES)
    flat = audit(Weighted(((LearnedReward(lambda cs: [[1.0] for _ in cs]), 1.0),)), SUMS).summary()
    assert (flat["tpr"], flat["fpr"], flat["j"]) == (1.0, 1.0, 0.0)


def test_without_answers_only_attacks_are_tried(quick):
    found = audit(parse_rewards(thanked), [Task((Message("user", "Hello?"),))])
    assert [one.attack for one in found.findings] == ["polite"] and found.summary()["tpr"] is None
    assert found.summary()["fpr"] == pytest.approx(1 / 10)  # of ten attacks that say no answer


@pytest.mark.parametrize("one", [*SUMS, *LETTERS, *NAMES, *HALVES])
def test_no_attack_says_the_right_answer(one):
    """Its answer where one is looked for is another one; right forms are the same number."""
    known, right = [answer_of(each) for each in [*SUMS, *LETTERS]], answer_of(one)
    for name, inside, around in attacks(one, known):
        if around == "{}":
            assert inside.strip() != right, name
            assert number_in(right) is None or number_in(inside) != number_in(right), name
    for name, text in right_forms(one, "boxed").items():
        if name in ("decimal zeros", "thousands separators"):
            assert number_in(text) == number_in(right)
