"""What the cost model of clusters predicts, beside what was measured.

    python benchmarks/cluster_prediction.py here --measured measured.jsonl
    python benchmarks/cluster_prediction.py ahead --measured measured.jsonl --overlap overlap.json
    python benchmarks/cluster_prediction.py areal
    python benchmarks/cluster_prediction.py table

`here` reads the lines of benchmarks/cluster.py. Coefficients come from its lines of parts alone: samplers and learners
by themselves, with other lengths and batches than the runs of the recipe that are predicted from them. Of a run only
its work is taken: prompts, completions, the mean and the greatest length, and `passes`, 1 for a run with a reference.
Seconds per step; the error is predicted over measured.

`ahead` predicts from the same lines what benchmarks/overlap.py measures (its --json): a trainer and a sampler, in turn
and ahead. Lengths are drawn as it draws them, but are not those of its runs; a step has a reference's forward pass.

`areal` predicts the hours of AReaL (Fu et al. 2025, arXiv 2505.24298, Table 1; blog/AReaL_v0_3.md in its repository)
for training by synchronous and asynchronous AReaL on the same GPUs, and their ratio. Published are the models, nodes,
steps, hours, 512 prompts x 16 completions, prompts of at most 1,024 and completions of at most 27,648 tokens, staleness
4, and that three quarters of the GPUs sample when training is asynchronous. Synchronous AReaL samples on GPUs of its
own, too; its configuration for 1.5B on 16 nodes (ppo-1.5B-distill-gpus-128: sglang.d64p1m1+d32p2m1) gives them half,
which is taken for the others as well. Lengths are not published: MEAN and SPREAD are assumptions, made before the
comparison, and the lines after the first of a model vary them.

`table` prints docs/scaling.md's table: the fastest split of each mode, 8 to 4,096 GPUs, 512 prompts x 16 completions.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import lengths
import overlap

from posttrain.errors import UserError
from posttrain.planning.cluster.coefficients import Costs, Decoding, Updating, Workload
from posttrain.planning.cluster.gpus import GPUS, REACHED, GPUCluster, dense_shape
from posttrain.planning.cluster.splits import ASYNCHRONOUS, COLOCATED, SYNCHRONOUS, simulated
from posttrain.recipes.plan_cluster import PlanCluster, run

LARGE, SMALL = "forward_backward_seconds", "small_seconds"
MICROBATCH_TOKENS = 1024  # of benchmarks/cluster.py
PROMPTS, COMPLETIONS, PROMPT = 8, 4, 112  # of its recipe; mean tokens of its prompts
MEAN, SPREAD = 8000.0, 0.8
AREAL = (("1.5B", 1.54e9, 128, 1000, 41.0, 14.8), ("7B", 7.6e9, 192, 1000, 57.7, 25.4))  # GPUs, steps, hours
Line = Mapping[str, Any]


def updating(parts: Line, passes: float) -> Updating:
    """The trainers of a line of parts: seconds of a token and of an update, from the two batches.

    A forward pass besides, such as the reference's, takes a third of forward and backward: 2 of 6 FLOP per weight.
    """
    trainers = parts["processes"]
    per_token = Updating(trainers, token=1.0)

    def tokens(total: int) -> float:
        rows = -(-total // MICROBATCH_TOKENS)
        return -(-rows // per_token.trainers) * total / rows

    small, large = tokens(parts["small_tokens"]), tokens(parts["tokens"])
    token = (parts[LARGE] - parts[SMALL]) / (large - small)
    begin = max(0.0, parts[SMALL] - small * token)
    return Updating(trainers, token * (1 + passes / 3), begin=begin + parts["optim_step_seconds"])


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
    costs = Costs(samplers, decoding(of[samplers]), updating(of[trainers], run.get("passes", 0)), sync)
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
    for each in (line for line in lines if line["line"] == "recipe"):
        predicted, measured = predict(parts, each), each["seconds/step"]
        said = {"trainers": each["trainers"], "samplers": each["samplers"], "predicted": round(predicted, 2)}
        print(json.dumps({**said, "measured": measured, "error": f"{predicted / measured - 1:+.1%}"}))


def ahead(lines: Sequence[Line], found: Mapping[str, Sequence[Line]]) -> None:
    """Print predicted and measured seconds of a step of each way."""
    of = {(line["processes"], line["threads"]): line for line in lines if line["line"] == "parts"}
    work = Workload(overlap.PROMPTS, overlap.COMPLETIONS, PROMPT, lengths.MEAN, lengths.SPREAD, lengths.LONGEST, 1024)
    for name, rounds in found.items():
        way = overlap.WAYS[name]
        parts = of[1, way.sampler_threads]
        costs = Costs(1, decoding(parts), updating(parts, passes=1.0), parts["sync_seconds"])
        predicted, measured = simulated(costs, work, way.max_staleness).step, median(r["seconds"] for r in rounds)
        said = {"predicted": round(predicted, 1), "measured": round(measured, 1)}
        print(json.dumps({"way": name, **said, "error": f"{predicted / measured - 1:+.0%}"}))


def areal(parameters: float, gpus: int, mean: float, spread: float) -> tuple[float, float]:
    """Seconds of a step of synchronous and asynchronous AReaL."""
    work = Workload(512, 16, 300, mean, spread, 27648, microbatch_tokens=32768, passes=1.0)
    cluster = GPUCluster(GPUS["h800"], REACHED, dense_shape(parameters), work)
    synchronous = cluster.apart(gpus // 2, gpus // 2, 1)
    asynchronous = cluster.apart(gpus // 4, gpus - gpus // 4, 1)
    return simulated(synchronous, work, 0).step, simulated(asynchronous, work, 4).step


TABLE = (  # parameters, GPU, mean and most tokens of a completion, tokens of a row
    (7e9, "h100", 2000.0, 8192, 16384),
    (7e9, "h100", 8000.0, 27648, 32768),
    (70e9, "h100", 2000.0, 8192, 16384),
    (400e9, "h200", 2000.0, 8192, 8704),
)


def table(places: Sequence[int]) -> None:
    """Print a row for each model and number of GPUs: split, trained tokens per second, GPU-hours of a million."""
    for parameters, gpu, mean, most, row in (TABLE[place] for place in places):
        for gpus in (8, 64, 512, 4096):
            line = [f"{parameters / 1e9:g}B, {gpu}, {mean:g} tokens", f"{gpus:,}"]
            work = {"prompts_per_step": 512, "mean_tokens": mean, "max_new_tokens": most, "microbatch_tokens": row}
            asked = PlanCluster(model_parameters=parameters, gpu=gpu, gpus=gpus, max_staleness=4, **work)
            try:
                splits = run(asked).splits
            except UserError as error:
                splits = []
                line.append(str(error).partition(";")[0])
            for mode in (COLOCATED, SYNCHRONOUS, ASYNCHRONOUS) if splits else ():
                best = next((split for split in splits if split.mode == mode), None)
                split = f"{best.trainers} + {best.samplers} x {best.of_sampler}: " if best else ""
                rate = f"{best.tokens_per_second / 1000:.3g}k, {best.gpu_hours():.2g}" if best else "does not fit"
                line.append(rate if mode == COLOCATED else split + rate)
            print("| " + " | ".join(line) + " |", flush=True)


def main() -> None:
    """Read the command line, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["here", "ahead", "areal", "table"])
    parser.add_argument("--measured", type=Path, nargs="+", help="files of lines of benchmarks/cluster.py")
    parser.add_argument("--overlap", type=Path, help="what benchmarks/overlap.py wrote with --json")
    parser.add_argument("--rows", type=int, nargs="+", default=list(range(len(TABLE))), help="of TABLE, by place")
    args = parser.parse_args()
    if args.what in ("here", "ahead"):
        texts = [file.read_text(encoding="utf-8") for file in args.measured]
        lines = [json.loads(line) for text in texts for line in text.splitlines()]
        if args.what == "here":
            here(lines)
        else:
            ahead(lines, json.loads(args.overlap.read_text(encoding="utf-8")))
        return
    if args.what == "table":
        table(args.rows)
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
