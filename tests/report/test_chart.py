import doctest
import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.report import chart
from posttrain.report.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    SMOOTH_FROM,
    TOP,
    WIDTH,
    Chart,
    Series,
    picture,
    render,
    ticks,
)


def paths(html: str, kind: str) -> list[list[tuple[float, float]]]:
    """The points of each path of a class."""
    found = re.findall(rf'<path class="{kind} c\d" d="([^"]*)"', html)
    return [[(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path)] for path in found]


def line(*values: float, name: str = "x", start: int = 1) -> Series:
    return Series(name, [(start + i, value) for i, value in enumerate(values)])


def test_points_lie_where_the_axes_say() -> None:
    (drawn,) = paths(render(Chart("t", [line(0.0, 1.0, 0.5)])), "line")
    bottom = HEIGHT - BOTTOM
    assert drawn == [(LEFT, bottom), ((LEFT + WIDTH - RIGHT) / 2, TOP), (WIDTH - RIGHT, (bottom + TOP) / 2)]


def test_the_axis_starts_at_zero_only_where_it_should() -> None:
    assert ">0</text>" in render(Chart("t", [line(5.0, 6.0)]))
    assert ">0</text>" not in render(Chart("t", [line(5.0, 6.0)], zero=False))


@given(st.floats(-100, 100), st.floats(1e-3, 1e6))
def test_ticks_are_few_even_and_hold_the_range(low: float, size: float) -> None:
    found = ticks(low, low + size)
    assert 2 <= len(found) <= 7
    assert found[0] <= low + 1e-6 * size and found[-1] >= low + size * (1 - 1e-6)
    steps = [b - a for a, b in pairwise(found)]
    assert max(steps) == pytest.approx(min(steps), rel=1e-6)
    assert round(steps[0] / 10 ** math.floor(math.log10(steps[0]) + 1e-6), 3) in (1.0, 2.0, 2.5, 5.0)


@given(st.lists(st.floats(-1e9, 1e9) | st.just(math.nan) | st.just(math.inf), max_size=40))
def test_any_values_make_a_picture_within_its_frame_or_none(values: list[float]) -> None:
    html = render(Chart("t", [line(*values)]))
    if not any(map(math.isfinite, values)):
        assert html == ""
        return
    ElementTree.fromstring(html.replace("&nbsp;", " "))  # well formed
    assert "nan" not in html and "inf" not in html
    for path in (*paths(html, "line"), *paths(html, "raw")):
        assert all(LEFT <= x <= WIDTH - RIGHT and TOP <= y <= HEIGHT - BOTTOM for x, y in path)


def test_few_points_are_drawn_as_they_are_and_many_are_smoothed_without_lag() -> None:
    assert len(paths(render(Chart("t", [line(*range(15))])), "raw")) == 0
    html = render(Chart("t", [line(*[0.0, 1.0] * 30)]))
    (raw,), (smooth,) = paths(html, "raw"), paths(html, "line")
    assert max(y for _, y in raw) - min(y for _, y in raw) == pytest.approx(HEIGHT - TOP - BOTTOM)
    middle = [y for _, y in smooth[5:-5]]
    assert max(middle) - min(middle) < 0.2 * (HEIGHT - TOP - BOTTOM)
    straight = render(Chart("t", [line(*range(60))]))
    assert paths(straight, "line") == paths(straight, "raw")  # a straight line stays where it is


def test_thousands_of_points_are_thinned_to_their_means() -> None:
    html = render(Chart("t", [line(*[0.0, 1.0] * 4000)]))
    (raw,) = paths(html, "raw")
    assert len(raw) <= chart.MAX_POINTS and len(html) < 60_000
    assert {y for _, y in raw} == {raw[0][1]}  # of 20 neighbours 10 are 1
    assert raw[0][1] == pytest.approx(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * 0.5 / 0.6, abs=0.1)  # 0.5 of 0.6


