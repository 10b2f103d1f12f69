"""Chart layout: which metrics share a panel, and the order of panels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.report.chart import Chart, Point, Series

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart of some metrics. A key that ends with a slash matches all metrics below it."""

    title: str
    keys: tuple[str, ...]
    unit: str = ""
    percent: bool = False
    zero: bool = True
    stacked: bool = False


SECTIONS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "What is learned",
        (
            Panel("Reward", ("reward/mean", "reward/std"), zero=False),
            Panel("Reward by component", ("reward/",), zero=False),
            Panel("Held-out reward, and the gold one beside", ("evaluation/reward", "evaluation/gold"), zero=False),
            Panel("Accuracy", ("accuracy", "evaluation/accuracy"), percent=True),
            Panel(
                "95% interval of held-out accuracy",
                ("evaluation/accuracy_low", "evaluation/accuracy_high"),
                percent=True,
            ),
            Panel("Held-out loss", ("evaluation/loss",), "nats", zero=False),
            Panel("Groups without a signal", ("groups/zero_advantage",), "share", percent=True),
        ),
    ),
    (
        "Chosen and rejected",
        (
            Panel("Reward by the algorithm's own measure", ("reward/chosen", "reward/rejected"), zero=False),
            Panel("Reward of good and bad responses", ("reward/good", "reward/bad"), "nats", zero=False),
            Panel("Score", ("score/chosen", "score/rejected"), zero=False),
            Panel("Margin", ("margin", "evaluation/margin", "pairs/margin")),
            Panel("Pairs made of completions", ("pairs/made",)),
            Panel("Pairs that the policy judges as the reward does", ("pairs/accuracy",), percent=True),
            Panel("Logprob of a response", ("logprob/chosen", "logprob/rejected"), "nats", zero=False),
            Panel("Logprob of good and bad responses", ("logprob/good", "logprob/bad"), "nats", zero=False),
            Panel("Length of a response", ("length/chosen", "length/rejected", "length/good", "length/bad"), "tokens"),
            Panel("Likelihood of the chosen one", ("likelihood",), "nats per token"),
            Panel(
                "Divergence from the reference",
                ("divergence", "divergence/chosen", "divergence/rejected"),
                "nats per response",
            ),
        ),
    ),
    (
        "Attributes",
        (
            Panel("Correlation with held-out ratings", ("evaluation/correlation/",), zero=False),
            Panel("Squared error, in parts of the spread", ("error/",)),
            Panel("What each counts for, on average", ("evaluation/gate/",), "share", percent=True),
            Panel("Held-out pairs that each alone judges as people did", ("evaluation/alone/",), percent=True),
        ),
    ),
    (
        "How the policy changes",
        (
            Panel("KL to the reference", ("kl",), "nats per token"),
            Panel("KL that the reward pays for", ("groups/kl",), "nats per completion"),
            Panel("KL that the reward pays for, by token", ("groups/kl_per_token",), "nats per token"),
            Panel("Reverse KL from the teacher", ("groups/teacher_kl",), "nats per token"),
            Panel("Moving baselines of seats", ("groups/baseline/min", "groups/baseline/max")),
            Panel("Coefficient of that KL", ("groups/kl_coefficient",)),
            Panel("Entropy", ("entropy",), "nats per token"),
            Panel("Clip fraction", ("clip_fraction",), "share of tokens", percent=True),
            Panel("Largest ratio", ("ratio/max",), zero=False),
            Panel("Engine against trainer", ("logprob_gap/mean", "logprob_gap/max"), "nats"),
            Panel("Policy over sampler, truncated", ("importance/mean", "importance/max", "importance"), zero=False),
            Panel("Truncated importance weights", ("importance_capped",), "share of tokens", percent=True),
            Panel("KL of the sampler from the policy", ("sampler_kl",), "nats per token", zero=False),
            Panel("Age of the weights that sampled", ("staleness/mean", "staleness/max"), "steps"),
            Panel("Repetition", ("repetition",), "share", percent=True),
            Panel("Different pairs of tokens in a group", ("distinct/2",), "share", percent=True),
            Panel("KL from the beginning, on held-out tasks", ("evaluation/kl",), "nats per completion"),
            Panel("KL from the teacher, on held-out tasks", ("evaluation/teacher_kl",), "nats per completion"),
        ),
    ),
    (
        "The critic",
        (
            Panel("What a completion is expected to earn", ("groups/value",), zero=False),
            Panel("Share of the returns' variance that was foreseen", ("groups/explained_variance",), zero=False),
            Panel("Half its squared error", ("value_loss",)),
            Panel("Values held by the clip", ("value_clip_fraction",), "share of tokens", percent=True),
            Panel("Its gradient norm", ("critic_grad_norm",)),
        ),
    ),
    (
        "Completions",
        (
            Panel("Length", ("length/mean", "length/max"), "tokens"),
            Panel("Cut off, and without an answer", ("length/truncated", "unparsed"), "share", percent=True),
            Panel("Marked up, and refusing", ("formatting", "refusals"), "share", percent=True),
            Panel("Correlation of reward and length", ("reward/length_correlation",), zero=False),
            Panel("Length on held-out tasks", ("evaluation/length",), "tokens"),
        ),
    ),
    (
        "Optimisation",
        (
            Panel("Loss", ("loss",), zero=False),
            Panel("Loss on pretraining text", ("pretraining_loss",), "nats per token", zero=False),
            Panel("Loss on what earned something", ("imitation",), "nats per token", zero=False),
            Panel("Gradient norm", ("grad_norm",)),
            Panel("Learning rate", ("lr",)),
            Panel("Groups kept and thrown away", ("groups/kept", "groups/thrown_away", "groups/evicted")),
        ),
    ),
    (
        "The machine",
        (
            Panel("Throughput", ("tokens_per_second", "cluster/sampler_tokens_per_second"), "tokens per second"),
            Panel("Share of time in which processes work", ("cluster/busy/",), percent=True),
            Panel("Time by phase", ("seconds/rollout", "seconds/reward", "seconds/train"), "seconds", stacked=True),
            Panel("Time of a step", ("seconds/step",), "seconds"),
            Panel("Memory of the command's process", ("memory_gb",), "GB"),
            Panel("Tokens of a step", ("tokens",)),
        ),
    ),
)

