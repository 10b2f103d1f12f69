"""What the processes of a cluster cost on this machine, line by line.

    python benchmarks/cluster.py --output measured.jsonl
    python benchmarks/cluster.py --lines samplers learners
    python benchmarks/cluster.py --lines recipe

    samplers   two sampler processes of one thread, one of one thread, one of two threads: tokens per second
    learners   two learner processes of one thread, one of one thread, one of two threads: seconds of an update of GRPO
               on 8,544 tokens. What its optimiser takes longer with two processes is communication
    recipe     `posttrain rl` in one process, and with 1 + 1, 1 + 2, 2 + 1 and 2 + 2 trainers and samplers: seconds per
               step after the first. Two threads belong to the trainers together, and to the samplers together

The first two use `SamplerGroup` and `LearnerGroup` on the packaged model and also write a calibration: the coefficients
of `planning/cluster/`. `recipe` is what that model predicts from them (benchmarks/cluster_prediction.py); it
has other lengths and another batch. Lengths are given and no token stops a sequence. Nothing else may run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from posttrain.algorithms.algorithm import Counts
from posttrain.algorithms.grpo import GRPO
from posttrain.data import Example, load_tasks
from posttrain.distributed import cluster
from posttrain.distributed.pool import Share
from posttrain.distributed.samplers import SamplerGroup
from posttrain.distributed.trainers import LearnerGroup, RankActors
from posttrain.engine.policy import Policy, load_policy
from posttrain.engine.transformers import TransformersEngine
from posttrain.models.packaged import pull
from posttrain.threads import SPINCOUNT
from posttrain.training.learner import POLICY, Batch
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import PolicyLoss
from posttrain.training.ranks import Ranks
from posttrain.types import Request, Sampling

MODEL = "smollm2-135m-instruct"
PROCESSES = ((1, 1), (2, 1), (1, 2))  # processes, threads of each
COMPLETIONS = 4  # of a prompt; attention to a prompt costs once for its completions
FEW, MANY = 16, 64  # sequences of a sampler
WIDE = 256  # sequences of all samplers: the fixed cost of a decoding step is little of it
SHORT, LONG = 16, 80  # tokens of each
SMALL, LARGE = 4, 24  # prompts of an update
TOKENS, PROMPT = 64, 100  # tokens of each completion and prompt of an update
MICROBATCH_TOKENS = 1024
RUNS = ((0, 0), (1, 1), (1, 2), (2, 1), (2, 2))  # trainers, samplers
WORK = {"--prompts-per-step": 8, "--completions-per-prompt": 4, "--max-new-tokens": 64, "--steps": 4}
WORK |= {"--kl-coefficient": 0}  # no reference


def policy(where: str) -> Policy:
    """The policy of a process, whose engine knows no stop token."""
    found = load_policy(where)
    return Policy(found.model, found.chat, TransformersEngine(found.model, frozenset()))


def learner(ranks: Ranks, where: str) -> LocalLearner[Any]:
    """The learner of a rank."""
    found = load_policy(where)
    optimizer = MasterAdamW(found.model.trainable())
    return LocalLearner(found.model, optimizer, microbatch_tokens=MICROBATCH_TOKENS, ranks=ranks)


def seconds(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def sampling(group: SamplerGroup, prompts: Sequence[tuple[int, ...]], size: int) -> dict[str, float]:
    """Seconds of decoding: of a step in dependence on its sequences, of a prompt's token, and of a batch."""

    def batch(sequences: int, tokens: int) -> float:
        total = size * sequences
        requests = [Request(prompts[i // COMPLETIONS], Sampling(tokens), seed=i) for i in range(total)]
        return seconds(lambda: group.generate(requests))

    batch(FEW, SHORT)
    few, many = ([batch(n, tokens) for tokens in (SHORT, LONG)] for n in (FEW, MANY))
    steps = [(long - short) / (LONG - SHORT) for short, long in (few, many)]
    each = (steps[1] - steps[0]) / (MANY - FEW)
    begin = [short - SHORT * step for (short, _), step in zip((few, many), steps, strict=True)]
    read = [sum(map(len, prompts[: n // COMPLETIONS])) for n in (FEW, MANY)]  # of one sampler
    prompt = (begin[1] - begin[0]) / (read[1] - read[0])
    shared = batch(MANY // size, LONG) if size > 1 else many[1]
    wide = batch(WIDE // size, LONG)
    return {
        "decode_step": steps[0] - FEW * each,
        "decode_sequence": each,
        "prompt_token": prompt,
        "decode_begin": begin[0] - read[0] * prompt,
        "tokens_per_second": round(MANY * LONG / shared, 1),  # of the same work
        "tokens_per_second_each": round(size * MANY * LONG / many[1], 1),  # with as much work for each
        "tokens_per_second_wide": round(WIDE * LONG / wide, 1),
    }


def updates(trained: LearnerGroup) -> dict[str, float]:
    """Seconds of an update: of a token, of a pass, of the optimiser."""

    loss = PolicyLoss(GRPO(kl_coefficient=0.0))

    def batch(prompts: int) -> float:
        examples = [
            Example((100 + prompt,) * PROMPT, (200 + i,) * TOKENS, (True,) * TOKENS)
            for prompt in range(prompts)
            for i in range(COMPLETIONS)
        ]
        values = {"advantages": 0.5, "sampler_logprobs": -1.0, "length": TOKENS}
        columns = {name: [(value,) * TOKENS] * len(examples) for name, value in values.items()}
        counts = Counts(len(examples), len(examples) * TOKENS)
        return seconds(partial(trained.forward_backward, Batch(examples, counts, tokens=columns, key="1"), loss))

    step = partial(trained.optim_step, {POLICY: 1e-6})
    batch(SMALL)
    step()
    small, large = batch(SMALL), batch(LARGE)
    tokens = [prompts * (PROMPT + COMPLETIONS * TOKENS) for prompts in (SMALL, LARGE)]
    return {
        "small_tokens": tokens[0],
        "small_seconds": small,
        "tokens": tokens[1],
        "forward_backward_seconds": large,
        "optim_step_seconds": seconds(step),
    }


def parts(where: str, lines: Sequence[str], places: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The lines of samplers and learners."""
    chat = load_policy(where).chat
    tasks = load_tasks("gym:gsm_symbolic", limit=WIDE // COMPLETIONS)
    prompts = [tuple(chat.prompt_ids(task.prompt)) for task in tasks]
    for size, threads in (PROCESSES[place] for place in places):
        line: dict[str, Any] = {"line": "parts", "processes": size, "threads": threads}
        share = Share(threads=threads)
        with RankActors(size, share=share) as actors:
            trained = LearnerGroup(actors, partial(learner, where=where))
            line |= updates(trained) if "learners" in lines else {}
            if "samplers" in lines:
                with SamplerGroup(size, partial(policy, where), trained, share=share) as group:
                    group.update()
                    line |= sampling(group, prompts, size)
                    trained.optim_step({POLICY: 0.0})
                    line["sync_seconds"] = seconds(group.update)
                    line["sync_bytes"] = group.metrics()["cluster/sync_bytes"]
        yield line


def recipe(where: str, places: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The lines of the recipe."""
    words = [str(word) for pair in WORK.items() for word in pair]
    words += ["--microbatch-tokens", str(MICROBATCH_TOKENS), "--save-every", "100", "--keep-last", "1", "--quiet"]
    reward = Path(__file__).parents[1] / "examples" / "reward.py"
    words += ["--model", where, "--dataset", "gym:gsm_symbolic", "--reward", f"{reward}:brief"]
    for trainers, samplers in (RUNS[place] for place in places):
        more = ["--trainers", str(trainers), "--samplers", str(samplers)] if trainers else []
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "run"
            command = [sys.executable, "-m", "posttrain", "rl", *words, *more, "--output", str(output)]
            environment = {**os.environ, "POSTTRAIN_WITHOUT": "skipped groups"}  # all are computed, as planned
            run = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL, env=environment)
            whole = seconds(run)
            rows = [json.loads(row) for row in (output / "metrics.jsonl").read_text().splitlines()]
        rows = [row for row in rows if row.get("step", 0) > 1 and "seconds/step" in row]
        names = ("seconds/step", "seconds/rollout", "seconds/train", "length/mean", "length/max", "tokens")
        line: dict[str, Any] = {"line": "recipe", "trainers": trainers, "samplers": samplers}
        line |= {name: round(fmean(row[name] for row in rows), 3) for name in names}
        line |= {"sync_seconds": fmean(row.get("cluster/sync_seconds", 0.0) for row in rows)}
        line |= {"steps": [round(row["seconds/step"], 2) for row in rows], "command_seconds": round(whole, 1)}
        yield line


def say(line: Mapping[str, Any], output: Path | None) -> None:
    """Print a line, and append it to the file."""
    print(json.dumps(line), flush=True)
    if output:
        with output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lines = ("samplers", "learners", "recipe")
    parser.add_argument("--lines", nargs="+", default=list(lines), choices=lines)
    parser.add_argument("--processes", nargs="+", default=[0, 1, 2], type=int, help="of PROCESSES, by place")
    parser.add_argument(
        "--runs", nargs="+", default=list(range(len(RUNS))), type=int, help="of RUNS, by place; one may be repeated"
    )
    parser.add_argument("--output", type=Path, help="append the lines to this file")
    args = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", SPINCOUNT)  # as `posttrain` does; processes of the cluster inherit it
    where = str(pull(MODEL))
    if {"samplers", "learners"} & {*args.lines}:
        cluster.connect(cpus=4)
        for line in parts(where, args.lines, args.processes):
            say(line, args.output)
        cluster.disconnect()
    if "recipe" in args.lines:
        for line in recipe(where, args.runs):
            say(line, args.output)


if __name__ == "__main__":
    main()
