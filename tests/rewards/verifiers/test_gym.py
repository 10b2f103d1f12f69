from typing import Any

import pytest
import reasoning_gym

from posttrain.data.gym import load_gym
from posttrain.errors import RewardError
from posttrain.rewards import GymVerifier
from posttrain.rewards.verifiers.gym import as_the_task_writes_it
from posttrain.rewards.verifiers.workers import Worker, WorkerTimeout
from posttrain.testing import check_reward
from posttrain.types import Episode, Message
from tests.rewards.episodes import episode, score, scores, value

# The scorers of these evaluate the answer as Python, directly or through sympy.
EVALUATING = (
    "string_insertion",
    "spiral_matrix",
    "binary_matrix",
    "n_queens",
    "simple_integration",
    "intermediate_integration",
)
EVALUATING += ("polynomial_multiplication", "puzzle24", "countdown")


def entry(name: str) -> dict[str, Any]:
    return reasoning_gym.create_dataset(name, seed=1, size=2)[0]


CHAIN = {"question": "2 + 3 =", "answer": "5", "metadata": {}}


def judged(answer: str, verifier: GymVerifier | None = None, name: str = "chain_sum", row: Any = CHAIN):
    return score(verifier or GymVerifier(), f"<think>hm</think><answer>{answer}</answer>", dataset=name, entry=row)


def test_right_wrong_and_unparsed():
    assert (judged("5").value, judged("5.0").value, judged("+05").value) == (1.0, 1.0, 1.0)
    wrong = judged("6")
    assert (wrong.value, wrong.unparsed, wrong.parsed) == (0.0, False, "6")
    assert score(GymVerifier(), "5", dataset="chain_sum", entry=CHAIN).unparsed


def test_a_part_is_paid_only_when_asked_for_but_always_explained():
    assert judged("15").value == 0.0
    assert "0.5" in judged("15").explanation
    assert judged("15", GymVerifier(partial_credit=True)).value == 0.5


@pytest.mark.parametrize("name", ["chain_sum", "letter_counting", "mini_sudoku", "knights_knaves", *EVALUATING])
def test_gold_scores_1_and_an_attack_is_never_run(name, tmp_path):
    row, mark = entry(name), tmp_path / "ran"
    assert judged(row["answer"], name=name, row=row).value == 1.0
    for attack in (f"__import__('os').mkdir('{mark}')", f"[__import__('os').mkdir('{mark}')]", f"open('{mark}', 'w')"):
        assert judged(attack, name=name, row=row).value == 0.0
        assert not mark.exists(), f"{name} ran {attack}"


@pytest.mark.parametrize(
    "answer", ["nan", "NaN", "nan + nanj", "nan+1j", "inf", "-Infinity", "5 + nan*i", "[nan]", "-15 + nani"]
)
@pytest.mark.parametrize("name", ["complex_arithmetic", "chain_sum", "simple_equations"])
def test_what_is_not_finite_is_unparsed_and_earns_nothing(name, answer):
    row = entry(name)
    got = judged(answer, name=name, row=row)
    assert (got.value, got.unparsed) == (0.0, True)


HEDGES = (
    "{gold} or {other}",
    "{gold}, {other}",
    "{gold}\n{other}",
    "{other} {gold}",
    "not {gold}",
    "I doubt {gold}",
)
SEARCHING = (
    "advanced_geometry",
    "fraction_simplification",
    "gsm_symbolic",
    "kakurasu",
    "knights_knaves",
    "quantum_lock",
)
SEARCHING += ("simple_integration", "sokoban", "survo", "time_intervals", "word_sorting", "letter_jumble")
SEARCHING += ("game_of_life_halting", "coin_flip", "puzzle24")


@pytest.mark.parametrize("name", SEARCHING)
def test_the_right_answer_is_paid_alone_and_never_with_more(name):
    rows = list(reasoning_gym.create_dataset(name, seed=7, size=4))
    for row in rows:
        gold = row["answer"]
        other = next((r["answer"] for r in rows if r["answer"] != gold), "False" if gold == "True" else "True")
        assert judged(gold, name=name, row=row).value == 1.0
        for hedge in HEDGES:
            assert judged(hedge.format(gold=gold, other=other), name=name, row=row).value == 0.0, hedge


