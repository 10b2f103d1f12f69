"""What an answer must look like for reasoning-gym's full score to mean that it is right.

Some scorers search the answer for what they know and ignore the rest, so that a right answer next to a wrong one, or
after "not", is paid in full; some pay a prefix or what is nearly right; `game_of_life_halting` pays anything. An answer
with a full score must also match, as a whole, its family's form here.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

_NUMBER = r"[+-]?\d{1,50}(?:\.\d{1,50})?(?:e[+-]?\d{1,3}|/\d{1,50})?"
_ARITHMETIC = re.compile(r"(?:[-+()\d\s]|\*(?!\*)|/(?!/))+", re.ASCII)
_FORMS = {
    "advanced_geometry": rf"\(?\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\)?|{_NUMBER}\s*°?",
    "fraction_simplification": r"\$?\s*-?(?:\\[dt]?frac\{-?\d+\}\{-?\d+\}|\(?-?\d+\)?\s*/\s*\(?-?\d+\)?)\s*\$?",
    "gsm_symbolic": r"-?\d+(?:\.\d+)?",
    "intermediate_integration": r"[^C]*C?[^C]*",
    "kakurasu": r"[\d\s]+",
    "knights_knaves": r"(?:[A-Z]\w* is an? \w+(?:, and |, | and |\.?\s*$))+",
    "quantum_lock": r"[A-Ca-c](?:\s*(?:→|->|,)?\s*[A-Ca-c])*",
    "simple_integration": r"[^C]*C?[^C]*",
    "sokoban": r"[UDLR\s]+",
    "survo": r"[\d\s]+",
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


def _coin_flip(text: str, entry: Mapping[str, Any]) -> bool:
    """Its scorer pays a prefix in full: 0 for 0.109375. The form comes first: Fraction("1e-9999999") takes seconds."""
    return re.fullmatch(_NUMBER, text, re.ASCII) is not None and abs(
        Fraction(text) - Fraction(entry["answer"])
    ) <= Fraction(1, 10_000)


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
    if len(text) > 200 or not _ARITHMETIC.fullmatch(text) or sorted(map(int, re.findall(r"\d+", text))) != given:
        return False
    try:
        return _value(ast.parse(text, mode="eval").body) == 24
    except (SyntaxError, ZeroDivisionError, ValueError):
        return False


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(int() as number):
            return Fraction(number)
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand)
        case ast.BinOp(left, ast.Add(), right):
            return _value(left) + _value(right)
        case ast.BinOp(left, ast.Sub(), right):
            return _value(left) - _value(right)
        case ast.BinOp(left, ast.Mult(), right):
            return _value(left) * _value(right)
        case ast.BinOp(left, ast.Div(), right):
            return _value(left) / _value(right)
        case _:
            raise ValueError("not arithmetic")


_CHECKS: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "coin_flip": _coin_flip,
    "number_sorting": _number_sorting,
    "puzzle24": _puzzle24,
    "time_intervals": _time_intervals,
}
