"""What a conformance kit reports: the rules that were checked, or the violations."""

from collections.abc import Iterable, Sequence


class ConformanceError(AssertionError):
    """An object breaks rules of its interface; the text has one line per violation.

    Attributes:
        violations: which rule is broken, and how it was seen.
    """

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__("\n".join(violations))
        self.violations = tuple(violations)


def require(violations: Iterable[str]) -> None:
    """Raise `ConformanceError` if there are violations."""
    if found := list(violations):
        raise ConformanceError(found)
