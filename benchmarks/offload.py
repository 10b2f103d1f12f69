"""What it costs to keep an optimiser, or shards of weights, in host memory, on one GPU.

    python benchmarks/offload.py --parameters 3e9
    python benchmarks/offload.py --parameters 7e9 --ways optimizer shards

A Llama of about that many random weights in bfloat16 with gradient checkpointing learns random tokens, all weights:

    gpu         everything on the GPU
    optimizer   masters, gradient sums and moments in host memory (--offload-optimizer)
    shards      the weights as well, a layer is on the GPU while it computes (--fsdp --fsdp-offload, one trainer)

Of each the seconds of forward and backward passes and of AdamW's step, medians after the first update, and the memory:
the peak of what is allocated on the GPU, and the most that the process had in the host's. Each is a process of its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from statistics import median

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

from posttrain.algorithms.algorithm import Counts
from posttrain.data import Example
from posttrain.distributed.process_group import ProcessGroup
from posttrain.distributed.sharding import ShardedRanks
from posttrain.models.fused import checkpoint_layers
from posttrain.models.language_model import wrap
from posttrain.training.learner import POLICY, Batch
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.ranks import ALONE
from posttrain.training.supervised import NLL

WAYS = ("gpu", "optimizer", "shards")
WIDTH, VOCABULARY = 128, 32_000  # of a head, and of the head
GB = 1e9


def config_of(parameters: float) -> LlamaConfig:
    """A Llama whose layers are as wide as those of models of that size."""
    hidden = 4096 if parameters >= 5e9 else 3072 if parameters >= 2e9 else 2048
    layer = 12 * hidden**2  # attention 4, MLP of 8/3 hidden 8
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=8 * hidden // 3 // 256 * 256,
        num_hidden_layers=max(1, round((parameters - 2 * VOCABULARY * hidden) / layer)),
        num_attention_heads=hidden // WIDTH,
        num_key_value_heads=hidden // WIDTH,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )


def measured(way: str, parameters: float, tokens: int, rows: int, updates: int) -> dict[str, object]:
    """One way, in this process."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):  # which makes random numbers faster
        network = LlamaForCausalLM(config_of(parameters))
    torch.set_default_dtype(torch.float32)
    if way == "shards":
        network.to("cpu")
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = wrap(network, name="random", context=4096)
    checkpoint_layers(model.network)
    count = sum(p.numel() for p in network.parameters())
    ranks = ALONE
    if way == "shards":
        ranks = ShardedRanks(ProcessGroup(dist.HashStore(), 0, 1, backend="nccl"), 1, offload=True)
    optimizer = MasterAdamW(model.trainable(), offload=way == "optimizer")
    learner = LocalLearner(model, optimizer, microbatch_tokens=tokens, ranks=ranks)
    length = min(tokens, 2048)
    ids = torch.randint(VOCABULARY, (rows * tokens // length, length)).tolist()
    examples = [Example.whole(row, [False, *[True] * (length - 1)]) for row in ids]
    batch = Batch(examples, Counts(len(examples), len(examples) * (length - 1)))
    passes, steps, losses = [], [], []
    for _ in range(updates):
        began = time.perf_counter()
        losses.append(learner.forward_backward(batch, NLL())["loss"])
        torch.cuda.synchronize()
        between = time.perf_counter()
        learner.optim_step({POLICY: 1e-5})
        torch.cuda.synchronize()
        passes.append(between - began)
        steps.append(time.perf_counter() - between)
    return {
        "way": way,
        "parameters": count,
        "tokens": rows * tokens,
        "microbatches": rows,
        "pass_seconds": round(median(passes[1:]), 3),
        "step_seconds": round(median(steps[1:]), 3),
        "gpu_gb": round(torch.cuda.max_memory_allocated() / GB, 1),
        "host_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GB, 1),
        "losses": [round(loss, 4) for loss in losses],
    }


def main() -> None:
    """Run each way in a process of its own; one line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=3e9)
    parser.add_argument("--tokens", type=int, default=8192, help="of a micro-batch")
    parser.add_argument("--microbatches", type=int, default=4, help="of an update")
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--here", action="store_true", help="the one way in this process")
    given = parser.parse_args()
    if given.here:
        (way,) = given.ways
        found = measured(way, given.parameters, given.tokens, given.microbatches, given.updates)
        print(json.dumps(found), flush=True)
        return
    rest = [argument for argument in sys.argv[1:] if argument not in ("--ways", *given.ways)]
    for way in given.ways:
        subprocess.run([sys.executable, __file__, *rest, "--ways", way, "--here"], check=False)


if __name__ == "__main__":
    main()
