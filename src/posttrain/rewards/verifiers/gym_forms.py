"""What an answer must look like for reasoning-gym's full score to mean that it is right.

Some scorers search the answer for what they know and ignore the rest, so that a right answer next to a wrong one, or
after "not", is paid in full; some pay a prefix or what is nearly right; `game_of_life_halting` pays anything. An answer
with a full score must also be, as a whole, what its family has here: of a form, what a check says, or else, where a
family has one right answer, that answer. Three families cannot be guarded so.

Scorers read JSON as Python does, which keeps the last of two values of one key and takes true for 1; and they pass over
rows, words, statements and moves that they did not ask for.
"""

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

from posttrain.rewards.verifiers.number_grammar import arithmetic

REFUSED = {
    "boxnet": "its scorer passes over moves that are impossible, so that one long list of moves solves every task",
    "composite": "its tasks are of other families; take gym:NAME of each of them",
    "propositional_logic": "its scorer pays a premise that is only weakened, such as (P ∨ Q) for the premise P",
}
"""Families whose full score does not mean that the task was solved, and why."""

_NUMBER = r"[+-]?\d{1,50}(?:\.\d{1,50})?(?:e[+-]?\d{1,3}|/\d{1,50})?"
_SCIENTIFIC = r"(?i:[+-]?\d{1,50}(?:\.\d{0,50})?(?:e[+-]?\d{1,3})?)"
_DECIMAL = re.compile(_SCIENTIFIC, re.ASCII)
_CONSTANT = "([CcKk])"
_ANTIDERIVATIVE = re.compile(rf"(?:{_CONSTANT}\s*\+)?([^#]+?)(?:[+-]\s*{_CONSTANT})?")
_RATIO = r"-?(?:\\[dt]?frac\{-?\d+\}\{-?\d+\}|\(?-?\d+\)?\s*/\s*\(?-?\d+\)?)"
_REAL = r"\d{1,50}(?:\.\d{0,50})?"
_MOVE = r'"(?:(?:fill|empty) [A-Z]|pour [A-Z]->[A-Z])"'
_JUMP = r'"[wB],[A-Z]\d{1,2},[A-Z]\d{1,2}"'
_FACTOR = r"[A-Za-z](?:\s*\*\*\s*\d+)?"
_TERM = rf"(?:\d+|{_FACTOR})(?:\s*\*\s*{_FACTOR})*"
_POLYNOMIAL = re.compile(rf"[+-]?\s*{_TERM}(?:\s*[+-]\s*{_TERM})*", re.ASCII)
_FORMS = {
    "advanced_geometry": rf"\(\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\)|{_NUMBER}\s*,\s*{_NUMBER}|{_NUMBER}\s*°?",
    "bitwise_arithmetic": r"(?i:-?0x[0-9a-f]+)",
    "complex_arithmetic": rf"\(?-?\s*(?:{_REAL}(?:\s*[+-]\s*(?:{_REAL})?\s*[ij])?|(?:{_REAL})?\s*[ij])\)?",
    "fraction_simplification": rf"\$\s*{_RATIO}\s*\$|{_RATIO}",
    "jugs": rf"\[\s*{_MOVE}(?:\s*,\s*{_MOVE})*\s*\]",
    "kakurasu": r"[01\s]+",
    "knight_swap": rf"(?i:no)|\[\s*{_JUMP}(?:\s*,\s*{_JUMP})*\s*\]",
    "n_queens": r"[Q_\s]+",
    "palindrome_generation": r"[A-Za-z]+",
    "power_function": _SCIENTIFIC,
    "prime_factorization": r"\d+(?:\s*×\s*\d+)*",
    "quantum_lock": r"[A-Ca-c](?:\s*(?:→|->|,)?\s*[A-Ca-c])*",
    "rubiks_cube": r"(?:[UDLRFBMESxyzudlrfb]w?['\u2019]?2?\s*)+",
    "shortest_path": r"[a-z\s]+",
    "survo": r"[\d\s]+",
    "tower_of_hanoi": r"(?:Move disk \d+ from Peg \d+ to Peg \d+\.?\s*)+",
    "word_ladder": r"[A-Za-z,\s]+",
}
_STATEMENT = re.compile(r"([A-Z]\w*) is an? (\w+)", re.ASCII)
_STATEMENTS = re.compile(r"(?:[A-Z]\w* is an? \w+(?:, and |, | and |\.?\s*$))+", re.ASCII)
_MAPPING = re.compile(r"[A-Z]\s*=\s*\d(?:\s*,\s*[A-Z]\s*=\s*\d)*", re.ASCII)
_SLIDE = re.compile(r"([A-Z])([+-])([1-9])")
_NONE = Decimal(0)


