"""Where sampled tokens end in the text that they say: characters of text, by token.

A token is not a piece of text by itself. A character may be spread over several tokens, and some tokenizers write a word
differently at the beginning of a text. So tokens are decoded behind those that come before them, and a character counts
once no later token can change it.
"""

from collections.abc import Callable, Sequence
from os.path import commonprefix

Decode = Callable[[Sequence[int]], str]

_UNFINISHED = "\ufffd"  # what decoders write for bytes that are no character, or none yet


def token_ends(decode: Decode, token_ids: Sequence[int]) -> list[int]:
    """After each token, how many characters of `decode(token_ids)` are there for good; after the last one, all of them.

    The character that is completed by a token ends there, whatever token it began in. Takes two short calls of `decode`
    for each token.

    Example:
        >>> token_ends(lambda ids: bytes(ids).decode(errors="replace"), [72, 226, 130, 172])  # H, and three bytes of €
        [1, 1, 1, 2]
    """
    text = decode(token_ids)
    ends, said = _incremental(decode, token_ids)
    return ends if said == text else _by_prefixes(decode, token_ids, text)


def _incremental(decode: Decode, token_ids: Sequence[int]) -> tuple[list[int], str]:
    """The ends, and the text as it was put together: each new piece is decoded behind the one before it alone."""
    ends: list[int] = []
    said = before = ""
    shown = first = 0  # tokens of the last piece: from `shown` to `first`
    for number in range(1, len(token_ids) + 1):
        now = decode(token_ids[shown:number])
        if not now.endswith(_UNFINISHED) or number == len(token_ids):
            said += now[len(before) :]
            shown, first = first, number
            before = decode(token_ids[shown:first])
        ends.append(len(said))
    return ends, said


def _by_prefixes(decode: Decode, token_ids: Sequence[int], text: str) -> list[int]:
    """The same by decoding every beginning, for tokens that more than the piece before them changes."""
    ends = [len(text)] * len(token_ids)
    for number in range(len(token_ids) - 1, 0, -1):
        alike = commonprefix([decode(token_ids[:number]).rstrip(_UNFINISHED), text])
        ends[number - 1] = min(ends[number], len(alike))
    return ends
