r"""Marks of a formula that computer algebra drops without a word: `42\text{!}`, `42\sqrt`, `\pi^\circ`, `4"2`."""

import re

_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_MARK_OF_TEXT = re.compile(r"[^\w\s.,:;~\u00b0]")
_UNIT_OF_TEXT = re.compile(r"[^\W\d_]+(?:\s*[/\u00b7]\s*[^\W\d_]+|\s*\^?[23\u00b2\u00b3]|\s*\^\{?-?[123]\}?)*")
_NEEDS_MORE = re.compile(
    r"\\(?:times|cdot|div|pm|mp|cup|cap|setminus|over|in|to|[dtc]?frac|sqrt|[dt]?binom|(?:arc)?(?:sin|cos|tan)h?|cot|sec"
    r"|csc|log|ln|exp|vec|overline|mathb[bf]|boxed)(?![A-Za-z])\s*(?:\{\s*\}\s*)*(?=$|[,;)\]}]|\\[\]})])"
    r"|[\u00b7\u00d7\u221a]\s*$|(?<=[0-9}])\s*(?:\u221e|\\infty|\\emptyset|\\varnothing|\\mathbb)"
)
_DEGREE = re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree\b|\bdegrees?\b|\u00b0|\\?%")
_PAIRS = ((r"\lfloor", r"\rfloor"), (r"\lceil", r"\rceil"), (r"\langle", r"\rangle"), (r"\lvert", r"\rvert"))
_INSIDE = re.compile(r"\"|[\x00-\x08\x0e-\x1f]|\^\s*\{?\s*[-+]\s*(?:\}|$)|[})]\s*_")


def dropped(answer: str, gold: str) -> str | None:
    r"""A mark of `answer` that algebra may have dropped, and that the right answer `gold` has not.

    Example:
        >>> dropped(r"42\text{!}", "42"), dropped(r"42\text{ km/h}", "42"), dropped(r"\pi^\circ", r"\pi")
        ('!', None, '^\\circ')
    """
    for text in _TEXT.findall(answer):
        text = re.sub(r"\(([^()]+)\)", r"\1", text.strip())
        if (mark := _MARK_OF_TEXT.search(text)) and mark[0] not in gold and not _UNIT_OF_TEXT.fullmatch(text):
            return mark[0]
    if re.search(r"\\text\s*\{\s*(?:and|or)\s*\}\s*$", answer):
        return "and"
    for pattern in (_NEEDS_MORE, _INSIDE):
        if (match := pattern.search(answer)) and match[0] not in gold:
            return match[0]
    for opens, closes in _PAIRS:
        if answer.count(opens) != answer.count(closes) and gold.count(opens) == gold.count(closes):
            return opens
    if (unit := _DEGREE.search(answer)) and not _DEGREE.search(gold) and not _is_of_number(answer, gold):
        return unit[0]
    return None


def _is_of_number(answer: str, gold: str) -> bool:
    """Whether signs of a unit may stand in `answer`: where the right one is numbers, and at their ends."""
    if re.search(r"[A-Za-z(\[\u03c0]", re.sub(r"\\(?:[dtc]?frac|text|left|right|[{},;!])", "", gold)):
        return False
    return all(
        re.match(r"[\s.}$)]*(?:Celsius|Fahrenheit|C|F|\\%|\\?[,;]|\\text|$)", answer[m.end() :])
        for m in _DEGREE.finditer(answer)
    )
