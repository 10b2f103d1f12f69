"""How far apart trainers of a cluster and one process are, as a table for docs/cluster.md.

    python -m tests.distributed.parity

The largest difference of any number that three updates of policy and critic say: metrics, and then logprobs, values and
losses by the updated weights; relative to those above 1 (`test_learner_group.trained`).
"""

import functools
from itertools import product

import torch

from posttrain.distributed.cluster import connect, disconnect
from posttrain.distributed.trainers import LearnerGroup, RankActors
from posttrain.models.lora import Lora
from tests.distributed.test_learner_group import built, distance, of_one_process, trained

SHARDS = {1: (1,), 2: (1, 2), 3: (1, 3), 4: (2,)}
"""By number of trainers: over how many a replica is sharded; 1: each holds all."""
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def row(actors: RankActors, adapter: bool, critic: str, shards: int) -> list[str]:
    """The cells of one number of trainers, by dtype."""
    cells: list[str] = []
    for dtype in DTYPES:
        more = {"dtype": dtype, "critic": critic, "adapter": Lora(2, dropout=0.5) if adapter else None}
        group = LearnerGroup(actors, functools.partial(built, tokens=12, **more), shards=shards)
        apart = distance(of_one_process(**more), trained(group))
        cells.append(f"{apart:.0e}" if apart else "0")
    return cells


def main() -> None:
    """Print the table."""
    connect(cpus=max(SHARDS))
    print("| trainers | trained | critic | float64 | float32 | bfloat16 |\n|---|---|---|---|---|---|")
    for size, divided in SHARDS.items():
        with RankActors(size, timeout_s=60) as actors:
            for shards, adapter, critic in product(divided, (False, True), ("trunk", "own")):
                name = ("adapter" if adapter else "whole model") + (f", {shards} shards" if shards > 1 else "")
                print(
                    "|", " | ".join([str(size), name, critic, *row(actors, adapter, critic, shards)]), "|", flush=True
                )
    disconnect()


if __name__ == "__main__":
    main()
