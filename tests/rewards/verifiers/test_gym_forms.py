"""Which full scores do not mean that the answer is right, and which answers are not shown to the scorer at all."""

from typing import Any

import pytest

from posttrain.errors import RewardError
from posttrain.rewards import GymVerifier
from posttrain.rewards.verifiers.gym import unasked
from posttrain.rewards.verifiers.gym_forms import misread
from posttrain.rewards.verifiers.workers import Worker
from tests.rewards.episodes import score

SUM = {"question": "1000 + 234 =", "answer": "1234"}
NUMBERS = {"answer": "3*4 - 5", "metadata": {"numbers": [3, 4, 5], "target": 7}}
DECIMALS = {"answer": "5 - 2*1", "metadata": {"numbers": [1, 2, 5], "target": 3}}
INTEGRAL = {"answer": "X**2 + C", "metadata": {"variable": "X", "integrand": "2*X"}}
HEX = {"answer": "0x1f", "metadata": {"problem": "(0x10 + 0xf)"}}
COMPLEX = {"answer": "-5.0 + 20.0i", "metadata": {"result": (-5.0, 20.0)}}
REAL = {"answer": "12.00", "metadata": {"result": (12.0, 0.0)}}
DAYS = {"answer": "67 days, 01:04", "metadata": {"task_type": "datetime"}}
CLOCK = {"answer": "00:00:01.005", "metadata": {"task_type": "time_ms"}}
DATE = {"answer": "67 days", "metadata": {"task_type": "date"}}
COUNT = {"question": "How many days?", "answer": "53", "metadata": {"task": "count_days"}}
NEVER = {"answer": "-1", "metadata": {"task": "recurring_event_day"}}
BITS = {"answer": "['1', '0']", "metadata": {"direction": "descending", "sorted_numbers": ["1", "0"]}}
MATRIX = {"answer": "1.0 2.0\n3.0 4.0"}
PRODUCT = {"answer": "2 × 3"}
WORDS = {"answer": "be, see", "metadata": {"sorted_words": ["be", "see"]}}
WORD = {"answer": "DISAPPEARING"}


def paid(name: str, row: dict[str, Any], text: str) -> bool:
    entry = {"question": "", "metadata": {}, **row}
    return score(GymVerifier(), f"<answer>{text}</answer>", dataset=name, entry=entry).value == 1.0