def test_areas_lie_on_top_of_each_other() -> None:
    html = render(Chart("t", [line(1.0, 1.0, name="a"), line(3.0, 1.0, name="b")], stacked=True))
    first, second = paths(html, "area")
    unit = (HEIGHT - TOP - BOTTOM) / 4
    bottom = HEIGHT - BOTTOM
    assert [round((bottom - y) / unit, 2) for _, y in first] == [1, 1, 0, 0]
    assert [round((bottom - y) / unit, 2) for _, y in second] == [4, 2, 1, 1]


def test_pointing_shows_the_step_and_each_curves_own_value() -> None:
    html = render(Chart("t", [line(0.25, 0.5), line(0.75, start=2)], percent=True))
    first, second = re.findall(r'<g class="hover">.*?</g>', html)
    assert re.sub("<[^>]*>", " ", first).split() == ["step", "1", "25%"]
    assert re.sub("<[^>]*>", " ", second).split() == ["step", "2", "50%", "75%"]
    stacked = render(Chart("t", [line(1.0), line(3.0)], stacked=True))
    assert re.sub("<[^>]*>", " ", re.findall(r'<g class="hover">.*?</g>', stacked)[0]).split() == [
        "step",
        "1",
        "1",
        "3",
    ]


def test_stripes_to_point_at_cover_the_width_once() -> None:
    html = render(Chart("t", [line(*range(100))]))
    stripes = [(float(x), float(w)) for x, w in re.findall(r'<rect x="([\d.]+)" y="0" width="([\d.]+)"', html)]
    assert len(stripes) <= chart.MAX_HOVERS and stripes[0][0] == LEFT
    assert all(a + w == pytest.approx(b, abs=0.2) for (a, w), (b, _) in pairwise(stripes))
    assert sum(stripes[-1]) == pytest.approx(WIDTH - RIGHT, abs=0.2)


def test_a_curve_without_points_keeps_the_others_colours() -> None:
    html = render(Chart("t", [Series("none", []), line(1.0, name="some")]))
    assert 'class="line c1"' in html and "none" not in html


def test_the_legend_has_each_curves_name_and_last_value_and_of_one_alone_no_name() -> None:
    def legend(*series: Series) -> str:
        return re.sub("<[^>]*>", " ", render(Chart("t", [*series])).rpartition('<span class="legend">')[2])

    assert legend(line(1.0, 2.0, name="a"), line(3.0, name="b")).split()[:4] == ["a", "2", "b", "3"]
    assert legend(line(1.0, 2.0, name="a")).split()[:2] == ["last", "2"]


def test_what_is_written_on_the_axes_is_in_the_picture() -> None:
    html = render(Chart("t", [line(0.25, 0.5, 0.75, 1.0)]))
    ticks_at = [(float(x), float(y)) for x, y in re.findall(r'<text class="tick" x="([\d.]+)" y="([\d.]+)"', html)]
    assert len(ticks_at) >= 6
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in ticks_at)
    below = [y for x, y in ticks_at if x >= LEFT]  # those of the steps, under the picture's lower edge
    assert below and all(y > HEIGHT - BOTTOM for y in below)


def test_names_are_escaped() -> None:
    html = render(Chart("<t>", [line(1.0, name="</figure><script>"), line(2.0, name='"')], unit="<u>"))
    assert "<script" not in html and "<t>" not in html and "<u>" not in html and "&lt;script&gt;" in html


def test_docstring_examples_run() -> None:
    results = doctest.testmod(chart)
    assert results.failed == 0 and results.attempted >= 2


def test_a_picture_fills_no_line_smoothed_ones_included() -> None:
    drawn = picture(Chart("Reward", [Series("mean", [(step, step % 3) for step in range(SMOOTH_FROM)])]))
    assert re.findall('<path class="([a-z]+) c0"', drawn) == ["raw", "line"]
    assert ".line,.raw{fill:none;" in drawn
