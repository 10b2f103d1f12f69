"""Results of evaluating one or two reward models on held-out pairs."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from posttrain.errors import as_typed
from posttrain.evaluation.accuracy import percent
from posttrain.evaluation.pairs import (
    PairAccuracy,
    ScoredPair,
    accuracy,
    by_category,
    by_length,
    by_prompt,
    calibration,
    calibration_error,
    crossfitted_error,
    disagreement_tells,
    fit_temperature,
    length_correlation,
    log_loss,
)
from posttrain.evaluation.ties import Ties, ties_of
from posttrain.statistics import Interval, paired_difference_interval


@dataclass(frozen=True)
class ModelResult:
    """What one model made of the pairs."""

    model: str
    pairs: tuple[ScoredPair, ...]
    equal: tuple[ScoredPair, ...] = ()  # those that people found equally good

    @property
    def ties(self) -> Ties | None:
        """What it makes of ties, where there are any."""
        return ties_of(self.pairs, self.equal) if self.equal else None

    def summary(self) -> dict[str, Any]:
        """The numbers for a machine to read."""
        tells, length = disagreement_tells(self.pairs), length_correlation(self.pairs)
        return {
            "model": self.model,
            **_numbers(accuracy(self.pairs)),
            "categories": {name: _numbers(found) for name, found in by_category(self.pairs).items()},
            "prompts": len(by_prompt(self.pairs)),
            "ties": sum(pair.margin == 0 for pair in self.pairs),
            "log_loss": log_loss(self.pairs),
            "calibration_error": calibration_error(self.pairs),
            "calibration": [bin._asdict() for bin in calibration(self.pairs)],
            "temperature": fit_temperature(self.pairs),
            "calibration_error_at_temperature": crossfitted_error(self.pairs),
            "length_correlation": length,
            "by_length": {name: _numbers(found) for name, found in by_length(self.pairs).items()},
            "members": len(self.pairs[0].chosen),
            "disagreement_tells": tells,
            "ties_said": None if self.ties is None else self.ties._asdict(),
        }

    def lines(self) -> list[str]:
        """The same in words."""
        found = self.summary()
        lines = [f"as people judge: {_share(accuracy(self.pairs))}; {len(self.pairs)} pairs, {found['ties']} ties"]
        lines += [f"    {name or 'without a category'}: {_share(one)}" for name, one in by_category(self.pairs).items()]
        lines.append(
            f"calibration error {found['calibration_error']:.3f}; {found['calibration_error_at_temperature']:.3f} with "
            f"its scores divided by {found['temperature']:.2f}"
        )
        sides = [f"{_share(one)} where the chosen one is {name}" for name, one in by_length(self.pairs).items()]
        if found["length_correlation"] is not None:
            lines.append(f"correlation with length {found['length_correlation']:+.2f}; {', '.join(sides)}")
        if found["members"] > 1:
            told = "-" if found["disagreement_tells"] is None else f"{found['disagreement_tells']:.2f}"
            lines.append(f"{found['members']} members; their disagreement predicts errors with an AUC of {told}")
        if (ties := self.ties) is not None:
            lines.append(
                f"{ties.ties} ties: distinguished from other pairs with an AUC of {ties.told:.2f}; right in "
                f"{percent(ties.accuracy, ties.ci95)} of all with ties, {100 * ties.never:.1f} % without"
            )
        return [f"  {line}" for line in lines]


@dataclass(frozen=True)
class EvaluateRewardResult:
    """What was found, and where all of it is."""

    run: Path
    report: Path
    seconds: float
    dataset: str
    model: ModelResult
    baseline: ModelResult | None
    notes: tuple[str, ...]

    @property
    def difference(self) -> tuple[float, Interval] | None:
        """How much more often the model is right than the baseline on the same pairs, with its interval."""
        if self.baseline is None:
            return None
        before, after = (list(by_prompt(one.pairs).values()) for one in (self.baseline, self.model))
        return fmean(after) - fmean(before), paired_difference_interval(before, after)

    def summary(self) -> dict[str, Any]:
        """The numbers for a machine to read."""
        found = self.model.summary()
        if self.baseline is not None and self.difference is not None:
            found["baseline"] = self.baseline.summary()
            found["difference"] = {"value": self.difference[0], "ci95": list(self.difference[1])}
        about = {"dataset": self.dataset, "notes": [as_typed(note) for note in self.notes]}
        return found | about | {"seconds": self.seconds, "run": str(self.run), "report": str(self.report)}

    def lines(self) -> list[str]:
        """The same in words."""
        found = [f"{self.model.model} on {self.dataset}", *self.model.lines()]
        if self.baseline is not None and self.difference is not None:
            value, (low, high) = self.difference
            found += [f"{self.baseline.model} on the same pairs", *self.baseline.lines()]
            found.append(f"  difference {100 * value:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})")
        return [*found, *(f"note: {as_typed(note)}" for note in self.notes), f"report: {self.report}"]


def _numbers(found: PairAccuracy) -> dict[str, Any]:
    return {"accuracy": found.value, "ci95": list(found.ci95), "n": found.pairs}


def _share(found: PairAccuracy) -> str:
    return percent(found.value, found.ci95)
