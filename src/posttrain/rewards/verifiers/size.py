r"""What is too expensive for computer algebra, which multiplies a formula out: decided by its size, not by a clock."""

import re
from math import comb

MAX_CHARACTERS = 1000
MAX_EXPONENT = 9999
MAX_DEPTH = 12
MAX_TERMS = 1000
MAX_LETTERS = 9  # of a determinant
_MOST_DIGITS = 20_000  # of a power

# What an answer needs no more of than this, and algebra handles in a moment.
_MOST = {
    "a number of more than 50 digits": (r"[0-9]{51}", 0),  # but for an answer that is that number and nothing else
    "a power of a power": (
        r"\^\s*\{?\s*[0-9.]+[eE][0-9]|(?:(?:(?<![a-z])[ei]|\\pi)\s*\^\s*\{?\s*){3}"
        r"|[0-9)}]\s*\^\s*(?:\{[^{}^]{0,20}[0-9)}]|\([^()^]{0,20}[0-9)]|[-+]?[0-9.]+)\s*\^"
        r"|[0-9)}\]]\s*\*\*[^*]{0,20}[0-9)}\]]\s*(?:\*\*|\^)|\^\s*\{?\s*[-+]?[0-9.(]+\s*!",
        0,
    ),
    f"an exponent above {MAX_EXPONENT}": (r"\*\*\s*\(?[-+]?[0-9]{5}|\^\s*\{[^{}]*[1-9][0-9]{4}", 0),
    "a large factorial": (r"(?:[0-9]{4}|[)}\]!])\s*!", 0),
    "a large binomial coefficient": (
        r"\\[dt]?binom\s*\{[^{}]*[a-z][^{}]*\}\s*\{[0-9]{3}|\\[dt]?binom\s*\{[^{}]*[0-9]{4}",
        0,
    ),
    "a large power of a matrix": (r"\\end\s*\{[a-z]*(?:matrix|array)\}(?:\s|\\right.)*\^\s*\{?\s*[0-9]{2}", 0),
    "too many bars": (r"\|", 20),
    "too many roots and trigonometric functions": (r"\\?(?:sqrt|sin|cos|tan|cot|sec|csc)(?![a-z])|\u221a", 6),
    "too many products": (r"\)(?:\s|\\cdot|\\times|\*|\\left)*\(", 9),
    "too many powers": (r"\^|\*\*", 40),
    "too many equals signs": (r"[=<>]", 12),
    "too many signs in a row": (r"(?:[-+]\s*){5}", 0),
    "too many commas": (r",(?![0-9]{3}(?![0-9]))", 60),
    "too many numbers in a row": (r"(?:[0-9.]+\s+){30}|(?:[0-9]+e){10}", 0),
}
_POWER_OF_SUM = re.compile(r"[)\]}](?:\s|\\right)*(?:\^|\*\*)\s*\{?\s*([0-9]{1,4})")
_POWER = re.compile(r"[0-9A-Za-z)\]}](?:\s|\\right)*(?:\^|\*\*)\s*\{?\s*([0-9]{1,5})")
_POWER_OF_DIGITS = re.compile(r"([0-9.]+)\s*\}?\s*(?:\^|\*\*)\s*\{?\s*-?([0-9]{1,5})")
_LETTER = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_COMMAND = re.compile(r"\\([A-Za-z]+|.)")


def too_large(text: str) -> str | None:
    """Why `text` is too expensive; None if it is not.

    Example:
        >>> too_large("9^{9^{9^9}}"), too_large("2^{2025}"), too_large("|x|" * 20), too_large("1.0001^{9999}")
        ('a power of a power', None, 'too many bars', 'too many digits of a power')
    """
    if len(text) > MAX_CHARACTERS:
        return f"more than {MAX_CHARACTERS} characters"
    for what, (pattern, most) in _MOST.items():
        if len(re.findall(pattern, text)) > most:
            return what
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        return f"nested more than {MAX_DEPTH} deep"
    if highest_power(text) > MAX_EXPONENT:
        return f"powers of powers above {MAX_EXPONENT}"
    if any(len(base) * int(exponent) > _MOST_DIGITS for base, exponent in _POWER_OF_DIGITS.findall(text)):
        return "too many digits of a power"
    determinants = [part.split(r"\end")[0] for part in text.split(r"\begin{vmatrix}")[1:]]
    if any(len(_LETTER.findall(_COMMAND.sub(" ", part))) > MAX_LETTERS for part in determinants):
        return "a determinant of many letters"
    return "powers of sums that have many terms" if terms_multiplied_out(text) > MAX_TERMS else None


def terms_multiplied_out(text: str) -> int:
    """How many terms the powers of sums in `text` have, multiplied out: 10 of `(x+1)^{9}`."""
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
    """The largest exponent, where that of a group counts times the largest inside it: 891 of `(2^{9})^{99}`."""
    powers = list[tuple[int, int]]()
    for power in _POWER.finditer(text):
        start = _opening(text, power.start()) if power[0][0] in ")]}" else power.start()
        inner = [exponent for place, exponent in powers if start < place < power.start()]
        powers.append((power.start(), int(power[1]) * max(inner, default=1)))
    return max((exponent for _, exponent in powers), default=1)
