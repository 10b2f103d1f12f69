r"""Numbers at the end of a solution, as in GSM8K's `#### 42` (Cobbe et al. 2021, arXiv 2110.14168).

An answer is read by a grammar that must match all of it: an optional lead ("the answer is"), one number, an optional
unit. What the grammar does not know is unparsed, never right: "not 42", "42 million", "half of 42", "41 or 42".
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from posttrain.errors import RewardError
from posttrain.rewards.reward import score_each
from posttrain.rewards.verifiers.extraction import AnswerIn, extract, not_found, outside_reasoning
from posttrain.types import Episode, Score

MAX_CHARACTERS = 400  # of an answer that is read; a number needs fewer
MAX_EXPONENT = 400

# Digits with or without groups of three, which are set apart by commas or by spaces of one kind.
_DIGITS = r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]{1,3}(?: [0-9]{3})+(?![0-9])|[0-9]+"
_DECIMAL = rf"(?:(?:{_DIGITS})?\.[0-9]+|(?:{_DIGITS})\.?(?![0-9]))(?:[eE][-+]?[0-9]{{1,4}}(?![0-9]))?"
_FRACTION = r"[0-9]+ ?/ ?[0-9]+(?![0-9])|\\[dt]?frac ?\{[0-9]+\} ?\{[0-9]+\}"
_CURRENCY = r"(?:[$€£¥₹]|(?:USD|EUR|GBP)(?= ?[-+0-9.]))"
_NUMBER = re.compile(
    rf"(?P<sign>[-+])?(?:{_CURRENCY} ?)?(?P<inner>(?<![-+])[-+])?"
    rf"(?:(?P<fraction>{_FRACTION})|(?P<decimal>{_DECIMAL}))(?P<percent> ?%| ?percent\b)?"
)
_INSIDE = re.compile(rf"(?<![\w.^])(?<![0-9],)(?:{_NUMBER.pattern})(?![\w^!/]|\*\w|[,.][0-9])")
_UNIT_WITH_DIGIT = re.compile(r"\b[A-Za-z]+[0-9]\b")  # the 2 of "m2" is no number
_LEAD = re.compile(
    r"(?:(?:so|thus|therefore|hence),? )?"
    r"(?:(?:(?:the|my|our) )?(?:(?:final|correct|right|total) )?"
    r"(?:answer|result|total|sum|value|number|amount|solution)(?: (?:is|was|equals|=)| ?:| is:)? ?"
    r"|(?:it|that|this)(?: is|'s|\u2019s) |[a-z] ?= ?|= ?|: ?)?",
    re.IGNORECASE,
)
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
        r"\\(?:boxed|text|mathrm|mathbf) ?\{([^{}]*)\}",
    )
)
UNITS = frozenset(
    (
        *("dollars", "dollar", "cents", "cent", "euros", "euro", "pounds", "pound", "usd", "eur", "gbp", "bucks"),
        *("mm", "cm", "m", "km", "meter", "meters", "metre", "metres", "kilometers", "kilometres", "centimeters"),
        *("centimetres", "inch", "inches", "feet", "foot", "ft", "yard", "yards", "mile", "miles", "mph", "acres"),
        *("g", "kg", "mg", "gram", "grams", "kilograms", "ounces", "ounce", "oz", "lb", "lbs", "tons", "tonnes"),
        *("l", "ml", "liter", "liters", "litre", "litres", "gallon", "gallons", "cups", "cup"),
        *("second", "seconds", "minute", "minutes", "hour", "hours", "day", "days", "week", "weeks", "month"),
        *(
            "months",
            "year",
            "years",
            "old",
            "s",
            "h",
            "min",
            "am",
            "pm",
            "degrees",
            "degree",
            "°",
            "°c",
            "°f",
            "celsius",
        ),
        *("square", "cubic", "units", "unit", "points", "point", "items", "people", "times", "m2", "m3", "cm2", "cm3"),
        *("km2", "ft2", "m²", "m³", "cm²", "cm³", "km²", "ft²", "km/h", "m/s", "mi/h", "kmh"),
    )
)
_CONNECTORS = frozenset(("per", "a", "an", "each", "of", "in"))
# Words that change what a number says. None of them is a unit, even where the question has it.
_CHANGES = frozenset(
    (
        *("not", "no", "never", "nor", "neither", "isn't", "isn\u2019t", "wrong", "incorrect", "false", "except"),
        *("or", "and", "but", "maybe", "perhaps", "possibly", "either", "between", "to", "plus", "minus", "negative"),
        *("times", "x", "less", "more", "fewer", "greater", "than", "over", "under", "above", "below", "about"),
        *("approximately", "around", "roughly", "nearly", "almost", "least", "most", "up", "under", "unlike", "versus"),
        *("half", "halves", "third", "thirds", "quarter", "quarters", "fourth", "fourths", "fifth", "fifths", "tenth"),
        *("tenths", "hundredth", "hundredths", "thousandth", "thousandths", "twice", "thrice", "double", "triple"),
        *("squared", "cubed", "root", "factorial", "power", "divided", "multiplied", "reciprocal", "inverse"),
        *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "zero"),
        *("ten", "tens", "dozen", "dozens", "score", "scores", "gross", "hundred", "hundreds", "thousand", "thousands"),
        *("k", "m", "mil", "million", "millions", "mn", "mln", "b", "bn", "billion", "billions", "trillion", "lakh"),
        *("crore", "percent", "percentage", "permille", "pair", "pairs", "couple", "mod", "modulo", "base", "log"),
        *("opposite", "unknown", "if", "unless", "instead", "off", "short", "remaining", "excluding", "without"),
    )
)
_AROUND = _CHANGES - {"and", "but", "to", "m", "b", "x", "plus"}  # in prose these join sentences as well


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


@dataclass(frozen=True)
class NumberVerifier:
    """1 if the number in the answer equals `task.answer` exactly, else 0.

    Read are integers, decimals, `1e3`, fractions such as 3/4, commas or spaces between groups of three, currency signs,
    a percent sign, "minus 5", and a unit: a common one, or words of the question. Numbers are compared exactly, so 0.10
    equals .1. 50% equals 50 and 0.5 alike. An answer that says anything else beside its number is `unparsed`: what is
    meant is not the verifier's to guess.

    Args:
        answer_in: where the answer is.
        last_number: where there is no such place, take the last number outside the reasoning. Off by default, because
            it pays for a number that was not given as the answer.

    Raises (while scoring):
        RewardError: `task.answer` is not a number. It may be a GSM8K solution that ends in `#### 42`.
    """

    answer_in: AnswerIn = "hashes"
    last_number: bool = False
    name: str = "numbers"
    verifies: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    async def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One score per episode."""
        return score_each(self.name, episodes, self._score_one)

    def _score_one(self, episode: Episode) -> Score:
        right = parse_number(str(episode.task.answer).rpartition("####")[2])
        if right is None:
            raise RewardError(
                f"reward '{self.name}' needs a number as task.answer; task {episode.task.id!r} has "
                f"{str(episode.task.answer)[:80]!r}"
            )
        answer = extract(episode.completion, self.answer_in)
        if answer is not None:
            question = " ".join(m.content for m in episode.task.prompt if m.role == "user")
            number, why = parse_number(answer, question), f"not one number: {answer[:80]!r}"
        else:
            number = final_number(outside_reasoning(episode.completion)) if self.last_number else None
            why = not_found(self.answer_in)
        equal = number is not None and same_number(number, right)
        if number is None or equal is None:
            return Score(0.0, answer, why if number is None else f"{number} may mean {right} or not", unparsed=True)
        return Score(float(equal), str(number), "" if equal else f"expected {right}")


