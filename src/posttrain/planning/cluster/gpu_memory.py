"""What a trainer and a sampler hold on GPUs, and so how many GPUs each needs at least. Bytes throughout.

Weights are in bfloat16. A trainer of d, by FSDP over all of them, holds of P parameters

    (2 + 4 + 4 + 8) P / d     weights, float32 masters and gradients, Adam's moments

and, while it computes a row, embedding and head, two gathered layers, and the activations of a row with gradient
checkpointing (models/footprint.py). A sampler of t GPUs, by tensor parallelism, holds 2 P, and in the rest its cache of
keys and values.
"""

from dataclasses import dataclass

from posttrain.models.footprint import (
    Shape,
    cache_bytes_per_token,
    end_bytes,
    head_bytes,
    input_bytes,
    layer_bytes,
)
from posttrain.planning.cluster.hardware import GPU, NODE
from posttrain.planning.cluster.workload import Workload
from posttrain.planning.costs import Training

WEIGHT = 2  # bytes of a number in bfloat16


@dataclass(frozen=True, slots=True)
class Room:
    """What GPUs must hold: a model and its rows.

    Attributes:
        shape: the model.
        work: of a step.
        usable: bytes of a GPU that may be planned.
    """

    shape: Shape
    work: Workload
    usable: float

    def trainer(self, trainers: int) -> float:
        """Bytes of one trainer of this many."""
        return self.held() / trainers + (self.row() if trainers == 1 else self.row() + self.gathered())

    def held(self) -> float:
        """Bytes of all trainers together, from the first update to the last: 18 P."""
        return float(sum(Training(self.shape, WEIGHT, on_gpu=True).held().values()))

    def gathered(self) -> float:
        """Of a trainer with shards: embedding and head, and two layers, the one that computes and the next."""
        ends = 2 * self.shape.vocabulary * self.shape.hidden
        return WEIGHT * (ends + 2 * self.shape.active / self.shape.layers)

    def row(self) -> float:
        """Of a row: the inputs of all layers, the activations of one, logits and the head's gradient."""
        tokens, shape = self.work.microbatch_tokens, self.shape
        kept = input_bytes(shape, WEIGHT, tokens=tokens) + end_bytes(shape, WEIGHT, tokens, tokens)
        one = layer_bytes(shape, WEIGHT, tokens=tokens)
        return float(kept + one + head_bytes(shape, WEIGHT, full=True))

    def fewest_trainers(self, most: int) -> int:
        """The fewest GPUs that hold trainers, in whole nodes above one node; 0 if `most` do not."""
        counts = [*range(1, min(most, NODE) + 1), *range(2 * NODE, most + 1, NODE)]
        return next((count for count in counts if self.trainer(count) <= self.usable), 0)

    def cache_tokens(self, gpus: int, beside: float = 0.0) -> float:
        """Tokens whose keys and values a sampler of this many GPUs holds; `beside` bytes of each hold other things."""
        left = gpus * (self.usable - beside) - WEIGHT * self.shape.parameters
        return left / cache_bytes_per_token(self.shape, WEIGHT)

    def fewest_of_sampler(self, most: int) -> int:
        """The fewest GPUs of a sampler, a power of two, that leave room for a longest sequence; 0 if `most` do not."""
        counts = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
        return next((count for count in counts if self.cache_tokens(count) >= self.work.longest), 0)

    def slots(self, gpus: int, most: int, beside: float = 0.0) -> int:
        """Sequences that a sampler decodes together: as many as its cache holds at their mean size, `most` at most.

        Engines take sequences in before they know their length, and stop some where the cache is full; the mean is what
        remains of that in the long run.
        """
        return min(most, int(self.cache_tokens(gpus, beside) / self.work.resident()))


def room(gpu: GPU, share: float, shape: Shape, work: Workload) -> Room:
    """What GPUs of a kind have room for, where `share` of their memory may be planned."""
    return Room(shape, work, share * gpu.memory)
