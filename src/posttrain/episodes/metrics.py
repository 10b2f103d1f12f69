"""Metrics of rollouts, and signals of reward hacking: evidence for inspection, not proof.

A signal is a fraction or a correlation over the completions of a batch, to be read as a curve: a policy that is
rewarded for length, lists or refusals shows it here before samples are inspected.
"""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, pstdev

from posttrain.types import Group, Row, Score, StopReason

SOLVED = 1.0  # an outcome's score when the task is solved
_MARKUP = re.compile(r"^\s*(?:[-*+]\s|\d+[.)]\s|#{1,6}\s|>\s|\|.*\||```)|\*\*(?=\S)[^*\n]+(?<=\S)\*\*", re.MULTILINE)
_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am) (?:sorry|unable|not able)|i (?:can(?:'t|not)|won't|will not) (?:help|assist|do|provide|answer|"
    r"comply|discuss)|i apologi[sz]e|as an ai\b|i must decline)",
    re.IGNORECASE,
)
BEGINNING = 200  # characters in which a refusal is looked for: later ones are mostly quoted


def solved_of(groups: Sequence[Group], outcome: str) -> dict[str, float]:
    """By a task's id, the share of its completions that `outcome` says are solved, where it applies to any."""
    judged: dict[str, list[bool]] = {}  # a task may be there more than once
    for group in groups if outcome else ():
        scores = [row.scores[outcome] for row in group.rows]
        judged.setdefault(group.task.id, []).extend(score.total >= SOLVED for score in scores if score.applicable)
    return {name: fmean(solved) for name, solved in judged.items() if solved}


def rollout_metrics(groups: Sequence[Group], outcome: str) -> dict[str, float]:
    """Rewards (total and by name), outcome, lengths and repetition of scored groups.

    `accuracy` is the share of completions whose `outcome` is 1, `unparsed` the share in which no answer was found;
    neither exists without an outcome reward, such as with a function that gave a score outside 0 to 1.
    `length/truncated` is the share of completions cut off before a stop token, `reward/length_correlation` Pearson's
    correlation of reward and length within groups. Lengths are in tokens.
    Each reward is measured over the completions that it applies to; `not_applicable/NAME` is the share of those that it
    does not apply to, and `lost` of those that no optimised one applies to, where there are any.
    """
    rows = [row for group in groups for row in group.rows]
    rewards = [row.reward for row in rows if not math.isnan(row.reward)]
    scores, trajectories = [row.scores for row in rows], [row.trajectory for row in rows]
    lengths, total = [len(t.logprobs) for t in trajectories], len(rows)
    applied = {name: [part[name].total for part in scores if part[name].applicable] for name in scores[0]}
    return {
        **({"reward/mean": fmean(rewards), "reward/std": pstdev(rewards)} if rewards else {}),
        **_by_seat(rows),
        **({"lost": 1 - len(rewards) / total} if len(rewards) < total else {}),
        **{f"reward/{name}": fmean(values) for name, values in applied.items() if values},
        **{f"not_applicable/{name}": (total - len(v)) / total for name, v in applied.items() if len(v) < total},
        **_own(scores),
        **(_solved(scores, outcome) if outcome else {}),
        "length/mean": fmean(lengths),
        "length/max": max(lengths),
        "length/truncated": fmean(t.stop_reason is not StopReason.STOP for t in trajectories),
        "repetition": fmean(_repetition([i for turn in t.turns for i in turn.token_ids]) for t in trajectories),
        "tokens": sum(lengths),
        **signals(groups),
        **episode_metrics(groups),
    }


def _own(scores: Sequence[Mapping[str, Score]]) -> dict[str, float]:
    """Means of what rewards measure beside their scores, over the completions of which they do."""
    found: dict[str, list[float]] = {}
    for name, score in (pair for part in scores for pair in part.items()):
        for key, value in score.metrics.items():
            found.setdefault(f"reward/{name}/{key}", []).append(value)
    return {key: fmean(values) for key, values in found.items()}


def _by_seat(rows: Sequence[Row]) -> dict[str, float]:
    """The mean reward of each seat, if several are trained: in a zero-sum game their common mean is constant."""
    earned: dict[str, list[float]] = {row.seat: [] for row in rows}
    for row in rows:
        if not math.isnan(row.reward):
            earned[row.seat].append(row.reward)
    if len(earned) == 1:
        return {}
    return {f"seats/{seat}/reward": fmean(rewards) for seat, rewards in earned.items() if rewards}


def episode_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The number of policy turns, if any episode has several, and means of the environment's metrics where they are."""
    rows = [row for group in groups for row in group.rows]
    turns = [len(row.trajectory.turns) for row in rows]
    found = {"turns": fmean(turns)} if any(count > 1 for count in turns) else {}
    names = dict.fromkeys(name for row in rows for name in row.metrics)
    return found | {
        f"environment/{name}": fmean(row.metrics[name] for row in rows if name in row.metrics) for name in names
    }


def lost_metrics(lost: Mapping[str, int]) -> dict[str, float]:
    """How many episodes failed, in all and by the type of the error; nothing where none did."""
    by_cause = {f"episodes/lost/{cause}": count for cause, count in sorted(lost.items())}
    return {"episodes/lost": sum(lost.values()), **by_cause} if by_cause else {}


def signals(groups: Sequence[Group]) -> dict[str, float]:
    """Signs in text and reward.

    `distinct/2` is the fraction of distinct bigrams among all bigrams of a group's completions (Li et al. 2016,
    https://arxiv.org/abs/1510.03055): it falls when all answers become one. `formatting` is the share of completions
    with lists, headings, tables, code or bold words; `refusals` the share that begin like one.
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
    grams = [pair for row in group.rows for turn in row.trajectory.turns for pair in pairwise(turn.token_ids)]
    return len(set(grams)) / len(grams) if grams else 1.0


def _length_correlation(groups: Sequence[Group]) -> float | None:
    """Of rewards and lengths, centred by group and seat to remove differences of prompts; None if one does not vary."""
    rewards, lengths = list[float](), list[float]()
    for rows in [rows for group in groups for rows in group.by_seat.values()]:
        earned, tokens = [row.reward for row in rows], [len(row.trajectory.logprobs) for row in rows]
        rewards += [reward - fmean(earned) for reward in earned]
        lengths += [count - fmean(tokens) for count in tokens]
    spread = math.sqrt(sum(r * r for r in rewards) * sum(n * n for n in lengths))
    return sum(r * n for r, n in zip(rewards, lengths, strict=True)) / spread if spread > 1e-9 else None


def _solved(scores: Sequence[Mapping[str, Score]], outcome: str) -> dict[str, float]:
    judged = [part[outcome] for part in scores if part[outcome].applicable]
    if not judged:
        return {}
    return {
        "accuracy": fmean(score.total >= SOLVED for score in judged),
        "unparsed": fmean(score.unparsed for score in judged),
    }


def _repetition(token_ids: Sequence[int]) -> float:
    """The fraction of 4-grams that repeat an earlier one of the same completion; 0 if there are fewer than two."""
    grams = [tuple(token_ids[i : i + 4]) for i in range(len(token_ids) - 3)]
    return 1 - len(set(grams)) / len(grams) if len(grams) > 1 else 0.0
