"""The main job over several seeds: the table and the picture of docs/usage.md and docs/results.md.

    python benchmarks/quickstart.py --seeds 0 1 2 --output runs/benchmark

Runs `posttrain quickstart --seed S --json` once per seed, each in its own process, and prints a Markdown table: means
over seeds and each seed's own numbers with their 95% intervals over problems. `--picture` draws accuracy and the share
of completions that think by update. Finished seeds are not run again.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

STAGES = {"base": "base", "cold_start": "cold start", "rl": "RL"}
MEASURES = {"sampled": "sampled pass@1", "greedy": "greedy", "pass_at_8": "pass@8"}


def run(seed: int, folder: Path) -> dict:
    """One seed's summary; from its file if it has been run before."""
    kept = folder / f"seed-{seed}.json"
    if not kept.exists():
        command = [sys.executable, "-m", "posttrain", "quickstart", "--seed", str(seed), "--json"]
        done = subprocess.run([*command, "--output", str(folder / f"seed-{seed}")], check=True, stdout=subprocess.PIPE)
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(done.stdout.decode().strip().splitlines()[-1] + "\n")
    return json.loads(kept.read_text())


def measured(stage: dict) -> dict[str, tuple[float, list[float]]]:
    """Value and interval of one stage by the names of MEASURES."""
    sampled, greedy = stage["sampled"], stage["greedy"]
    return {
        "sampled": (sampled["accuracy"], sampled["ci95"]),
        "greedy": (greedy["accuracy"], greedy["ci95"]),
        "pass_at_8": (sampled["pass_at"]["8"], sampled["pass_at_ci95"]["8"]),
    }


def table(found: dict[int, dict]) -> list[str]:
    lines = [
        f"| seed | model | {' | '.join(MEASURES.values())} | thinks | tokens |",
        "|---" * (len(MEASURES) + 4) + "|",
    ]
    for key, name in STAGES.items():
        stages = [row[key] for row in found.values()]
        means = [f"**{fmean(measured(stage)[measure][0] for stage in stages):.3f}**" for measure in MEASURES]
        thinks, tokens = fmean(s["thinking"] for s in stages), fmean(s["sampled"]["mean_tokens"] for s in stages)
        lines.append(f"| **mean** | **{name}** | {' | '.join(means)} | {thinks:.0%} | {tokens:.0f} |")
    for seed, row in found.items():
        for key, name in STAGES.items():
            stage = row[key]
            cells = [f"{value:.3f} ({low:.3f}-{high:.3f})" for value, (low, high) in measured(stage).values()]
            thinks, tokens = f"{stage['thinking']:.0%}", f"{stage['sampled']['mean_tokens']:.0f}"
            lines.append(f"| {seed} | {name} | {' | '.join(cells)} | {thinks} | {tokens} |")
    return lines


def gains(found: dict[int, dict]) -> list[str]:
    """By measure: the gain of each seed, paired by problem, and whether the two intervals of a seed overlap."""
    lines = [
        "| gain of RL over the cold start | "
        + " | ".join(f"seed {seed}" for seed in found)
        + " | mean | intervals apart |"
    ]
    lines.append("|---" * (len(found) + 3) + "|")
    for measure, name in MEASURES.items():
        each = [row["gain"][measure] for row in found.values()]
        cells = [f"{gain['value']:+.3f} ({gain['ci95'][0]:+.3f} to {gain['ci95'][1]:+.3f})" for gain in each]
        apart = sum(
            measured(row["rl"])[measure][1][0] > measured(row["cold_start"])[measure][1][1] for row in found.values()
        )
        mean = fmean(gain["value"] for gain in each)
        lines.append(f"| {name} | {' | '.join(cells)} | {mean:+.3f} | {apart} of {len(each)} seeds |")
    return lines


def draw(found: dict[int, dict], picture: Path) -> None:
    """Accuracy and the share of completions that think, by update: each seed, and their mean."""
    names = {"accuracy": "solved", "reward/tags": "thinks first"}
    runs = [
        [json.loads(line) for line in (Path(row["run"]) / "rl" / "metrics.jsonl").read_text().splitlines()]
        for row in found.values()
    ]
    figure, axes = plt.subplots(figsize=(7, 3.2))
    for (key, name), colour in zip(names.items(), ("tab:blue", "tab:orange"), strict=True):
        curves = [[metrics[key] for metrics in metrics_of_run] for metrics_of_run in runs]
        steps = range(1, min(map(len, curves)) + 1)
        for curve in curves:
            axes.plot(steps, curve[: len(steps)], color=colour, linewidth=0.6, alpha=0.4)
        mean = [fmean(values) for values in zip(*curves, strict=False)]
        axes.plot(steps, mean, color=colour, linewidth=2, label=name)
    axes.set(xlabel="update", ylabel="share of sampled completions", ylim=(0, 1.02))
    axes.legend(loc=(0.35, 0.68))
    figure.savefig(picture, bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark"))
    parser.add_argument("--picture", type=Path, help="where to draw the curves of training, as SVG")
    options = parser.parse_args()
    found = {seed: run(seed, options.output) for seed in options.seeds}
    print("\n".join([*table(found), "", *gains(found)]))
    print(f"\nSeconds: {', '.join(format(row['seconds'], '.0f') for row in found.values())}.", end=" ")
    print(f"Peak memory: {max(row['peak_gb'] for row in found.values()):.1f} GB.")
    if options.picture:
        draw(found, options.picture)


if __name__ == "__main__":
    main()
