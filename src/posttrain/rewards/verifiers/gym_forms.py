"""What an answer must look like for reasoning-gym's full score to mean that it is right.

Some scorers search the answer for what they know and ignore the rest, so that a right answer next to a wrong one, or
after "not", is paid in full; some pay a prefix or what is nearly right; `game_of_life_halting` pays anything. An answer
with a full score must also be, as a whole, what its family has here: of a form, what a check says, or else, where a
family has one right answer, that answer. Three families cannot be guarded so.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from posttrain.rewards.verifiers import gym_structures
from posttrain.rewards.verifiers.arithmetic import arithmetic

REFUSED = {
    "boxnet": "its scorer passes over moves that are impossible, so that one long list of moves solves every task",
    "composite": "its tasks are of other families; take gym:NAME of each of them",
    "propositional_logic": "its scorer pays a premise that is only weakened, such as (P ∨ Q) for the premise P",
}
"""Families whose full score does not mean that the task was solved, and why."""

_NUMBER = r"[+-]?\d{1,50}(?:\.\d{1,50})?(?:e[+-]?\d{1,3}|/\d{1,50})?"
_SCIENTIFIC = r"(?i:[+-]?\d{1,50}(?:\.\d{0,50})?(?:e[+-]?\d{1,3})?)"
_DECIMAL = re.compile(_SCIENTIFIC, re.ASCII)
_ALGEBRA = ("intermediate_integration", "polynomial_multiplication", "simple_integration")
_EXPONENT = re.compile(r"(?<![\w.])[\d.]+e[+-]?\d{4,}", re.IGNORECASE)
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


def unasked(family: str, answer: str, entry: Mapping[str, Any]) -> str | None:
    """Why an answer is too expensive for the scorer; None if it is not."""
    right = entry.get("answer")
    longest = 4_000 if right is None else 400 + 4 * len(str(right))
    if len(answer) > longest:
        return f"longer than {longest} characters"
    if _EXPONENT.search(answer) and not _EXPONENT.search(str(right)):
        return "an exponent that is too large"
    if family in ("rubiks_cube", "rush_hour") and re.search(r"\d\d", answer):
        return "a number of moves that is too large"
    if family in _ALGEBRA and re.search(r"\*\*[\s(+-]*\d{3}", answer):
        return "an exponent that is too large"
    if family in ("countdown", "puzzle24") and arithmetic(answer) is None:
        return "not arithmetic"
    return None


def misread(family: str, answer: str, entry: Mapping[str, Any]) -> str | None:
    """Why the full score of this family's scorer does not mean that the answer is right; None if it does.

    Example:
        >>> misread("gsm_symbolic", "not 42", {"answer": "42"})
        'not an answer of gsm_symbolic alone'
        >>> misread("gsm_symbolic", "42", {"answer": "42"})
    """
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


def _equal_number(text: str, entry: Mapping[str, Any]) -> bool:
    """`gsm_symbolic`'s scorer reads the first number without its sign, `number_format`'s lets it be off by 0.01."""
    return _decimal(text) is not None and _decimal(text) == Decimal(str(entry["answer"]))


def _twelve_digits(text: str, entry: Mapping[str, Any]) -> bool:
    """The question asks for 12 significant digits; its scorer lets the number be off in the first decimals."""
    said, right = _decimal(text), Decimal(str(entry["answer"]))
    return said is not None and abs(said - right) <= abs(right) / 10**10


def _coin_flip(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer pays a prefix in full: 0 for 0.109375. The form comes first: Fraction("1e-9999999") takes seconds."""
    if re.fullmatch(_NUMBER, text, re.ASCII) is None or re.search(r"/0+$", text):
        return False
    right = Fraction(entry["answer"])
    return abs(Fraction(text) - right) <= min(Fraction(1, 10_000), right / 200)


def _pool_matrix(text: str, entry: Mapping[str, Any]) -> bool:
    """Two decimals are asked for; its scorer lets every number be off by more."""
    said, right = ([_decimal(word) for word in written.split()] for written in (text, str(entry["answer"])))
    return len(said) == len(right) and all(
        one is not None and other is not None and abs(one - other) <= Decimal("0.0051")
        for one, other in zip(said, right, strict=True)
    )


def _polynomial_equations(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer reads what it can and pays, where there is no solution, whatever it cannot read."""
    right = str(entry["answer"]).strip()
    if not right:
        return _plain(text).strip(".") in ("none", "norealsolutions", "norealsolution", "nosolution", "[]", "{}")
    said = [_decimal(part.strip()) for part in text.split(",")]
    return None not in said and len(said) == len(right.split(","))


def _number_sorting(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer lets every number be off by 1, and takes true for 1."""
    said = json.loads(text.replace("'", '"'))  # which the scorer could read
    right = [Decimal(str(number)) for number in entry["metadata"]["sorted_numbers"]]
    return [_decimal(str(number).strip()) for number in said] == right


def _time_intervals(text: str, entry: Mapping[str, Any]) -> bool:
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


def _countdown(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer takes `(pi - pi)*(1 + 2) + E/E + E/E`: what has no digits is no number to it."""
    return _reaches(text, entry["metadata"]["numbers"], entry["metadata"]["target"])


def _puzzle24(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer rounds towards zero and takes any four numbers."""
    return _reaches(text, entry["metadata"]["numbers"], 24)


def _reaches(text: str, numbers: Sequence[int], target: int) -> bool:
    """Whether arithmetic with each of these numbers once, and nothing else, has this value."""
    used = sorted(map(int, re.findall(r"\d+", text)))
    return "." not in text and used == sorted(map(int, numbers)) and arithmetic(text) == target


_CHECKS: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "codeio": gym_structures.codeio,
    "coin_flip": _coin_flip,
    "countdown": _countdown,
    "cryptarithm": gym_structures.cryptarithm,
    "decimal_arithmetic": _twelve_digits,
    "game_of_life": gym_structures.game_of_life,
    "graph_color": gym_structures.graph_color,
    "group_anagrams": gym_structures.group_anagrams,
    "gsm_symbolic": _equal_number,
    "intermediate_integration": _antiderivative,
    "knights_knaves": gym_structures.knights_knaves,
    "number_format": _equal_number,
    "number_sorting": _number_sorting,
    "palindrome_partitioning": gym_structures.palindrome_partitioning,
    "polynomial_equations": _polynomial_equations,
    "polynomial_multiplication": _polynomial,
    "pool_matrix": _pool_matrix,
    "puzzle24": _puzzle24,
    "rush_hour": gym_structures.rush_hour,
    "simple_integration": _antiderivative,
    "sokoban": gym_structures.sokoban,
    "time_intervals": _time_intervals,
}
