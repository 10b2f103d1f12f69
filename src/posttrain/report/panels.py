"""Chart layout: which metrics share a panel, and the order of panels. panels.toml is the table."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from posttrain.report.chart import Chart, Point, Series
from posttrain.report.curves import Rows


class Panel(NamedTuple):
    """Metrics that share a chart, and that without curves. A name that ends with a slash stands for all below it."""

    metrics: Sequence[str]
    chart: Chart


@cache
def sections() -> tuple[tuple[str, tuple[Panel, ...]], ...]:
    """The panels of panels.toml, by the title of their section."""

    def panel(metrics: Sequence[str], **options: Any) -> Panel:
        return Panel(metrics, Chart(series=(), **options))

    read = tomllib.loads(Path(__file__).with_name("panels.toml").read_text(encoding="utf-8"))
    return tuple((one["title"], tuple(panel(**each) for each in one["panels"])) for one in read["section"])


def charts(rows: Rows) -> list[tuple[str, list[Chart]]]:
    """Each section's charts for one run; metrics that no panel names come in a last section, so that none is hidden."""

    def drawn(panel: Panel, keys: Sequence[str]) -> list[Chart]:
        return [replace(panel.chart, series=[_series(key, _short(key, panel), rows) for key in keys])]

    return _laid_out([rows], drawn)


def comparison(runs: Mapping[str, Rows]) -> list[tuple[str, list[Chart]]]:
    """Each section's charts for several runs by name: one chart a metric, one curve a run, the colours kept."""

    def compared(panel: Panel, keys: Sequence[str]) -> list[Chart]:
        charts: list[Chart] = []
        for key in keys:
            title = panel.chart.title + ("" if [*panel.metrics] == [key] else f": {_short(key, panel)}")
            series = [_series(key, name, rows) for name, rows in runs.items()]
            charts.append(replace(panel.chart, title=title, series=series, stacked=False))
        return charts

    return _laid_out([*runs.values()], compared)


def _laid_out(
    runs: Sequence[Rows], drawn: Callable[[Panel, Sequence[str]], list[Chart]]
) -> list[tuple[str, list[Chart]]]:
    """The charts that `drawn` returns for each panel and those of its metrics that were logged, by section."""
    numbers = (name for rows in runs for row in rows for name, value in row.items() if _is_number(value))
    present = [name for name in dict.fromkeys(numbers) if name != "step"]  # in order of their first appearance
    named = {key for _, panels in sections() for panel in panels for key in panel.metrics if not key.endswith("/")}

    def matching(key: str) -> list[str]:
        if not key.endswith("/"):
            return [key] if key in present else []
        return [name for name in present if name.startswith(key) and name not in named]

    found = [
        (title, [(p, [m for key in p.metrics for m in matching(key)]) for p in panels]) for title, panels in sections()
    ]
    shown = {key for _, panels in found for _, keys in panels for key in keys}
    others = [(Panel((key,), Chart(key, (), zero=False)), [key]) for key in present if key not in shown]
    found.append(("Other metrics", others))
    return [(title, [chart for panel, keys in panels for chart in drawn(panel, keys)]) for title, panels in found]


def _short(key: str, panel: Panel) -> str:
    if f"evaluation/{key}" in panel.metrics:
        return "training"
    beside = any(not other.startswith("evaluation/") for other in panel.metrics)
    return "held-out" if key.startswith("evaluation/") and beside else key.rpartition("/")[2]


def _series(key: str, name: str, rows: Rows) -> Series:
    points: list[Point] = [(row["step"], float(row[key])) for row in rows if _is_number(row.get(key))]
    return Series(name, points)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
