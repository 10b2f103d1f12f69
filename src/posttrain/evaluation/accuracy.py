"""Accuracy on held-out tasks: sampled pass@1, pass@k and greedy, with confidence intervals."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from posttrain.environments.scored import ScoredEnvironment, need_group
from posttrain.episodes.episodes import Players, sample_groups
from posttrain.episodes.metrics import SOLVED
from posttrain.errors import RewardError, UserError
from posttrain.statistics import mean_interval, normal_interval, pass_at_k, wilson_interval
from posttrain.types import Group, StopReason, Task, Trajectory


@dataclass(frozen=True)
class Accuracy:
    """Result of an evaluation. `accuracy` is pass@1: the mean over tasks of the fraction of samples that solve them.

    If no reward indicates correctness, `measure` is "reward": `accuracy` is then the mean reward, without pass@k.
    """

    accuracy: float
    ci95: tuple[float, float]
    n: int  # tasks
    samples_per_task: int  # of the task that has fewest
    greedy: bool
    pass_at: dict[int, float]  # k -> chance that one of k samples solves a task
    unparsed: float  # share of samples in which no answer was found
    truncated: float  # share of samples that were cut off
    mean_tokens: float
    rates: tuple[float, ...]  # by task: the share of its samples that solve it
    groups: tuple[Group, ...]
    measure: str = "accuracy"


def evaluate(
    environment: ScoredEnvironment,
    tasks: Sequence[Task],
    players: Players,
    *,
    samples_per_task: int = 1,
    seed: int = 0,
) -> Accuracy:
    """Answer every task `samples_per_task` times and count solved ones, by the environment's outcome only.

    Temperature 0 is greedy and needs one sample. The task is the unit of the interval: samples of one task are not
    independent of each other.

    Raises:
        UserError: there are no tasks, or a reward compares more samples of a task.
    """
    if not tasks:
        raise UserError("there are no tasks to evaluate; give a data set that has some outside the training data")
    temperature = players.sampling.temperature
    if temperature == 0 and samples_per_task != 1:
        raise ValueError(f"greedy answers do not vary: use 1 sample per task; got {samples_per_task}")
    need_group(environment, samples_per_task, "the number of samples" if temperature else "greedy decoding")
    groups = sample_groups(
        environment,
        tasks,
        players,
        completions_per_prompt=samples_per_task,
        seed=seed,
    )
    return summarize(groups, environment.outcome_of(groups), greedy=temperature == 0)


def summarize(groups: Sequence[Group], outcome: str, *, greedy: bool) -> Accuracy:
    """pass@k of scored groups; without an outcome, their mean reward.

    Tasks with an answer to which the outcome does not apply are excluded. Groups may differ in size: k goes up to
    the smallest.

    Raises:
        RewardError: that is all of them.
    """
    if not outcome:
        return _rewarded(groups, greedy=greedy)
    every = len(groups)
    groups = [_one_seat(g) for g in groups if all(row.scores[outcome].applicable for row in g.rows)]
    if not groups:
        raise RewardError(f"reward '{outcome}' applies to the answers of none of the {every} tasks; name another one")
    judged = [[row.scores[outcome] for row in group.rows] for group in groups]
    counts = [(len(scores), sum(score.total >= SOLVED for score in scores)) for scores in judged]
    rates = [solved / size for size, solved in counts]
    single = all(size == 1 for size, _ in counts)
    size = min(size for size, _ in counts)  # where episodes failed, fewer than were asked for
    trajectories = [row.trajectory for group in groups for row in group.rows]
    return Accuracy(
        accuracy=fmean(rates),
        ci95=wilson_interval(int(sum(rates)), len(groups)) if single else mean_interval(rates),
        n=len(groups),
        samples_per_task=size,
        greedy=greedy,
        pass_at={k: fmean(pass_at_k(*count, k) for count in counts) for k in _powers_of_two(size)},
        unparsed=fmean(score.unparsed for scores in judged for score in scores),
        truncated=fmean(_cut_off(t) for t in trajectories),
        mean_tokens=fmean(map(_tokens, trajectories)),
        rates=tuple(rates),
        groups=tuple(groups),
    )


def _rewarded(groups: Sequence[Group], *, greedy: bool) -> Accuracy:
    """The mean over tasks of their mean reward, excluding tasks with an answer to which no reward applies."""
    kept = [group for group in groups if not group.lost]
    if not kept:
        raise RewardError(f"no reward applies to the answers of any of the {len(groups)} tasks; name another one")
    rewards = [fmean(group.rewards) for group in kept]
    rows = [row for group in kept for row in group.rows]
    return Accuracy(
        accuracy=fmean(rewards),
        ci95=normal_interval(rewards),
        n=len(kept),
        samples_per_task=min(len(group.rows) for group in kept),
        greedy=greedy,
        pass_at={},
        unparsed=fmean(any(score.unparsed for score in row.scores.values()) for row in rows),
        truncated=fmean(_cut_off(row.trajectory) for row in rows),
        mean_tokens=fmean(_tokens(row.trajectory) for row in rows),
        rates=tuple(rewards),
        groups=tuple(kept),
        measure="reward",
    )


def _one_seat(group: Group) -> Group:
    """A group with one row for each episode: that of its first trained seat."""
    return replace(group, rows=tuple(row for row in group.rows if row.seat == group.rows[0].seat))


def _cut_off(trajectory: Trajectory) -> bool:
    return trajectory.stop_reason is not StopReason.STOP


def _tokens(trajectory: Trajectory) -> int:
    return len(trajectory.logprobs)


def _powers_of_two(most: int) -> list[int]:
    return [2**i for i in range(most.bit_length()) if 2**i <= most]