_NAMED = {key for _, panels in SECTIONS for panel in panels for key in panel.keys if not key.endswith("/")}


def charts(rows: Rows) -> list[tuple[str, list[Chart]]]:
    """Each section's charts for one run; metrics that no panel names come in a last section, so that none is hidden."""
    present = _names(rows)
    sections = [(title, [_chart(panel, rows, present) for panel in panels]) for title, panels in SECTIONS]
    shown = {key for _, panels in SECTIONS for panel in panels for key in _keys(panel, present)}
    rest = [Chart(key, [_series(key, key, rows)], zero=False) for key in present if key not in shown]
    return [*sections, ("Other metrics", rest)]


def comparison(runs: Mapping[str, Rows]) -> list[tuple[str, list[Chart]]]:
    """Each section's charts for several runs by name: one chart a metric, one curve a run, the colours kept."""
    present = list(dict.fromkeys(name for rows in runs.values() for name in _names(rows)))
    sections: list[tuple[str, list[Chart]]] = []
    shown: set[str] = set()
    for title, panels in SECTIONS:
        wanted = [(panel, key) for panel in panels for key in _keys(panel, present)]
        shown |= {key for _, key in wanted}
        sections.append((title, [_compared(key, runs, panel) for panel, key in wanted]))
    rest = [_compared(key, runs, Panel(key, (key,), zero=False)) for key in present if key not in shown]
    return [*sections, ("Other metrics", rest)]


def _compared(key: str, runs: Mapping[str, Rows], panel: Panel) -> Chart:
    title = panel.title if panel.keys == (key,) else f"{panel.title}: {_short(key, panel)}"
    series = [_series(key, name, rows) for name, rows in runs.items()]
    return Chart(title, series, panel.unit, panel.percent, panel.zero)


def _chart(panel: Panel, rows: Rows, present: Sequence[str]) -> Chart:
    series = [_series(key, _short(key, panel), rows) for key in _keys(panel, present)]
    return Chart(panel.title, series, panel.unit, panel.percent, panel.zero, panel.stacked)


def _keys(panel: Panel, present: Sequence[str]) -> list[str]:
    """The metrics of a panel that there are; those that another panel names are left to it."""
    found: list[str] = []
    for key in panel.keys:
        below = (
            [name for name in present if name.startswith(key) and name not in _NAMED] if key.endswith("/") else [key]
        )
        found += [name for name in below if name in present]
    return found


def _short(key: str, panel: Panel) -> str:
    if f"evaluation/{key}" in panel.keys:
        return "training"
    beside = any(not other.startswith("evaluation/") for other in panel.keys)
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
