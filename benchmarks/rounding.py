"""What of a small update is left in bfloat16 weights: rounded to the nearest, and as posttrain rounds.

    python benchmarks/rounding.py --data DATA
    python benchmarks/rounding.py --data DATA --lr 1e-6 --updates 8

DATA has hh-rlhf/. The packaged model makes a few updates that raise the likelihood of twelve responses of people and
lower that of twelve others, in float32 and in bfloat16 with float32 masters. Told is how much the mean logprob of
either kind moved, in nats per response of 32 tokens: in float32, by the masters of the bfloat16 model, and by these
masters in bfloat16. All are evaluated in float32, so that only the weights differ.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor

from posttrain.data import ChatFormat, Example, load_preferences, load_tokenizer, pack, pair_of
from posttrain.models.language_model import LanguageModel
from posttrain.models.load import load_model, locate
from posttrain.models.rounding import narrow_
from posttrain.training.optimizer import MasterAdamW

BASE = "smollm2-135m-instruct"
TOKENS, PAIRS, LONGEST = 32, 12, 60


def examples_in(data: Path) -> list[Example]:
    """Chosen and rejected in turn, the first tokens of each."""
    chat = ChatFormat(load_tokenizer(locate(BASE)), load_model(BASE, dtype=torch.float32).stop_ids)
    source = data / "hh-rlhf" / "harmless-base.train1500.jsonl.gz"
    pairs = (pair_of(chat, one) for one in load_preferences(str(source), limit=200).items)
    short = [pair for pair in pairs if len(pair.chosen.prefix) < LONGEST][:PAIRS]
    return [Example(one.prefix, one.continuation[:TOKENS], one.learned[:TOKENS]) for pair in short for one in pair]


def logprobs(model: LanguageModel, examples: Sequence[Example]) -> Tensor:
    """Of each response, in nats."""
    found = torch.zeros(len(examples))
    with torch.no_grad():
        for row in pack(examples, 1024):
            found.index_add_(0, torch.tensor(row.rows), model.logprobs(row).logprobs.float())
    return found


def update(model: LanguageModel, examples: Sequence[Example], lr: float, updates: int) -> MasterAdamW:
    """Raise every other response and lower those between."""
    sign = torch.tensor([1.0, -1.0] * (len(examples) // 2))
    optimizer = MasterAdamW(model.trainable())
    for _ in range(updates):
        with optimizer.collecting():
            for row in pack(examples, 1024):
                weighed = sign[row.rows] * model.logprobs(row).logprobs.float()
                (-weighed.sum() / (TOKENS * len(examples))).backward()
        optimizer.step(lr)
    return optimizer


def nearest(master: Tensor) -> Tensor:
    """As torch rounds."""
    return master.bfloat16()


def ours(master: Tensor) -> Tensor:
    """As posttrain rounds."""
    found = torch.empty_like(master, dtype=torch.bfloat16)
    narrow_(found, master)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=6e-6)
    parser.add_argument("--updates", type=int, default=2)
    options = parser.parse_args()
    examples = examples_in(options.data)
    plain = load_model(BASE, dtype=torch.float32)
    before = logprobs(plain, examples)
    print("| weights | raised by | lowered by |\n|---|---|---|")

    def show(name: str) -> None:
        moved = (logprobs(plain, examples) - before).view(-1, 2).mean(0).tolist()
        print(f"| {name} | {moved[0]:+.3f} | {moved[1]:+.3f} |", flush=True)

    update(plain, examples, options.lr, options.updates)
    show("float32")
    optimizer = update(load_model(BASE, dtype=torch.bfloat16), examples, options.lr, options.updates)
    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "float32 masters of bfloat16": lambda master: master,
        "bfloat16, to the nearest": nearest,
        "bfloat16, as posttrain rounds": ours,
    }
    weights = dict(plain.network.named_parameters())
    for name, rounded in kinds.items():
        with torch.no_grad():
            for key, master in optimizer.named_masters().items():
                weights[key].copy_(rounded(master))
        show(name)


if __name__ == "__main__":
    main()