@pytest.mark.parametrize(
    ("name", "row", "right", "wrong"),
    [
        (
            "chain_sum",
            SUM,
            ["1234", "1,234", "1 234", "+1234", "1234.0"],
            [
                "1,2,3,4",
                "12,34",
                ",1234",
                "1_2_3_4",
                "_1234",
                "١٢٣٤",
                "𝟏𝟐𝟑𝟒",
                "1\n234",
                "1  234",
                "1\u2028234",
                "1\t234",
            ],
        ),
        ("gsm_symbolic", {"answer": "0.5"}, ["0.5", "1/2", "\\frac{1}{2}"], ["50%", "0,5,0", "1/2 or 1"]),
        (
            "power_function",
            {"answer": "0.00137"},
            ["1.37e-3", "0.00137", "1.370E-03"],
            ["0.001_37", "٠.٠٠١٣٧", "-1.37e-3"],
        ),
        (
            "polynomial_equations",
            {"answer": "-0.433, 0.433"},
            ["-0.433, 0.433"],
            ["-0.4_33, 0.433", "-0.433, 0.433, x"],
        ),
        ("pool_matrix", MATRIX, ["1 2\n3 4", "1.004 2\n3 4"], ["1.01 2\n3 4", "1 2\n3 4.03", "1 2 # 3\n3 4"]),
        ("products", SUM, ["1,234"], ["1,2,3,4", "1234,"]),
        ("decimal_chain_sum", {"answer": "1.4730"}, ["1.473", "1.4730"], ["1.4_730", "١.٤٧٣"]),
        ("rectangle_count", {"answer": "12"}, ["12", "12.0", "24/2 = 12"], ["1_2", "١٢", "12 21", "12 / 1", "24/2"]),
        ("letter_counting", {"answer": "2"}, ["2"], ["2 / 1", "\\frac{2}{1}", "4 \u00f7 2", "4\u20442"]),
        ("calendar_arithmetic", COUNT, ["53", "53 days", "**53**"], ["5_3", "٥٣", "52", "53 or 54"]),
        ("calendar_arithmetic", NEVER, ["-1"], ["5", "0", "-2", "31"]),
        (
            "countdown",
            NUMBERS,
            ["3*4 - 5", "4 * 3-5"],
            [
                *(
                    "(pi-pi)*(3+4+5) + E/E+E/E+E/E+E/E+E/E+E/E+E/E",
                    "(x-x)*(3+4+5) + 0x7",
                    "3*4 - 5 + x - x",
                    "3*4 - 5 + C*0",
                ),
                *("(3-3)*(4+5) + 7", "7", "3*4 - 5 + 0", "3*4 - 05", "(3*4 - 5)**1", "3*4-5+(x-x)*1_0"),
            ],
        ),
        ("countdown", DECIMALS, ["5 - 2*1"], ["1.5*2"]),
        (
            "simple_integration",
            INTEGRAL,
            ["X**2 + C", "X**2", "C + X**2", "X**2 + c", "X**2 - C", "X**2 + 5"],
            [
                *("X**2 + x", "X**2 + q", "X**2 + C + c", "X**2 + C/0", "X**2 + 1/0", "X**2 + C*x", "X**2 + z*w"),
                *("X**2 + log(0)", "X**2 + K1", "X**2 + I", "C + X**2 + C", "X**2 + C*0", "2*X + C"),
            ],
        ),
        (
            "polynomial_multiplication",
            {"answer": "-6*x**2 + 4*x - 1"},
            ["-6*x**2 + 4*x - 1", "4*x-6*x**2-1", "- 1 + 4*x - 6*x ** 2"],
            [
                "-2*x*3*x + 4*x - 1",
                "-6*x*x + 4*x - 1",
                "-6*x**2 + 2*x + 2*x - 1",
                "(-6*x**2 + 4*x - 1)*1",
                "1 - 6*x**2 + 4*x",
            ],
        ),
        (
            "polynomial_multiplication",
            {"answer": "6*x**2"},
            ["6*x**2", "+6*x**2"],
            ["(2*x)*(3*x)", "6*x*x", "--6*x**2"],
        ),
        (
            "bitwise_arithmetic",
            HEX,
            ["0x1f", "0X1F", "0x01f"],
            ["31", "0b11111", "0o37", "0x_1f", "+0x1f", "0x1f_", "0x١f", "-0x1f"],
        ),
        (
            "complex_arithmetic",
            COMPLEX,
            ["-5.0 + 20.0i", "-5+20i", "-5 + 20 j", "(-5.0 + 20.0i)"],
            ["- 5 . 0 + 2 0 . 0 i", "-5 + 2 0i", "-5_.0 + 2_0i", "-٥ + ٢٠i", "-5 + 20i + 0i", "5 + 20i"],
        ),
        ("complex_arithmetic", REAL, ["12", "12.00"], ["1_2", "1 2", "12i"]),
        (
            "time_intervals",
            DAYS,
            ["67 days, 01:04", "67 days, 1:04"],
            ["66 days, 25:04", "67 days, 00:64", "٦٧ days, ٠١:٠٤", "67 days, 01:04 or not", "67 days, -1:124"],
        ),
        ("time_intervals", CLOCK, ["00:00:01.005", "0:00:01.005"], ["00:00:01.5", "00:00:01.05"]),
        ("time_intervals", DATE, ["67 days", "67"], ["67 weeks", "67 or 68 days", "٦٧ days", "67 68"]),
        (
            "number_sorting",
            BITS,
            ["['1', '0']", "[1, 0.0]", '[" 1", "0"]'],
            ["[true, false]", '["١", "٠"]', "[1e0, false]"],
        ),
        ("prime_factorization", PRODUCT, ["2 × 3", "3×2"], ["2 × × 3", "× 2 × 3", "٢ × ٣", "2 × 3 ×", "+2 × 3"]),
        ("figlet_font", WORD, ["disappearing", "D I S A P P E A R I N G"], ["disappearixx", "disappeari or not"]),
        ("acre", {"answer": "off"}, ["off", "Off.", '"off"'], ["off...", "off..", "...off", "off?", "off on"]),
        ("dice", {"answer": "13/8"}, ["13/8"], ["13/8 or 1/2", "1\n3/8", "1\u20283/8"]),
        ("word_sorting", WORDS, ["be,see", "be, see", "be,\nsee"], ["be\nsee", "be, see, see"]),
        ("manipulate_matrix", {"answer": "1 2\n3 4"}, ["1 2\n3 4", "1 2 \n 3 4"], ["1 2 3 4", "12\n34"]),
        ("spell_backward", {"answer": "eeb"}, ["eeb", "EEB"], ["e eb", "bee"]),
    ],
)
def test_a_full_score_of_something_else_is_not_paid(name, row, right, wrong):
    said = {text: paid(name, row, text) for text in [*right, *wrong]}
    assert said == {**dict.fromkeys(right, True), **dict.fromkeys(wrong, False)}


