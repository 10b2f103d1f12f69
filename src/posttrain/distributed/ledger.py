"""What processes of one kind did when: spans of a timeline, busy time and tokens per second."""

import threading
import time
from collections.abc import Iterable

from posttrain.runs.timeline import Span, joined

GAP_S = 0.05  # between two slices of time
LEAST_S = 1e-9  # by which a rate is divided


class Ledger:
    """What processes did. Threads may note and read at the same time.

    Args:
        kind: what one of them is called.
        size: how many.
    """

    def __init__(self, kind: str, size: int) -> None:
        self._kind = kind
        self._noting = threading.Lock()
        self._spans: list[Span] = []
        self._busy_s, self._tokens, self._asked = [0.0] * size, [0] * size, time.monotonic()

    def note(self, work: str, places: Iterable[int], seconds: float, tokens: int = 0, *, busy: bool = True) -> None:
        """Note what processes have done in the last seconds, and whether that is what they are for."""
        now = time.time()
        with self._noting:
            for place in places:
                self._spans.append(Span(f"{self._kind} {place}", work, now - seconds, now))
                self._busy_s[place] += seconds if busy else 0.0
                self._tokens[place] += tokens

    def rates(self) -> tuple[dict[str, float], dict[str, float]]:
        """Since the last call: the share of time in which each was busy; tokens per busy second, of all and of each."""
        with self._noting:
            before, self._asked = self._asked, time.monotonic()
            busy_s, self._busy_s = self._busy_s, [0.0] * len(self._busy_s)
            tokens, self._tokens = self._tokens, [0] * len(self._tokens)
        passed_s = max(self._asked - before, LEAST_S)
        shares = {f"cluster/busy/{self._kind}{place}": min(1.0, s / passed_s) for place, s in enumerate(busy_s)}
        speeds = {f"cluster/{self._kind}_tokens_per_second": sum(tokens) / max(sum(busy_s), LEAST_S)}
        for place, (count, s) in enumerate(zip(tokens, busy_s, strict=True)):
            speeds[f"cluster/tokens_per_second/{self._kind}{place}"] = count / max(s, LEAST_S)
        return shares, speeds

    def spans(self) -> list[Span]:
        """What they did since the last call; work that goes on within `GAP_S` is one span."""
        with self._noting:
            found, self._spans = self._spans, []
        return joined(found, GAP_S)
