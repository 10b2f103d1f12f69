"""How near each phase comes to what this machine can multiply.

    python benchmarks/roofline.py --model DIR
    python benchmarks/roofline.py --model DIR --plot docs/where-time-goes.svg

Measures the machine's rate of large matrix products in the format that the model computes in, then the phases of one
step of reinforcement learning (8 prompts x 8 completions of 64 tokens) and the operations that each cannot do without:
2 per weight and token forward, 4 backward, and those of attention. The share is that rate over the machine's. Sampling
is also held against memory: every step reads all weights once.

With --plot, torch's profiler says which operations the time of a phase goes to, and a bar for each phase is drawn.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from posttrain.algorithms.algorithm import Counts
from posttrain.algorithms.grpo import GRPO
from posttrain.data import Example, load_tasks, pack
from posttrain.engine.policy import load_policy
from posttrain.engine.transformers import TransformersEngine
from posttrain.models.footprint import shape_of
from posttrain.models.language_model import LanguageModel
from posttrain.models.precision import products_per_second
from posttrain.training.learner import POLICY, Batch
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import PolicyLoss
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


@dataclass(frozen=True)
class Phase:
    """A part of a step, and the operations that it cannot do without."""

    name: str
    work: Callable[[], object]
    operations: float


def phases(name: str) -> tuple[LanguageModel, list[Phase]]:
    """The model, and the phases of one step with it."""
    policy = load_policy(name)
    model, shape = policy.model, shape_of(policy.model.network, name)
    engine = TransformersEngine(model, frozenset())
    learner = LocalLearner(model, MasterAdamW(model.trainable()), microbatch_tokens=1024)
    asked = [tuple(policy.chat.prompt_ids(t.prompt)) for t in load_tasks("gym:gsm_symbolic", limit=PROMPTS)]
    requests = [
        Request(ids, Sampling(NEW), seed=i) for i, ids in enumerate(p for p in asked for _ in range(COMPLETIONS))
    ]
    done = engine.generate(requests)
    examples = [Example(r.token_ids, c.token_ids, (True,) * NEW) for r, c in zip(requests, done, strict=True)]
    batch = Batch(
        examples,
        Counts(len(done), NEW * len(done), NEW),
        tokens={
            "advantages": [((-1.0) ** i,) * NEW for i in range(len(done))],
            "sampler_logprobs": [c.logprobs for c in done],
        },
    )
    (row,) = pack([Example.whole(ids, [False] * len(ids)) for ids in asked], 10**6)

    def prefill() -> None:
        with torch.inference_mode():
            model.states(row)

    def train() -> None:
        learner.forward_backward(batch, PolicyLoss(GRPO(kl_coefficient=0.0)))
        learner.optim_step({POLICY: 0.0})

    read = sum(map(len, asked))
    new = NEW * len(done)
    head = shape.vocabulary * shape.hidden
    seen = sum(len(r.token_ids) + NEW / 2 for r in requests) * NEW  # keys that the new tokens look at
    attention = 4 * shape.layers * shape.query_width * seen
    return model, [
        Phase("prefill", prefill, 2 * shape.active * len(row.token_ids)),
        Phase(
            "sampling", lambda: engine.generate(requests), 2 * shape.active * (read + new) + 2 * head * new + attention
        ),
        Phase("update", train, 6 * shape.active * (read + new) + 6 * head * new + 3 * attention),
    ]


KINDS = {
    "products": ("mm", "addmm", "_linear_pointwise"),
    "attention's products": ("bmm", "baddbmm"),
    "packing and copies": ("copy_", "cat", "index_select", "_index_put_impl_", "_reorder_linear_weight", "fill_"),
    "optimiser": ("_fused_adamw_", "linalg_vector_norm"),
}
OTHER, BETWEEN = "other operations", "between operations"


def parts(work: Callable[[], object]) -> dict[str, float]:
    """Seconds of a piece of work by the kind of operation, and those that no operation took (Python, dispatch)."""
    work()
    began = time.perf_counter()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        work()
        took = time.perf_counter() - began
    found = dict.fromkeys((*KINDS, OTHER), 0.0)
    for event in profiler.key_averages():
        if "::" in event.key:
            kind = next((k for k, names in KINDS.items() if event.key.rpartition("::")[2] in names), OTHER)
            found[kind] += event.self_cpu_time_total / 1e6
    return found | {BETWEEN: max(0.0, took - sum(found.values()))}


COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#9c6b4e", "#9498a0")
WIDE, LINE = 720, 46


def drawing(found: dict[str, dict[str, float]], title: str) -> str:
    """Bars of seconds as SVG, which is readable on light and dark."""
    scale = (WIDE - 20) / max(sum(kinds.values()) for kinds in found.values())
    lines = [f'<text x="10" y="18" font-weight="600">{title}</text>']
    for number, (phase, kinds) in enumerate(found.items()):
        x, y = 10.0, 40 + LINE * number
        lines.append(f'<text x="10" y="{y}">{phase}: {sum(kinds.values()):.1f} s</text>')
        for colour, (kind, seconds) in zip(COLOURS, kinds.items(), strict=True):
            box = f'<rect x="{x:.1f}" y="{y + 6}" width="{seconds * scale:.1f}" height="20" fill="{colour}">'
            lines.append(f"{box}<title>{kind}: {seconds:.2f} s</title></rect>")
            x += seconds * scale
    y = 40 + LINE * len(found)
    for number, (colour, kind) in enumerate(zip(COLOURS, (*KINDS, OTHER, BETWEEN), strict=True)):
        x, at = 10 + 240 * (number % 3), y + 22 * (number // 3)
        lines.append(f'<rect x="{x}" y="{at - 10}" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{x + 18}" y="{at}">{kind}</text>')
    size = f'width="{WIDE}" height="{y + 36}" viewBox="0 0 {WIDE} {y + 36}"'
    style = "text{font:13px sans-serif;fill:#222}@media(prefers-color-scheme:dark){text{fill:#ddd}}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>' + "".join(lines) + "</svg>\n"


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plot", type=Path, help="where to write the drawing of where the time goes")
    args = parser.parse_args()

    model, work = phases(args.model)
    rate, reading = products_per_second(model.dtype), bytes_per_second()
    weights = sum(p.nbytes for p in model.network.parameters())
    print(json.dumps({"dtype": str(model.dtype), "tflops": round(rate / 1e12, 3), "gb_per_s": round(reading / 1e9, 1)}))
    for phase in work:
        took = seconds(phase.work, args.repeats)
        found = {"phase": phase.name, "seconds": round(took, 2), "tflop": round(phase.operations / 1e12, 2)}
        found["share"] = round(phase.operations / took / rate, 3)
        if phase.name == "sampling":
            found["share_of_reading"] = round(NEW * weights / took / reading, 3)
        print(json.dumps(found), flush=True)
    if args.plot:
        kinds = {phase.name: parts(phase.work) for phase in work}
        for name, found in kinds.items():
            print(json.dumps({"phase": name} | {kind: round(value, 2) for kind, value in found.items()}))
        args.plot.write_text(drawing(kinds, "8 prompts x 8 completions of 64 tokens, seconds by operation"))


if __name__ == "__main__":
    main()
