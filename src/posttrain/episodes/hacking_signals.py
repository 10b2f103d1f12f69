"""Reward-hacking signals: evidence for inspection, not proof.

Each is a fraction or a correlation over the completions of a batch, to be read as a curve: a policy that is rewarded
for length, lists or refusals shows it here before samples are inspected.
"""

import math
import re
from collections.abc import Sequence
from statistics import fmean

from posttrain.types import Group

_MARKUP = re.compile(r"^\s*(?:[-*+]\s|\d+[.)]\s|#{1,6}\s|>\s|\|.*\||```)|\*\*(?=\S)[^*\n]+(?<=\S)\*\*", re.MULTILINE)
_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am) (?:sorry|unable|not able)|i (?:can(?:'t|not)|won't|will not) (?:help|assist|do|provide|answer|"
    r"comply|discuss)|i apologi[sz]e|as an ai\b|i must decline)",
    re.IGNORECASE,
)
BEGINNING = 200  # characters in which a refusal is looked for: later ones are mostly quoted


def signals(groups: Sequence[Group]) -> dict[str, float]:
    """The signals, by name.

    `distinct/2` is the fraction of distinct bigrams among all bigrams of a group's completions (Li et al. 2016,
    https://arxiv.org/abs/1510.03055): it falls when all answers become one. `formatting` is the share of completions
    with lists, headings, tables, code or bold words; `refusals` the share that begin like one;
    `reward/length_correlation` the correlation of reward and length within groups.
    """
    said = [row.trajectory.text for group in groups for row in group.rows]
    found = {
        "distinct/2": fmean(_distinct(group) for group in groups),
        "formatting": fmean(bool(_MARKUP.search(text)) for text in said),
        "refusals": fmean(bool(_REFUSAL.search(text[:BEGINNING].replace("\u2019", "'"))) for text in said),
    }
    correlation = _length_correlation([group for group in groups if not group.lost])
    return found if correlation is None else found | {"reward/length_correlation": correlation}


def _distinct(group: Group) -> float:
    grams = [
        pair
        for row in group.rows
        for turn in row.trajectory.turns
        for pair in zip(turn.token_ids, turn.token_ids[1:], strict=False)
    ]
    return len(set(grams)) / len(grams) if grams else 1.0


def _length_correlation(groups: Sequence[Group]) -> float | None:
    """Correlation of rewards and lengths, centred by group and seat to remove differences between prompts.

    None if one does not vary.
    """
    rewards, lengths = list[float](), list[float]()
    for rows in [rows for group in groups for rows in group.by_seat.values()]:
        earned, tokens = [row.reward for row in rows], [len(row.trajectory.logprobs) for row in rows]
        rewards += [reward - fmean(earned) for reward in earned]
        lengths += [count - fmean(tokens) for count in tokens]
    spread = math.sqrt(sum(r * r for r in rewards) * sum(n * n for n in lengths))
    return sum(r * n for r, n in zip(rewards, lengths, strict=True)) / spread if spread > 1e-9 else None
