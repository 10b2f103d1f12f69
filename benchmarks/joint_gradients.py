"""Seconds of the gradients of several clients of `posttrain server`: one after another, and in one pass.

    python benchmarks/joint_gradients.py --model DIR --clients 2 4 8 --tokens 32 256 --repeats 3

DIR is a Hugging Face folder (`posttrain models pull` prints one). Each client has an adapter of its own and sends one
sequence of as many tokens as `--tokens` says. The two ways run in turn; medians and their ratio are printed, and the
largest relative difference of a client's gradient in the two ways.
"""

import argparse
import json
import time
from collections.abc import Sequence
from statistics import median

import numpy as np
import torch

from posttrain.engine.policy import load_policy
from posttrain.models.language_model import LanguageModel
from posttrain.serving.base import Adapter, Base
from posttrain.serving.losses import Datum, loss_of
from posttrain.serving.together import Member, forward_backward_together
from posttrain.serving.trainer import Trainer

ROW = 4096  # tokens of one pass, as the server's default


def member(base: Base, seed: int, rank: int) -> Member:
    """A client without data, whose adapter makes another policy of the base."""
    adapter = Adapter(rank, seed)
    model, g = base.adapted(adapter), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.trainable():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=g) / 1000)
    return Member(Trainer(model, microbatch_tokens=ROW), adapter.scale, [], loss_of("cross_entropy", {}, set(), 1))


def with_data(client: Member, seed: int, tokens: int, vocabulary: int) -> Member:
    """One sequence of random tokens, the same for a seed."""
    ids = np.random.default_rng(seed).integers(0, vocabulary, size=tokens)
    data = [Datum(tuple(ids.tolist()), np.roll(ids, -1), {})]
    return Member(client.trainer, client.scale, data, client.loss)


def taken(members: Sequence[Member], joint: LanguageModel | None) -> tuple[float, list[torch.Tensor]]:
    """Seconds, and the gradient of each client."""
    for each in members:
        each.trainer.optimizer.discard()
    began = time.perf_counter()
    if joint is None:
        for each in members:
            each.trainer.forward_backward(each.data, each.loss)
    else:
        forward_backward_together(joint, members, microbatch_tokens=ROW)
    seconds = time.perf_counter() - began
    grads = [[m.grad.flatten() for m in each.trainer.optimizer.masters if m.grad is not None] for each in members]
    return seconds, [torch.cat(each) for each in grads]


def main() -> None:
    """Read the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--clients", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--tokens", nargs="+", type=int, default=[32, 256])
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precision", default="float32")
    args = parser.parse_args()

    policy = load_policy(args.model, precision=args.precision)
    base = Base(policy.model, args.model, policy.chat.tokenizer, frozenset())
    joint, clients = base.mixed(), [member(base, seed, args.rank) for seed in range(max(args.clients))]
    print(json.dumps({"dtype": str(policy.model.dtype), "threads": torch.get_num_threads(), "rank": args.rank}))
    for tokens in args.tokens:
        for count in args.clients:
            members = [with_data(each, seed, tokens, base.vocabulary) for seed, each in enumerate(clients[:count])]
            found: dict[str, list[float]] = {"apart": [], "together": []}
            gap = 0.0
            for _ in range(args.repeats):
                seconds, alone = taken(members, None)
                found["apart"].append(seconds)
                seconds, grads = taken(members, joint)
                found["together"].append(seconds)
                gaps = ((one - other).norm() / other.norm() for one, other in zip(grads, alone, strict=True))
                gap = max(gap, *(each.item() for each in gaps))
            medians = {way: round(median(each), 3) for way, each in found.items()}
            line = {"clients": count, "tokens": tokens, "seconds": medians}
            ratio = round(median(found["apart"]) / median(found["together"]), 2)
            print(json.dumps(line | {"ratio": ratio, "difference": float(f"{gap:.1e}")}), flush=True)


if __name__ == "__main__":
    main()
