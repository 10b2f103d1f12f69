"""Accuracy on held-out tasks: sampled pass@1, pass@k and greedy, with confidence intervals; paired differences."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot, isnan
from statistics import fmean
from typing import Any, NamedTuple

from posttrain.episodes.metrics import SOLVED
from posttrain.errors import RewardError
from posttrain.evaluation.suite import Measure, Suite
from posttrain.statistics import (
    Interval,
    mean_interval,
    normal_interval,
    paired_difference_interval,
    pass_at_k,
    wilson_interval,
)
from posttrain.types import Group, StopReason


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
    unparsed: float  # share of samples in which no answer was found; NaN where another harness does not say it
    truncated: float  # share of samples that were cut off; likewise
    mean_tokens: float
    rates: tuple[float, ...]  # by task: the share of its samples that solve it
    groups: tuple[Group, ...]
    measure: str = "accuracy"
    measures: tuple[Measure, ...] = ()  # further ones, of a suite


def summarize(groups: Sequence[Group], outcome: str, *, greedy: bool, ks: Sequence[int] = ()) -> Accuracy:
    """pass@k of scored groups; without an outcome, their mean reward.

    Tasks with an answer to which the outcome does not apply are excluded. Groups may differ in size: k is each power of
    two up to the smallest, and those of `ks`, for which groups that are too small are left out.
    """
    if outcome:  # one row for each episode: that of its first trained seat
        answered = [g for g in groups if all(row.scores[outcome].applicable for row in g.rows)]
        kept = [replace(g, rows=tuple(r for r in g.rows if r.seat == g.rows[0].seat)) for g in answered]
    else:
        kept = [group for group in groups if not group.lost]
    if not kept:
        which = f"reward '{outcome}' applies to the answers of none" if outcome else ""
        which = which or "no reward applies to the answers of any"
        raise RewardError(f"{which} of the {len(groups)} tasks; name another one")
    rows = [row for group in kept for row in group.rows]
    size = min(len(group.rows) for group in kept)  # where episodes failed, fewer than were asked for
    if outcome:
        counts = [(len(g.rows), sum(row.scores[outcome].total >= SOLVED for row in g.rows)) for g in kept]
        rates = [solved / n for n, solved in counts]
        single = all(n == 1 for n, _ in counts)
        ci95 = wilson_interval(int(sum(rates)), len(kept)) if single else mean_interval(rates)
        powers = {2**i for i in range(size.bit_length())} | {k for k in ks if any(n >= k for n, _ in counts)}
        pass_at = {k: fmean(pass_at_k(n, c, k) for n, c in counts if n >= k) for k in sorted(powers)}
        unparsed = [row.scores[outcome].unparsed for row in rows]
    else:
        rates = [fmean(group.rewards) for group in kept]
        ci95, pass_at = normal_interval(rates), dict[int, float]()
        unparsed = [any(score.unparsed for score in row.scores.values()) for row in rows]
    return Accuracy(
        accuracy=fmean(rates),
        ci95=ci95,
        n=len(kept),
        samples_per_task=size,
        greedy=greedy,
        pass_at=pass_at,
        unparsed=fmean(unparsed),
        truncated=fmean(row.trajectory.stop_reason is not StopReason.STOP for row in rows),
        mean_tokens=fmean(len(row.trajectory.logprobs) for row in rows),
        rates=tuple(rates),
        groups=tuple(kept),
        measure="accuracy" if outcome else "reward",
    )


def best_constant(answers: Sequence[object]) -> tuple[str, float] | None:
    """The most common of the tasks' answers, and the share of tasks whose answer it is: what one fixed answer gets.

    Answers are compared as texts, so that it is a lower bound where a verifier also accepts other notations. None where
    an answer is not known, or no two tasks have the same.

    Example:
        >>> best_constant(["yes", "no", "yes", " yes"])
        ('yes', 0.75)
    """
    counts = Counter("" if answer is None else " ".join(str(answer).split()) for answer in answers)
    (answer, count), *_ = counts.most_common(1) or [("", 0)]
    return (answer, count / len(answers)) if count > 1 and "" not in counts else None


class Difference(NamedTuple):
    """pass@k of one policy minus that of another on the same tasks, with its 95% interval."""

    value: float
    ci95: Interval
    n: int  # tasks compared


def pass_at_interval(found: Accuracy, k: int) -> Interval:
    """The 95% interval of `found.pass_at[k]`, over tasks; of pass@1 it is `found.ci95`."""
    return found.ci95 if k == 1 else mean_interval([rate for rate in _pass_at_rates(found, k) if rate is not None])


def difference(before: Accuracy, after: Accuracy, k: int = 1) -> Difference:
    """pass@k of `after` minus pass@k of `before`, paired by task, or the difference of rewards.

    k is at most the number of samples per task. A task that counts for one of them alone is left out: a reward may not
    apply to an answer of the other. Of results without rates by task the two intervals are combined.
    """
    if any(len(found.rates) == 1 < found.n for found in (before, after)):  # another harness's, without rates by task
        gain = after.accuracy - before.accuracy
        low, high = (hypot(after.accuracy - after.ci95[i], before.accuracy - before.ci95[1 - i]) for i in (0, 1))
        return Difference(gain, (gain - low, gain + high), min(before.n, after.n))
    was, now = _by_task(before, k), _by_task(after, k)
    rates = [(rate, now[task]) for task, rate in was.items() if task in now]
    if not rates or (before.greedy, before.measure) != (after.greedy, after.measure):
        raise ValueError("a paired difference needs the same tasks, answered in the same way")
    rates_before, rates_after = zip(*rates, strict=True)
    if after.measure != "accuracy":
        gains = [b - a for a, b in rates]
        return Difference(fmean(gains), normal_interval(gains), len(rates))
    interval = paired_difference_interval(rates_before, rates_after)
    return Difference(fmean(rates_after) - fmean(rates_before), interval, len(rates))


def _by_task(found: Accuracy, k: int) -> dict[tuple[str, int], float]:
    """pass@k of each task, or its reward, by its id and how many tasks before it have the same."""
    rates = _pass_at_rates(found, k) if found.measure == "accuracy" else found.rates
    seen: Counter[str] = Counter()
    by_task: dict[tuple[str, int], float] = {}
    for group, rate in zip(found.groups, rates, strict=True):
        if rate is not None:
            by_task[group.task.id, seen[group.task.id]] = rate
        seen[group.task.id] += 1
    return by_task


def _pass_at_rates(found: Accuracy, k: int) -> list[float | None]:
    """By task; None for one that has fewer samples, since episodes failed."""
    sizes = [max(found.samples_per_task, len(group.rows)) for group in found.groups]
    rates = zip(sizes, found.rates, strict=True)
    return [r if k == 1 else pass_at_k(n, round(r * n), k) if n >= k else None for n, r in rates]


@dataclass(frozen=True)
class Examination:
    """Results of one model: sampled, greedy, or both. The headline is the sampled accuracy, if there is one."""

    model: str
    sampled: Accuracy | None = None
    greedy: Accuracy | None = None

    def __post_init__(self) -> None:
        if not self.answers:
            raise ValueError("an examination needs sampled answers, greedy ones, or both; got neither")

    @property
    def answers(self) -> dict[str, Accuracy]:
        """The available results, by `sampled` and `greedy`, the headline first."""
        found = {"sampled": self.sampled, "greedy": self.greedy}
        return {decoding: accuracy for decoding, accuracy in found.items() if accuracy is not None}

    @property
    def headline(self) -> Accuracy:
        """The headline accuracy."""
        return next(iter(self.answers.values()))

    def judged_by(self, outcome: str, *, ks: Sequence[int] = (), suite: Suite | None = None) -> "Examination":
        """The same answers, scored by another outcome, or else by their rewards, and measured by a suite."""

        def judged(found: Accuracy) -> Accuracy:
            again = summarize(found.groups, outcome, greedy=found.greedy, ks=ks)
            return replace(again, measures=tuple(suite.measures(again.groups, outcome))) if suite else again

        return Examination(self.model, **{name: judged(found) for name, found in self.answers.items()})

    def over(self, before: "Examination") -> dict[str, Difference]:
        """Paired differences to an earlier model on the same tasks, by `sampled` and `greedy`."""
        return {decoding: difference(before.answers[decoding], found) for decoding, found in self.answers.items()}

    def summary(self) -> dict[str, Any]:
        """Results as JSON values, by `sampled` and `greedy`."""
        return {"model": self.model} | {decoding: numbers(found) for decoding, found in self.answers.items()}

    def metrics(self) -> dict[str, float]:
        """Results by names such as `sampled/pass_at_8`, for `metrics.jsonl`."""
        metrics: dict[str, float] = {}
        for decoding, found in self.answers.items():
            passes = {f"pass_at_{k}": share for k, share in found.pass_at.items()}
            shares = _known(unparsed=found.unparsed, truncated=found.truncated, tokens=found.mean_tokens)
            named = {found.measure: found.accuracy, **{one.name: one.value for one in found.measures}}
            named |= {**passes, **shares}
            metrics |= {f"{decoding}/{name}": value for name, value in named.items()}
        return metrics


def numbers(found: Accuracy) -> dict[str, Any]:
    """An accuracy, or a mean reward, as plain numbers; shares are 0 to 1, and the keys of `pass_at` are k as text."""
    ks = sorted(found.pass_at)
    measures = {one.name: {"value": one.value, "ci95": list(one.ci95)} for one in found.measures}
    return {
        found.measure: found.accuracy,
        "ci95": list(found.ci95),
        "n": found.n,
        "samples_per_task": found.samples_per_task,
        "pass_at": {str(k): found.pass_at[k] for k in ks},
        "pass_at_ci95": {str(k): list(pass_at_interval(found, k)) for k in ks},
        **_known(unparsed=found.unparsed, truncated=found.truncated, mean_tokens=found.mean_tokens),
        **({"measures": measures} if measures else {}),
    }


def _known(**shares: float) -> dict[str, float]:
    """Those that are numbers: another harness does not say them."""
    return {name: share for name, share in shares.items() if not isnan(share)}


def percent(share: float, interval: tuple[float, float] | None = None) -> str:
    """A fraction in per cent, with its interval: 47.6% (43.0 to 50.0)."""
    shown = f"{100 * share:.1f}%"
    return shown if interval is None else f"{shown} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
