"""Held-out completions with the largest reward gain, for manual inspection."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

HeldoutSample = Mapping[str, Any]


class Risen(NamedTuple):
    """The same held-out prompt, answered at the first evaluation and at the last."""

    before: HeldoutSample
    after: HeldoutSample

    @property
    def by(self) -> float:
        """Reward of the later answer minus that of the earlier one."""
        return self.after["reward"] - self.before["reward"]


def risen(rows: Sequence[HeldoutSample], most: int = 10) -> list[Risen]:
    """Completions by reward gain, the largest first; empty if there was only one evaluation.

    Args:
        rows: held-out samples with their `step`; every evaluation has those of the same prompts in the same order.
        most: how many.
    """
    first, last = ([row for row in rows if row["step"] == rows[end]["step"]] for end in (0, -1))
    found = [
        Risen(a, b)
        for a, b in zip(first, last, strict=False)
        if a["prompt"] == b["prompt"] and a["reward"] is not None and b["reward"] is not None
    ]
    return sorted((one for one in found if one.by > 0), key=lambda one: -one.by)[:most]