def misread(family: str, answer: str, entry: Mapping[str, Any]) -> str | None:
    """Why the full score of this family's scorer does not mean that the answer is right; None if it does."""
    text = answer.strip()
    if family in _CHECKS:
        right = _CHECKS[family](text, entry)
    elif family in _FORMS:
        right = re.fullmatch(_FORMS[family], text, re.ASCII) is not None
    else:
        right = _plain(text) == _plain(str(entry["answer"]))
    return None if right else f"not an answer of {family} alone"


def _plain(text: str) -> str:
    """Without case, spaces and empty lines; a line that ends with a comma goes on in the next."""
    lines = ("".join(line.split()) for line in re.sub(r",\s+", ",", text).splitlines())
    return "\n".join(filter(None, lines)).casefold()


def _decimal(text: str) -> Decimal | None:
    return Decimal(text) if _DECIMAL.fullmatch(text) else None


def _near(text: str, entry: Mapping[str, Any], off: Decimal = _NONE, share: Decimal = _NONE) -> bool:
    """Whether a text is as many decimals as the right one, none of them off by more than this, or this share of it."""
    said, right = text.split(), [Decimal(number) for number in str(entry["answer"]).split()]
    return len(said) == len(right) and all(
        _DECIMAL.fullmatch(one) is not None and abs(Decimal(one) - other) <= off + abs(other) * share
        for one, other in zip(said, right, strict=True)
    )