@pytest.mark.parametrize("name", ["a_new_family", "acre", "arc_1d", "sudoku", "maze", "zebra_puzzles"])
def test_of_a_family_without_a_form_only_the_right_answer_may_be_paid(name):
    """Whatever its scorer says, so that a family that is new in reasoning-gym is held to its own answer."""
    assert misread(name, "A 2\n\n3", {"answer": "a2\n3"}) is None
    assert misread(name, "4\n2", {"answer": "42"}) is not None
    assert misread(name, "42, or so", {"answer": "42"}) == f"not an answer of {name} alone"


def test_as_many_roots_are_said_as_there_are():
    """Whatever the options of the task take off for one too many or too few."""
    for text in ("-0.433, 0.433, 5", "0.433"):
        assert misread("polynomial_equations", text, {"answer": "-0.433, 0.433"}) is not None


def test_a_refused_family_is_not_scored():
    with pytest.raises(RewardError, match="cannot judge boxnet"):
        paid("boxnet", {"answer": "5"}, "5")


LONG = {"answer": "9" * 300}


@pytest.mark.parametrize(
    ("name", "row", "text", "why"),
    [
        ("gcd", {"answer": "5"}, "*" * 405, "longer than 404 characters"),
        ("rush_hour", {"answer": None}, "A+1 " * 1001, "longer than 4000 characters"),
        ("coin_flip", {"answer": "0.5"}, "1e9999999", "an exponent that is too large"),
        ("simple_integration", INTEGRAL, "x + 1.5E-9999999", "an exponent that is too large"),
        ("rubiks_cube", {"answer": None}, "R99999999", "a number of moves that is too large"),
        ("rush_hour", {"answer": None}, "A+99999999", "a number of moves that is too large"),
        ("simple_integration", INTEGRAL, "(x + 1)**999", "an exponent that is too large"),
        ("countdown", NUMBERS, "9**9999*9**9999", "not arithmetic"),
        ("puzzle24", NUMBERS, "sqrt(576)", "not arithmetic"),
    ],
)
def test_what_would_cost_the_scorer_seconds_is_refused_by_size(name, row, text, why, monkeypatch):
    monkeypatch.setattr(Worker, "ask", lambda *_: pytest.fail("asked"))
    got = score(GymVerifier(), f"<answer>{text}</answer>", dataset=name, entry={"question": "", "metadata": {}, **row})
    assert (got.value, got.unparsed, got.explanation) == (0.0, True, why)


def test_what_is_as_large_as_the_right_answer_is_asked():
    assert unasked("gcd", "9" * 1600, LONG) is None
    assert unasked("base_conversion", "1e9999", {"answer": "1e9999"}) is None
    assert unasked("bitwise_arithmetic", "0x1e9999", HEX) is None
    assert unasked("rush_hour", "A+1 " * 1000, {"answer": None}) is None
    assert unasked("gcd", "99", {"answer": "5"}) is None
