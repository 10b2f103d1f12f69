"""Line charts as inline SVG: they follow the page's light or dark colours, stay sharp on a phone, and need no script.

Everything that is text is escaped; numbers are written as numbers.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from posttrain.report.markup import escape

Point = tuple[float, float]

WIDTH, HEIGHT = 360, 190
LEFT, RIGHT, TOP, BOTTOM = 42, 8, 16, 20
MAX_POINTS, MAX_HOVERS = 400, 60
SMOOTH_FROM = 16  # fewer points are drawn one by one


@dataclass(frozen=True, slots=True)
class Series:
    """A named curve: points (step, value) in order of their steps."""

    name: str
    points: Sequence[Point]
    bars: Sequence[tuple[float, float, float]] = ()  # intervals: (step, low, high)


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over steps."""

    title: str
    series: Sequence[Series]
    unit: str = ""  # shown after the title
    percent: bool = False  # the values are shares, to be shown as percent
    zero: bool = True  # the axis starts at 0; otherwise at the lowest value
    stacked: bool = False  # areas on top of each other, for parts of a whole; the series then share their steps


def render(chart: Chart) -> str:
    """A chart as an HTML figure; empty where no series has a finite point."""
    kept = [(colour, _thin(s)) for colour, s in _finite(chart)]
    if not kept:
        return ""
    heights = _heights([s for _, s in kept]) if chart.stacked else [s.points for _, s in kept]
    points = [*_ends_of_bars(kept), *(point for points in heights for point in points)]
    frame = _Frame.around(points, zero=chart.zero or chart.stacked)
    drawn = _areas(kept, heights, frame) if chart.stacked else _lines(kept, frame)
    hovers = _hovers(kept, heights, frame, chart.percent)
    unit = f' <span class="unit">{escape(chart.unit)}</span>' if chart.unit else ""
    ends = [(s.name, *(number(s.points[end][1], chart.percent) for end in (0, -1))) for _, s in kept]
    spoken = escape(f"{chart.title}: {', '.join(f'{name} from {first} to {last}' for name, first, last in ends)}")
    keys = "".join(  # a single curve needs no name
        f'<span class="key"><i class="c{colour}"></i>{escape(name) if len(kept) > 1 else "last"} <b>{last}</b></span>'
        for (colour, _), (name, _, last) in zip(kept, ends, strict=True)
    )
    return (
        f'<figure class="chart"><figcaption><span class="name">{escape(chart.title)}</span>{unit}'
        f'<span class="legend">{keys}</span></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{spoken}">'
        f"{''.join(_axes(frame, chart.percent))}{''.join(drawn)}{''.join(hovers)}"
        "</svg></figure>"
    )


COLOUR_VALUES = (
    *("#2f6fb0", "#c7702b", "#3d8f6a", "#8a5aa8", "#b8912a"),
    *("#c2526a", "#4a9aa8", "#7a7f87", "#5f7a1f", "#8a5a3c"),
)
"""The colours of report.css, for a picture outside a page."""


def picture(chart: Chart) -> str:
    """A chart as an SVG file of its own: lines with title and names; `unit` is what the horizontal axis counts."""
    kept = _finite(chart)
    frame = _Frame.around([*_ends_of_bars(kept), *(point for _, s in kept for point in s.points)], zero=chart.zero)
    top = 16 * (1 + len(kept))
    names = "".join(
        f'<text x="{LEFT}" y="{14 + 16 * (row + 1)}" fill="{COLOUR_VALUES[colour]}">{escape(s.name)}</text>'
        for row, (colour, s) in enumerate(kept)
    )
    colours = "".join(f".c{i}{{stroke:{value};fill:{value}}}" for i, value in enumerate(COLOUR_VALUES))
    style = (
        "text{font:11px sans-serif}.tick{font-size:10px;fill:#666}.grid{stroke:#ddd}"
        f"{colours}.line,.raw{{fill:none;stroke-width:2}}.raw{{stroke-width:1;opacity:.3}}"
    )
    drawn = "".join([*_axes(frame, chart.percent), *_lines(kept, frame)])
    height = top + HEIGHT + 16
    axis = f'<text class="tick" x="{WIDTH - RIGHT}" y="{height - 4}" text-anchor="end">{escape(chart.unit)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"><style>{style}</style>'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/><text x="{LEFT}" y="14">{escape(chart.title)}</text>'
        f'{names}<g transform="translate(0 {top})">{drawn}</g>{axis}</svg>\n'
    )