def same_number(given: Number, right: Number) -> bool | None:
    """Whether the two are equal; None where a percent sign leaves it open.

    Only one of them may have a percent sign that the other leaves out: 50% is 50 percent, and it is 0.5. Below 1 the
    two readings meet (is "0.5%" the answer 0.5?), so that only the second one counts.

    Example:
        >>> [same_number(parse_number(a), parse_number(b)) for a, b in (("50%", "0.5"), ("50%", "50"), ("0.5%", "0.5"))]
        [True, True, None]
    """
    if given.percent == right.percent:
        return given.value == right.value
    percent, plain = (given.value, right.value) if given.percent else (right.value, given.value)
    if percent == plain and 0 < abs(plain) < 1:
        return None
    return plain in (percent, percent / 100)


def parse_number(text: str, question: str = "") -> Number | None:
    """The number that `text` says, if that is all it says; its unit may be of words of the `question`.

    Example:
        >>> [str(parse_number(text)) for text in ("$1,234.50 per year", "−7.", "3/4", "5 or 6", "42 million", "1,23")]
        ['1234.5', '-7', '0.75', 'None', 'None', 'None']
    """
    if len(text) > MAX_CHARACTERS or ".." in text or "\u2026" in text:
        return None
    text = _unwrapped(_plain(text))
    text = _unwrapped(text[_LEAD.match(text).end() :])  # pyright: ignore[reportOptionalMemberAccess] (it may be empty)
    text, negated = _SIGN_WORD.subn("", text, count=1) if _SIGN_WORD.match(text) else (text, 0)
    match = _NUMBER.match(text)
    if match is None or not _is_unit(text[match.end() :], question):
        return None
    number = _read(match)
    if number is None or (negated and (match["sign"] or match["inner"])):
        return None
    return Number(-number.value, number.percent) if negated else number


