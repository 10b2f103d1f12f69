"""Terminal rendering of text with its loss mask."""

import sys
from collections.abc import Sequence

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

from posttrain.report.markup import printable

LEARNED, READ = "  > ", "    "
NEWLINE = "\u21b5"  # where the text itself has a line break
_LEARNED, _FAINT = Style.parse("bold green"), Style.parse("dim")


def in_colour() -> bool:
    """Whether standard output shows colours: a terminal that can, where NO_COLOR is not set."""
    return Console(file=sys.stdout).color_system is not None


def masked_lines(segments: Sequence[tuple[str, bool]], *, colour: bool = False) -> list[str]:
    r"""Consecutive texts, each learned or context only, as lines; control characters are escaped.

    Every line begins with a mark, which a text cannot imitate. A line break of the text is shown as a sign; a change
    between context and learned text begins a new line without one.

    Example:
        >>> print("\n".join(masked_lines([("user\n1+1?", False), ("2\x1b[2J", True)])))
            user↵
            1+1?
          > 2\x1b[2J
    """
    lines: list[str] = []
    for text, learned in segments:
        mark, style = (LEARNED, _LEARNED) if learned else (READ, _FAINT)
        *whole, last = printable(text).split("\n")
        for line in [*(f"{one}{NEWLINE}" for one in whole), *([last] if last else [])]:
            lines.append(mark + (style.render(line, color_system=ColorSystem.STANDARD) if colour else line))
    return lines


def histogram_lines(bins: Sequence[tuple[int, int, int]], width: int = 40) -> list[str]:
    r"""Bins of (from, to, count) as bars.

    Example:
        >>> print("\n".join(histogram_lines([(1, 8, 4), (9, 16, 1)], width=8)))
             1 to  8  ████████ 4
             9 to 16  ██ 1
    """
    most = max((count for _, _, count in bins), default=1)
    digits = len(f"{max((high for _, high, _ in bins), default=0):,}")
    return [
        f"  {low:>{digits + 2},} to {high:>{digits},}  {'█' * max(round(width * n / most), n > 0)} {n:,}".rstrip()
        for low, high, n in bins
    ]
