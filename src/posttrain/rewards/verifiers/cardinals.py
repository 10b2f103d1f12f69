"""Numbers in English words, below a thousand million."""

import re

_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SCALES = {"thousand": 1_000, "million": 1_000_000}
_VALUES = {word: value for value, word in enumerate(_SMALL)} | {word: 10 * i for i, word in enumerate(_TENS) if i > 1}
_WORD = "|".join(sorted([*_VALUES, *_SCALES, "hundred"], key=len, reverse=True))
_BEGINNING = re.compile(rf"(?:{_WORD})\b(?:[ -](?:and )?(?:{_WORD})\b)*", re.IGNORECASE)


def leading_cardinal(text: str) -> tuple[int, str] | None:
    """The number in words that `text` begins with, and what follows it; None if there is none.

    Example:
        >>> leading_cardinal("Forty-two eggs"), leading_cardinal("twenty twenty"), leading_cardinal("a hundred")
        ((42, ' eggs'), None, None)
    """
    if not (match := _BEGINNING.match(text)):
        return None
    words = [word for word in re.split(r"[ -]", match[0].casefold()) if word != "and"]
    total = group = 0
    for word in words:
        if word in _SCALES:
            total, group = total + group * _SCALES[word], 0
        elif word == "hundred":
            group *= 100
        else:
            group += _VALUES[word]
    number = total + group
    return (number, text[match.end() :]) if number < 10**9 and _said(number) == words else None


def _said(number: int) -> list[str]:
    """The words of a number."""
    for scale, size in (("million", 1_000_000), ("thousand", 1_000), ("hundred", 100)):
        if number >= size:
            above, below = divmod(number, size)
            return [*_said(above), scale, *(_said(below) if below else [])]
    if number < 20:
        return [_SMALL[number]]
    return [_TENS[number // 10], *([_SMALL[number % 10]] if number % 10 else [])]
