"""How near each phase comes to what this machine can multiply.

    python benchmarks/roofline.py --model DIR

Measures the machine's rate of large matrix products in the format that the model computes in, then the phases of one
step of reinforcement learning (8 prompts x 8 completions of 64 tokens) and the operations that each cannot do without:
2 per weight and token forward, 4 backward, and those of attention. The share is that rate over the machine's. Sampling
is also held against memory: every step reads all weights once.
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median

import torch

from posttrain.algorithms.grpo import GRPO
from posttrain.data import Example, load_tasks, pack
from posttrain.models.footprint import shape_of
from posttrain.models.probe import products_per_second
from posttrain.rollouts.policy import load_policy
from posttrain.rollouts.transformers import TransformersEngine
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import PolicyBatch, policy_step
from posttrain.types import Request, Sampling

PROMPTS, COMPLETIONS, NEW = 8, 8, 64


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The median of some repetitions after one to warm up."""
    work()
    times: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times)


def bytes_per_second() -> float:
    """Bytes that can be read per second from memory: the sum of 256 MiB."""
    block = torch.zeros(2**25, dtype=torch.int64)
    return block.nbytes / seconds(block.sum, 5)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()

    policy = load_policy(args.model)
    model, shape = policy.model, shape_of(policy.model.network, args.model)
    engine = TransformersEngine(model, frozenset())
    optimizer = MasterAdamW(model.trainable())
    asked = [tuple(policy.chat.prompt_ids(t.prompt)) for t in load_tasks("gym:gsm_symbolic", limit=PROMPTS)]
    requests = [
        Request(ids, Sampling(NEW), seed=i) for i, ids in enumerate(p for p in asked for _ in range(COMPLETIONS))
    ]
    done = engine.generate(requests)
    examples = [Example(r.token_ids, c.token_ids, (True,) * NEW) for r, c in zip(requests, done, strict=True)]
    batch = PolicyBatch(
        examples, [(-1.0) ** i for i in range(len(done))], [c.logprobs for c in done], len(done), NEW * len(done)
    )
    (row,) = pack([Example.whole(ids, [False] * len(ids)) for ids in asked], 10**6)

    def prefill() -> None:
        with torch.inference_mode():
            model.states(row)

    def train() -> None:
        policy_step(model, optimizer, GRPO(kl_coefficient=0.0), batch, lr=0.0, microbatch_tokens=1024)

    read = sum(map(len, asked))
    new = NEW * len(done)
    head = shape.vocabulary * shape.hidden
    seen = sum(len(r.token_ids) + NEW / 2 for r in requests) * NEW  # keys that the new tokens look at
    attention = 4 * shape.layers * shape.query_width * seen
    work = {
        "prefill": (prefill, 2 * shape.active * read),
        "sampling": (lambda: engine.generate(requests), 2 * shape.active * (read + new) + 2 * head * new + attention),
        "update": (train, 6 * shape.active * (read + new) + 6 * head * new + 3 * attention),
    }
    rate, reading = products_per_second(model.dtype), bytes_per_second()
    weights = (shape.active + head) * model.dtype.itemsize
    print(json.dumps({"dtype": str(model.dtype), "tflops": round(rate / 1e12, 3), "gb_per_s": round(reading / 1e9, 1)}))
    for name, (phase, operations) in work.items():
        took = seconds(phase, args.repeats)
        found = {"phase": name, "seconds": round(took, 2), "tflop": round(operations / 1e12, 2)}
        found["share"] = round(operations / took / rate, 3)
        if name == "sampling":
            found["share_of_reading"] = round(NEW * weights / took / reading, 3)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
