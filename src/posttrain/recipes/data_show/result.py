"""Dataset statistics, as text and as JSON."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

from posttrain.data import ChatFormat
from posttrain.errors import as_typed
from posttrain.report.markup import printable
from posttrain.report.masked_text import histogram_lines, in_colour, masked_lines

BINS = 10  # of the histogram, at most
ANSWER = 200  # characters of a task's answer


class TokenSequence(NamedTuple):
    """One sequence of a row: its tokens, and which of them are learned."""

    part: str  # "", or "chosen", "rejected", "good", "bad"; of a conversation that makes several its number
    token_ids: tuple[int, ...]
    learned: tuple[bool, ...]


class Shown(NamedTuple):
    """One row in full."""

    row: int
    answer: str  # of an rl task
    fits: tuple[bool, ...]  # by sequence, whether it is kept
    sequences: tuple[TokenSequence, ...]


class Dropped(NamedTuple):
    """Rows that are left out for one reason; of those of sft, examples that are too long."""

    reason: str
    n: int
    first: tuple[str, ...]  # where the first of them are


class HeldOutRows(NamedTuple):
    """Rows that are held out, and how many of them are no test of what was learned."""

    n: int
    overlap: int  # whose prompt is also in the data set
    duplicates: int  # whose prompt stood before among the held-out rows


@dataclass(frozen=True)
class DataShowResult:
    """What is in a data set. Lengths are in tokens, of all sequences of the rows that are read."""

    dataset: str
    model: str
    layout: str
    max_tokens: int
    rows: int  # that were read
    kept: int  # of them, those of which anything is kept
    dropped: tuple[Dropped, ...]
    duplicates: int  # rows that say the same as one before
    repeated_prompts: int  # rows whose prompt stood before
    lengths: tuple[int, ...]
    learned: int  # tokens that are learned, of rows that are kept
    total: int  # tokens of rows that are kept
    unread: tuple[str, ...]  # columns, and keys of messages as messages.KEY
    heldout: HeldOutRows | None
    shown: tuple[Shown, ...]
    chat: ChatFormat
    tokens: bool

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        return {
            "dataset": self.dataset,
            "model": self.model,
            "layout": self.layout,
            "max_tokens": self.max_tokens,
            "rows": self.rows,
            "kept": self.kept,
            "dropped": [one._asdict() for one in self.dropped],
            "duplicates": self.duplicates,
            "repeated_prompts": self.repeated_prompts,
            "not_read": list(self.unread),
            "heldout": None if self.heldout is None else self.heldout._asdict(),
            "tokens": {"total": self.total, "learned": self.learned, **self._lengths()},
            "histogram": [dict(zip(("from", "to", "n"), one, strict=True)) for one in histogram(self.lengths)],
            "shown": [
                {
                    "row": one.row,
                    "part": sequence.part,
                    "kept": fits,
                    "answer": one.answer,
                    "token_ids": list(sequence.token_ids),
                    "learned": list(sequence.learned),
                    "text": text_of(self.chat, sequence.token_ids),
                }
                for one in self.shown
                for sequence, fits in zip(one.sequences, one.fits, strict=True)
            ],
        }

    def lines(self) -> list[str]:
        """The same for people: the rows, then the summary. Learned text is green, and marked by >."""
        colour = in_colour()
        found = [line for one in self.shown for line in self._row(one, colour)]
        lengths = self._lengths()
        told = (
            f"{self.rows:,} row{'s' * (self.rows != 1)} of {printable(self.dataset)}, read as {self.layout}, "
            f"for {printable(self.model)}",
            f"{self.total:,} tokens in what is kept, {self.learned:,} of them learned; lengths {lengths['min']:,} to "
            f"{lengths['max']:,}, mean {lengths['mean']:,.0f}, median {lengths['median']:,}",
        )
        found += [*told, *histogram_lines(histogram(self.lengths))]
        for one in self.dropped:
            more = ", ..." if one.n > len(one.first) else ""
            found.append(f"left out: {one.n:,}, {printable(one.reason)} ({printable(', '.join(one.first))}{more})")
        found.append(f"duplicates: {self.duplicates:,} duplicate rows; {self.repeated_prompts:,} repeated prompts")
        found += [as_typed(note) for note in self.chat.notes]
        if self.unread:
            found.append(f"not read: {printable(', '.join(self.unread))}")
        if self.heldout is not None:
            held = self.heldout
            found.append(
                f"held out: {held.n:,} rows; the prompts of {held.overlap:,} are also in the data set, of "
                f"{held.duplicates:,} stood before among them"
            )
        return found

    def _row(self, one: Shown, colour: bool) -> Iterator[str]:
        for (part, token_ids, learned), fits in zip(one.sequences, one.fits, strict=True):
            name = f"row {one.row:,}" + (f" ({part})" if part else "")
            size = f"{len(token_ids):,} tokens, {sum(learned):,} learned"
            yield f"{name}: {size}{'' if fits else f', left out: {too_long(self.max_tokens)}'}"
            if self.tokens:
                for place, (token, mine) in enumerate(zip(token_ids, learned, strict=True)):
                    text = text_of(self.chat, [token]).replace("\n", "\u21b5")
                    yield from masked_lines([(f"{place:>5} {token:>7} {text}", mine)], colour=colour)
            else:
                yield from masked_lines(list(segments(self.chat, token_ids, learned)), colour=colour)
            if one.answer:
                answer = printable(" ".join(one.answer.split()))
                yield f"  answer: {answer if len(answer) <= ANSWER else answer[: ANSWER - 3] + '...'}"
            yield ""

    def _lengths(self) -> dict[str, float]:
        found = sorted(self.lengths)
        return {"min": found[0], "mean": fmean(found), "median": found[len(found) // 2], "max": found[-1]}


def too_long(most: int) -> str:
    """The reason why a row with a longer sequence is left out."""
    return f"over {most:,} tokens"


def segments(chat: ChatFormat, token_ids: Sequence[int], learned: Sequence[bool]) -> Iterator[tuple[str, bool]]:
    """The text of a sequence, cut where what is learned begins and ends."""
    for mine, group in groupby(zip(token_ids, learned, strict=True), key=lambda one: one[1]):
        yield text_of(chat, [token for token, _ in group]), mine


def histogram(lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    """At most 10 bins of equal width, as (from, to, count), both ends included; the width is 1, 2 or 5 times 10^k.

    Example:
        >>> histogram([13, 15, 31])
        [(11, 15, 2), (16, 20, 0), (21, 25, 0), (26, 30, 0), (31, 35, 1)]
    """
    longest = max(lengths)
    width = next(step for k in range(12) for step in (10**k, 2 * 10**k, 5 * 10**k) if step * BINS >= longest)
    counts: Mapping[int, int] = Counter((length - 1) // width for length in lengths)
    first, last = (min(lengths) - 1) // width, (longest - 1) // width
    return [(i * width + 1, (i + 1) * width, counts.get(i, 0)) for i in range(first, last + 1)]


def text_of(chat: ChatFormat, token_ids: Sequence[int]) -> str:
    """Tokens as text, special ones as they are spelled. It may hold whatever the data hold: see `printable`."""
    return str(chat.tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
