"""From people's choices to a policy, on the packaged model: does held-out reward rise within a budget of KL?

    python benchmarks/rlhf.py --data DATA --output runs/rlhf
    python benchmarks/rlhf.py --data DATA --output runs/rlhf --seeds 0 1 2 --steps 60

DATA has hh-rlhf/. One reward model learns from every second of the first --pairs pairs of harmless-base, and is what
the policy is trained by; another learns from those between and stands for people: it is asked at the end alone. The
policy starts as SmolLM2-135M-Instruct and is trained by `posttrain rl --kl-budget`, on the prompts of the training
pairs; of its checkpoints within the budget that one counts whose answers to --heldout prompts earned most. It and the
policy before training then answer as many other prompts, which chose nothing, four times each. Differences are paired
by prompt, with 95% intervals over prompts. What is finished is not done again: give the same --output to go on, with
the same options.
"""

import argparse
import json
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from posttrain import algorithms
from posttrain.bindings.backend import online_backend
from posttrain.bindings.heldout import examined
from posttrain.bindings.sampling import set_up
from posttrain.data import ChatFormat, load_preferences, load_tokenizer, pair_of
from posttrain.data.packing import Example, size_of
from posttrain.engine.policy import load_policy
from posttrain.environments.scored import GOLD
from posttrain.models.load import locate
from posttrain.models.reference import FrozenCopy
from posttrain.recipes import reward_model, rl
from posttrain.recipes.reward_model import Scoring
from posttrain.recipes.rl import RL
from posttrain.runs import read_run
from posttrain.training import checkpoint
from posttrain.training.learner import Column
from posttrain.training.microbatch import by_example
from posttrain.training.policy import distance, examples_in
from posttrain.types import Group, Message

BASE = "smollm2-135m-instruct"
DONE = "done"  # a file in the folder of what is finished
Row = dict[str, Any]


def spoken(messages: Sequence[Message], *more: Message) -> list[Row]:
    """Messages as a data set has them."""
    return [{"role": m.role, "content": m.content} for m in (*messages, *more)]


