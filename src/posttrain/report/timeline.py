"""The timeline of a run of several processes as inline SVG: a row for each process, gaps where it waits."""

from collections.abc import Sequence

from posttrain.report.markup import escape
from posttrain.runs.run import Span

STEPS = 6  # the last ones, which are shown
WIDTH, LEFT, RIGHT, ROW, BAR, AXIS = 760, 86, 48, 24, 16, 20
COLOURS = {"training": 0, "sampling": 1, "weights": 2, "evaluation": 3, "checkpoint": 4, "scoring": 5}


def busy(spans: Sequence[Span], began: float, ended: float) -> dict[str, float]:
    """By process the share of this time in which it was busy.

    >>> busy([Span("a", "x", 0.0, 1.0), Span("a", "x", 3.0, 9.0), Span("b", "x", 1.0, 2.0)], 0.0, 4.0)
    {'a': 0.5, 'b': 0.25}
    """
    shares: dict[str, float] = {}
    for span in spans:
        inside = max(0.0, min(span.ended, ended) - max(span.began, began))
        shares[span.process] = shares.get(span.process, 0.0) + inside / (ended - began)
    return shares


def render(spans: Sequence[Span]) -> str:
    """A figure, or nothing where fewer than two updates were."""
    ends = [span.ended for span in spans if span.work == "training"][-STEPS - 1 :]  # of updates
    began, ended = (ends[0], ends[-1]) if ends else (0.0, 0.0)
    if ended <= began:
        return ""
    shown = [span for span in spans if span.ended > began and span.began < ended]
    shares = busy(shown, began, ended)
    rows = sorted(shares, key=lambda name: (not name.startswith("trainer"), name))
    scale = (WIDTH - LEFT - RIGHT) / (ended - began)
    parts: list[str] = []
    for row, name in enumerate(rows):
        middle, busy_for = row * ROW + ROW / 2 + 4, f"{100 * min(1.0, shares[name]):.0f}%"
        parts.append(f'<text class="tick" x="0" y="{middle}">{escape(name)}</text>')
        parts.append(f'<text class="tick" x="{WIDTH - RIGHT + 6}" y="{middle}">{busy_for}</text>')
    for span in shown:
        left, right = max(span.began, began) - began, min(span.ended, ended) - began
        label = escape(f"{span.process}: {span.work}, {span.ended - span.began:.2f} s")
        parts.append(
            f'<rect x="{LEFT + left * scale:.1f}" y="{rows.index(span.process) * ROW + (ROW - BAR) / 2}" '
            f'width="{max(0.5, (right - left) * scale):.1f}" height="{BAR}" '
            f'class="work c{COLOURS.get(span.work, 7)}"><title>{label}</title></rect>'
        )
    bottom = len(rows) * ROW + AXIS - 4
    parts.append(f'<text class="tick" x="{LEFT}" y="{bottom}">0 s</text>')
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{bottom}" text-anchor="end">{ended - began:.1f} s</text>')
    works = [work for work in COLOURS if any(span.work == work for span in shown)]
    keys = "".join(f'<span class="key"><i class="c{COLOURS[work]}"></i>{escape(work)}</span>' for work in works)
    spoken = escape("; ".join(f"{name} busy {100 * shares[name]:.0f}%" for name in rows))
    return (
        '<figure class="chart"><figcaption><span class="name">Processes</span> '
        f'<span class="unit">last {STEPS} steps; share of time busy</span><span class="legend">{keys}</span>'
        f'</figcaption><svg viewBox="0 0 {WIDTH} {len(rows) * ROW + AXIS}" role="img" aria-label="{spoken}">'
        f"{''.join(parts)}</svg></figure>"
    )
