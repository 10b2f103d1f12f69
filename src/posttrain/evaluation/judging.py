"""What a judge makes of pairs, whichever kind it is, and the same pairs in other styles.

A judge is a reward here: of texts that it scores alone the difference counts, of texts that it compares the scores that
it gives them in one group. Such a judge is asked in both orders, and two that disagree are a tie (Zheng et al. 2023,
https://arxiv.org/abs/2306.05685); one that declares `orders` asks so itself, and says what it makes of them.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

from posttrain.background import finish
from posttrain.environments.scored import of_seat
from posttrain.rewards import Weighted
from posttrain.rewards.reward import apart, min_group_of
from posttrain.statistics import sign
from posttrain.types import Episode, EpisodeGroup, Message, Task

Asked = tuple[Task, str, str]
"""A task and two answers to it."""


class Verdict(NamedTuple):
    """How much more the first answer earns than the second; NaN where the judge said nothing."""

    margin: float
    swapped: float | None = None  # whether both orders disagree; of several judges that compare, the share that does
    first: float | None = None  # the share of orders in which what stands first is preferred, a tie counting half

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
    comparing = [reward for reward, weight in judge.parts if weight and min_group_of(reward) > 1]
    asks_both = all(getattr(reward, "orders", False) for reward in comparing)
    groups = {  # each once
        (id(task), one, other): EpisodeGroup(task, (_episode(task, one), _episode(task, other)))
        for task, first, second in asked
        for one, other in (((first, second),) if asks_both else ((first, second), (second, first)))
    }
    scores = dict(zip(groups, finish(judge.score_parts([*groups.values()])) if groups else [], strict=True))
    margins = {k: judge.total(of_seat(one, "")) - judge.total(of_seat(other, "")) for k, (one, other) in scores.items()}
    if asks_both:
        keys = [(id(task), one, other) for task, one, other in asked]
        said = [[of_seat(scores[key][0], "")[reward.name].metrics for reward in comparing] for key in keys]
        known = [[each for each in some if "swapped" in each and "first" in each] for some in said]
        told = [[fmean(each[name] for each in some) for name in ("swapped", "first") if some] for some in known]
        return [Verdict(margins[key], *of) for key, of in zip(keys, told, strict=True)]
    both = [(margins[id(task), one, other], -margins[id(task), other, one]) for task, one, other in asked]
    return [
        Verdict(
            (a + b) / 2 if a * b > 0 or math.isnan(a * b) else 0.0,
            float(sign(a) != sign(b)),
            (2 + sign(a) - sign(b)) / 4,
        )
        for a, b in both
    ]


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

_NOT = [
    (f"{verb} not", f"{verb}n't")
    for verb in ("are", "could", "did", "do", "does", "had", "has", "have", "is", "should", "was", "were", "would")
]
_NOT += [("cannot", "can't"), ("will not", "won't")]
_SPELLED = (  # in lower case alone, since names have capitals
    *(("behaviour", "behavior"), ("centre", "center"), ("colour", "color"), ("favourite", "favorite")),
    *(("flavour", "flavor"), ("neighbour", "neighbor"), ("organise", "organize"), ("realise", "realize")),
    *(("recognise", "recognize"), ("summarise", "summarize"), ("travelling", "traveling")),
)
_TWICE = (*_SPELLED, *_NOT, *((one.capitalize(), other.capitalize()) for one, other in _NOT))
_OTHER = {one: other for both in _TWICE for one, other in (both, both[::-1])}
_OTHER |= {"-": "*", "*": "-", " ": "  ", "  ": " "}
_WORDS = re.compile(  # not in names, paths and assignments, and not "don't you"
    rf"(?<![\w./\\@#-])(?:{'|'.join(word for both in _TWICE for word in both)})(?![\w:=(/\\'-]|\.\w)"
    r"(?! (?:I|you|he|she|it|we|they|there|this|that)\b)"
    r"|(?m:^)[-*](?= +\W{0,3}[A-Za-z]{2})"  # of lists
    r"|(?<=[a-z][.!?]) {1,2}(?=[A-Z])"  # between sentences
)
_KEPT = re.compile(r"(```.*?(?:```|\Z)|`[^`\n]*`|\$[^$\n]*\$|^(?: {4}|\t)[^\n]*$)", re.DOTALL | re.MULTILINE)


def reworded(text: str) -> str:
    """The same answer in other words, by rules that keep what it says; code and formulas stay.

    Negations ("do not", "don't"), British and American spelling, list markers, one or two spaces between sentences and
    the last full stop, there or not, each become the other one of the two.

    Example:
        >>> reworded("I do not know that colour.")
        "I don't know that color"
    """
    parts = _KEPT.split(text)
    parts[::2] = [_WORDS.sub(lambda found: _OTHER[found[0]], part) for part in parts[::2]]
    parts[-1] = re.sub(r"(?<=[a-z]{2})\.?\Z", lambda found: "" if found[0] else ".", parts[-1])
    return "".join(parts)
