r"""How a number is written, alone: an optional lead ("the answer is"), arithmetic that gives it, a unit.

What the grammar does not know is no number: "not 42", "42 million", "half of 42", "41 or 42", "41 = 42".
"""

import ast
import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from posttrain.rewards.verifiers.extraction import plain_characters
from posttrain.rewards.verifiers.units import is_millions, is_other_word, is_unit, leading_cardinal, other_scale

MAX_CHARACTERS = 400  # of an answer that is read; a number needs fewer
MAX_EXPONENT = 400

# Digits with or without groups of three, which are set apart by commas, apostrophes, underscores or spaces of one kind.
_GROUPS = "|".join(rf"[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+(?![0-9])" for mark in (",", " ", "'", "_"))
_DIGITS = rf"{_GROUPS}|[0-9]+"
_DECIMAL = rf"(?:(?:{_DIGITS})?\.[0-9]+|0,[0-9]+|(?:{_DIGITS})\.?(?![0-9]))(?:[eE][-+]?[0-9]{{1,4}}(?![0-9]))?"
_FRACTION = r"(?:[0-9]{1,9} )?[0-9]+ ?/ ?[0-9]+(?![0-9])|\\[dt]?frac ?\{[0-9]+\} ?\{[0-9]+\}"
_CURRENCY = r"(?:[$€£¥₹]|(?:USD|EUR|GBP)(?= ?[-+0-9.]))"
NUMBER = (
    rf"(?P<sign>[-+])?(?:(?P<currency>{_CURRENCY}) ?)?(?P<inner>(?<![-+])[-+])?"
    rf"(?:(?P<fraction>{_FRACTION})|(?P<decimal>{_DECIMAL}))(?P<percent> ?%| ?percent\b)?"
)
_NUMBER = re.compile(NUMBER)
_TWO_NUMBERS = re.compile(r"[0-9](?:\s{2,}|[^\S \u00a0\u2009\u202f])[0-9]")  # on two lines, or in two columns
_VERBS = (
    "is|are|was|were|has|have|had|makes?|made|sells?|sold|earns?|earned|needs?|needed|gets?|got|pays?|paid|spends?"
    "|spent|saves?|saved|buys?|bought|eats?|ate|uses?|used|takes?|took|costs?|weighs?|walks?|walked|runs?|ran|drinks?"
    "|drank|reads?|bakes?|baked|collects?|collected"
)
_LEAD = re.compile(
    r"(?:(?:so|thus|therefore|hence),? )?"
    r"(?:(?:(?:the|my|our) )?(?:(?:final|correct|right|total) )?"
    r"(?:answer|result|total|sum|value|number|amount|solution)(?: (?:is|was|equals|=)| ?:| is:)? ?"
    rf"|(?P<subject>[a-z]+) (?:{_VERBS}) |(?:it|that|this)(?:'s|\u2019s) |[a-z] ?= ?|= ?|: ?)?(?:a total of )?",
    re.IGNORECASE,
)
_VULGAR = "\u00bc-\u00be\u2150-\u215e"
_TEN = r"10 ?\^ ?(?:\{([-+]?[0-9]{1,3})\}|([-+]?[0-9]{1,3}))(?![0-9^]|\.[0-9])"
_TEN_TO = re.compile(rf"(?<![\w.^*/)}}]){_TEN}")
_TIMES_TEN_TO = re.compile(rf"([0-9]) ?(?:\u00d7|\\times|\\cdot|\*|x) ?{_TEN}")
_OPERATORS = {"\u2013": "-", "\u00d7": "*", "\\times": "*", "\\cdot": "*", "\u00b7": "*", "\u00f7": "/", "\\div": "/"}
_SUBJECTS = frozenset(("he", "she", "it", "they", "we", "there", "i", "that", "this"))
_SIGN_WORD = re.compile(r"(?:minus|negative) (?=[$€£¥₹]?[0-9.\\])", re.IGNORECASE)
_WRAPPERS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"\*+([^*]*)\*+",
        r"_+([^_]*)_+",
        r"`+([^`]*)`+",
        r'"([^"]*)"',
        r"'([^']*)'",
        r"\$\$?([^$]*)\$\$?",
        r"\\\(((?:(?!\\[()]).)*)\\\)",
        r"\\\[((?:(?!\\[\[\]]).)*)\\\]",
        r"\\(?:boxed|text|textbf|mathrm|mathbf) ?\{([^{}]*)\}",
        r"<answer>([^<>]*)</answer>",
    )
)
_MOST_OF_ARITHMETIC = 200
_ARITHMETIC = re.compile(r"(?:[-+().\d\s]|\*(?!\*)|/(?!/))+", re.ASCII)
_POINT = re.compile(r"(?<![\d.])\d*\.\d+(?![\d.])", re.ASCII)


@dataclass(frozen=True)
class Number:
    """A number as it was written; `value` of "50%" is 50."""

    value: Fraction
    percent: bool = False

    def __str__(self) -> str:
        digits = self.value.denominator
        for prime in (2, 5):
            while digits % prime == 0:
                digits //= prime
        text = f"{float(self.value):.15g}" if digits == 1 and self.value.denominator != 1 else str(self.value)
        return text + "%" * self.percent


