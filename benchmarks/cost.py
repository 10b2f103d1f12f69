"""How cost grows: seconds and memory of one step by completion length, size of a group, and size of the model.

    python benchmarks/cost.py --model DIR
    python benchmarks/cost.py --model DIR --lengths 64 256 --groups 8 --shapes 135m --repeats 1

DIR is SmolLM2-135M-Instruct as a Hugging Face folder (`posttrain models pull` prints it). A step samples 4 prompts of
100 tokens and learns from what was sampled, at the length given, whatever the policy would say; every completion earns
something else, so that all are learned from. `360m` has the shape of SmolLM2-360M and random weights, which change
neither time nor memory. Each line comes from a process of its own: the median step after one to warm up, and the peak
of resident memory in GB (10^9 bytes). Prints a table in Markdown.
"""

import argparse
import json
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from statistics import median

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from posttrain.algorithms.algorithm import Counts
from posttrain.algorithms.grpo import GRPO
from posttrain.data import Example
from posttrain.engine.transformers import TransformersEngine
from posttrain.models.language_model import LanguageModel, wrap
from posttrain.models.precision import dtype_of
from posttrain.runs.environment import peak_gb
from posttrain.training.learner import POLICY, Batch
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import PolicyLoss
from posttrain.types import Request, Sampling

PROMPTS, PROMPT_TOKENS, MICROBATCH_TOKENS = 4, 100, 1024
SHAPES = {
    "135m": {},
    "360m": {
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "head_dim": 64,
    },
}


def model_of(shape: str, folder: str) -> LanguageModel:
    """A model of that shape with random weights, otherwise as the one in the folder."""
    config = AutoConfig.from_pretrained(folder, **SHAPES[shape])
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config).to(dtype_of("auto"))
    return wrap(network, name=shape, context=config.max_position_embeddings)


def measure(shape: str, folder: str, completions: int, length: int, repeats: int) -> dict[str, float]:
    """Median seconds of sampling and of the update, and the peak of memory, in this process."""
    model = model_of(shape, folder)
    engine = TransformersEngine(model, frozenset())
    learner = LocalLearner(model, MasterAdamW(model.trainable()), microbatch_tokens=MICROBATCH_TOKENS)
    prompts = torch.randint(0, 40_000, (PROMPTS, PROMPT_TOKENS), generator=torch.Generator().manual_seed(0)).tolist()
    requests = [
        Request(tuple(prompt), Sampling(length), seed=seed)
        for seed, prompt in enumerate(chain.from_iterable([prompt] * completions for prompt in prompts))
    ]
    sampling, update = list[float](), list[float]()
    for _ in range(repeats + 1):
        began = time.perf_counter()
        said = engine.generate(requests)
        sampled = time.perf_counter()
        batch = Batch(
            [Example(r.token_ids, c.token_ids, (True,) * length) for r, c in zip(requests, said, strict=True)],
            Counts(len(said), length * len(said), length),
            tokens={
                "advantages": [((-1.0) ** number,) * length for number in range(len(said))],
                "sampler_logprobs": [c.logprobs for c in said],
            },
        )
        learner.forward_backward(batch, PolicyLoss(GRPO(kl_coefficient=0.0)))
        learner.optim_step({POLICY: 1e-6})
        sampling.append(sampled - began)
        update.append(time.perf_counter() - sampled)
    return {"sampling": median(sampling[1:]), "update": median(update[1:]), "peak_gb": peak_gb()}


def main() -> None:
    """Read the command line; measure, or have each line measured by a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--lengths", nargs="+", type=int, default=[64, 128, 256, 512], help="with groups of 8")
    parser.add_argument("--groups", nargs="+", type=int, default=[4, 8, 16], help="of 64 tokens")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--line", nargs=3, metavar=("SHAPE", "GROUP", "LENGTH"), help="measure this alone, print JSON")
    args = parser.parse_args()
    if args.line:
        shape, group, length = args.line[0], *map(int, args.line[1:])
        print(json.dumps(measure(shape, args.model, group, length, args.repeats)))
        return
    print("| model | completions | tokens each | sampling | update | tokens/s sampled | tokens/s learned | memory |")
    print("|---|---|---|---|---|---|---|---|")
    cells = sorted({*((8, length) for length in args.lengths), *((group, 64) for group in args.groups)})
    for shape in args.shapes:
        for group, length in cells:
            command = [sys.executable, str(Path(__file__).resolve()), "--model", args.model]
            line = ["--repeats", str(args.repeats), "--line", shape, str(group), str(length)]
            done = subprocess.run([*command, *line], capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr[-2000:])
            found = json.loads(done.stdout.strip().splitlines()[-1])
            new = PROMPTS * group * length
            print(
                f"| {shape} | {PROMPTS} x {group} | {length} | {found['sampling']:.1f} s | {found['update']:.1f} s "
                f"| {new / found['sampling']:.0f} | {new / found['update']:.0f} | {found['peak_gb']:.2f} GB |",
                flush=True,
            )


if __name__ == "__main__":
    main()
