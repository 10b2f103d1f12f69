"""Aggregate annotations into one ranking per item; report inter-annotator agreement.

    posttrain annotate consensus judgements.jsonl
    posttrain annotate consensus judgements.jsonl --method plackett-luce --json

One judgement a line: `{"item": "q1", "annotator": "ann", "ranking": [[1], [0], [2]], "failed": []}`, completions by
their number, groups of equally good ones, best first.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from posttrain.annotation import agreement
from posttrain.annotation.aggregation import method
from posttrain.annotation.agreement import Annotator
from posttrain.annotation.consensus import Agreed, agree
from posttrain.annotation.rankings import load_rankings
from posttrain.errors import UserError
from posttrain.recipes.annotate.forms import Consensus

SHOWN = 20  # items in the table for people


@dataclass(frozen=True)
class ConsensusResult:
    """What was found."""

    method: str
    items: list[Agreed]
    annotators: list[Annotator]
    alpha: float | None
    kendall_w: float | None

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        return {
            "method": self.method,
            "items": [_item(one) for one in self.items],
            "annotators": [asdict(one) | {"evidence": one.evidence} for one in self.annotators],
            "alpha": self.alpha,
            "kendall_w": self.kendall_w,
        }

    def lines(self) -> Iterator[str]:
        """The same for people."""
        for one in self.items[:SHOWN]:
            order = " > ".join(" = ".join(map(str, group)) for group in one.order)
            failed = f"; failed: {', '.join(map(str, one.failed))}" if one.failed else ""
            yield f"{one.item}: {order}{failed}"
        if len(self.items) > SHOWN:
            yield f"and {len(self.items) - SHOWN:,} more; --json has all"
        yield ""
        yield f"Krippendorff's alpha {_shown(self.alpha)}, Kendall's W {_shown(self.kendall_w)}"
        for one in self.annotators:
            agrees = f"agrees with the consensus in {_shown(one.agreement)} of {one.comparisons:,} comparisons"
            yield f"{one.annotator}: {'NOISY: ' if one.noisy else ''}{agrees}, {one.evidence}"


def run(config: Consensus) -> ConsensusResult:
    """Read the judgements and find what they say together."""
    if not config.file:
        raise UserError("a file of annotations is required: posttrain annotate consensus FILE.jsonl")
    beliefs = method(config.method)
    rankings = load_rankings(config.file)
    agreed = agree(rankings, beliefs(rankings))
    return ConsensusResult(
        config.method,
        agreed,
        agreement.annotators([agreement.shares(rankings, agreed, beliefs)]),
        agreement.alpha(rankings),
        agreement.mean_kendall_w(rankings),
    )


def _item(one: Agreed) -> dict[str, Any]:
    found: dict[str, Any] = {
        "item": one.item,
        "order": [list(group) for group in one.order],
        "pairs": [list(pair) for pair in one.pairs],
        "failed": list(one.failed),
    }
    if one.belief.strengths:
        found["strengths"] = {str(i): value for i, value in sorted(one.belief.strengths.items())}
        found["standard_errors"] = {str(i): value for i, value in sorted(one.belief.errors.items())}
    return found


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
