"""What an answer must look like for reasoning-gym's full score to mean that it is right.

Some scorers search the answer for what they know and ignore the rest, so that a right answer next to a wrong one, or
after "not", is paid in full; some pay a prefix or what is nearly right; `game_of_life_halting` pays anything. An answer
with a full score must also match, as a whole, its family's form here. Two families cannot be guarded so.
"""

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from posttrain.rewards.verifiers.arithmetic import arithmetic

REFUSED = {
    "boxnet": "its scorer passes over moves that are impossible, so that one long list of moves solves every task",
    "propositional_logic": "its scorer pays a premise that is only weakened, such as (P ∨ Q) for the premise P",
}
"""Families whose full score does not mean that the task was solved, and why."""

_NUMBER = r"[+-]?\d{1,50}(?:\.\d{1,50})?(?:e[+-]?\d{1,3}|/\d{1,50})?"
_DECIMAL = re.compile(r"[+-]?\d{1,50}(?:\.\d{0,50})?(?:e[+-]?\d{1,3})?", re.ASCII | re.IGNORECASE)
_CONSTANT = r"[^C#]*(?:C(?!\w)[^C#]*)?"
_RATIO = r"-?(?:\\[dt]?frac\{-?\d+\}\{-?\d+\}|\(?-?\d+\)?\s*/\s*\(?-?\d+\)?)"
_FORMS = {
    "advanced_geometry": rf"\(\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\)|{_NUMBER}\s*,\s*{_NUMBER}|{_NUMBER}\s*°?",
    "fraction_simplification": rf"\$\s*{_RATIO}\s*\$|{_RATIO}",
    "intermediate_integration": _CONSTANT,
    "kakurasu": r"[\d\s]+",
    "knights_knaves": r"(?:[A-Z]\w* is an? \w+(?:, and |, | and |\.?\s*$))+",
    "polynomial_multiplication": r"[^#]*",
    "quantum_lock": r"[A-Ca-c](?:\s*(?:→|->|,)?\s*[A-Ca-c])*",
    "rubiks_cube": r"(?:[UDLRFBMESxyzudlrfb]w?['\u2019]?2?\s*)+",
    "rush_hour": r"(?:[A-Z][+-]\d{1,2}[\s,]*)+",
    "simple_integration": _CONSTANT,
    "sokoban": r"[UDLR\s]+",
    "survo": r"[\d\s]+",
    "tower_of_hanoi": r"(?:Move disk \d+ from Peg \d+ to Peg \d+\.?\s*)+",
}
_EQUAL = {"game_of_life_halting", "letter_jumble", "spell_backward", "word_sorting"}


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
    elif family in _EQUAL:
        right = _plain(text) == _plain(str(entry["answer"]))
    else:
        right = family not in _FORMS or re.fullmatch(_FORMS[family], text, re.ASCII) is not None
    return None if right else f"not an answer of {family} alone"


def _plain(text: str) -> str:
    return re.sub(r"\s*,\s*", ",", " ".join(text.split())).casefold()


def _decimal(text: str) -> Decimal | None:
    return Decimal(text) if _DECIMAL.fullmatch(text) else None


def _equal_number(text: str, entry: Mapping[str, Any]) -> bool:
    """`gsm_symbolic`'s scorer reads the first number without its sign, `number_format`'s lets it be off by 0.01."""
    return _decimal(text) is not None and _decimal(text) == Decimal(str(entry["answer"]))


def _twelve_digits(text: str, entry: Mapping[str, Any]) -> bool:
    """The question asks for 12 significant digits; its scorer lets the number be off in the first decimals."""
    said, right = _decimal(text), Decimal(str(entry["answer"]))
    return said is not None and abs(said - right) <= abs(right) / 10**10


def _three_digits(text: str, entry: Mapping[str, Any]) -> bool:
    said = _decimal(text)
    return said is not None and f"{said:.2e}" == f"{Decimal(str(entry['answer'])):.2e}"


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
        return _plain(text).strip(".") in ("none", "no real solutions", "no real solution", "no solution", "[]", "{}")
    said = [_decimal(part.strip()) for part in text.split(",")]
    return None not in said and len(said) == len(right.split(","))


def _graph_color(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer takes the last of several colors of a vertex."""
    pairs: list[tuple[str, object]] = json.loads(text, object_pairs_hook=list)
    return sorted(key for key, _ in pairs) == sorted(str(vertex) for vertex in entry["metadata"]["puzzle"]["vertices"])


def _number_sorting(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer lets every number be off by 1."""
    said = json.loads(text.replace("'", '"'))  # which the scorer could read
    return [float(number) for number in said] == [float(number) for number in entry["metadata"]["sorted_numbers"]]


def _time_intervals(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer reads a number of days and ignores the rest."""
    shape = re.sub(r"\d+", "0", str(entry["answer"]))
    return re.sub(r"\d+", "0", text) in (shape, shape.removesuffix(" days"))


def _puzzle24(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer rounds towards zero and takes any four numbers."""
    given = sorted(int(number) for number in entry["metadata"]["numbers"])
    if "." in text or len(text) > 200 or sorted(map(int, re.findall(r"\d+", text))) != given:
        return False
    return arithmetic(text) == 24


_CHECKS: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "coin_flip": _coin_flip,
    "decimal_arithmetic": _twelve_digits,
    "graph_color": _graph_color,
    "gsm_symbolic": _equal_number,
    "number_format": _equal_number,
    "number_sorting": _number_sorting,
    "polynomial_equations": _polynomial_equations,
    "pool_matrix": _pool_matrix,
    "power_function": _three_digits,
    "puzzle24": _puzzle24,
    "time_intervals": _time_intervals,
}
