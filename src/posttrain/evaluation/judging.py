"""What a judge makes of pairs, whichever kind it is, and the same pairs in other styles.

A judge is a reward here: of texts that it scores alone the difference counts, of texts that it compares the scores that
it gives them in one group, asked in both orders. Two orders that disagree are a tie (Zheng et al. 2023,
https://arxiv.org/abs/2306.05685).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from posttrain.background import finish
from posttrain.environments.scored import of_seat
from posttrain.rewards import Weighted
from posttrain.rewards.reward import apart
from posttrain.types import Episode, EpisodeGroup, Message, Task

Asked = tuple[Task, str, str]
"""A task and two answers to it."""


class Verdict(NamedTuple):
    """How much more the first answer earns than the second; NaN where the judge said nothing."""

    margin: float  # 0 where both orders disagree
    orders: tuple[float, float] | None = None  # the same in each order, of a judge that compares

    @property
    def win(self) -> float:
        """1 if the first answer is preferred, 0 if the second, 1/2 for a tie."""
        return (self.margin > 0) + 0.5 * (self.margin == 0)


def verdicts(judge: Weighted, asked: Sequence[Asked]) -> list[Verdict]:
    """What a judge says of pairs. The one place where audits and the arena ask one; errors are the reward's."""
    if not judge.compares:
        texts = list(dict.fromkeys((id(task), text) for task, *both in asked for text in both))
        tasks = {id(task): task for task, _, _ in asked}
        earned = dict(zip(texts, totals(judge, [(tasks[key], text) for key, text in texts]), strict=True))
        return [Verdict(earned[id(task), first] - earned[id(task), second]) for task, first, second in asked]
    groups = [
        EpisodeGroup(task, (_episode(task, one), _episode(task, other)))
        for task, first, second in asked
        for one, other in ((first, second), (second, first))
    ]
    scores = finish(judge.score_parts(groups)) if groups else []
    margins = [judge.total(of_seat(one, "")) - judge.total(of_seat(other, "")) for one, other in scores]
    both = [(margins[i], -margins[i + 1]) for i in range(0, len(margins), 2)]
    return [Verdict((a + b) / 2 if a * b > 0 or math.isnan(a * b) else 0.0, (a, b)) for a, b in both]


def totals(judge: Weighted, answers: Sequence[tuple[Task, str]]) -> list[float]:
    """What each answer to a task earns by itself; NaN where nothing that is weighed applies."""
    scores = finish(judge.score_parts(apart([_episode(*one) for one in answers]))) if answers else []
    return [judge.total(of_seat(of_one, "")) for (of_one,) in scores]


def _episode(task: Task, text: str) -> Episode:
    return Episode(task, (*task.prompt, Message("assistant", text)))


def plain(text: str) -> str:
    """Without Markdown's headings, bullets and emphasis; the words are the same."""
    text = re.sub(r"(?m)^[ \t]*(?:#{1,6}|[-*+]|\d+\.)[ \t]+", "", text)
    return re.sub(r"\*\*|__|`", "", text).strip()


def sentences(text: str) -> list[str]:
    """The sentences of a text, roughly."""
    return [one for one in re.split(r"(?<=[.!?])\s+|\n+", plain(text)) if one.strip()]


STYLES: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        "plain": plain,
        "long": lambda text: f"{plain(text)}\n\nIn other words, to say the same once more: {plain(text)}",
        "markdown": lambda text: "## Answer\n\n" + "\n".join(f"- **{one}**" for one in sentences(text)),
        "tone": lambda text: f"Certainly! I am fully confident about this.\n\n{plain(text)}\n\nI hope this helps!",
    }
)
"""The same answer in other styles, by rule: only length, format or tone differ."""
FANCIER = ("plain", "long", "markdown")
"""The styles of the matrix, in the order in which a style is more of a temptation (Liu et al. 2024, RM-Bench,
https://arxiv.org/abs/2410.16184, which has concise, detailed, and detailed with Markdown, written by a model)."""
