"""Sampled and greedy accuracy of one model, and paired differences of two."""

from dataclasses import dataclass
from typing import Any

from posttrain.evaluation.accuracy import Accuracy, summarize
from posttrain.evaluation.intervals import Difference, difference, pass_at_interval


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

    def judged_by(self, outcome: str) -> "Examination":
        """The same answers, scored by another outcome, or by their rewards if there is none."""
        return Examination(
            self.model, **{name: summarize(a.groups, outcome, greedy=a.greedy) for name, a in self.answers.items()}
        )

    def over(self, before: "Examination") -> dict[str, Difference]:
        """Paired differences to an earlier model on the same tasks, by `sampled` and `greedy`.

        Raises:
            ValueError: `before` had other tasks, or was not asked in the same ways.
        """
        return {decoding: difference(before.answers[decoding], found) for decoding, found in self.answers.items()}

    def summary(self) -> dict[str, Any]:
        """Results as JSON values, by `sampled` and `greedy`."""
        return {"model": self.model} | {decoding: numbers(found) for decoding, found in self.answers.items()}

    def metrics(self) -> dict[str, float]:
        """Results by names such as `sampled/pass_at_8`, for `metrics.jsonl`."""
        return {
            f"{decoding}/{name}": value
            for decoding, found in self.answers.items()
            for name, value in {
                found.measure: found.accuracy,
                **{f"pass_at_{k}": share for k, share in found.pass_at.items()},
                "unparsed": found.unparsed,
                "truncated": found.truncated,
                "tokens": found.mean_tokens,
            }.items()
        }


def numbers(found: Accuracy) -> dict[str, Any]:
    """An accuracy, or a mean reward, as plain numbers; shares are 0 to 1, and the keys of `pass_at` are k as text."""
    ks = sorted(found.pass_at)
    return {
        found.measure: found.accuracy,
        "ci95": list(found.ci95),
        "n": found.n,
        "samples_per_task": found.samples_per_task,
        "pass_at": {str(k): found.pass_at[k] for k in ks},
        "pass_at_ci95": {str(k): list(pass_at_interval(found, k)) for k in ks},
        "unparsed": found.unparsed,
        "truncated": found.truncated,
        "mean_tokens": found.mean_tokens,
    }


def percent(share: float, interval: tuple[float, float] | None = None) -> str:
    """A fraction in per cent, with its interval.

    Example:
        >>> percent(0.4756, (0.43, 0.5)), percent(0.0125)
        ('47.6% (43.0 to 50.0)', '1.2%')
    """
    shown = f"{100 * share:.1f}%"
    return shown if interval is None else f"{shown} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
