"""Early stopping."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

MetricsRow = Mapping[str, Any]
Score = Callable[[MetricsRow], float | None]


def best_is_past(rows: Iterable[MetricsRow], patience: int, score: Score) -> bool:
    """Whether none of the last `patience` evaluations scored higher than the best before; never for a patience of 0.

    Example:
        >>> rows = [{"accuracy": value} for value in (0.1, 0.4, 0.4, 0.3)]
        >>> [best_is_past(rows, patience, lambda row: row["accuracy"]) for patience in (0, 2, 3)]
        [False, True, False]
    """
    found = [value for row in rows if (value := score(row)) is not None]
    return patience > 0 and len(found) > patience and max(found[-patience:]) <= max(found[:-patience])


def patience(evaluations: int, score: Score) -> Callable[[Sequence[MetricsRow]], str]:
    """Ends a run once that many evaluations in a row were no better than the best before them; 0: never."""

    def finished(rows: Sequence[MetricsRow]) -> str:
        return f"no improvement for {evaluations} evaluations" if best_is_past(rows, evaluations, score) else ""

    return finished
