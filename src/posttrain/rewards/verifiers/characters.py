"""Characters and words: what is invisible or looks alike in model output, and sets of words."""

import re

INVISIBLE = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_DIRECTION = re.compile("[\u202a-\u202e\u2066-\u2069]")  # displayed order differs from text order
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}


def plain_characters(text: str) -> str | None:
    r"""`text` with full-width forms as ASCII and without invisible characters at its ends.

    None where a character changes the direction of writing. An invisible character inside stays where it is: no
    grammar knows it.

    Example:
        >>> plain_characters("\uff14\uff12\u200b"), plain_characters("24\u202e")
        ('42', None)
    """
    if _DIRECTION.search(text):
        return None
    return text.translate(_FULL_WIDTH).strip(INVISIBLE + " \t\r\n")


def words(text: str) -> frozenset[str]:
    """The words of a text, between white space, as a set."""
    return frozenset(text.split())