def final_number(text: str) -> Number | None:
    """The last number in `text`; None if there is none, or if a word beside it changes what it says ("not 42").

    Example:
        >>> [str(final_number(text)) for text in ("12 + 7 = 19", "it is 1/2", "41 or 42", "19 million")]
        ['19', '0.5', 'None', 'None']
    """
    text = _UNIT_WITH_DIGIT.sub(" ", _plain(text))
    digit = max(map(text.rfind, "0123456789"))
    match = next((match for match in _INSIDE.finditer(text) if match.start() <= digit < match.end()), None)
    if match is None:
        return None
    before, after = text[: match.start()], text[match.end() :]
    beside = [*before[-40:].split()[-2:], *after[:40].split()[:1]]
    if {word.strip(".,;:!?*_()").casefold() for word in beside} & _AROUND:
        return None
    glued = before.rstrip(" *_$(")[-1:]
    if glued in tuple("-+<>~≈≠≤≥±^/*×–—") or (match["sign"] and glued.isdigit()):
        return None
    return _read(match)


def _plain(text: str) -> str:
    """One kind of minus sign and of space; LaTeX's thin spaces, dollar and percent."""
    text = text.replace("\u2212", "-").replace("\\$", "$").replace("\\%", "%").replace("{,}", ",")
    text = re.sub(r"(?<![0-9/])[\u00bc-\u00be\u2150-\u215e]", lambda match: _vulgar(match[0]), text)
    text = re.sub(r"[\u202f\u2009\u00a0]|\\[,;! ]", " ", text)
    return " ".join(text.split())


def _vulgar(sign: str) -> str:
    """The sign of a fraction, such as one half, with a solidus."""
    return unicodedata.normalize("NFKC", sign).replace("\u2044", "/")


def _unwrapped(text: str) -> str:
    """`text` without a final full stop and without marks that enclose all of it: bold, quotes, formulas."""
    while True:
        before = text
        text = text.strip().removesuffix(".").rstrip()
        for wrapper in _WRAPPERS:
            if match := wrapper.fullmatch(text):
                text = match[1].strip()
        if text == before:
            return text


def _is_unit(text: str, question: str) -> bool:
    """Whether `text`, which follows a number, is nothing, or a unit of at most four words."""
    words = [_CLOSING.sub("", word).casefold() for word in text.split()]
    words = [word for word in words if word]
    if not words:
        return not text.strip() or _CLOSING.sub("", text.strip()) == ""
    if len(words) > 4 or not re.match(r"[ *_`$\\a-zA-Z°]", text):
        return False
    known = {_stem(word) for word in re.findall(r"[a-z]{3,}", question.casefold())}
    return all(_is_word_of_unit(word, known) for word in words)


_CLOSING = re.compile(r"^(?:\\text\{|[*_`$])+|[*_`$.}]+$")


def _is_word_of_unit(word: str, known: set[str]) -> bool:
    if word in UNITS and word != "times":
        return True
    if word in _CHANGES:
        return False
    return word in _CONNECTORS or (word.isalpha() and _stem(word) in known)


def _stem(word: str) -> str:
    """Without the ending of a plural, so that "apple" in a question knows "apples"."""
    for ending in ("es", "s"):
        if len(word) > len(ending) + 2 and word.endswith(ending):
            return word.removesuffix(ending)
    return word.removesuffix("e") if len(word) > 3 else word


def _read(match: re.Match[str]) -> Number | None:
    """The value; None where it divides by zero, has two signs, or is too large to be meant."""
    if match["sign"] and match["inner"]:
        return None
    sign = -1 if "-" in (match["sign"], match["inner"]) else 1
    if match["fraction"]:
        above, below = map(int, re.findall(r"[0-9]+", match["fraction"]))
        return Number(sign * Fraction(above, below), bool(match["percent"])) if below else None
    written = re.sub(r"[, ]", "", match["decimal"]).rstrip(".")
    if abs(int(re.split("[eE]", written + "e0")[1])) > MAX_EXPONENT or len(written) > MAX_CHARACTERS:
        return None
    return Number(sign * Fraction(written), bool(match["percent"]))
