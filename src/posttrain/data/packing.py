"""Sequence packing without padding, with shared prefixes stored once.

Shape letters: N tokens of a flat row, M tokens of it that are learned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import NamedTuple

from posttrain import fast_paths
from posttrain.errors import UserError


@dataclass(frozen=True, slots=True)
class Example:
    """A training sequence: a prefix that may be shared, its continuation, and the loss mask of that."""

    prefix: tuple[int, ...]
    continuation: tuple[int, ...]
    learned: tuple[bool, ...]  # one per token of `continuation`
    # of each of them, where some have their own; 0: that of the run. Digests of rows are those of their repr, and no
    # data has it
    temperatures: tuple[float, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if len(self.learned) != len(self.continuation):
            raise ValueError(f"{len(self.continuation)} tokens need as many flags; got {len(self.learned)}")
        if not self.prefix and self.learned and self.learned[0]:
            raise ValueError("the first token of a sequence has nothing before it to be predicted from")

    @classmethod
    def whole(cls, token_ids: Sequence[int], learned: Sequence[bool]) -> "Example":
        """A sequence that shares nothing."""
        return cls((), tuple(token_ids), tuple(learned))


def size_of(example: Example) -> int:
    """All its tokens."""
    return len(example.prefix) + len(example.continuation)


class Pair(NamedTuple):
    """Two sequences with one prefix: a response that was chosen, and one that was not."""

    chosen: Example
    rejected: Example


class Ranked(NamedTuple):
    """Responses to one prompt, and the pairwise preferences among them."""

    examples: tuple[Example, ...]  # with one prefix
    pairs: tuple[tuple[int, int, float], ...]  # chosen, rejected, strength
    bag: tuple[float, ...] = ()  # weight for each ensemble member; equal if empty


class Labelled(NamedTuple):
    """A sequence, and whether its response is labelled good."""

    example: Example
    good: bool


class Graded(NamedTuple):
    """A sequence, and how its response was rated."""

    example: Example
    ratings: Mapping[str, float]  # by the attribute's name


class Stepwise(NamedTuple):
    """A sequence of steps, in which the token behind each labelled one is learned; and whether those are right."""

    example: Example
    right: tuple[float, ...]  # true or false, or how likely it is


@dataclass(slots=True)
class PackedRow:
    """One micro-batch. `families` says what may see what; `models/attention.py` reads it."""

    token_ids: list[int] = field(default_factory=list[int])  # N
    positions: list[int] = field(default_factory=list[int])  # N, counted from the start of each token's own sequence
    families: list[tuple[int, list[int]]] = field(default_factory=list[tuple[int, list[int]]])
    sources: list[int] = field(default_factory=list[int])  # M: where in the row the prediction of the target is made
    targets: list[int] = field(default_factory=list[int])  # M: the token that is learned
    temperatures: list[float] = field(default_factory=list[float])  # M: its own temperature; 0: that of the run
    rows: list[int] = field(default_factory=list[int])  # M: which example it belongs to, counted over the whole batch
    examples: list[int] = field(default_factory=list[int])  # the examples in this micro-batch
    ends: list[int] = field(default_factory=list[int])  # where in the row the last token of each of them is

    def add_family(self, prefix: Sequence[int], members: Sequence[tuple[int, Example]]) -> None:
        """Append one prefix and the examples (with their numbers in the batch) that continue it."""
        end_of_prefix = len(self.token_ids) + len(prefix) - 1
        self.token_ids += prefix
        self.positions += range(len(prefix))
        for number, example in members:
            start = len(self.token_ids)
            self.token_ids += example.continuation
            self.positions += range(len(prefix), len(prefix) + len(example.continuation))
            for i, (token, learned) in enumerate(zip(example.continuation, example.learned, strict=True)):
                if learned:
                    self.sources.append(start + i - 1 if i else end_of_prefix)
                    self.targets.append(token)
                    self.temperatures.append(example.temperatures[i] if example.temperatures else 0.0)
                    self.rows.append(number)
            self.examples.append(number)
            self.ends.append(len(self.token_ids) - 1)
        self.families.append((len(prefix), [len(example.continuation) for _, example in members]))

    def sequences(self) -> list[tuple[int, ...]]:
        """All tokens of each example, in the order of `examples`."""
        found: list[tuple[int, ...]] = []
        at = 0
        for prefix, lengths in self.families:
            shared = self.token_ids[at : at + prefix]
            at += prefix
            for length in lengths:
                found.append((*shared, *self.token_ids[at : at + length]))
                at += length
        return found


def pack(
    examples: Sequence[Example],
    microbatch_tokens: int,
    *,
    together: int | Sequence[int] = 1,
    owners: Sequence[int] = (),
) -> list[PackedRow]:
    """Lay examples into rows of at most `microbatch_tokens` tokens each.

    Consecutive examples with equal prefixes become one family; a family too long for a row is cut, and its prefix laid
    down again. How a batch is cut bounds memory and nothing else: the sums over rows do not depend on it. Examples
    without a prefix share what all of them begin with, such as a system message, and are packed by length, longest
    first, so that the padding inside attention stays small.

    Of `together` examples that follow each other, such as the two of a pair, all come into the same row; they must
    share a prefix. Where not all units have the same size, `together` is the size of each.

    With `owners`, one for each example, no family has examples of two owners: equal tokens of the two have other keys.

    Raises:
        UserError: what must be in one row is longer than `microbatch_tokens`.
    """
    sizes = [together] * (len(examples) // together) if isinstance(together, int) else together
    ends = list(accumulate(sizes))
    if (ends[-1] if ends else 0) != len(examples):
        raise ValueError(f"{len(examples)} examples are not {len(sizes)} units of {together} that stay together")
    units = [(end - size, examples[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    for number, (first, unit) in enumerate(units):
        if together != 1 and (len({e.prefix for e in unit}) > 1 or not unit[0].prefix):
            raise ValueError(f"examples {first} to {first + len(unit) - 1} cannot stay together: they share no prefix")
        length = len(unit[0].prefix) + sum(len(example.continuation) for example in unit)
        if length > microbatch_tokens:
            noun = {1: "example", 2: "pair"}.get(len(unit), "ranking")
            raise UserError(
                f"{noun} {number} has {length} tokens, but microbatch_tokens is {microbatch_tokens}; "
                f"use `microbatch_tokens={length}` or more, or drop longer examples with `max_tokens`"
            )
    if not fast_paths.on("shared prefix"):
        return _apart(units, microbatch_tokens)
    rows: list[PackedRow] = []
    room = 0
    for prefix, parts in _families(units, owners):
        while parts:
            if room < len(prefix) + _length(parts[0]):
                rows.append(PackedRow())
                room = microbatch_tokens
            fits, left = 0, room - len(prefix)
            while fits < len(parts) and (length := _length(parts[fits])) <= left:
                left -= length
                fits += 1
            rows[-1].add_family(prefix, [member for part in parts[:fits] for member in part])
            room, parts = left, parts[fits:]
    return rows


Unit = tuple[int, Sequence[Example]]  # examples that stay together, and the number of the first of them
Members = list[tuple[int, Example]]  # examples with their numbers in the batch


def _apart(units: Sequence[Unit], microbatch_tokens: int) -> list[PackedRow]:
    """Each example a family of its own; what must stay together does, even if its row becomes too long by that."""
    rows: list[PackedRow] = []
    room = 0
    for first, unit in units:
        length = sum(len(example.prefix) + len(example.continuation) for example in unit)
        if not rows or room < length:
            rows.append(PackedRow())
            room = microbatch_tokens
        for number, example in enumerate(unit, first):
            rows[-1].add_family(example.prefix, [(number, example)])
        room -= length
    return rows


def _length(members: Members) -> int:
    return sum(len(example.continuation) for _, example in members)


def _families(units: Sequence[Unit], owners: Sequence[int]) -> list[tuple[tuple[int, ...], list[Members]]]:
    """Units of one owner that follow each other with one prefix, and that prefix."""

    def family(unit: Unit) -> tuple[int, tuple[int, ...]]:
        first, examples = unit
        return owners[first] if owners else 0, examples[0].prefix

    found: list[tuple[tuple[int, ...], list[Members]]] = []
    for (_, prefix), group in groupby(units, key=family):
        parts = [list(enumerate(unit, first)) for first, unit in group]
        if not prefix:  # of which each is alone
            members = [member for part in parts for member in part]
            size = _opening([example for _, example in members])
            prefix = members[0][1].continuation[:size]
            members = [
                (number, Example(prefix, e.continuation[size:], e.learned[size:], e.temperatures[size:]))
                for number, e in members
            ]
            members.sort(key=lambda item: -len(item[1].continuation))
            parts = [[member] for member in members]
        found.append((prefix, parts))
    return found


def _opening(examples: Sequence[Example]) -> int:
    """Length of the common prefix of sequences without a prefix: no learned token, and never a last token."""
    if len(examples) < 2:
        return 0
    texts = [example.continuation for example in examples]
    first, last = min(texts), max(texts)  # all sequences between these two share their common prefix
    alike = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    before = min(e.learned.index(True) if True in e.learned else len(e.learned) for e in examples)
    return min(alike, before, min(map(len, texts)) - 1)
