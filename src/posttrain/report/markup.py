"""Escaping of text that may come from a model, for pages and terminals.

A policy that is rewarded for what people see may learn to write HTML. Nothing that it writes reaches a page except
through `escape`; in addition, the page forbids scripts, requests and forms.
"""

import html
import re

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# These change the direction of the text after them, so that it is read differently from how it is stored.
_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_OTHER = re.compile("[\x80-\x9f\ud800-\udfff\ufffe\uffff]")


def escape(value: object, limit: int | None = None) -> str:
    r"""Any value as text that is safe between tags and within quotes.

    Control characters become their Unicode pictures, direction marks their code points, and lone surrogates the
    replacement character. A text longer than `limit` is truncated, with the number of characters left out.

    Example:
        >>> escape("<script>\x00", limit=8)
        '&lt;script&gt; … 1 more character'
    """
    text = str(value)
    more = 0 if limit is None else max(0, len(text) - limit)
    if more:
        text = text[:limit]
    text = _CONTROL.sub(lambda found: "\u2421" if found[0] == "\x7f" else chr(0x2400 + ord(found[0])), text)
    text = _BIDI.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)
    text = html.escape(_OTHER.sub("\ufffd", text).replace("\r\n", "\n").replace("\r", "\u240d"), quote=True)
    return f"{text} … {more:,} more character{'s' if more > 1 else ''}" if more else text


def printable(text: str) -> str:
    r"""Text without control sequences for a terminal; line ends and tabs stay.

    Example:
        >>> printable("4\x1b[2J, \tso\n5")
        '4\\x1b[2J, \tso\n5'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
