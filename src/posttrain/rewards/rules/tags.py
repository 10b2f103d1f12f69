"""Required tags: `<think>...</think>`, then the answer, once each, in order (DeepSeek-R1, arXiv 2501.12948)."""

import re
from dataclasses import dataclass
from typing import ClassVar

from posttrain.rewards.reward import EpisodeReward
from posttrain.types import Episode, Score


@dataclass(frozen=True)
class Tags(EpisodeReward):
    """1 if the completion has exactly the required shape, else 0; the explanation says what breaks it.

    The shape is: nothing but white space; then for each tag in order `<tag>`, something, `</tag>`, each written once
    in the whole completion, with nothing in between; then, with `text_after`, something more, and without it, nothing.

    Args:
        tags: in order.
        text_after: whether the answer follows the last tag, or is inside it.
        opened_by_prompt: the chat template's prompt already ends in the first opening tag, so the completion starts
            after it.
    """

    tags: tuple[str, ...] = ("think",)
    text_after: bool = True
    opened_by_prompt: bool = False
    name: str = "tags"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def _score_one(self, episode: Episode) -> Score:
        opening = f"<{self.tags[0]}>" if self.opened_by_prompt and self.tags else ""
        flaw = self._flaw(opening + episode.completion)
        return Score(float(not flaw), explanation=flaw)

    def _flaw(self, text: str) -> str:
        """The first thing that breaks the shape, or nothing."""
        for tag in self.tags:
            for mark in (f"<{tag}>", f"</{tag}>"):
                if (count := text.count(mark)) != 1:
                    return f"{mark} occurs {count} times, expected once"
        position = 0
        for tag in self.tags:
            opening = re.compile(rf"\s*<{re.escape(tag)}>").match(text, position)
            if opening is None:
                return f"<{tag}> is not where it belongs"
            end = text.find(f"</{tag}>", opening.end())
            if end < 0:
                return f"</{tag}> comes before <{tag}>"
            if not text[opening.end() : end].strip():
                return f"<{tag}> is empty"
            position = end + len(f"</{tag}>")
        rest = text[position:].strip()
        if self.text_after and not rest:
            return "nothing follows the last tag"
        if not self.text_after and rest:
            return "something follows the last tag"
        return ""
