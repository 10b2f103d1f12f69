"""Tokens per second of sampling, beside transformers' own `generate`.

    python benchmarks/rollout.py --model DIR --groups 8x8 16x16 --repeats 3

DIR is a Hugging Face folder (`posttrain models pull` prints one). Groups are prompts x completions; prompts are word
problems of reasoning-gym. Lengths are given and no token stops a sequence, so that both do the same work: `fixed`, 64
tokens each, and `varied`, log-normal with a median of 55 and the longest 256, as completions that stop by themselves
are. `generate` takes the whole batch at once and goes on until its longest sequence is done. Only the tokens that were
asked for are counted. The engines run in turn; medians and their ratio are printed.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from posttrain.data import load_tasks
from posttrain.engine.policy import load_policy
from posttrain.engine.transformers import TransformersEngine
from posttrain.models.precision import default_device, dtype_of
from posttrain.types import Request, Sampling

FIXED, LONGEST = 64, 256
Run = Callable[[Sequence[Request]], object]


def lengths(kind: str, count: int) -> list[int]:
    """How many tokens each sequence gets."""
    if kind == "fixed":
        return [FIXED] * count
    drawn = np.random.default_rng(0).lognormal(4.0, 0.7, count).clip(8, LONGEST).astype(int)
    drawn[0] = LONGEST
    return drawn.tolist()


def theirs(model: str, padding: int) -> Run:
    """transformers' `generate` on one padded batch."""
    device = default_device()
    network = AutoModelForCausalLM.from_pretrained(model, dtype=dtype_of("auto", device)).to(device).eval()

    @torch.inference_mode()
    def run(requests: Sequence[Request]) -> object:
        widest = max(len(r.token_ids) for r in requests)
        longest = max(r.sampling.max_new_tokens for r in requests)
        ids = torch.tensor([[padding] * (widest - len(r.token_ids)) + [*r.token_ids] for r in requests])
        mask = torch.tensor([[0] * (widest - len(r.token_ids)) + [1] * len(r.token_ids) for r in requests])
        options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "pad_token_id": padding}
        sizes = {"max_new_tokens": longest, "min_new_tokens": longest}
        return network.generate(input_ids=ids.to(device), attention_mask=mask.to(device), **options, **sizes)

    return run


def main() -> None:
    """Read the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--groups", nargs="+", default=["8x8", "16x16"], help="prompts x completions")
    parser.add_argument("--lengths", nargs="+", default=["fixed", "varied"], choices=["fixed", "varied"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="without transformers' generate, to compare two versions")
    args = parser.parse_args()

    policy = load_policy(args.model)
    engine = TransformersEngine(policy.model, frozenset())
    engines: dict[str, Run] = {"posttrain": engine.generate}
    if not args.alone:
        engines["generate"] = theirs(args.model, 0)
    for shape in args.groups:
        prompts, completions = map(int, shape.split("x"))
        asked = [tuple(policy.chat.prompt_ids(t.prompt)) for t in load_tasks("gym:gsm_symbolic", limit=prompts)]
        for kind in args.lengths:
            sizes = lengths(kind, prompts * completions)
            requests = [Request(asked[i // completions], Sampling(size), seed=i) for i, size in enumerate(sizes)]
            rates: dict[str, list[float]] = {name: [] for name in engines}
            for _ in range(args.repeats):
                for name, run in engines.items():
                    began = time.perf_counter()
                    run(requests)
                    rates[name].append(sum(sizes) / (time.perf_counter() - began))
            found = {name: round(median(values)) for name, values in rates.items()}
            line = {"groups": shape, "lengths": kind, "tokens": sum(sizes), "tokens_per_second": found}
            ratio = {} if args.alone else {"ratio": round(found["posttrain"] / found["generate"], 2)}
            print(json.dumps(line | ratio), flush=True)


if __name__ == "__main__":
    main()
