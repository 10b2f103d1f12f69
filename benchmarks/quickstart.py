"""The main job over several seeds: the table of README and docs/results.md.

    python benchmarks/quickstart.py --seeds 0 1 2 --output runs/benchmark

Runs `posttrain quickstart --seed S --json` once per seed, each in its own process, and prints a Markdown table: means
over seeds and each seed's own numbers with their 95% intervals over problems. Finished seeds are not run again.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean

STAGES = {"base": "base", "cold_start": "cold start", "rl": "RL"}


def run(seed: int, folder: Path) -> dict:
    """One seed's summary; from its file if it has been run before."""
    kept = folder / f"seed-{seed}.json"
    if not kept.exists():
        command = [sys.executable, "-m", "posttrain", "quickstart", "--seed", str(seed), "--json"]
        done = subprocess.run([*command, "--output", str(folder / f"seed-{seed}")], check=True, stdout=subprocess.PIPE)
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(done.stdout.decode().strip().splitlines()[-1] + "\n")
    return json.loads(kept.read_text())


def table(found: dict[int, dict]) -> list[str]:
    lines = [
        "| seed | model | sampled pass@1 | pass@8 | greedy | thinks | tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, name in STAGES.items():
        rows = list(found.values())
        means = [fmean(row[k] for row in rows) for k in (key, f"{key}_greedy", f"{key}_thinking", f"{key}_tokens")]
        best = fmean(row[f"{key}_pass_at"].get("8", float("nan")) for row in rows)
        numbers = f"**{means[0]:.3f}** | **{best:.3f}** | **{means[1]:.3f}** | {means[2]:.0%} | {means[3]:.0f}"
        lines.append(f"| **mean** | **{name}** | {numbers} |")
    for seed, row in found.items():
        for key, name in STAGES.items():
            sampled, greedy = (
                f"{row[k]:.3f} ({row[k + '_ci95'][0]:.3f}-{row[k + '_ci95'][1]:.3f})" for k in (key, f"{key}_greedy")
            )
            thinks, tokens = f"{row[key + '_thinking']:.0%}", f"{row[key + '_tokens']:.0f}"
            best = row[f"{key}_pass_at"].get("8", float("nan"))
            lines.append(f"| {seed} | {name} | {sampled} | {best:.3f} | {greedy} | {thinks} | {tokens} |")
    return [line.replace(" nan ", " - ").replace("**nan**", "-") for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark"))
    options = parser.parse_args()
    found = {seed: run(seed, options.output) for seed in options.seeds}
    gains = [row["rl"] - row["cold_start"] for row in found.values()]
    print("\n".join(table(found)))
    print(f"\nGain of RL over the cold start, sampled pass@1: mean {fmean(gains):+.3f}, by seed", end=" ")
    print(", ".join(f"{gain:+.3f}" for gain in gains) + ".")
    print(f"Seconds: {', '.join(format(row['seconds'], '.0f') for row in found.values())}.", end=" ")
    print(f"Peak memory: {max(row['peak_gb'] for row in found.values()):.1f} GB.")


if __name__ == "__main__":
    main()
