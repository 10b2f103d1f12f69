"""Seconds per update and peak memory of four stages, and the same side by side with TRL.

    python benchmarks/step.py grpo --model DIR --data DATA --steps 4
    python benchmarks/step.py sft --model DIR --data DATA --compare --peer-python OTHER/bin/python --repeats 3

DIR is SmolLM2-135M-Instruct as a Hugging Face folder (`posttrain models pull` prints it). DATA has
gsm8k/train.jsonl.gz and hh-rlhf/harmless-base.train1500.jsonl.gz. The work is fixed, so that another implementation can
do the same (step_trl.py does):

    grpo     8 GSM8K prompts x 8 completions, at most 64 new tokens, temperature 1, one update, no reference
    sft      16 GSM8K demonstrations of at most 512 tokens
    dpo      8 HH-RLHF pairs of at most 512 tokens
    reward   the same pairs

Prints one JSON line: seconds of each step (the first is warm-up) and peak memory in GB (10^9 bytes): what is resident,
or, on a GPU, what its tensors hold there. With --compare, ours and the peer's run in turn, each in a process of its
own, and the medians and their ratios are printed.
"""

import argparse
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch

from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.grpo import GRPO
from posttrain.data import Example, Pair, load_tokenizer
from posttrain.data.packing import Ranked
from posttrain.data.tokenizer import ChatTokenizer
from posttrain.engine.policy import load_policy
from posttrain.environments.scored import ScoredEnvironment
from posttrain.episodes.episodes import Players, sample_groups
from posttrain.models.heads import RewardModel, load_reward_model
from posttrain.models.language_model import LanguageModel
from posttrain.models.precision import default_device, dtype_of
from posttrain.models.reference import reference_for
from posttrain.rewards import parse_rewards
from posttrain.runs.environment import peak_gb
from posttrain.training.learner import POLICY, REFERENCE
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import PolicyLoss, policy_batch
from posttrain.training.preference import objective_for
from posttrain.training.reward import RewardLoss, reward_gradient
from posttrain.training.supervised import NLL, supervised_batch
from posttrain.types import Message, Sampling, Task

Step = Callable[[int], None]
MICROBATCH_TOKENS = 8192 if torch.cuda.is_available() else 1024


