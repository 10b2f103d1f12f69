"""Numbers of draws of prompts: each number is drawn and trained on at most once, also when steps are sampled ahead."""

import threading
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Self


class Draws:
    """Gives out the numbers from `first` on, but those in `used`; several threads may take them.

    Example:
        >>> draws = Draws(3, used=[4])
        >>> next(draws), next(draws), next(draws)
        (3, 5, 6)
        >>> draws.use([5])  # that of draw 5 is trained on before that of 3
        >>> draws.first, draws.used
        (3, [4, 5])
        >>> draws.use([3])
        >>> draws.first, draws.used
        (6, [])
    """

    def __init__(self, first: int, used: Sequence[int] = ()) -> None:
        self._used = {*used}
        self.first = first
        self._lock = threading.Lock()
        self._numbers = count(first)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        with self._lock:
            return next(n for n in self._numbers if n >= self.first and n not in self._used)

    def use(self, numbers: Iterable[int]) -> None:
        """Note that what these draws sampled was trained on."""
        with self._lock:
            self._used |= {*numbers}
            while self.first in self._used:
                self._used.remove(self.first)
                self.first += 1

    @property
    def used(self) -> list[int]:
        """Those used besides all below `first`, in order."""
        return sorted(self._used)
