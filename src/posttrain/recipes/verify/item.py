"""One item of the contract, with its result."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Item:
    """What was measured, and how far it may be off; both are None where it could not be measured.

    Where `bound` is 0, `measured` counts violations.
    """

    name: str
    passed: bool
    measured: float | None
    bound: float | None
    detail: str

    def line(self) -> str:
        """The item in one line, for people."""
        found = "not measured" if self.measured is None else f"{self.measured:.3g} (bound {self.bound:g})"
        return f"{'passed' if self.passed else 'FAILED'}  {self.name}: {found}; {self.detail}"


def within(name: str, measured: float, bound: float, detail: str, *, besides: bool = True) -> Item:
    """An item that holds if `measured` is within `bound`, and whatever is checked `besides` holds too."""
    return Item(name, besides and measured <= bound, measured, bound, detail)


def violations(name: str, found: list[str], detail: str) -> Item:
    """An item that holds if nothing was found against it."""
    return within(name, len(found), 0, "; ".join(found) or detail)
