"""Prefix cache: KV of earlier prompts, looked up by token prefix and by the adapter that computed them."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from posttrain.engine.kv_cache import Stored

BLOCK = 16  # tokens: beginnings are looked up at multiples of it


@dataclass(frozen=True)
class _Entry:
    token_ids: tuple[int, ...]
    stored: Stored
    size: int  # bytes
    adapter: object


class PrefixCache:
    """Sequences by their prefixes, with LRU eviction above `capacity` bytes."""

    def __init__(self, capacity: int, *, block: int = BLOCK) -> None:
        self._capacity, self._block, self._size = capacity, block, 0
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        # hash of a beginning of whole blocks: the entries that have it, the newest last
        self._by_beginning: dict[int, dict[int, None]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, token_ids: tuple[int, ...], stored: Stored, size: int, adapter: object = None) -> None:
        """Store a sequence; it replaces a stored prefix of itself."""
        if size > self._capacity:
            return
        known = self._find(token_ids, adapter)
        if known is not None and len(self._entries[known[0]].token_ids) == known[1]:
            self._drop(known[0])
        while self._entries and self._size + size > self._capacity:
            self._drop(next(iter(self._entries)))
        number, self._next = self._next, self._next + 1
        self._entries[number] = _Entry(token_ids, stored, size, adapter)
        self._size += size
        for beginning, _ in self._beginnings(token_ids):
            self._by_beginning.setdefault(beginning, {})[number] = None

    def longest(self, token_ids: tuple[int, ...], adapter: object = None) -> Stored | None:
        """The longest cached prefix of a prompt, without its last token; None if there is none."""
        found = self._find(token_ids[:-1], adapter)
        if found is None:
            return None
        number, length = found
        self._entries.move_to_end(number)
        return replace(self._entries[number].stored, length=length)

    def _find(self, token_ids: tuple[int, ...], adapter: object) -> tuple[int, int] | None:
        """The adapter's entry with the longest common prefix of a block or more, and its number of tokens."""
        for beginning, length in reversed(list(self._beginnings(token_ids))):
            for number in reversed(self._by_beginning.get(beginning, ())):
                entry = self._entries[number]
                there = entry.token_ids
                # and not another text with the same hash
                if entry.adapter is adapter and there[:length] == token_ids[:length]:
                    rest = zip(there[length:], token_ids[length:], strict=False)
                    return number, length + next(
                        (i for i, (a, b) in enumerate(rest) if a != b), min(map(len, (there, token_ids))) - length
                    )
        return None

    def _beginnings(self, token_ids: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """A hash of each prefix of whole blocks, and its length."""
        so_far = 0
        for start, end in pairwise(range(0, len(token_ids) + 1, self._block)):
            so_far = hash((so_far, token_ids[start:end]))
            yield so_far, end

    def _drop(self, number: int) -> None:
        entry = self._entries.pop(number)
        self._size -= entry.size
        for beginning, _ in self._beginnings(entry.token_ids):
            having = self._by_beginning.get(beginning, {})  # none, where two of its beginnings have one hash
            having.pop(number, None)
            if not having:
                self._by_beginning.pop(beginning, None)