def ticks(low: float, high: float) -> list[float]:
    """Round numbers that span low to high, in about four steps.

    Example:
        >>> ticks(0.0, 0.93)
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12 - math.floor(math.log10(step))) for i in range(first, last + 1)]


def number(value: float, percent: bool = False) -> str:
    """A number short enough for an axis or a legend.

    Example:
        >>> number(0.4756, percent=True), number(12345.6), number(1e-05), number(3.14159)
        ('47.6%', '12.3k', '1e-05', '3.14')
    """
    if percent:
        return f"{100 * value:.3g}%"
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if suffix == 'k' else size):.3g}{suffix}"
    return f"{value:.4g}" if abs(value) >= 1000 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class _Frame:
    """Coordinates of a point in the picture."""

    x_low: float
    x_high: float
    y_ticks: list[float]

    @classmethod
    def around(cls, points: Sequence[Point], *, zero: bool) -> "_Frame":
        steps, values = [x for x, _ in points], [y for _, y in points]
        low, high = min(values), max(values)
        if zero:
            low, high = min(low, 0.0), max(high, 0.0)
        if high - low <= 1e-9 * max(abs(high), abs(low)):  # a flat line is drawn in the middle, or on 0
            spread = abs(high) / 2 or 1.0
            low, high = (low, high + spread) if low == 0 else (low - spread, high + spread)
        return cls(min(steps), max(steps), ticks(low, high))

    def x(self, step: float) -> float:
        width = WIDTH - LEFT - RIGHT
        span = self.x_high - self.x_low
        return LEFT + (width * (step - self.x_low) / span if span > 0 else width / 2)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)


def _finite(chart: Chart) -> list[tuple[int, Series]]:
    """The curves with finite points, each with its colour."""
    series = [replace(s, points=[(x, y) for x, y in s.points if math.isfinite(y)]) for s in chart.series]
    return [(i % len(COLOUR_VALUES), s) for i, s in enumerate(series) if s.points]


def _thin(series: Series) -> Series:
    """Means of neighbouring points, if there are more than `MAX_POINTS`."""
    if (size := math.ceil(len(series.points) / MAX_POINTS)) <= 1:
        return series
    parts = [series.points[i : i + size] for i in range(0, len(series.points), size)]
    means = [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]
    return replace(series, points=means)


def _ends_of_bars(kept: Sequence[tuple[int, Series]]) -> list[Point]:
    return [(x, y) for _, series in kept for x, *ends in series.bars for y in ends]


def _smooth(points: Sequence[Point]) -> list[Point]:
    """Centred moving averages over about a tenth of the points, which do not lag."""
    most, last = max(1, len(points) // 20), len(points) - 1
    reaches = (min(most, i, last - i) for i in range(len(points)))
    near = ([y for _, y in points[i - reach : i + reach + 1]] for i, reach in enumerate(reaches))
    return [(x, sum(ys) / len(ys)) for (x, _), ys in zip(points, near, strict=True)]


def _heights(series: Sequence[Series]) -> list[list[Point]]:
    """The upper edge of each stacked area."""
    below: dict[float, float] = {}
    out: list[list[Point]] = []
    for one in series:
        edge = [(x, below.get(x, 0.0) + y) for x, y in one.points]
        below |= dict(edge)
        out.append(edge)
    return out


def _path(points: Sequence[Point], frame: _Frame) -> str:
    return "M" + "L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in points)


def _lines(kept: Sequence[tuple[int, Series]], frame: _Frame) -> Iterator[str]:
    for colour, series in kept:
        for x, low, high in series.bars:
            yield f'<path class="raw c{colour}" d="{_path([(x, low), (x, high)], frame)}"/>'
        points = series.points
        smooth = len(points) >= SMOOTH_FROM
        if smooth:
            yield f'<path class="raw c{colour}" d="{_path(points, frame)}"/>'
        yield f'<path class="line c{colour}" d="{_path(_smooth(points) if smooth else points, frame)}"/>'
        if not smooth:
            radius = 4 if len(points) == 1 else 2  # a single point has no line
            for x, y in points:
                yield f'<circle class="dot c{colour}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="{radius}"/>'


def _areas(kept: Sequence[tuple[int, Series]], heights: Sequence[Sequence[Point]], frame: _Frame) -> Iterator[str]:
    floors = ([(x, 0.0) for x, _ in heights[0]], *heights)
    for (colour, _), edge, floor in zip(kept, heights, floors, strict=False):
        yield f'<path class="area c{colour}" d="{_path([*edge, *reversed(floor)], frame)}Z"/>'


def _axes(frame: _Frame, percent: bool) -> Iterator[str]:
    for value in frame.y_ticks:
        y = frame.y(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 5}" y="{y + 3:.1f}" text-anchor="end">{number(value, percent)}</text>'
    low, high = frame.x_low, frame.x_high
    inner = [x for x in ticks(low, high) if low <= x <= high and x == round(x)] if high > low else [low]
    for x in inner:
        yield f'<text class="tick" x="{frame.x(x):.1f}" y="{HEIGHT - 5}" text-anchor="middle">{number(x)}</text>'


def _hovers(
    kept: Sequence[tuple[int, Series]], heights: Sequence[Sequence[Point]], frame: _Frame, percent: bool
) -> Iterator[str]:
    """Invisible stripes; the one under the pointer shows its step and values, by CSS alone."""
    steps = sorted({x for _, series in kept for x, _ in series.points})
    steps = steps[:: math.ceil(len(steps) / MAX_HOVERS)]
    values = [dict(series.points) for _, series in kept]
    edges = [dict(edge) for edge in heights]
    xs = [frame.x(step) for step in steps]
    for i, (step, x) in enumerate(zip(steps, xs, strict=True)):
        left = (xs[i - 1] + x) / 2 if i else LEFT
        right = (xs[i + 1] + x) / 2 if i + 1 < len(xs) else WIDTH - RIGHT
        here = [(colour, values[j][step], edges[j][step]) for j, (colour, _) in enumerate(kept) if step in values[j]]
        dots = "".join(f'<circle class="dot c{c}" cx="{x:.1f}" cy="{frame.y(top):.1f}" r="3"/>' for c, _, top in here)
        said = "".join(f'<tspan class="c{c}" dx="5">{number(value, percent)}</tspan>' for c, value, _ in here)
        yield (
            f'<g class="hover"><rect x="{left:.1f}" y="0" width="{right - left:.1f}" height="{HEIGHT}"/>'
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>{dots}'
            f'<text x="{WIDTH - RIGHT}" y="10" text-anchor="end">step {number(step)}{said}</text></g>'
        )
