"""Rollout metrics."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

from posttrain.episodes.hacking_signals import signals
from posttrain.types import Group, Row, Score, StopReason

SOLVED = 1.0  # an outcome's score when the task is solved


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
    lengths = [len(t.logprobs) for t in trajectories]
    return {
        **({"reward/mean": fmean(rewards), "reward/std": pstdev(rewards)} if rewards else {}),
        **_by_seat(rows),
        **({"lost": 1 - len(rewards) / len(scores)} if len(rewards) < len(scores) else {}),
        **{f"reward/{name}": fmean(values) for name in scores[0] if (values := _values(scores, name))},
        **_not_applicable(scores),
        **(_solved(scores, outcome) if outcome else {}),
        "length/mean": fmean(lengths),
        "length/max": max(lengths),
        "length/truncated": fmean(t.stop_reason is not StopReason.STOP for t in trajectories),
        "repetition": fmean(_repetition([i for turn in t.turns for i in turn.token_ids]) for t in trajectories),
        "tokens": sum(lengths),
        **signals(groups),
        **episode_metrics(groups),
    }


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
    """Metrics of multi-turn episodes: the number of policy turns, and means of the environment's metrics.

    A measure is averaged over the episodes that have it. Nothing, where all episodes have one turn and no measures.
    """
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


def _solved(scores: Sequence[Mapping[str, Score]], outcome: str) -> dict[str, float]:
    judged = [part[outcome] for part in scores if part[outcome].applicable]
    if not judged:
        return {}
    return {
        "accuracy": fmean(score.total >= SOLVED for score in judged),
        "unparsed": fmean(score.unparsed for score in judged),
    }


def _values(scores: Sequence[Mapping[str, Score]], name: str) -> list[float]:
    return [part[name].total for part in scores if part[name].applicable]


def _not_applicable(scores: Sequence[Mapping[str, Score]]) -> dict[str, float]:
    shares = {name: fmean(not part[name].applicable for part in scores) for name in scores[0]}
    return {f"not_applicable/{name}": share for name, share in shares.items() if share}


def _repetition(token_ids: Sequence[int], n: int = 4) -> float:
    """The fraction of n-grams that repeat an earlier one of the same completion; 0 if there are fewer than two."""
    grams = [tuple(token_ids[i : i + n]) for i in range(len(token_ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if len(grams) > 1 else 0.0
