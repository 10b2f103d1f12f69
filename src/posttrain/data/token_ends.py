"""Character offsets of sampled tokens in their decoded text.

A token is not a piece of text by itself: a character may be spread over several tokens, and some tokenizers write a
word differently at the beginning of a text. So tokens are decoded after their predecessors.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, takewhile

Decode = Callable[[Sequence[int]], str]

_UNFINISHED = "\ufffd"  # what decoders write for bytes that are no character, or none yet


def token_ends(decode: Decode, token_ids: Sequence[int]) -> list[int]:
    """After each token, how many characters of `decode(token_ids)` are complete; after the last one, all of them.

    A character ends with the token that completes it. Bytes that are no character end with the token that shows it.
    Takes two short calls of `decode` for each token.

    Example:
        >>> token_ends(lambda ids: bytes(ids).decode(errors="replace"), [72, 226, 130, 172])  # H, and three bytes of €
        [1, 1, 1, 2]
    """
    text, ends = decode(token_ids), list[int]()
    said = before = ""  # the text as it is put together: each new piece is decoded behind the one before it alone
    shown = first = 0  # the last piece is from token `shown` to token `first`
    for number in range(1, len(token_ids) + 1):
        now = decode(token_ids[shown:number])
        complete = now if number == len(token_ids) else now.rstrip(_UNFINISHED)
        ends.append(len(said) + max(0, len(complete) - len(before)))
        if complete == now:
            said += now[len(before) :]
            shown, first = first, number
            before = decode(token_ids[shown:first])
    return ends if said == text else _by_prefixes(decode, token_ids, text)


def _by_prefixes(decode: Decode, token_ids: Sequence[int], text: str) -> list[int]:
    """The same by decoding every beginning, for tokens that more than the piece before them changes."""
    begun = (decode(token_ids[:number]).rstrip(_UNFINISHED) for number in range(1, len(token_ids)))
    return list(accumulate([*(_alike(part, text) for part in begun), len(text)], max))


def _alike(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
