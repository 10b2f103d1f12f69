"""Where tokens end in their text, for tokenizers of bytes, and of words with bytes between them."""

import doctest
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from posttrain.data import tokenizer as module
from posttrain.data.chat import ChatFormat
from posttrain.data.tokenizer import token_ends
from tests.data.families import of_family

CHAT = ChatFormat(of_family("smollm2"))
STOP = min(CHAT.stop_ids)


def byte_fallback() -> Tokenizer:
    """As Llama 2 decodes: ▁ is a space, none stands at the beginning, and other characters are tokens of bytes."""
    words = ["<unk>", "▁", "▁the", "▁€", "a", "be", "\n", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


FALLBACK, WORDS = byte_fallback(), 7


def bytes_of(text: str) -> list[int]:
    return [WORDS + byte for byte in text.encode()]


def lossy(pieces) -> str:
    return b"".join(pieces).decode(errors="replace")


@given(st.text(max_size=8), st.lists(st.integers(0, 30), max_size=8))
def test_a_character_ends_with_the_token_that_has_its_last_byte(text, cuts):
    """Any text, cut into tokens between any bytes; expected: the bytes so far, without an unfinished character."""
    whole = text.replace("\ufffd", "?").encode()
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    tokens = [whole[a:b] for a, b in pairwise(places)]
    expected = [len(whole[:end].decode(errors="ignore")) for end in places[1:]]
    assert token_ends(lossy, tokens) == expected


@given(
    st.lists(st.one_of(st.binary(max_size=3), st.sampled_from(["€".encode(), b"\xef\xbf\xbd", b" \xe2"])), max_size=9)
)
def test_whatever_the_bytes_are_the_ends_are_those_of_every_beginning(tokens):
    ends = token_ends(lossy, tokens)
    text = lossy(tokens)
    assert ends == module._by_prefixes(lossy, tokens, text) if tokens else ends == []
    assert ends == sorted(ends) and (not tokens or ends[-1] == len(text))
    assert all(lossy(tokens[: i + 1]).startswith(text[:end]) for i, end in enumerate(ends))


@given(st.lists(st.integers(0, FALLBACK.get_vocab_size() - 1), max_size=12))
def test_words_with_bytes_between_them_end_where_every_beginning_says(tokens):
    text = FALLBACK.decode(tokens)
    ends = token_ends(FALLBACK.decode, tokens)
    assert ends == sorted(ends) and len(ends) == len(tokens) and (not tokens or ends[-1] == len(text))
    for number, end in enumerate(ends, 1):
        complete = FALLBACK.decode(tokens[:number]).rstrip("\ufffd")
        known = next(
            (n for n, (a, b) in enumerate(zip(complete, text, strict=False)) if a != b), min(len(complete), len(text))
        )
        assert end >= known


@pytest.mark.parametrize(
    ("tokens", "text", "ends"),
    [
        ([2, 2, 4], "the thea", [3, 7, 8]),  # no space at the beginning
        ([1, 1, 4], " a", [0, 1, 2]),
        ([3, *bytes_of("€€"), 4], "€€€a", [1, 1, 1, 2, 2, 2, 3, 4]),
        ([4, *bytes_of("€")[:2], 5], "a\ufffd\ufffdbe", [1, 1, 1, 5]),
        ([*bytes_of("€"), WORDS + 0xE2], "\ufffd" * 4, [0, 0, 0, 4]),  # one byte too many undoes the character
        ([], "", []),
    ],
)
def test_ends_of_words_and_bytes_by_hand(tokens, text, ends):
    assert FALLBACK.decode(tokens) == text
    assert token_ends(FALLBACK.decode, tokens) == ends


@given(st.lists(st.integers(0, len(CHAT.tokenizer) - 1), max_size=12))
def test_special_tokens_say_nothing_and_end_where_the_text_does_so_far(tokens):
    ends, text = CHAT.ends_of(tokens), CHAT.decode(tokens)
    assert len(ends) == len(tokens) and ends == sorted(ends)
    spoken = [end for token, end in zip(tokens, ends, strict=True) if token not in CHAT.silent]
    assert spoken == token_ends(CHAT.decode, [token for token in tokens if token not in CHAT.silent])
    assert not spoken or (spoken[-1] == ends[-1] == len(text))
    before = [0, *ends][: len(tokens)]
    assert all(a == b for token, a, b in zip(tokens, before, ends, strict=True) if token in CHAT.silent)


def test_a_stop_token_ends_where_the_text_does():
    tokens = [*CHAT.text_ids("20 é\n\n"), STOP]
    assert CHAT.decode(tokens) == "20 é\n\n"
    assert CHAT.ends_of(tokens) == [2, 3, 3, 4, 6, 6]  # `20` and the two newlines are one token each, é is two


def test_decoding_takes_two_short_calls_for_each_token():
    lengths = []

    def decode(tokens):
        lengths.append(len(tokens))
        return lossy(tokens)

    token_ends(decode, [*[b"x"] * 499, b"\xe2"])  # cut in the middle of a character
    assert max(lengths[1:]) == 2 and len(lengths) <= 2 * 500 + 1


def test_docstring_examples_run():
    assert doctest.testmod(module).failed == 0
