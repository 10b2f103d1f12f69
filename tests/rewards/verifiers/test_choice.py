import doctest
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import RewardError
from posttrain.rewards import ChoiceVerifier
from posttrain.rewards.verifiers import choice
from posttrain.rewards.verifiers.choice import read_letter
from posttrain.testing import check_reward
from tests.rewards.episodes import episode, score, unguarded, value

CITIES = ["London", "Paris", "Rome", "Bern"]


@pytest.mark.parametrize(
    "text",
    [
        "B",
        "b",
        "(B)",
        "(b)",
        "B.",
        "B)",
        "**B**",
        "`B`",
        r"\text{B}",
        r"\boxed{B}",
        "Answer: B",
        "answer: b",
        "Option B",
        "The answer is B.",
        "the correct answer is (B)",
        "The answer is B, I think",
        "I choose... The answer is **B**!",
    ],
)
def test_a_letter_is_read(text):
    assert read_letter(text) == "B"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A dog",
        "Because",
        "AB",
        "A or B",
        "The answer is A or B",
        "The answer is (A), (B)",
        "The answer is A. No, the answer is B.",
        "A) but the answer is B",
        "A's",
        "42",
    ],
)
def test_anything_else_is_not_a_letter(text):
    assert read_letter(text) is None


@pytest.mark.parametrize("choices", [[], CITIES])
@pytest.mark.parametrize(
    "text",
    [
        *("B) no wait, A)", "answer isn't option B", "Rule out option B", "Answer B and possibly C", "B) C) D)"),
        *("(B) (C)", "B, C", "B/C", "B C", "not B", "B is wrong", "B is not the answer", "anything but B", "B?  or C"),
        *("possibly B", "B) is incorrect", "the answer is not B", "The opposite of B", "B) never", "all except B"),
        *("if B then C", "Option B fails", "The worst option is B", "B because C is wrong", "B) Rome or Paris", "A, B"),
        *("The answer is (B), (C)", "Neither B", "B) wait", "no B", "the answer can't be B", "A) B)", "b or c", "b, c"),
    ],
)
def test_what_is_no_answer_is_never_paid(text, choices):
    assert read_letter(text, choices) is None


@given(
    st.permutations("ABCD"),
    st.sampled_from(
        ["not {}", "{} or {}", "{} {}", "{}, {}", "{} and {}", "{} is wrong", "{} is false", "rule out {}", "{}) {})",
         "never {}", "{}, no, {}", "maybe {}", "({}) ({})", "{} unless {}", "anything but {}", "{}/{}",
         "{} isn't right"]
    ),
    st.sampled_from(["{}", "The answer is {}", "Option {}", "**{}**", "I choose {}.", "so it is ({})", "Answer: {}"]),
    st.sampled_from([(), CITIES]),
)  # fmt: skip
def test_a_hedged_or_denied_letter_is_never_paid_however_it_is_decorated(letters, change, decoration, choices):
    assert read_letter(decoration.format(change.format(*letters)), choices) is None


@pytest.mark.parametrize(
    "text", ["B Paris", "B - Paris", "B) Paris", "(B) paris.", "B: Paris", "The answer is B) Paris"]
)
def test_the_letter_with_its_choice_is_read_and_with_another_it_is_not(text):
    assert read_letter(text, CITIES) == "B"
    assert read_letter(text.replace("aris", "ome").replace("P", "R").replace("p", "r"), CITIES) is None


@pytest.mark.parametrize(
    ("text", "choices", "letter"),
    [
        *((said, ["5", "6"], None) for said in ("A) -5", "A: <5", ">5", "5!", "A) 5.5", "A) -5 is it")),
        *((said, ["(0,1)", "x"], None) for said in ("[0,1]", "A) [0,1)", "A) 0,1")),
        *((said, [".5", "6"], None) for said in ("5", "A) 5")),
        *((said, ["-5", "5"], "A") for said in ("-5", "-5.", "\u22125", "A) -5", "A) \u22125")),
        ("Paris", ["Paris", "London", "Paris"], None),
        ("A", ["O", "A", "B"], None),  # the letter, or the blood group
        ("O", ["O", "A", "B"], "A"),
        ("B) A", ["O", "A", "B"], "B"),
        ("35", [str(number) for number in range(40)], None),
        *((letter, [], None) for letter in ("\u017f", "\u0131", "\u0130", "\u212a")),
        ("B-Paris", CITIES, "B"),
        ("B\u2014Paris", CITIES, "B"),
    ],
)
def test_the_text_of_a_choice_is_read_with_its_signs(text, choices, letter):
    assert read_letter(text, choices) == letter


def test_choices_without_a_letter_are_refused():
    with pytest.raises(RewardError, match="has 40 choices, and there are 26 letters"):
        score(ChoiceVerifier(), "<answer>B</answer>", 1, choices=[str(number) for number in range(40)])


def test_white_space_is_one_space():
    assert read_letter("The answer is\n\nB)  New\n York", ["Rome", "New York"]) == "B"
    assert read_letter("B\n\nbecause it lies on the Seine", CITIES) == "B"


LISTED = "What is the capital of France?\nA) London\nB) Paris\n(C) Rome"


