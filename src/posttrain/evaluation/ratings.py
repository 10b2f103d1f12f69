"""Prediction quality of attribute ratings."""

import statistics
from collections.abc import Mapping, Sequence


def correlations(
    names: Sequence[str], foretold: Sequence[Sequence[float]], rated: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Pearson's correlation of predictions and ratings, for each attribute where both vary.

    Args:
        names: of the attributes.
        foretold: for each response a number for each attribute, in any unit.
        rated: for each response its ratings by name; some may be missing.

    Example:
        >>> correlations(["clear", "kind"], [[1, 0], [2, 0], [9, 0]], [{"clear": 4}, {"clear": 5}, {"kind": 1}])
        {'clear': 1.0}
    """
    found: dict[str, float] = {}
    for place, name in enumerate(names):
        pairs = [
            (numbers[place], ratings[name]) for numbers, ratings in zip(foretold, rated, strict=True) if name in ratings
        ]
        if len({a for a, _ in pairs}) > 1 and len({b for _, b in pairs}) > 1:
            found[name] = statistics.correlation(*zip(*pairs, strict=True))
    return found
