"""How far apart trainers of a cluster and one process are, as a table for docs/cluster.md.

    python -m tests.distributed.parity

The largest difference of any number that three updates of policy and critic say: metrics, and then logprobs, values and
losses by the updated weights; relative to those above 1 (`test_learner_group.trained`).
"""

import functools

import torch

from posttrain.distributed.cluster import connect, disconnect
from posttrain.distributed.trainers import LearnerGroup, RankActors
from posttrain.models.lora_config import Lora
from tests.distributed.test_learner_group import built, distance, of_one_process, trained

SIZES, DTYPES = (1, 2, 3), (torch.float64, torch.float32, torch.bfloat16)


def row(actors: RankActors, adapter: bool, critic: str, sharded: bool) -> list[str]:
    """The cells of one number of trainers, by dtype."""
    cells: list[str] = []
    for dtype in DTYPES:
        more = {"dtype": dtype, "critic": critic, "adapter": Lora(2, dropout=0.5) if adapter else None}
        group = LearnerGroup(actors, functools.partial(built, tokens=12, **more), sharded=sharded)
        apart = distance(of_one_process(**more), trained(group))
        cells.append(f"{apart:.0e}" if apart else "0")
    return cells


def main() -> None:
    """Print the table."""
    connect(cpus=sum(SIZES))
    print("| trainers | trained | critic | float64 | float32 | bfloat16 |\n|---|---|---|---|---|---|")
    for size in SIZES:
        with RankActors(size, timeout_s=60) as actors:
            for sharded in (False, True):
                for adapter in (False, True):
                    for critic in ("trunk", "own"):
                        name = ("adapter" if adapter else "whole model") + (", sharded" if sharded else "")
                        cells = row(actors, adapter, critic, sharded)
                        print("|", " | ".join([str(size), name, critic, *cells]), "|", flush=True)
    disconnect()


if __name__ == "__main__":
    main()
