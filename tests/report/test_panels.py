from posttrain.report.chart import Chart
from posttrain.report.panels import charts, comparison, sections

ROWS = [
    {
        "step": 1,
        "reward/mean": 0.1,
        "reward/std": 0.1,
        "reward/exact": 0.2,
        "accuracy": 0.3,
        "seconds/train": 1.0,
        "mine": 5,
        "word": "x",
    },
    {
        "step": 2,
        "reward/mean": 0.2,
        "reward/exact": 0.3,
        "evaluation/accuracy": 0.4,
        "seconds/rollout": 2.0,
        "mine": None,
    },
]


def by_title(sections: list[tuple[str, list[Chart]]]) -> dict[str, Chart]:
    return {chart.title: chart for _, drawn in sections for chart in drawn if any(s.points for s in chart.series)}


def test_metrics_share_charts_and_none_is_hidden() -> None:
    found = by_title(charts(ROWS))
    assert list(found) == ["Reward", "Reward by component", "Accuracy", "Time by phase", "mine"]
    assert {s.name: list(s.points) for s in found["Accuracy"].series} == {
        "training": [(1, 0.3)],
        "held-out": [(2, 0.4)],
    }
    assert [s.name for s in found["Reward"].series] == ["mean", "std"]
    assert [s.name for s in found["Reward by component"].series] == ["exact"]
    assert [s.name for s in found["Time by phase"].series] == ["rollout", "train"] and found["Time by phase"].stacked
    assert list(found["mine"].series[0].points) == [(1, 5.0)]


def test_no_metric_is_shown_twice() -> None:
    keys = [key for _, panels in sections() for panel in panels for key in panel.metrics]
    assert len(keys) == len(set(keys))
    everything = [{"step": 1} | {key: 1.0 for key in keys if not key.endswith("/")} | {"reward/a": 1.0, "new/b": 2.0}]
    drawn = [s for _, some in charts(everything) for chart in some for s in chart.series]
    assert len(drawn) == len(everything[0]) - 1


def test_a_comparison_has_one_chart_a_metric_and_one_curve_a_run() -> None:
    found = by_title(comparison({"a": ROWS, "b": [{"step": 1, "accuracy": 0.9, "kl": 0.1}]}))
    assert [(s.name, list(s.points)) for s in found["Accuracy: training"].series] == [
        ("a", [(1, 0.3)]),
        ("b", [(1, 0.9)]),
    ]
    assert [len(s.points) for s in found["KL to the reference"].series] == [0, 1]  # so that b keeps its colour
    assert "mine" in found and not found["Time by phase: train"].stacked
    own = {"a": [{"step": 1, "my own": 1.0}], "b": []}
    assert list(by_title(comparison(own))) == ["my own"]