def coin_flip(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer pays a prefix in full: 0 for 0.109375. The form comes first: Fraction("1e-9999999") takes seconds."""
    if re.fullmatch(_NUMBER, text, re.ASCII) is None or re.search(r"/0+$", text):
        return False
    right = Fraction(entry["answer"])
    return abs(Fraction(text) - right) <= min(Fraction(1, 10_000), right / 200)


def polynomial_equations(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer reads what it can and pays, where there is no solution, whatever it cannot read."""
    right = str(entry["answer"]).strip()
    if not right:
        return _plain(text).strip(".") in ("none", "norealsolutions", "norealsolution", "nosolution", "[]", "{}")
    said = [_decimal(part.strip()) for part in text.split(",")]
    return None not in said and len(said) == len(right.split(","))


def number_sorting(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer lets every number be off by 1, and takes true for 1."""
    said = json.loads(text.replace("'", '"'))  # which the scorer could read
    right = [Decimal(str(number)) for number in entry["metadata"]["sorted_numbers"]]
    return [_decimal(str(number).strip()) for number in said] == right


def time_intervals(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer reads a number of days and ignores the rest, and takes 66 days, 25:04 for 67 days, 01:04."""
    said, right = (re.sub(r"(?<![\d.])0+(?=\d)", "", written) for written in (text, str(entry["answer"])))
    return said in (right, right.removesuffix(" days"))


def _polynomial(text: str, entry: Mapping[str, Any]) -> bool:
    """Multiplied out and collected; its scorer takes `(2*x)*(3*x)`, which is the question, for 6*x**2."""
    said, right = (
        re.sub(r"[^+a-zA-Z]", "", written.lstrip("+-").replace("-", "+")) for written in (text, str(entry["answer"]))
    )
    return _POLYNOMIAL.fullmatch(text) is not None and sorted(said) == sorted(right)


def _antiderivative(text: str, entry: Mapping[str, Any]) -> bool:
    """With at most one constant, as a term of its own; its scorer takes any letter anywhere for a constant."""
    match = _ANTIDERIVATIVE.fullmatch(text)
    if match is None or (match[1] and match[3]):
        return False
    return set(re.findall(r"(?<!\w)[^\W\d](?:_?\d+)?(?!\w)", match[2])) <= {entry["metadata"]["variable"], "E"}


def _reaches(text: str, entry: Mapping[str, Any]) -> bool:
    """Whether arithmetic with each of the numbers once, and nothing else, has the value that is asked for.

    `countdown`'s scorer takes `(pi - pi)*(1 + 2) + E/E + E/E`: what has no digits is no number to it. That of
    `puzzle24` rounds towards zero and takes any four numbers.
    """
    asked, used = entry["metadata"], sorted(map(int, re.findall(r"\d+", text)))
    return (
        "." not in text and used == sorted(map(int, asked["numbers"])) and arithmetic(text) == asked.get("target", 24)
    )


def same_json(text: str, right: str) -> bool:
    """Whether two texts are one value in JSON, in which no key is given twice; 1.0 is 1, true is not."""

    def read(written: str) -> str:
        numbers: dict[str, Any] = {"parse_int": Fraction, "parse_float": Fraction}
        return repr(json.loads(written, object_pairs_hook=_object, **numbers))

    try:
        return read(text) == read(right)
    except ValueError:
        return False


def _object(pairs: list[tuple[str, Any]]) -> tuple[str, list[tuple[str, Any]]]:
    return "object", sorted(pairs, key=lambda pair: pair[0])


def codeio(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer takes `"5"` for `5`, and `{}` for `[]`. Not all of its answers are JSON."""
    right = str(entry["answer"]).strip()
    return text == right or same_json(text, right)


def _lists(text: str) -> list[list[str]]:
    value: Any = json.loads(text)
    if {type(one) for one in [value, *value]} != {list}:
        raise TypeError("not a list of lists")
    return value


def graph_color(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer takes the last of several colors of a vertex, and true for the color 1."""
    pairs: list[tuple[str, object]] = json.loads(text, object_pairs_hook=list)
    vertices = sorted(str(vertex) for vertex in entry["metadata"]["puzzle"]["vertices"])
    return sorted(key for key, _ in pairs) == vertices and all(type(color) is int for _, color in pairs)


def cryptarithm(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer takes the last of several digits of a letter."""
    letters = re.findall(r"[A-Z]", text)
    return _MAPPING.fullmatch(text) is not None and len(letters) == len(set(letters))


def knights_knaves(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer passes over statements with a word that is no role, such as "Zoey is a spy"."""
    said, right = (sorted(_STATEMENT.findall(written)) for written in (text, str(entry["answer"])))
    return _STATEMENTS.fullmatch(text) is not None and said == right


def rush_hour(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer moves a car as far as it can go and passes over the rest of the move."""
    import reasoning_gym.games.rush_hour as game  # pyright: ignore[reportMissingTypeStubs]

    if re.fullmatch(rf"(?:{_SLIDE.pattern}[\s,]*)+", text, re.ASCII) is None:
        return False
    board: Any = game.Board(entry["metadata"]["board_config"])
    for car, sign, steps in _SLIDE.findall(text):
        for _ in range(int(steps)):
            before = str(board)
            board.move(car, int(f"{sign}1"))
            if str(board) == before:
                return False
    return True


def sokoban(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer passes over steps into a wall, so that one list of 200 steps solved 9 of 150 puzzles."""
    from reasoning_gym.games.contrib.sokoban.src.game import Game  # pyright: ignore[reportMissingTypeStubs]

    rows = [list(line) for line in entry["metadata"]["gamestr"].replace(" ", "").strip().split("\n")]
    game: Any = Game(height=len(rows), width=len(rows[0]))
    game.load_puzzle_matrix(rows)
    return all(game.player.update(key=step) for step in "".join(text.split()))


_OF_THEIR_NAMES = (
    *(codeio, coin_flip, cryptarithm, graph_color, knights_knaves, number_sorting, polynomial_equations, rush_hour),
    *(sokoban, time_intervals),
)
_CHECKS: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    **{check.__name__: check for check in _OF_THEIR_NAMES},
    **dict.fromkeys(("countdown", "puzzle24"), _reaches),
    **dict.fromkeys(("intermediate_integration", "simple_integration"), _antiderivative),
    "decimal_arithmetic": partial(_near, share=Decimal("1e-10")),  # 12 digits are asked for; its scorer lets more pass
    # its scorer looks at the cells of the right grid alone: there may be more rows and columns
    "game_of_life": lambda text, entry: same_json(text, entry["answer"]),
    # groups in any order, of words in any order; its scorer takes an object for the list of its keys
    "group_anagrams": lambda text, entry: (
        sorted(map(sorted, _lists(text))) == sorted(map(sorted, entry["metadata"]["solution"]))
    ),
    "gsm_symbolic": _near,  # its scorer reads the first number without its sign
    "number_format": _near,  # its scorer lets the number be off by 0.01
    # its scorer passes over a partition that is given twice, and takes "aa" for ["a", "a"]
    "palindrome_partitioning": lambda text, entry: sorted(_lists(text)) == sorted(entry["metadata"]["solution"]),
    "polynomial_multiplication": _polynomial,
    "pool_matrix": partial(_near, off=Decimal("0.0051")),  # two decimals are asked for; its scorer lets more pass
}
