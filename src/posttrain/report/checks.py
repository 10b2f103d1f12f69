"""Verdicts: findings from a run's metrics. A run can run smoothly and learn nothing, or earn more reward and get worse.

Each check covers one known failure mode; checks.toml has what is said where its condition holds. To add one, add a
table there and a condition of the same name here, with its bounds, and the reasons for them, in `Thresholds`. The start
and the end of a metric that was not measured are NaN, for which no comparison holds, so that it is not judged.
"""

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType

from posttrain.report.curves import Curves, Rows, Thresholds
from posttrain.statistics import wilson_interval

Condition = Callable[[Curves, Thresholds], str | bool]
"""Whether a check holds, or what it found as text, which is empty where it does not hold."""


class Severity(StrEnum):
    """Severity of a finding, the worst first."""

    PROBLEM = "problem"  # the run is broken or wasted; stop and change something
    WARNING = "warning"  # check it before trusting the result
    NOTE = "note"  # worth knowing; the result can be trusted
    GOOD = "good"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of a run's metrics."""

    severity: Severity
    title: str  # the problem, in plain words
    evidence: str  # the numbers that show it
    advice: str = ""  # what to try; empty if nothing needs to be done


def judge(name: str, run: Curves, limits: Thresholds) -> Finding | None:
    """The finding of a check, if its condition holds."""
    if not (found := CHECKS[name](run, limits)):
        return None
    words = texts()[name]
    evidence = words.evidence.format_map({**run, "found": "" if found is True else found})
    return Finding(words.severity, words.title, evidence, words.advice)


@cache
def texts() -> dict[str, Finding]:
    """What checks.toml says, by check; `evidence` has names of metrics in braces."""
    read = tomllib.loads(Path(__file__).with_name("checks.toml").read_text(encoding="utf-8"))
    return {name: Finding(Severity(words.pop("severity")), **words) for name, words in read.items()}


def _not_finite(run: Curves, at: Thresholds) -> str:
    """The first step with metrics that are not finite, which `metrics.jsonl` stores as null."""
    for row in run.rows:
        bad = [name for name, x in row.items() if x is None or (isinstance(x, float) and not math.isfinite(x))]
        if bad:
            return f"at step {row.get('step', '?')}: {', '.join(bad)}"
    return ""


def _difficulty(run: Curves) -> str | bool:
    accuracy = run["accuracy"].end
    found = f"; accuracy is {accuracy:.3g}: the problems are too {'hard' if accuracy < 0.5 else 'easy'}"
    return math.isnan(accuracy) or found


def _little_signal(run: Curves, at: Thresholds) -> bool:
    return not run.solved and at.zero_advantage <= run["groups/zero_advantage"].end < at.zero_advantage_dead


def _low_entropy(run: Curves, at: Thresholds) -> bool:
    return not run.solved and run["entropy"].end < min(at.entropy, at.entropy_fall * run["entropy"].start)


def _length_bias(run: Curves, at: Thresholds) -> str | bool:
    length, outcome = run["length/mean"], run["accuracy"] if run["accuracy"].measured else run["reward/mean"]
    useless = outcome.measured and not outcome.rose
    return useless and length.end >= at.length_growth * length.start and outcome.change


