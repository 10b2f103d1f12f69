"""Parsing of judge scores."""

import re

_NUMBER = r"[+-]?[0-9]+(?:\.[0-9]+)?"
_DECORATION = r"[*_\s]*"  # Markdown's bold and italics
_LINE = re.compile(
    rf"{_DECORATION}score{_DECORATION}:{_DECORATION}({_NUMBER})(?:\s*(?:/|out of)\s*({_NUMBER}))?{_DECORATION}\.?",
    re.IGNORECASE,
)


def score_in(verdict: str, scale: tuple[float, float]) -> float | None:
    r"""The number N of a verdict whose last line is `Score: N`; None where it is another line, or N off the scale.

    Case and Markdown's asterisks do not count, a point may follow, and so may the highest score, as in `8/10`. An
    earlier line counts for nothing, for it may quote the answer.

    Example:
        >>> score_in("Good.\n**Score: 8/10**", (0, 10)), score_in("Score: 8\nor rather not", (0, 10))
        (8.0, None)
    """
    lines = verdict.strip().splitlines()
    line = lines[-1].strip() if lines else ""
    found = _LINE.fullmatch(line)
    if found is None or (found[2] and float(found[2]) != scale[1]):
        return None
    number = float(found[1])
    return number if scale[0] <= number <= scale[1] else None
