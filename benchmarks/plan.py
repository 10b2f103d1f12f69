"""What `--dry-run` says beside what the run then takes, for four stages.

    python benchmarks/plan.py --data DATA
    python benchmarks/plan.py --data DATA --stages sft --microbatch-tokens 2048 --steps 2 --memory-only \
        --also "" "--gradient-checkpointing" "--optim adamw-8bit" "--gradient-checkpointing --optim adamw-8bit"

DATA has gsm8k/train.jsonl.gz and hh-rlhf/harmless-base.train1500.jsonl.gz. Each stage is planned and then run for a few
steps with the same flags. Seconds are the mean of all steps but the first; memory is the peak of the process. Prints
one JSON line for each stage, with planned over measured. Each value of --also is one more setting of the same stage:
options that plan and run are both given.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import fmean

GSM8K, HH = "gsm8k/train.jsonl.gz", "hh-rlhf/harmless-base.train1500.jsonl.gz"
RL = "--prompts-per-step 8 --completions-per-prompt 8 --max-new-tokens 64"
STAGES = {  # what plan and run are both told, and what the run alone needs
    "rl": (GSM8K, RL, "--reward numbers=1 tags=0.1"),
    "sft": (GSM8K, "--max-tokens 512", ""),
    "preference": (HH, "--pairs-per-step 8 --max-tokens 512", ""),
    "reward-model": (HH, "--pairs-per-step 8 --max-tokens 512", ""),
}


def posttrain(*words: str) -> dict:
    """A command's last line, as JSON. Groups without a signal are computed too: the work is what was planned."""
    command = [sys.executable, "-m", "posttrain", *words, "--json"]
    environment = {**os.environ, "POSTTRAIN_WITHOUT": "skipped groups"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout.decode().strip().splitlines()[-1])


def main() -> None:
    """Read the command line, plan, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=STAGES)
    parser.add_argument("--also", nargs="+", default=[""], help="options that plan and run are given, in quotes")
    parser.add_argument("--microbatch-tokens", default="1024")
    parser.add_argument("--memory-only", action="store_true", help="compare memory alone")
    args = parser.parse_args()
    for stage, also in product(args.stages, args.also):
        data, both, alone = STAGES[stage]
        words = ["--dataset", str(args.data / data), *both.split(), "--microbatch-tokens", args.microbatch_tokens]
        words += also.split()
        flags = alone.split(" ", 1) if alone else []
        planned = posttrain(stage, *words, *flags, "--dry-run")
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "run"
            posttrain(stage, *words, *flags, "--steps", str(args.steps), "--output", str(output), "--quiet")
            rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        memory = max(row["memory_gb"] for row in rows)
        line = {"stage": stage, "also": also}
        if not args.memory_only:
            seconds = fmean(row["seconds/step"] for row in rows if row["step"] > 1)
            line |= {"planned_s": round(planned["seconds_per_step"], 2), "measured_s": round(seconds, 2)}
            line |= {"seconds": round(planned["seconds_per_step"] / seconds, 2)}
        line |= {"planned_gb": round(planned["peak_bytes"] / 1e9, 2), "measured_gb": round(memory, 2)}
        print(json.dumps(line | {"memory": round(planned["peak_bytes"] / 1e9 / memory, 2)}), flush=True)


if __name__ == "__main__":
    main()
