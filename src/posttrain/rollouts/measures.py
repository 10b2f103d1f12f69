"""What a batch of rollouts looks like in numbers: for the metrics of a run."""

from collections.abc import Sequence
from statistics import fmean, pstdev

from posttrain.types import Group, StopReason

SOLVED = 1.0  # an outcome's score when the task is solved


def rollout_metrics(groups: Sequence[Group], outcome: str) -> dict[str, float]:
    """Rewards in all and by name, outcome, lengths and repetition of scored groups.

    `accuracy` is the share of completions whose `outcome` is 1, `unparsed` the share in which no answer was found,
    `length/truncated` that of completions cut off before a stop token. Lengths are in tokens.
    """
    rewards = [reward for group in groups for reward in group.rewards]
    scores = [part for group in groups for part in group.scores]
    trajectories = [t for group in groups for t in group.trajectories]
    lengths = [len(t.logprobs) for t in trajectories]
    return {
        "reward/mean": fmean(rewards),
        "reward/std": pstdev(rewards),
        **{f"reward/{name}": fmean(part[name].value for part in scores) for name in scores[0]},
        "accuracy": fmean(part[outcome].value >= SOLVED for part in scores),
        "unparsed": fmean(part[outcome].unparsed for part in scores),
        "length/mean": fmean(lengths),
        "length/max": max(lengths),
        "length/truncated": fmean(t.stop_reason is not StopReason.STOP for t in trajectories),
        "repetition": fmean(_repetition([i for turn in t.turns for i in turn.token_ids]) for t in trajectories),
        "tokens": sum(lengths),
    }


def _repetition(token_ids: Sequence[int], n: int = 4) -> float:
    """The share of n-grams that stood before in the same completion; 0 where there are fewer than two."""
    grams = [tuple(token_ids[i : i + n]) for i in range(len(token_ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if len(grams) > 1 else 0.0