def write(path: Path, rows: Sequence[Row]) -> Path:
    """As jsonl."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def data(options: argparse.Namespace) -> dict[str, Path]:
    """Pairs for both reward models, and prompts to learn from and to be judged by."""
    chat = ChatFormat(load_tokenizer(locate(BASE)))
    source, output = options.data / "hh-rlhf", options.output
    pairs = [
        one
        for one in load_preferences(str(source / "harmless-base.train1500.jsonl.gz"), limit=options.pairs).items
        if max(map(size_of, pair_of(chat, one))) <= options.max_tokens
    ]
    sides = [
        {side: spoken(p.prompt, Message("assistant", getattr(p, side))) for side in ("chosen", "rejected")}
        for p in pairs
    ]
    held = load_preferences(str(source / "harmless-base.dev300.jsonl.gz")).items
    prompts = [{"prompt": spoken(p.prompt)} for p in held if len(chat.prompt_ids(p.prompt)) <= options.max_tokens]
    if len(prompts) < 2 * options.heldout:
        raise SystemExit(f"only {len(prompts)} held-out prompts are short enough; type a smaller --heldout")
    return {
        "proxy": write(output / "proxy.jsonl", sides[::2]),
        "gold": write(output / "gold.jsonl", sides[1::2]),
        "prompts": write(output / "prompts.jsonl", [{"prompt": spoken(p.prompt)} for p in pairs]),
        "heldout": write(output / "heldout.jsonl", prompts[: options.heldout]),
        "judged": write(output / "judged.jsonl", prompts[options.heldout : 2 * options.heldout]),
    }


def judge(folder: Path, pairs: Path, seed: int) -> str:
    """A reward model of these pairs, by `posttrain reward-model`, calibrated on a tenth of them."""
    if not (folder / DONE).exists():
        shutil.rmtree(folder, ignore_errors=True)
        config = Scoring(dataset=str(pairs), pairs_per_step=8, lr=4e-5, warmup_steps=5, decay="linear", seed=seed)
        reward_model.run(replace(config, eval_share=0.1, eval_every=0), output=folder)
        (folder / DONE).touch()
    return str(folder)


def judged(config: RL, model: str, start: FrozenCopy) -> dict[str, Any]:
    """What a policy's answers to the held-out prompts are worth, each prompt's mean, and how far it has gone."""
    setup = set_up(config, model, partial(online_backend, config, model))
    groups, _ = examined(setup, config)

    def before(examples: Sequence[Example]) -> Column:
        return by_example(examples, lambda row: start.logprobs(row, 1.0), microbatch_tokens=config.microbatch_tokens)

    def by_prompt(name: str) -> list[float]:
        return [fmean(row.scores[name].value for row in group.rows) for group in groups]

    return {
        "reward": [fmean(group.rewards) for group in groups],
        "gold": by_prompt(*setup.gold),
        "length": [mean_length(group) for group in groups],
        "kl": distance(groups, before(examples_in(groups))),
    }


def mean_length(group: Group) -> float:
    """Tokens of an answer."""
    return fmean(len(row.trajectory.logprobs) for row in group.rows)


def difference(before: Sequence[float], after: Sequence[float]) -> str:
    """Mean and 95% interval of what changed, by prompt."""
    changes = [b - a for a, b in zip(before, after, strict=True)]
    middle, half = fmean(changes), 1.96 * stdev(changes) / math.sqrt(len(changes))
    return f"{middle:+.3f} ({middle - half:+.3f} to {middle + half:+.3f})"


def run(options: argparse.Namespace, files: dict[str, Path], seed: int) -> Row:
    """Train a policy, and compare it with what it was."""
    output: Path = options.output
    config = RL(
        algorithm=options.algorithm,
        dataset=str(files["prompts"]),
        eval_dataset=str(files["heldout"]),
        model=BASE,
        reward_model=judge(output / f"proxy-{seed}", files["proxy"], seed),
        steps=options.steps,
        prompts_per_step=options.prompts,
        completions_per_prompt=options.completions,
        max_new_tokens=options.tokens,
        max_prompt_tokens=options.max_tokens,
        lr=options.lr,
        kl_budget=options.kl_budget,
        eval_every=options.eval_every,
        eval_limit=options.heldout,
        seed=seed,
    )
    folder = output / f"{options.algorithm}-{seed}"
    if not (folder / DONE).exists():
        shutil.rmtree(folder, ignore_errors=True)
        rl.run(config, algorithms.online(config.algorithm)(), output=folder)
        (folder / DONE).touch()
    best = checkpoint.best(folder / "checkpoints")
    if best is None:
        raise SystemExit(f"no evaluation of {folder} was within the budget; type a smaller --eval-every")
    start = FrozenCopy(load_policy(BASE, precision=config.precision).model)
    gold = judge(output / f"gold-{seed}", files["gold"], seed)
    other = replace(config, gold_model=gold, eval_dataset=str(files["judged"]))
    before, after = (judged(other, where, start) for where in (BASE, str(best.path)))
    seconds = sum(row.get("seconds/step", 0.0) for row in read_run(folder).metrics)
    return {"seed": seed, "step": best.step, "before": before, "after": after, "minutes": seconds / 60}


def line(found: Row) -> str:
    """One of the table's."""
    before, after = found["before"], found["after"]
    return (
        f"| {found['seed']} | {found['step']} | {after['kl']:.1f} "
        f"| {difference(before['reward'], after['reward'])} | {difference(before[GOLD], after[GOLD])} "
        f"| {fmean(before['length']):.0f} to {fmean(after['length']):.0f} | {found['minutes']:.0f} |"
    )


def main() -> None:
    """Train what has not been, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("runs/rlhf"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--algorithm", default="grpo")
    parser.add_argument("--pairs", type=int, default=800, help="read, half of them for each reward model")
    parser.add_argument("--max-tokens", type=int, default=192, help="of a pair's longer side, and of a prompt")
    parser.add_argument("--heldout", type=int, default=64, help="prompts that choose a checkpoint; as many judge it")
    parser.add_argument("--kl-budget", type=float, default=10.0, help="nats per answer")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--eval-every", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=8, help="in a step")
    parser.add_argument("--completions", type=int, default=4, help="of each")
    parser.add_argument("--tokens", type=int, default=48, help="of an answer, at most")
    parser.add_argument("--lr", type=float, default=1e-5)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    files = data(options)
    lines = [
        f"| seed | best step | KL (budget {options.kl_budget:g}) | reward (95%) | withheld reward model (95%) "
        "| tokens of an answer | minutes of all steps |",
        "|---|---|---|---|---|---|---|",
    ]
    for seed in options.seeds:
        told = options.output / f"{options.algorithm}-{seed}.json"
        if not told.exists():
            told.write_text(json.dumps(run(options, files, seed)), encoding="utf-8")
        lines.append(line(json.loads(told.read_text(encoding="utf-8"))))
        print(lines[-1], flush=True)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