def _kl_spike(run: Curves, at: Thresholds) -> str | bool:
    kl = run["kl"]
    if not kl.measured or kl.end >= at.kl:
        return False
    median, highest = sorted(kl.values)[len(kl.values) // 2], max(kl.values)
    spike = highest >= max(at.kl, at.kl_jump * median)
    return spike and f"{highest:.3g} nats per token at its highest, {median:.3g} at the median"


def _logprob_gap(run: Curves, at: Thresholds) -> str:
    """Sampler and trainer disagree about sampled tokens; only steps whose weights sampled all of them are compared."""
    fresh = Curves([row for row in run.rows if not row.get("staleness/max")], at)
    bounds = {"logprob_gap/mean": at.logprob_gap_mean, "logprob_gap/max": at.logprob_gap_max}
    worst = {name: max(fresh[name].values, default=0.0) for name in bounds}
    return "; ".join(
        f"{name} reached {worst[name]:.3g} nats, the bound is {limit:.3g}"
        for name, limit in bounds.items()
        if worst[name] > limit
    )


def _not_applicable(run: Curves, at: Thresholds) -> str | bool:
    """A reward that does not apply to most completions, such as a judge whose verdicts have no score."""
    prefix, steps = "not_applicable/", len(run.rows)
    shares = {name.removeprefix(prefix): sum(run[name].values) / steps for name in run if name.startswith(prefix)}
    name = max(shares, key=lambda name: shares[name], default="")
    most = at.silent if steps >= at.min_steps else 1.0
    return shares.get(name, 0.0) >= most and f"'{name}' does not apply to {shares[name]:.0%}"


def _reward_hacking(run: Curves, at: Thresholds) -> str | bool:
    """Reward rises without accuracy: held-out accuracy, or that of training if it was not evaluated twice."""
    accuracy, held_out = run["accuracy"], run["evaluation/accuracy"].values
    if not run["reward/mean"].rose:
        return False
    if len(held_out) >= 2:
        stuck = held_out[-1] - held_out[0] < at.held_out_gain
        return stuck and f"held-out accuracy went from {held_out[0]:.3g} to {held_out[-1]:.3g}"
    return accuracy.measured and not accuracy.rose and not run.solved and accuracy.change


def _overoptimisation(run: Curves, at: Thresholds) -> str | bool:
    """Gold declines while the training reward still rises."""
    gold, proxy = run["evaluation/gold"].values, run["evaluation/reward"].values
    if len(gold) < 3 or len(gold) != len(proxy):
        return False
    best = max(range(len(gold)), key=lambda i: gold[i])
    noise = at.standard_errors * max(run["evaluation/gold_se"].values, default=0.0)
    if proxy[-1] <= proxy[best] or gold[best] - gold[-1] <= max(at.gold_lost * (gold[best] - gold[0]), noise):
        return False
    return (
        f"the gold reward was {gold[best]:.3g} at its best, evaluation {best} of {len(gold) - 1}, and is "
        f"{gold[-1]:.3g} now; the training reward went from {proxy[best]:.3g} to {proxy[-1]:.3g} since"
    )


def _heldout_loss(holds: Callable[[list[float], Thresholds], bool]) -> Condition:
    """A condition on the values of the held-out loss, of which there are two at least."""

    def condition(run: Curves, at: Thresholds) -> str | bool:
        losses = [*run["evaluation/loss"].values]
        found = len(losses) >= 2 and holds(losses, at)
        return found and f"the first was {losses[0]:.3g}, the lowest {min(losses):.3g}, the last {losses[-1]:.3g}"

    return condition


def _displaced(run: Curves, at: Thresholds) -> str | bool:
    chosen, margins = run["evaluation/logprob/chosen"].values, run["evaluation/margin"].values
    fell = len(chosen) > 1 and chosen[0] - chosen[-1] > at.displaced * abs(chosen[0])
    if not fell or len(margins) < 2 or margins[-1] <= margins[0]:
        return False
    return f"held-out chosen responses went from {chosen[0]:.4g} to {chosen[-1]:.4g} nats while the margin grew"


def _few_pairs(run: Curves, at: Thresholds) -> str | bool:
    pairs, accuracy = run["evaluation/pairs"].values, run["evaluation/accuracy"].values
    if not pairs or not accuracy or pairs[-1] >= at.few_pairs:
        return False
    low, high = wilson_interval(round(accuracy[-1] * pairs[-1]), round(pairs[-1]))
    return f"{accuracy[-1]:.0%} of {pairs[-1]:.0f} (95%: {low:.0%} to {high:.0%})"


def _trained_loss(run: Curves) -> bool:
    """Whether the loss of training is what says most: there is neither a reward nor a held-out loss."""
    return run["loss"].measured and not run["reward/mean"].measured and len(run["evaluation/loss"].values) < 2


CHECKS: Mapping[str, Condition] = MappingProxyType(
    {
        "not_finite": _not_finite,
        "solved": lambda run, at: run.solved and run["groups/zero_advantage"].end >= at.zero_advantage,
        "no_signal": lambda run, at: (
            not run.solved and run["groups/zero_advantage"].end >= at.zero_advantage_dead and _difficulty(run)
        ),
        "little_signal": lambda run, at: not run["reward/mean"].rose and _little_signal(run, at) and _difficulty(run),
        "signal_used_up": lambda run, at: run["reward/mean"].rose and _little_signal(run, at),
        "entropy_collapse": lambda run, at: not run["reward/mean"].rose and _low_entropy(run, at),
        "low_entropy": lambda run, at: run["reward/mean"].rose and _low_entropy(run, at),
        "repetition": lambda run, at: (
            run["repetition"].end >= max(at.repetition, run["repetition"].start + at.repetition_rise)
        ),
        "length_explosion": lambda run, at: (
            run["length/truncated"].rose and run["length/truncated"].end >= at.truncated
        ),
        "truncated": lambda run, at: not run["length/truncated"].rose and run["length/truncated"].end >= at.truncated,
        "length_bias": _length_bias,
        "far_from_reference": lambda run, at: run["kl"].end >= at.kl,
        "kl_spike": _kl_spike,
        "logprob_gap": _logprob_gap,
        "clipped": lambda run, at: run["clip_fraction"].end >= at.clip_fraction,
        "unparsed": lambda run, at: run["unparsed"].end >= at.unparsed,
        "not_applicable": _not_applicable,
        "reward_hacking": _reward_hacking,
        "overoptimisation": _overoptimisation,
        "reward_rises": lambda run, at: run["reward/mean"].rose,
        "reward_falls": lambda run, at: run["reward/mean"].fell and not run.solved,
        "reward_flat": lambda run, at: (
            run["reward/mean"].measured and not (run["reward/mean"].rose or run["reward/mean"].fell) and not run.solved
        ),
        "heldout_loss_falls": _heldout_loss(lambda losses, at: losses[-1] < losses[0]),
        "heldout_loss_flat": _heldout_loss(lambda losses, at: min(losses) == losses[0]),
        "overfitting": _heldout_loss(lambda losses, at: losses[-1] > (1 + at.overfit) * min(losses)),
        "displaced": _displaced,
        "few_pairs": _few_pairs,
        "loss_falls": lambda run, at: _trained_loss(run) and run["loss"].fell,
        # Each step's loss is of other examples: of ordered data it cannot be told from a loss that grows.
        "loss_dips": lambda run, at: (
            _trained_loss(run) and run["loss"].dipped and not run["loss"].fell and not run["loss"].rose
        ),
        "loss_flat": lambda run, at: (
            _trained_loss(run) and not run["loss"].fell and (run["loss"].rose or not run["loss"].dipped)
        ),
    }
)
"""By the name of its texts in checks.toml, in the order in which findings of equal severity are shown."""


def verdict(rows: Rows, thresholds: Thresholds | None = None) -> list[Finding]:
    """The findings of a run, the worst first; never empty.

    `rows` are one mapping of metrics a step, in order, as in `metrics.jsonl`. Metrics that are absent are not judged.

    Example:
        >>> rows = [{"step": n, "groups/zero_advantage": 0.95, "accuracy": 0.0} for n in range(1, 21)]
        >>> print(verdict(rows)[0].title)
        Almost no group has a training signal
    """
    run = Curves(rows, limits := thresholds or Thresholds())
    steps = sum(row.get("step") != 0 for row in rows)  # the row of step 0 is of the policy before training
    said = f"{steps} step{'s' * (steps != 1)}"
    found = [finding for name in CHECKS if (finding := judge(name, run, limits)) is not None]
    if steps < limits.min_steps:
        found.append(Finding(Severity.NOTE, "Too short to judge", f"{said}; at least {limits.min_steps} are needed"))
    elif all(finding.severity in (Severity.NOTE, Severity.GOOD) for finding in found):
        found.append(Finding(Severity.GOOD, "No problems found", f"{said}; every check passed"))
    return worst_first(found)


def worst_first(found: Iterable[Finding]) -> list[Finding]:
    """Findings in the order of their severity."""
    return sorted(found, key=lambda finding: [*Severity].index(finding.severity))