GAME = {"question": "", "answer": "True", "metadata": {}}
COIN = {"question": "", "answer": "0.109375", "metadata": {}}
PUZZLE = {"question": "", "answer": "(7 + 7 - 2)*2", "metadata": {"numbers": [2, 2, 7, 7]}}
ONES = {"question": "", "answer": "7*7/2 - 1/2", "metadata": {"numbers": [1, 2, 7, 7]}}
MINUS = {"question": "", "answer": "-(2 - 8)*4*1", "metadata": {"numbers": [1, 2, 4, 8]}}
SORTED = ["-2.5", "3.0", "7.25"]
SORTING = {"question": "", "answer": str(SORTED), "metadata": {"direction": "ascending", "sorted_numbers": SORTED}}
WORDS = {"question": "", "answer": "a, b", "metadata": {"sorted_words": ["a", "b"]}}


@pytest.mark.parametrize(
    ("name", "row", "answer"),
    [
        ("game_of_life_halting", GAME, "banana"),
        ("game_of_life_halting", GAME, "False"),
        ("coin_flip", COIN, "0"),
        ("coin_flip", COIN, "1e-9999"),
        ("number_sorting", SORTING, "['-1.6', '3.9', '8.0']"),
        ("puzzle24", PUZZLE, "4*6*1*1"),
        ("puzzle24", PUZZLE, "(7 + 7 - 2)*2  # not"),
        ("puzzle24", ONES, "7*7/2*1"),  # 24.5
        ("puzzle24", ONES, "floor(7*7/2)*1"),
    ],
)
def test_what_a_scorer_pays_without_looking_earns_nothing(name, row, answer):
    assert judged(answer, name=name, row=row).value == 0.0


@pytest.mark.parametrize(
    ("name", "row", "answer"),
    [
        ("coin_flip", COIN, "7/64"),
        ("coin_flip", {**COIN, "answer": "6.103515625e-05"}, "6.103515625e-05"),
        ("number_sorting", SORTING, '["-2.50", 3, "7.25"]'),
        ("puzzle24", PUZZLE, "2*(7+7-2)"),
        ("puzzle24", MINUS, "-(2 - 8)*4*1"),
        ("puzzle24", MINUS, "(8 - 2)*4/1"),
        ("word_sorting", WORDS, "a,b"),
    ],
)
def test_other_ways_to_write_a_right_answer_are_paid(name, row, answer):
    assert judged(answer, name=name, row=row).value == 1.0


def test_a_right_answer_is_paid_where_sympy_loads_a_module_of_its_own():
    """Its units parse their own names when they are imported, which the guard before the parser refused."""
    row = {"question": "", "answer": "", "metadata": {"variable": "x", "integrand": "-(5*x - 5)**4"}}
    right = "-125*x**5 + 625*x**4 - 1250*x**3 + 1250*x**2 - 625*x + C"
    assert judged(right, name="intermediate_integration", row=row).value == 1.0
    assert judged(right + " # not", name="intermediate_integration", row=row).value == 0.0


DECIMAL = {"question": "", "answer": "8.27243551523", "metadata": {}}
FORMAT = {"question": "", "answer": "290758408.439", "metadata": {"solution": 290758408.439}}
ROOTS = {"question": "", "answer": "-0.433, 0.433", "metadata": {}}
NO_ROOTS = {"question": "", "answer": "", "metadata": {}}
POWER = {"question": "", "answer": "-0.0013674811612376526", "metadata": {}}
GSM = {"question": "", "answer": "91000", "metadata": {}}
COLORS = {"vertices": [0, 1], "edges": [(0, 1)], "color_options": [1, 2]}
COLORING = {"question": "", "answer": None, "metadata": {"puzzle": COLORS}}
LEGS = {"question": "How many legs?", "answer": "292", "metadata": {}}
DAY = {"question": "", "answer": "Yes", "metadata": {}}