def read(path: Path, limit: int) -> list[dict[str, str]]:
    """The first rows of a gzipped jsonl file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, limit)]


def gsm8k(data: Path) -> list[dict[str, str]]:
    """Questions and answers."""
    return read(data / "gsm8k" / "train.jsonl.gz", 400)


def reward(completion: str, answer: str) -> float:
    """Something to learn from: the answer, and a little for length, so that no two completions earn the same."""
    return float(answer in completion) + 0.001 * len(completion)


def grpo(model: str, data: Path) -> Step:
    """Sample, score, update."""
    policy = load_policy(model)
    learner = learner_of(policy.model)
    environment = ScoredEnvironment(parse_rewards(f"{__file__}:reward"))
    algorithm = GRPO(kl_coefficient=0.0)
    tasks = [
        Task((Message("user", row["question"]),), answer=row["answer"].split("####")[1].strip()) for row in gsm8k(data)
    ]

    def step(number: int) -> None:
        groups = sample_groups(
            environment,
            tasks[8 * number : 8 * number + 8],
            Players(policy.engine, policy.chat, Sampling(64)),
            completions_per_prompt=8,
            seed=number,
        )
        batch, _ = policy_batch(groups, algorithm)
        learner.forward_backward(batch, PolicyLoss(algorithm))
        learner.optim_step({POLICY: 1e-6})

    return step


def sft(model: str, data: Path) -> Step:
    """One update on 16 demonstrations."""
    policy = load_policy(model)
    learner = learner_of(policy.model)
    said = [
        policy.chat.training_ids([Message("user", r["question"]), Message("assistant", r["answer"])])
        for r in gsm8k(data)
    ]
    examples = [Example.whole(ids.token_ids[:512], ids.mask[:512]) for ids in said]

    def step(number: int) -> None:
        learner.forward_backward(supervised_batch(examples[16 * number : 16 * number + 16]), NLL())
        learner.optim_step({POLICY: 1e-6})

    return step


def pairs(tokenizer: ChatTokenizer, data: Path) -> list[Pair]:
    """HH-RLHF's pairs as text, cut at the last assistant turn, each response ended by the end of text."""

    turn, found = "\n\nAssistant:", list[Pair]()
    for row in read(data / "hh-rlhf" / "harmless-base.train1500.jsonl.gz", 200):
        (prompt, _, chosen), (other, _, rejected) = (row[key].rpartition(turn) for key in ("chosen", "rejected"))
        before = tuple(tokenizer.encode(prompt + turn, add_special_tokens=False))
        after = [
            [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for text in (chosen, rejected)
        ]
        kept = [tuple(ids[: 512 - len(before)]) for ids in after]
        if prompt == other and all(kept):
            found.append(Pair(*(Example(before, ids, (True,) * len(ids)) for ids in kept)))
    return found


def dpo(model: str, data: Path) -> Step:
    """One update on 8 pairs, with a frozen reference."""
    policy = load_policy(model)
    learner = learner_of(policy.model, references={REFERENCE: reference_for(policy.model)})
    objective = objective_for(DPO(), learner)
    found = pairs(policy.chat.tokenizer, data)

    def step(number: int) -> None:
        learner.forward_backward(objective.batch(found[8 * number : 8 * number + 8]), objective.loss)
        learner.optim_step({POLICY: 1e-6})

    return step


def scoring(model: str, data: Path) -> Step:
    """One update of a reward model on 8 pairs."""
    found = load_reward_model(model, dtype=dtype_of("auto", default_device()), device=default_device())
    learner = learner_of(found, body=found.body)
    units = [Ranked(tuple(pair), ((0, 1, 1.0),)) for pair in pairs(load_tokenizer(model), data)]

    def step(number: int) -> None:
        reward_gradient(learner, units[8 * number : 8 * number + 8], RewardLoss())
        learner.optim_step({POLICY: 1e-6})

    return step


def learner_of(model: LanguageModel | RewardModel, **parts: Any) -> LocalLearner[Any]:
    """A learner of a model."""
    return LocalLearner(model, MasterAdamW(model.trainable()), microbatch_tokens=MICROBATCH_TOKENS, **parts)


STAGES: dict[str, Callable[[str, Path], Step]] = {"grpo": grpo, "sft": sft, "dpo": dpo, "reward": scoring}


def measure(stage: str, model: str, data: Path, steps: int) -> dict[str, object]:
    """Run `steps` updates in this process."""
    step = STAGES[stage](model, data)
    seconds: list[float] = []
    for number in range(steps):
        began = time.perf_counter()
        step(number)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(round(time.perf_counter() - began, 2))
    peak = torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else peak_gb()
    return {"peer": "posttrain", "stage": stage, "seconds": seconds, "peak_gb": round(peak, 2)}


def compare(args: argparse.Namespace) -> None:
    """Ours and the peer's in turn, in processes of their own."""
    here = Path(__file__).resolve()
    common = [args.stage, "--model", args.model, "--data", str(args.data), "--steps", str(args.steps)]
    commands = {
        "posttrain": [sys.executable, str(here), *common],
        "trl": [args.peer_python, str(here.with_name("step_trl.py")), *common, "--dtype", args.peer_dtype],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    memory: dict[str, list[float]] = {name: [] for name in commands}
    for repeat in range(args.repeats):
        for name, command in commands.items():
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
            found = json.loads(done.stdout.strip().splitlines()[-1])
            print(f"{repeat + 1}/{args.repeats}", json.dumps(found), flush=True)
            seconds[name].append(median(found["seconds"][1:]))
            memory[name].append(found["peak_gb"])
    (ours, theirs), (held, held_there) = ([median(x[name]) for name in commands] for x in (seconds, memory))
    print(f"{args.stage}: {ours:.1f} s and {held:.2f} GB, TRL {theirs:.1f} s and {held_there:.2f} GB; ", end="")
    print(f"{theirs / ours:.2f} times as fast in {held / held_there:.0%} of the memory")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--model", required=True, help="a folder, or smollm2-135m-instruct")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--compare", action="store_true", help="against TRL")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has trl")
    parser.add_argument("--peer-dtype", default="bfloat16", help="what TRL's weights are; float32 where that is faster")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each, with --compare")
    args = parser.parse_args()
    if args.compare:
        compare(args)
    else:
        print(json.dumps(measure(args.stage, args.model, args.data, args.steps)))


if __name__ == "__main__":
    main()
