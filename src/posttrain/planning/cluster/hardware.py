"""GPUs and their links, from published figures, and how much of them is reached.

Figures are of dense bfloat16 products and of one direction of a link. Sources (docs/scaling.md):

    a100   NVIDIA A100 datasheet (80 GB SXM): 312 TFLOP/s, 2,039 GB/s, NVLink 600 GB/s in both directions; DGX A100:
           eight links of 200 Gb/s per node
    h100   NVIDIA H100 datasheet (SXM): 1,979 TFLOP/s with sparsity, half of that dense, 3.35 TB/s, NVLink 900 GB/s in
           both directions; DGX H100: eight links of 400 Gb/s per node
    h200   NVIDIA H200 datasheet (SXM): products and links of the H100, 141 GB, 4.8 TB/s
    h800   the H100 with NVLink of 400 GB/s in both directions (what AReaL, arXiv 2505.24298, was measured on)
"""

from collections.abc import Mapping
from dataclasses import dataclass

NODE = 8  # GPUs of a node


@dataclass(frozen=True, slots=True)
class GPU:
    """A GPU: FLOP/s, bytes, bytes per second."""

    flops: float
    memory: float
    bandwidth: float  # of its memory
    nvlink: float  # one direction
    network: float  # share of a GPU of its node's links to other nodes, one direction


GPUS: Mapping[str, GPU] = {
    "a100": GPU(312e12, 80e9, 2.039e12, 300e9, 25e9),
    "h100": GPU(989.5e12, 80e9, 3.35e12, 450e9, 50e9),
    "h200": GPU(989.5e12, 141e9, 4.8e12, 450e9, 50e9),
    "h800": GPU(989.5e12, 80e9, 3.35e12, 200e9, 50e9),
}


@dataclass(frozen=True)
class Efficiency:
    """The share of a published figure that programs reach: assumptions, and where they come from.

    Attributes:
        mfu: model FLOP utilisation of training and prefill. Llama 3 405B reached 0.38 to 0.43 on 8,192 and 16,384 H100
            (Grattafiori et al. 2024, arXiv 2407.21783, Table 4).
        bandwidth: share of the memory bandwidth in decoding. Databricks measured 0.55 on four A100 and 0.60 on two H100
            (LLM Inference Performance Engineering: Best Practices, 2023).
        links: share of a link's bandwidth. 749 of 900 GB/s were measured between two H100 (NCCL issue 1264).
        latency: seconds of a collective call among GPUs, for each doubling of their number; 1e-5 within a node is what
            Calculon assumes (Isaev et al. 2023, its systems/a100_80g.json).
        memory: share of the memory that may be planned; the rest is fragments, libraries and buffers. 0.9 is vLLM's
            default of gpu_memory_utilization.
    """

    mfu: float = 0.4
    bandwidth: float = 0.6
    links: float = 0.8
    latency: float = 1e-5
    memory: float = 0.9


CHANNEL = 1.15e9
"""Bytes per second that a process sends to samplers by `rollouts/weight_channel.py`, checksums and the copy into the
model included: to two samplers together on two CPU cores (benchmarks/cluster.py), and not measured on GPUs."""