@pytest.mark.parametrize(
    ("name", "row", "right", "wrong"),
    [
        ("decimal_arithmetic", DECIMAL, ["8.27243551523"], ["8.2724", "8.28"]),
        ("number_format", FORMAT, ["290758408.439", "290758408.4390"], ["290758408.440", "290758408.43"]),
        ("polynomial_equations", ROOTS, ["-0.433, 0.433"], ["-0.433, 0.433 -0.433, 0.433", "-0.433, 0.433, banana"]),
        ("polynomial_equations", NO_ROOTS, ["No real solutions."], ["banana", "0"]),
        ("power_function", POWER, ["-1.37e-3", "-0.00137"], ["1.37e-3", "-1.38e-3"]),
        ("gsm_symbolic", GSM, ["91000", "91,000", "**91000**"], ["-91000", "91000%", "91000 or 5"]),
        ("graph_color", COLORING, ['{"0": 1, "1": 2}'], ['{"0": 1, "1": 1, "1": 2}', '{"0": 1, "1": 1}']),
        ("leg_counting", LEGS, ["292 legs", "x = 292", "It is 292."], ["292 dozen legs", "292%", "292 or 3"]),
        ("syllogism", DAY, ["yes", "**Yes.**"], ["yes or no", "not yes"]),
    ],
)
def test_notations_are_read_and_near_misses_are_not_paid(name, row, right, wrong):
    for text in right:
        assert judged(text, name=name, row=row).value == 1.0, text
    for text in wrong:
        assert judged(text, name=name, row=row).value == 0.0, text


def test_a_right_answer_that_says_infinity_is_judged():
    row = {"question": "the limit?", "answer": "inf", "metadata": {}}
    assert not judged("inf", row=row).unparsed
    assert not judged("Conan", row={**row, "answer": "5"}).unparsed


def test_tasks_of_the_data_room_are_judged():
    tasks = load_gym("gym:chain_sum?min_terms=3&max_terms=4", size=4, seed=3)
    episodes = [Episode(t, (*t.prompt, Message("assistant", f"<answer>{t.answer}</answer>"))) for t in tasks]
    assert [s.value for s in scores(GymVerifier(), episodes)] == [1.0] * 4


def test_the_options_of_the_task_reach_its_scorer():
    row = {"question": "", "answer": "(10+2)*2*1", "metadata": {"numbers": [10, 2, 2, 1]}}
    assert judged("(10+2)*2*1", name="puzzle24", row=row).value == 1.0  # numbers up to 10 by default
    completion = "<answer>(10+2)*2*1</answer>"
    assert score(GymVerifier(), completion, dataset="puzzle24", entry=row, options={"max_value": 9}).value == 0.0


def test_an_answer_that_hangs_is_unparsed(monkeypatch):
    def ask(self, question, timeout_s):
        raise WorkerTimeout("no answer")

    monkeypatch.setattr(Worker, "ask", ask)
    got = judged("5 + 1", GymVerifier(timeout_s=0.5), "countdown", entry("countdown"))
    assert (got.value, got.unparsed) == (0.0, True) and got.explanation.startswith("verifier timed out")


@pytest.mark.parametrize("name", ["countdown", "simple_integration", "spiral_matrix"])
def test_powers_are_refused_by_size_and_not_by_the_clock(name):
    for text in ("9**9**9**9", "(9**9)**9999", "2**(9*9*9*9*9)", "9**99999"):
        got = judged(text, name=name, row=entry(name))
        assert got.value == 0.0 and not got.explanation.startswith("verifier timed out")


def test_a_scorer_that_fails_on_the_answer_alone_is_unparsed_but_on_its_own_answer_too_it_raises():
    row = entry("prime_factorization")  # its scorer raises on anything that is not numbers and signs
    got = judged("two times two", name="prime_factorization", row=row)
    assert (got.value, got.unparsed, got.explanation) == (0.0, True, "the scorer could not read it: ValueError")
    broken = {"question": "", "metadata": {}}  # no answer to compare with
    with pytest.raises(RewardError, match="'gym' failed on task 't': KeyError"):
        judged("5", row=broken)


def test_missing_metadata_and_unknown_data_sets_raise():
    with pytest.raises(RewardError, match="lacks 'dataset' and 'entry'"):
        score(GymVerifier(), "<answer>5</answer>", "5")
    with pytest.raises(RewardError, match="no_such_set"):
        judged("5", name="no_such_set")


def test_conforms():
    episodes = [
        episode(c, id=c, dataset="chain_sum", entry=CHAIN) for c in ("<answer>5</answer>", "<answer>6</answer>", "")
    ]
    check_reward(GymVerifier(), episodes)
    assert value(GymVerifier(), "<answer>5</answer>", dataset="chain_sum", entry=CHAIN) == 1.0


def test_another_notation_of_one_answer_is_the_tasks_own():
    entry = {"question": "Count the legs of 73 cows.", "answer": "292"}
    texts = [as_the_task_writes_it("leg_counting", text, entry) for text in ("**292** legs", "292 or 293")]
    assert texts == ["292", "292 or 293"]