@pytest.mark.parametrize(
    ("text", "question", "letter"),
    [
        ("B) Paris", "London (A) or Paris (B)?", "B"),
        ("B) Rome", "London (A) or Paris (B)?", None),  # nothing says what B is
        ("B nope", LISTED, None),
        ("B as well", LISTED, None),
        ("B as long as it is France", LISTED, None),
        ("B as if", LISTED, None),
        ("B as it is in France", LISTED, "B"),
        ("B is out", LISTED, None),
        ("B who knows", LISTED, None),
        ("B) Paris is the capital of France.", LISTED, "B"),
        ("B) Paris is a joke", LISTED, None),
        ("B) Paris. Is it the capital of France", LISTED, None),
        ("B) Paris is lovely", LISTED, None),
        ("B... I think", LISTED, None),
        ("A) 5.5", "Is it 5?\nA) 5\nB) 6", None),
        ("B) Paris", "(A) Paris (B) Paris (C) Rome", None),
        ("B) Rome", LISTED, None),
        ("The answer is Paris (B).", LISTED, "B"),
        ("London (B)", LISTED, None),
        ("paris", LISTED, "B"),
        ("!B", LISTED, None),
        ("-B", LISTED, None),
        ("! option B", LISTED, None),
        ("B'", LISTED, None),
        ("'B'", LISTED, "B"),
        ("is it B", LISTED, None),
        ("one of B", LISTED, None),
        ("A\u202eB", LISTED, None),
        ("\uff22\u200b", LISTED, "B"),
        ("b) paris", LISTED, "B"),
        *((said, LISTED, None) for said in ("is B", "Is B correct", "is option B the answer", "B is that so", "B...")),
        *((said, LISTED, None) for said in ("your answer is B", "[ ] B", "B [ ]", "[ ] Paris", "Paris...", "<> B")),
        *((said, LISTED, None) for said in ("I B", "I) B", "B (I)", "(B)'", "Pari\u017f", "B) -Paris")),
        *(
            (f"B {tail}", LISTED, None)
            for tail in (
                "as a joke",
                "as I was told",
                "because of random choice",
                "since nobody knows",
                "because you do",
            )
        ),
        ("B as Paris is in France", LISTED, "B"),
        ("I think I choose B", LISTED, "B"),
        *(
            ("B" + tail, "London (A), Paris (B) or Rome (C)?", None)
            for tail in (" ?", "?!", ") Rome", ") s", " 'A'", " a")
        ),
        ("B) Paris", "London (A), Paris (B) or Rome (C)?", "B"),
        ("B) Paris", "(A) London (B) Paris (C) Rome", "B"),
        ("B) Rome", "(A) London (B) Paris (C) Rome", None),
        ("B) London", "(A) London (B) Paris (C) Rome", None),
    ],
)
def test_what_stands_with_a_letter_is_its_own_choice_or_words_of_the_question(text, question, letter):
    got = unguarded(ChoiceVerifier(), [episode(f"<answer>{text}</answer>", "B", question=question)])[0]
    assert (got.parsed if not got.unparsed else None) == letter


def test_the_word_i_is_no_letter():
    assert read_letter("I think so") is None
    assert read_letter("I choose B") == "B"
    assert read_letter("I") == "I"


def test_a_choice_that_denies_something_is_read_with_its_letter():
    assert read_letter("B) It does not, and A is wrong", ["It does", "It does not, and A is wrong"]) == "B"


def test_an_explanation_may_name_no_other_choice():
    assert read_letter("B, because it lies on the Seine", CITIES) == "B"
    assert read_letter("B because Rome is larger", CITIES) is None
    assert read_letter("B, because it is larger than C", CITIES) is None


def test_the_text_of_a_choice_counts_as_its_letter():
    assert read_letter(" paris. ", CITIES) == "B"
    assert read_letter("Paris", []) is None
    assert read_letter("Vienna", CITIES) is None


@pytest.mark.parametrize("answer", ["B", "b", "(B)", 1, "Paris"])
def test_right_wrong_and_unparsed(answer):
    verifier = ChoiceVerifier()
    right = score(verifier, "<answer>B</answer>", answer, choices=CITIES)
    wrong = score(verifier, "<answer>(C) Rome</answer>", answer, choices=CITIES)
    assert (right.value, right.parsed, right.unparsed) == (1.0, "B", False)
    assert (wrong.value, wrong.parsed, wrong.unparsed, wrong.explanation) == (0.0, "C", False, "expected B")
    for completion in ("B", "<answer>A or B</answer>", "<think><answer>B</answer></think>"):
        assert score(verifier, completion, answer, choices=CITIES).unparsed


def test_the_answer_is_found_after_the_reasoning():
    assert value(ChoiceVerifier(answer_in="after_think"), "<think>A? B?</think>The answer is D.", "D") == 1.0


@pytest.mark.parametrize("answer", [None, "", "Vienna", 4, -1, True, 1.0])
def test_a_task_whose_answer_names_no_choice_raises(answer):
    with pytest.raises(RewardError, match="task 't' has"):
        score(ChoiceVerifier(), "<answer>B</answer>", answer, choices=CITIES)


def test_a_hostile_completion_takes_no_time():
    hostile = (
        "answer" + " " * 50_000,
        "." * 50_000,
        "answer " * 20_000,
        "\\text{" * 20_000,
        "(" * 50_000 + "B",
        "answer" + "*:" * 50_000,
        "B " * 999,
        "B," * 999,
        "I J " * 499,
    )
    start = time.monotonic()
    assert [read_letter(text) for text in hostile] == [None] * 9
    assert time.monotonic() - start < 10


def test_conforms():
    episodes = [episode(f"<answer>{c}</answer>", "B", id=c) for c in ("B", "C", "dunno")]
    check_reward(ChoiceVerifier(), episodes)


def test_docstring_examples_run():
    assert doctest.testmod(choice).failed == 0
