"""Tokens per second of sampling from several adapters on one base: one after another, and all in one batch.

    python benchmarks/adapters.py --model DIR --adapters 1 2 4 8 --repeats 3

DIR is a Hugging Face folder (`posttrain models pull` prints one). Each adapter gets 2 prompts x 8 completions of 32
tokens; prompts are word problems of reasoning-gym, and no token stops a sequence. In turn, each adapter has a network
of its own over the base's tensors, as peft computes it, and a decoding after that of the one before. Together, they are
requests of one decoding. The two ways run in turn; medians and their ratio are printed.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

from posttrain.data import load_tasks
from posttrain.engine.policy import load_policy
from posttrain.engine.transformers import TransformersEngine
from posttrain.models.language_model import LanguageModel
from posttrain.models.mixed_adapters import LowRank
from posttrain.serving.base import Adapter, Base
from posttrain.types import Request, Sampling

PROMPTS, COMPLETIONS, TOKENS = 2, 8, 32


def client(base: Base, of_all: LanguageModel, seed: int, rank: int) -> tuple[LanguageModel, LowRank]:
    """An adapter that makes another policy of the base: as a network of its own, and for the network of all."""
    adapter = Adapter(rank, seed)
    model, g = base.adapted(adapter), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.trainable():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=g) / 1000)
    assert of_all.mixed is not None
    return model, of_all.mixed.adapter({name: weight.detach() for name, weight in model.trainable()}, adapter.scale)


def in_turn(models: Sequence[LanguageModel], requests: Sequence[Request]) -> None:
    """A decoding for each adapter."""
    for model in models:
        TransformersEngine(model, frozenset()).generate(requests)


def together(of_all: LanguageModel, adapters: Sequence[LowRank], requests: Sequence[Request]) -> None:
    """One decoding."""
    with TransformersEngine(of_all, frozenset()).open() as decoding:
        count = len(requests)
        for number, adapter in enumerate(adapters):
            for place, request in enumerate(requests):
                decoding.add(number * count + place, request, adapter=adapter)
        done = 0
        while done < count * len(adapters):
            done += len(decoding.step())


def seconds(run: Callable[[], None]) -> float:
    """That it takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    """Read the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapters", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()

    policy = load_policy(args.model)
    base = Base(policy.model, args.model, policy.chat.tokenizer, frozenset())
    of_all = base.mixed()
    clients = [client(base, of_all, seed, args.rank) for seed in range(max(args.adapters))]
    prompts = [tuple(policy.chat.prompt_ids(t.prompt)) for t in load_tasks("gym:gsm_symbolic", limit=PROMPTS)]
    requests = [Request(p, Sampling(TOKENS), seed=i) for p in prompts for i in range(COMPLETIONS)]
    print(json.dumps({"dtype": str(policy.model.dtype), "threads": torch.get_num_threads(), "rank": args.rank}))
    for count in args.adapters:
        models, adapters = zip(*clients[:count], strict=True)
        ways: dict[str, Callable[[], None]] = {
            "in turn": lambda models=models: in_turn(models, requests),
            "together": lambda adapters=adapters: together(of_all, adapters, requests),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.repeats):
            for name, run in ways.items():
                taken[name].append(seconds(run))
        tokens = count * len(requests) * TOKENS
        rates = {name: round(tokens / median(found)) for name, found in taken.items()}
        line = {"adapters": count, "tokens": tokens, "tokens_per_second": rates}
        print(json.dumps(line | {"ratio": round(rates["together"] / rates["in turn"], 2)}), flush=True)


if __name__ == "__main__":
    main()
