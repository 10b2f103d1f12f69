"""Kinds of question: what may be answered, and the text that people read before they do.

Each says whether an answer is one, so that nothing else is ever kept. `shown` are the completions' numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

Answer = dict[str, Any]


class NoAnswer(ValueError):
    """Something was sent that does not answer the question; its message says what is missing."""


class Kind(NamedTuple):
    """One kind."""

    name: str
    says: str  # in a few words
    completions: tuple[int, int]  # the fewest and the most that an item may have
    check: Callable[[Mapping[str, Any], Sequence[int]], Answer]  # the answer in what was sent, or NoAnswer


def instructions(kind: str) -> str:
    """The text that a project of this kind has unless it is given another one; Markdown."""
    return files("posttrain.annotation").joinpath(f"instructions/{kind}.txt").read_text(encoding="utf-8")


def _ranking(sent: Mapping[str, Any], shown: Sequence[int]) -> Answer:
    """`ranking`: groups of completions, best first; `failed`: those that are no answer. Every completion once."""
    groups, failed = sent.get("ranking"), sent.get("failed", [])
    if not isinstance(groups, list) or not isinstance(failed, list) or not all(isinstance(g, list) for g in groups):
        raise NoAnswer("a ranking is a list of groups")
    named = [one for group in (*groups, failed) for one in group]
    if any(isinstance(one, bool) or not isinstance(one, int) for one in named) or sorted(named) != sorted(shown):
        raise NoAnswer("rank every answer once, or mark it as failed")
    return {"ranking": [sorted(group) for group in groups if group], "failed": sorted(failed)}


KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (Kind("rank", "put answers in order, best first", (2, 9), _ranking),)
}
"""By name."""
