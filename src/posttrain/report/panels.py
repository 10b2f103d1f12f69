"""Chart layout: which metrics share a panel, and the order of panels. panels.toml is the table."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from posttrain.report.chart import Chart, Point, Series

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart of some metrics. A name that ends with a slash stands for all metrics below it."""

    title: str
    metrics: Sequence[str]
    unit: str = ""
    percent: bool = False
    zero: bool = True
    stacked: bool = False

    def chart(self, title: str, series: Sequence[Series]) -> Chart:
        """A chart of these curves in the panel's scale."""
        return Chart(title, series, self.unit, self.percent, self.zero, self.stacked)


@cache
def sections() -> tuple[tuple[str, tuple[Panel, ...]], ...]:
    """The panels of panels.toml, by the title of their section."""
    read = tomllib.loads(Path(__file__).with_name("panels.toml").read_text(encoding="utf-8"))
    return tuple((one["title"], tuple(Panel(**panel) for panel in one["panels"])) for one in read["section"])


def charts(rows: Rows) -> list[tuple[str, list[Chart]]]:
    """Each section's charts for one run; metrics that no panel names come in a last section, so that none is hidden."""
    return _laid_out(
        _names(rows), lambda panel, keys: [panel.chart(panel.title, [_series(k, _short(k, panel), rows) for k in keys])]
    )


def comparison(runs: Mapping[str, Rows]) -> list[tuple[str, list[Chart]]]:
    """Each section's charts for several runs by name: one chart a metric, one curve a run, the colours kept."""

    def compared(panel: Panel, keys: Sequence[str]) -> list[Chart]:
        titles = [panel.title if [*panel.metrics] == [key] else f"{panel.title}: {_short(key, panel)}" for key in keys]
        alone = replace(panel, stacked=False)
        return [
            alone.chart(title, [_series(key, name, rows) for name, rows in runs.items()])
            for title, key in zip(titles, keys, strict=True)
        ]

    return _laid_out(list(dict.fromkeys(name for rows in runs.values() for name in _names(rows))), compared)


def _laid_out(
    present: Sequence[str], drawn: Callable[[Panel, Sequence[str]], list[Chart]]
) -> list[tuple[str, list[Chart]]]:
    """The charts that `drawn` returns for each panel and those of its metrics that were logged, by section."""
    named = {key for _, panels in sections() for panel in panels for key in panel.metrics if not key.endswith("/")}

    def matching(key: str) -> list[str]:
        if not key.endswith("/"):
            return [key] if key in present else []
        return [name for name in present if name.startswith(key) and name not in named]

    found = [
        (title, [(p, [m for key in p.metrics for m in matching(key)]) for p in panels]) for title, panels in sections()
    ]
    shown = {key for _, panels in found for _, keys in panels for key in keys}
    found.append(("Other metrics", [(Panel(key, (key,), zero=False), [key]) for key in present if key not in shown]))
    return [(title, [chart for panel, keys in panels for chart in drawn(panel, keys)]) for title, panels in found]


def _short(key: str, panel: Panel) -> str:
    if f"evaluation/{key}" in panel.metrics:
        return "training"
    beside = any(not other.startswith("evaluation/") for other in panel.metrics)
    return "held-out" if key.startswith("evaluation/") and beside else key.rpartition("/")[2]


def _names(rows: Rows) -> list[str]:
    """All metrics that have a number, in order of their first appearance."""
    return list(
        dict.fromkeys(name for row in rows for name, value in row.items() if _is_number(value) and name != "step")
    )


def _series(key: str, name: str, rows: Rows) -> Series:
    points: list[Point] = [(row["step"], float(row[key])) for row in rows if _is_number(row.get(key))]
    return Series(name, points)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
