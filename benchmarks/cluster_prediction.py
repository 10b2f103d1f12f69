"""What the cost model of clusters predicts, beside what was measured.

    python benchmarks/cluster_prediction.py here --measured measured.jsonl
    python benchmarks/cluster_prediction.py areal

`here` reads the lines of benchmarks/cluster.py. Coefficients come from its lines of parts alone: samplers and learners
by themselves, with other lengths and batches than the runs of the recipe that are predicted from them. Of a run only
its work is taken: prompts, completions, the mean and the greatest length. Seconds per step; the error is predicted over
measured.

`areal` predicts the hours of AReaL (Fu et al. 2025, arXiv 2505.24298, Table 1; blog/AReaL_v0_3.md in its repository)
for training by synchronous and asynchronous AReaL on the same GPUs, and their ratio. Published are the models, nodes,
steps, hours, 512 prompts x 16 completions, prompts of at most 1,024 and completions of at most 27,648 tokens, staleness
4, and that three quarters of the GPUs sample when training is asynchronous. Synchronous AReaL samples on GPUs of its
own, too; its configuration for 1.5B on 16 nodes (ppo-1.5B-distill-gpus-128: sglang.d64p1m1+d32p2m1) gives them half,
which is taken for the others as well. Lengths are not published: MEAN and SPREAD are assumptions, made before the
comparison, and the lines after the first of a model vary them.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.planning.cluster import (
    GPUS,
    Costs,
    Decoding,
    Efficiency,
    GPUCluster,
    Room,
    Updating,
    Workload,
    dense_shape,
)
from posttrain.planning.cluster.splits import simulated

LARGE, SMALL = "forward_backward_seconds", "small_seconds"
MICROBATCH_TOKENS = 1024  # of benchmarks/cluster.py
PROMPTS, COMPLETIONS, PROMPT = 8, 4, 112  # of its recipe; mean tokens of its prompts
MEAN, SPREAD = 8000.0, 0.8
AREAL = (("1.5B", 1.54e9, 128, 1000, 41.0, 14.8), ("7B", 7.6e9, 192, 1000, 57.7, 25.4))  # GPUs, steps, hours
Line = Mapping[str, Any]


def updating(parts: Line) -> Updating:
    """The trainers of a line of parts: seconds of a token and of an update, from the two batches."""
    trainers = parts["processes"]
    per_token = Updating(trainers, token=1.0)

    def tokens(total: int) -> float:
        rows = -(-total // MICROBATCH_TOKENS)
        return -(-rows // per_token.trainers) * total / rows

    small, large = tokens(parts["small_tokens"]), tokens(parts["tokens"])
    token = (parts[LARGE] - parts[SMALL]) / (large - small)
    begin = max(0.0, parts[SMALL] - small * token)
    return Updating(trainers, token, begin=begin, optimizer=parts["optim_step_seconds"])


def decoding(parts: Line) -> Decoding:
    """A sampler of a line of parts."""
    names = ("decode_step", "decode_sequence", "prompt_token", "decode_begin")
    step, sequence, prompt, begin = (max(0.0, parts[name]) for name in names)
    return Decoding(step, sequence, prompt=prompt, begin=begin)


def predict(parts: Sequence[Line], run: Line) -> float:
    """Seconds per step of a run of the recipe. Its trainers, and its samplers, share two threads."""
    of = {line["processes"]: line for line in parts if line["processes"] * line["threads"] == 2}
    trainers, samplers = max(1, run["trainers"]), max(1, run["samplers"])
    sync = of[samplers]["sync_seconds"] if run["trainers"] else 0.0
    costs = Costs(samplers, decoding(of[samplers]), updating(of[trainers]), sync)
    longest, mean = int(run["length/max"]), run["length/mean"]
    rest = round((mean * PROMPTS * COMPLETIONS - longest * samplers) / (PROMPTS * COMPLETIONS - samplers))
    each = PROMPTS // samplers  # groups of a sampler, of whose completions one is the longest
    groups = [
        tuple(longest if not group % each and not i else rest for i in range(COMPLETIONS)) for group in range(PROMPTS)
    ]
    work = Workload(PROMPTS, COMPLETIONS, PROMPT, mean, 0.0, longest, MICROBATCH_TOKENS)
    return simulated(costs, work, 0, groups * 20).step


def here(lines: Sequence[Line]) -> None:
    """Print predicted and measured seconds of each run."""
    parts = [line for line in lines if line["line"] == "parts"]
    for run in (line for line in lines if line["line"] == "recipe"):
        predicted, measured = predict(parts, run), run["seconds/step"]
        said = {"trainers": run["trainers"], "samplers": run["samplers"], "predicted": round(predicted, 2)}
        print(json.dumps({**said, "measured": measured, "error": f"{predicted / measured - 1:+.1%}"}))


def areal(parameters: float, gpus: int, mean: float, spread: float) -> tuple[float, float]:
    """Seconds of a step of synchronous and asynchronous AReaL."""
    work = Workload(512, 16, 300, mean, spread, 27648, microbatch_tokens=32768, passes=1.0)
    reached, gpu = Efficiency(), GPUS["h800"]
    cluster = GPUCluster(gpu, reached, Room(dense_shape(parameters), work, reached.memory * gpu.memory))
    synchronous = cluster.apart(gpus // 2, gpus // 2, 1)
    asynchronous = cluster.apart(gpus // 4, gpus - gpus // 4, 1)
    return simulated(synchronous, work, 0).step, simulated(asynchronous, work, 4).step


def main() -> None:
    """Read the command line, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["here", "areal"])
    parser.add_argument("--measured", type=Path, nargs="+", help="files of lines of benchmarks/cluster.py")
    args = parser.parse_args()
    if args.what == "here":
        here([json.loads(line) for file in args.measured for line in file.read_text(encoding="utf-8").splitlines()])
        return
    for name, parameters, gpus, steps, *hours in AREAL:
        for mean, spread in ((MEAN, SPREAD), (4000.0, SPREAD), (12000.0, SPREAD), (MEAN, 0.5), (MEAN, 1.2)):
            seconds = areal(parameters, gpus, mean, spread)
            predicted, measured = seconds[0] / seconds[1], hours[0] / hours[1]
            line = {"model": name, "gpus": gpus, "mean": mean, "spread": spread}
            line |= {"predicted_hours": [round(each * steps / 3600, 1) for each in seconds], "measured_hours": hours}
            line |= {"predicted": round(predicted, 2), "measured": round(measured, 2)}
            print(json.dumps({**line, "error": f"{predicted / measured - 1:+.1%}"}), flush=True)


if __name__ == "__main__":
    main()
