"""How large a formula grows when computer algebra multiplies it out."""

import re
from math import comb

_POWER_OF_SUM = re.compile(r"[)\]}](?:\s|\\right)*(?:\^|\*\*)\s*\{?\s*([0-9]{1,4})")
_POWER = re.compile(r"[0-9A-Za-z)\]}](?:\s|\\right)*(?:\^|\*\*)\s*\{?\s*([0-9]{1,5})")
_POWER_OF_DIGITS = re.compile(r"([0-9.]+)\s*\}?\s*(?:\^|\*\*)\s*\{?\s*-?([0-9]{1,5})")
_MOST_DIGITS = 20_000
_MANY = {
    "bars": (re.compile(r"\|"), 20),
    "roots and trigonometric functions": (re.compile(r"\\?(?:sqrt|sin|cos|tan|cot|sec|csc)(?![a-z])|\u221a"), 6),
    "products": (re.compile(r"\)(?:\s|\\cdot|\\times|\*|\\left)*\("), 9),
    "powers": (re.compile(r"\^|\*\*"), 40),
    "equals signs": (re.compile(r"[=<>]"), 12),
    "signs in a row": (re.compile(r"(?:[-+]\s*){5}"), 0),
    "commas": (re.compile(r",(?![0-9]{3}(?![0-9]))"), 60),
    "numbers in a row": (re.compile(r"(?:[0-9.]+\s+){30}|(?:[0-9]+e){10}"), 0),
}
_LETTER = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_COMMAND = re.compile(r"\\([A-Za-z]+|.)")


def terms_multiplied_out(text: str) -> int:
    """How many terms the powers of sums in `text` have, multiplied out.

    Example:
        >>> [terms_multiplied_out(text) for text in ("(x+1)^{9}", "2^{2025}", "(x+y+1)^3(x-1)^2")]
        [10, 1, 30]
    """
    terms = 1
    for power in _POWER_OF_SUM.finditer(text):
        group = text[_opening(text, power.start()) : power.start()]
        summands = 1 + len(re.findall(r"(?<=[^\s(])\s*[-+]", group))
        rooted = "sqrt" in group
        if summands > 1 and (rooted or _LETTER.search(_COMMAND.sub(" ", group))):
            terms *= comb(int(power[1]) + summands - 1, summands - 1) * (4 if rooted else 1)  # roots cost more
    return terms


def _opening(text: str, end: int) -> int:
    """Where the group begins that a closing bracket at `end` ends."""
    depth = 0
    for start in range(end, -1, -1):
        depth += (text[start] in ")]}") - (text[start] in "([{")
        if depth == 0:
            return start
    return 0


def highest_power(text: str) -> int:
    """The largest exponent, where that of a group counts times the largest inside it.

    Example:
        >>> highest_power("(2^{9})^{99}"), highest_power("2^{9} + 3^{8}")
        (891, 9)
    """
    powers = list[tuple[int, int]]()
    for power in _POWER.finditer(text):
        start = _opening(text, power.start()) if power[0][0] in ")]}" else power.start()
        inner = [exponent for place, exponent in powers if start < place < power.start()]
        powers.append((power.start(), int(power[1]) * max(inner, default=1)))
    return max((exponent for _, exponent in powers), default=1)


def too_many(text: str) -> str | None:
    """Of what a formula has more than an answer needs and than algebra handles in a moment; None if of nothing.

    Example:
        >>> too_many("|x|" * 20), too_many("(x+1)(x-1)"), too_many("1.0001^{9999}")
        ('bars', None, 'digits of a power')
    """
    for what, (pattern, most) in _MANY.items():
        if len(pattern.findall(text)) > most:
            return what
    digits = ((len(base), int(exponent)) for base, exponent in _POWER_OF_DIGITS.findall(text))
    return "digits of a power" if any(size * exponent > _MOST_DIGITS for size, exponent in digits) else None