def parse_number(text: str, question: str = "") -> Number | None:
    """The number that `text` says, if that is all it says; its unit may be of words of the `question`.

    Example:
        >>> [str(parse_number(text)) for text in ("$1,234.50 per year", "−7.", "3/4", "5 or 6", "42 million", "1,23")]
        ['1234.5', '-7', '0.75', 'None', 'None', 'None']
        >>> str(parse_number("50 - 8 = 42")), str(parse_number("50 - 8 = 41")), str(parse_number("forty-two"))
        ('42', 'None', '42')
    """
    plain = plain_characters(text) if len(text) <= MAX_CHARACTERS else None
    if plain is None or ".." in plain or "\u2026" in plain or _TWO_NUMBERS.search(plain):
        return None
    plain = _without_lead(unwrapped(one_notation(plain)), question)
    *sides, said = plain.split("=")
    number = _said(unwrapped(said), question)
    return number if number is not None and all(equals(side, number.value) for side in sides) else None


def _without_lead(text: str, question: str) -> str:
    lead = _LEAD.match(text)
    subject = (lead and lead["subject"]) or "it"
    names = [name for name in re.findall(r"\b[A-Z][a-z]+\b", question) if not is_other_word(name.casefold())]
    if lead is None or (subject.casefold() not in _SUBJECTS and subject not in names):
        return text
    rest = text[lead.end() :]
    return text if lead[0][-1:].isalpha() and rest.startswith("-") else unwrapped(rest)  # "Answer-42": a dash?


def _said(text: str, question: str) -> Number | None:
    sign = re.match(r"(?:minus|negative) ", text, re.IGNORECASE)
    start = sign.end() if sign else 0
    if cardinal := leading_cardinal(text[start:]):  # in words
        text = f"{text[:start]}{cardinal[0]}{cardinal[1]}"
    text, negated = _SIGN_WORD.subn("", text, count=1)
    match = _NUMBER.match(text)
    if match is None or not is_unit(text[match.end() :], question):
        return None
    currency = (match["currency"] or "").casefold()
    if is_millions(text[match.end() :], currency) or other_scale([currency], question):
        return None
    if other_scale(re.findall(r"[a-z€£]+", text[match.end() :]), currency):
        return None
    number = read_number(match)
    if number is None or (negated and (match["sign"] or match["inner"])):
        return None
    return Number(-number.value, number.percent) if negated else number


def equals(side: str, value: Fraction) -> bool:
    """Whether one side of an equation is arithmetic with this value, as in `50 - 8 = 42`."""
    side = re.sub(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", "", re.sub(r"[$€£]", "", side))
    for written, sign in _OPERATORS.items():
        side = side.replace(written, sign)
    side = re.sub(r"(?<=[0-9]) ?x ?(?=[0-9])", "*", side)
    return arithmetic(side) == value


def one_notation(text: str) -> str:
    """One kind of minus sign, of space and of fraction; LaTeX's thin spaces, dollar and percent; 3e4 for 3 × 10^4."""
    text = text.replace("\u2212", "-").replace("\\$", "$").replace("\\%", "%").replace("{,}", ",")
    # a vulgar fraction with a solidus, which NFKC writes as another sign
    vulgar = rf"(?<![/{_VULGAR}])[{_VULGAR}](?![0-9{_VULGAR}])"
    text = re.sub(vulgar, lambda match: " " + unicodedata.normalize("NFKC", match[0]), text)
    text = re.sub(r"[\u202f\u2009\u00a0]|\\[,;! ]", " ", text.replace("\u2044", "/"))
    text = re.sub(r"(\\[dt]?frac) ?([0-9])([0-9])(?![0-9])", r"\1{\2}{\3}", text)
    text = re.sub(r"(?<![\w*^)])\*\*([^*]+)\*\*(?![\w*^(])", r"\1", text)  # bold
    text = _TIMES_TEN_TO.sub(r"\1e\2\3", text)
    text = _TEN_TO.sub(r"1e\1\2", text)
    return " ".join(text.split())


def unwrapped(text: str) -> str:
    """`text` without a final full stop and without marks that enclose all of it: bold, quotes, formulas."""
    while True:
        before = text
        text = text.strip().removesuffix(".").rstrip()
        for wrapper in _WRAPPERS:
            if match := wrapper.fullmatch(text):
                text = match[1].strip()
        if text == before:
            return text


def read_number(match: re.Match[str]) -> Number | None:
    """The value; None where it divides by zero, has two signs, or is too large to be meant."""
    if (match["sign"] and match["inner"]) or len(match[0]) > MAX_CHARACTERS:
        return None
    sign = -1 if "-" in (match["sign"], match["inner"]) else 1
    if match["fraction"]:
        *whole, above, below = map(int, re.findall(r"[0-9]+", match["fraction"]))
        if below == 0 or (whole and above >= below):
            return None
        return Number(sign * (Fraction(above, below) + sum(whole)), bool(match["percent"]))
    written = re.sub(r"^0,", "0.", match["decimal"])
    written = re.sub(r"[, '_]", "", written).rstrip(".")
    if abs(int(re.split("[eE]", written + "e0")[1])) > MAX_EXPONENT:
        return None
    return Number(sign * Fraction(written), bool(match["percent"]))


def arithmetic(text: str) -> Fraction | None:
    """The exact value of sums, differences, products and quotients of numbers; None of anything else."""
    if len(text) > _MOST_OF_ARITHMETIC or not _ARITHMETIC.fullmatch(text):
        return None
    whole = _POINT.sub(lambda match: f"({Fraction('0' + match[0])})", text.strip())
    if "." in whole:
        return None
    try:
        return _value(ast.parse(whole, mode="eval").body)
    except (SyntaxError, ZeroDivisionError, ValueError, RecursionError, MemoryError):
        return None


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
