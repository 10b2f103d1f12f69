"""Does it learn? Every algorithm on the same work, over several seeds; tables in Markdown, curves as a picture.

    python benchmarks/learn.py online --output runs/learn
    python benchmarks/learn.py preference --data DATA --output runs/learn --jobs 1
    python benchmarks/learn.py online --algorithms ppo vapo --seeds 0 1
    python benchmarks/learn.py sft

online       A Llama of two layers with random weights learns to count on (counting.py): shown a digit, it has to say
             the next two and stop. The best reward is 1. Every online algorithm by `posttrain rl`'s own loop with its
             own defaults but for what SETTINGS and RUNS say, the same learning rate and the same number of steps.
             Reached: the mean reward of ten steps in a row is 0.9 or more; the table says after how many steps.
preference   The packaged model learns from pairs of HH-RLHF, harmless-base (DATA has hh-rlhf/), and is judged on 300
             others: how often log(policy / policy before) of the chosen response is the higher one, whatever the
             algorithm goes by, and how often the algorithm's own reward is. Every preference algorithm with the same
             pairs, length limit, batch and learning rate, and its own defaults; --more: dpo and simpo on all pairs as
             well, and those that imitate with less weight on that. How long what it then samples is shows what else
             has changed.

sft          The Llama of `online` imitates demonstrations of counting on, of which three in ten are two random digits,
             by maximum likelihood, and goes on from there by maximum likelihood and by DFT, which learns little from
             tokens that are unlikely to begin with: how often it then gives the right answer, sampled and greedily.

A run that is finished is not run again: give the same --output to go on. `--jobs 2` runs two at a time, each on its
share of the cores.
"""

import argparse
import json
import os
import random
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from counting import tasks
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from posttrain import algorithms
from posttrain.algorithms.algorithm import ActorCritic
from posttrain.bindings import feedback
from posttrain.bindings.feedback import PAIRS
from posttrain.data import ChatFormat, Example, load_tokenizer, pack, pair_of
from posttrain.engine.policy import load_policy
from posttrain.engine.transformers import TransformersEngine
from posttrain.models.load import locate
from posttrain.recipes import generate, preference, rl, sft
from posttrain.runs import read_run
from posttrain.statistics import wilson_interval
from posttrain.training.preference import examples_of
from posttrain.training.resolve_model import saved_model
from posttrain.training.unpaired import responses_of
from posttrain.types import Message, Preference, Request, Sampling, StopReason

HERE = Path(__file__).parent
TARGET, IN_A_ROW = 0.9, 10
STEPS = 250
BASE = "smollm2-135m-instruct"
JUDGED = 1024  # tokens of the longest held-out response with its prompt
ASKED, LONGEST = 48, 192  # held-out prompts that are answered after training; tokens of them and of an answer at most

SETTINGS: dict[str, dict[str, Any]] = {
    # what is random to begin with is nothing to stay close to, so that no algorithm has a KL
    **{name: {"kl_coefficient": 0.0} for name in ("reinforce", "rloo", "remax", "reinforce++", "grpo", "ppo")},
    "grpo-bucketed": {"kl_coefficient": 0.0},
    "ppo-penalty": {"kl_coefficient": 0.01, "kl_target": 10.0},  # about that of the best policy from the random one
    "ppo-ptx": {"kl_coefficient": 0.0, "pretraining_coefficient": 0.03},  # the text is noise, which is to cost little
    # for completions of three tokens; and almost every one earns something here, so imitating those is no help
    "vapo": {"length_alpha": 20.0, "critic_warmup_steps": 10, "imitation_coefficient": 0.01},
    "vineppo": {"kl_coefficient": 0.0, "step_tokens": 1, "continuations": 3},
}
"""By algorithm: knobs that differ from its defaults."""

LESS_IMITATION: dict[str, dict[str, Any]] = {"orpo": {"odds_weight": 2.0}, "irpo": {"alpha": 0.1}}
"""With `--more`: knobs with which the preference has about the gradient of the imitation, or more."""

RUNS: dict[str, dict[str, Any]] = {"dapo": {"lr": 5e-4, "steps": 400}}  # at 1e-3 one seed of three stays at 0.87
"""By algorithm: options that differ from the others'."""


@dataclass(frozen=True)
class Job:
    """One run."""

    stage: str
    name: str
    seed: int
    folder: Path
    options: Any
    knobs: dict[str, Any]
    """Of the algorithm, where they are not its defaults."""


def train(job: Job, threads: int) -> None:
    """Run it, unless it has been run before."""
    torch.set_num_threads(threads)
    if (job.folder / "done").exists():
        return
    shutil.rmtree(job.folder, ignore_errors=True)  # of a run that was cut off
    if job.stage == "online":
        rl.run(job.options, algorithms.online(job.name)(**job.knobs), output=job.folder, quiet=True)
    else:
        preference.run(job.options, algorithms.preference(job.name)(**job.knobs), output=job.folder, quiet=True)
    (job.folder / "done").touch()
    print(f"{job.stage} {job.name} {job.seed}: done", flush=True)


def tiny(folder: Path, seed: int) -> Path:
    """A random Llama whose vocabulary is ten digits."""
    special = ["<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE(vocab={str(digit): digit for digit in range(10)}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[1])
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>{% endif %}"
    )
    torch.manual_seed(seed)
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(fast),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            initializer_range=0.05,  # so that digits differ from the first
            bos_token_id=10,
            eos_token_id=11,
        )
    )
    network.save_pretrained(str(folder))
    fast.save_pretrained(str(folder))
    return folder


def online_jobs(names: list[str], seeds: list[int], output: Path) -> list[Job]:
    output.mkdir(parents=True, exist_ok=True)
    (output / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks()))
    noise = torch.randint(10, (64, 8), generator=torch.Generator().manual_seed(0)).tolist()
    (output / "noise.jsonl").write_text("".join(json.dumps({"text": "".join(map(str, n))}) + "\n" for n in noise))
    for seed in seeds:
        if not (output / f"model-{seed}" / "config.json").exists():
            tiny(output / f"model-{seed}", seed)
    common = rl.RL(
        dataset=str(output / "tasks.jsonl"),
        reward=f"{HERE / 'counting.py'}:score",
        steps=STEPS,
        prompts_per_step=10,
        completions_per_prompt=16,
        max_new_tokens=4,
        lr=1e-3,
        warmup_steps=0,
        precision="float32",
        save_every=STEPS,
        keep_last=1,
    )
    return [
        Job("online", name, seed, output / f"{name}-{seed}".replace("+", "p"), replace(
            common, algorithm=name, model=str(output / f"model-{seed}"), seed=seed,
            critic_lr=3e-3 if isinstance(algorithms.online(name)(), ActorCritic) else rl.RL.critic_lr,
            pretraining_dataset=str(output / "noise.jsonl") if name == "ppo-ptx" else "",
            **RUNS.get(name, {}),
        ), SETTINGS.get(name, {}))
        for name in names for seed in seeds
    ]  # fmt: skip


def imitated(seed: int, output: Path) -> tuple[Path, sft.SFT]:
    """A run on demonstrations of which seven in ten are right, and its options."""
    output.mkdir(parents=True, exist_ok=True)
    model = output / f"model-{seed}"
    if not (model / "config.json").exists():
        tiny(model, seed)
    draw = random.Random(seed)
    said = [{"prompt": task["prompt"], "completion": task["answer"]} for task in tasks() for _ in range(40)]
    for one in said:
        if draw.random() < 0.3:
            one["completion"] = f"{draw.randrange(100):02d}"
    file = output / f"demonstrations-{seed}.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in said))
    common = sft.SFT(
        dataset=str(file), model=str(model), epochs=6, lr=3e-3, precision="float32", seed=seed,
        save_every=10**6, warmup_steps=0,
    )  # fmt: skip
    first = output / f"first-{seed}"
    if not (first / "done").exists():
        shutil.rmtree(first, ignore_errors=True)
        sft.run(common, output=first, quiet=True)
        (first / "done").touch()
    return first, common


def sft_row(name: str, seed: int, output: Path, folder: Path) -> dict[str, float]:
    """Run sft with that algorithm, and ask the model: the shares of right answers."""
    first, common = imitated(seed, output)
    shutil.rmtree(folder, ignore_errors=True)
    options = replace(common, model=str(first), algorithm=name, lr=1e-3)
    sft.run(options, output=folder, quiet=True)
    policy = load_policy(saved_model(str(folder)).where)
    engine = TransformersEngine(policy.model, policy.chat.stop_ids)
    shares: dict[str, float] = {}
    for way, sampling in (("sampled", Sampling(4)), ("greedy", Sampling(4, temperature=0.0))):
        asked = [(task["answer"], tuple(policy.chat.prompt_ids([Message("user", task["prompt"])]))) for task in tasks()]
        asked = [(*one, number) for one in asked for number in range(100 if sampling.temperature else 1)]
        replies = engine.generate([Request(ids, sampling, number) for _, ids, number in asked])
        texts = (policy.chat.decode(reply.token_ids) for reply in replies)
        shares[way] = fmean(text == answer for text, (answer, *_) in zip(texts, asked, strict=True))
    return shares


def preference_jobs(names: list[str], seeds: list[int], output: Path, options: argparse.Namespace) -> list[Job]:
    data = Path(options.data) / "hh-rlhf"
    common = preference.Preferences(
        dataset=str(data / "harmless-base.train1500.jsonl.gz"),
        eval_dataset=str(data / "harmless-base.dev300.jsonl.gz"),
        eval_limit=300,
        limit=options.pairs,
        max_tokens=options.max_tokens,
        pairs_per_step=8,
        lr=options.lr,
        warmup_steps=5,
        decay="linear",
        save_every=10**6,
        keep_last=1,
    )
    jobs: list[tuple[str, int, int, dict[str, Any]]] = [(name, options.pairs, s, {}) for name in names for s in seeds]
    if options.more:
        jobs += [(name, 1500, seeds[0], {}) for name in ("dpo", "simpo") if name in names]
        jobs += [(name, options.pairs, seeds[0], LESS_IMITATION[name]) for name in LESS_IMITATION if name in names]
    return [
        Job("preference", name, seed,
            output / "-".join([name, *(f"{knob}-{value:g}" for knob, value in knobs.items()), f"{pairs}-{seed}"]),
            replace(common, algorithm=name, limit=pairs, seed=seed), knobs)
        for name, pairs, seed, knobs in jobs
    ]  # fmt: skip


@dataclass(frozen=True)
class Said:
    """What a model says of the held-out pairs, and when it is asked."""

    chosen: list[float]  # the logprob of each pair's chosen response, in nats
    rejected: list[float]
    tokens: float  # of a sampled answer, on average
    cut: float  # share of the answers that came to no end within LONGEST tokens


def said(model: str, pairs: list[Preference], prompts: Path, where: Path) -> Said:
    """Ask it; what it said is kept in `where`."""
    if not where.exists():
        policy = load_policy(saved_model(model).where)
        units = [pair for pair in (pair_of(policy.chat, one) for one in pairs) if max(map(size, pair)) <= JUDGED]
        sums: list[float] = []
        with torch.inference_mode():
            for row in pack(examples_of(units), 2 * JUDGED, together=2):
                sums += responses_of(policy.model.logprobs(row).logprobs, row).logprob_B.tolist()
        asked = generate.Generate(model=model, prompts=str(prompts), max_new_tokens=LONGEST)
        replies = generate.run(asked, quiet=True).replies
        cut = fmean(reply.stop_reason is StopReason.LENGTH for reply in replies)
        found = Said(sums[::2], sums[1::2], fmean(reply.tokens for reply in replies), cut)
        where.with_suffix(".new").write_text(json.dumps(asdict(found)))
        where.with_suffix(".new").rename(where)
    return Said(**json.loads(where.read_text()))


def size(example: Example) -> int:
    return len(example.prefix) + len(example.continuation)


def preferred(before: Said, after: Said) -> tuple[int, int]:
    """How many pairs there are, and of how many log(policy / before) of the chosen response is the higher."""
    moved = [
        (c - before_c, r - before_r)
        for c, r, before_c, before_r in zip(after.chosen, after.rejected, before.chosen, before.rejected, strict=True)
    ]
    return sum(chosen > rejected for chosen, rejected in moved), len(moved)


def questions(pairs: list[Preference], output: Path) -> Path:
    """The first held-out prompts that are short, as a file."""
    chat = ChatFormat(load_tokenizer(locate(BASE)))
    short = [one.prompt for one in pairs if len(chat.prompt_ids(one.prompt)) <= LONGEST][:ASKED]
    rows = [{"prompt": [{"role": said.role, "content": said.content} for said in prompt]} for prompt in short]
    file = output / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def reached(rewards: list[float], target: float = TARGET, in_a_row: int = IN_A_ROW) -> int | None:
    """After how many steps the mean of so many in a row was the target or more."""
    ends = range(in_a_row, len(rewards) + 1)
    return next((end for end in ends if fmean(rewards[end - in_a_row : end]) >= target), None)


def online_table(jobs: list[Job], picture: Path) -> list[str]:
    curves: dict[str, list[list[float]]] = {}
    seconds: dict[str, float] = {}
    for job in jobs:
        rows = read_run(job.folder).metrics
        curves.setdefault(job.name, []).append([row["reward/mean"] for row in rows])
        seconds[job.name] = seconds.get(job.name, 0.0) + sum(row["seconds/step"] for row in rows)
    lines = ["| algorithm | steps to 0.9, by seed | reward of the last ten steps, by seed | seconds a run |"]
    lines.append("|---|---|---|---|")
    figure, axes = plt.subplots(figsize=(9, 5))
    for name, runs in curves.items():
        steps = ", ".join(str(reached(run) or "not") for run in runs)
        last = ", ".join(f"{fmean(run[-IN_A_ROW:]):.3f}" for run in runs)
        lines.append(f"| {name} | {steps} | {last} | {seconds[name] / len(runs):.0f} |")
        mean = [fmean(values) for values in zip(*runs, strict=True)]
        axes.plot(range(1, len(mean) + 1), mean, label=name, linewidth=1)
    axes.axhline(TARGET, color="grey", linestyle=":", linewidth=1)
    axes.set(xlabel="step", ylabel="reward, mean over seeds", ylim=(0, 1.02))
    axes.legend(fontsize=7, ncol=2)
    figure.savefig(picture, bbox_inches="tight", metadata={"Date": None})
    return lines


def preference_table(jobs: list[Job], picture: Path) -> list[str]:
    head = ["algorithm", "pairs", "accuracy (95%)", "by its own reward", "margin", "logprob of chosen", "of rejected"]
    head += ["tokens it says", "without an end", "minutes"]
    pairs = feedback.read(max((job.options for job in jobs), key=lambda options: options.limit), PAIRS).heldout
    prompts = questions(pairs, picture.parent)
    base = said(BASE, pairs, prompts, picture.parent / "base.json")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    figure, axes = plt.subplots(figsize=(9, 4))
    names: list[str] = []
    for number, job in enumerate(jobs):
        rows = read_run(job.folder).metrics
        before, after = (next(row for row in order if "evaluation/loss" in row) for order in (rows, rows[::-1]))

        def of(row: dict[str, Any], *names: str) -> float:
            return next(row[f"evaluation/{name}"] for name in names if f"evaluation/{name}" in row)

        judged = after["evaluation/pairs"]
        own, reward_before = (of(order, "pair_accuracy", "accuracy") for order in (after, before))
        own_low, own_high = wilson_interval(round(own * judged), judged)
        chosen, rejected = (
            f"{of(before, f'logprob/{a}', f'logprob/{b}'):.1f} to {of(after, f'logprob/{a}', f'logprob/{b}'):.1f}"
            for a, b in (("chosen", "good"), ("rejected", "bad"))
        )
        minutes = sum(row.get("seconds/step", 0.0) for row in rows) / 60
        margin = after.get("evaluation/margin", float("nan"))
        trained = said(str(job.folder), pairs, prompts, job.folder / "said.json")
        right, of_all = preferred(base, trained)
        accuracy, (low, high) = right / of_all, wilson_interval(right, of_all)
        name = " ".join([job.name, *(f"{knob} {value:g}" for knob, value in job.knobs.items())])
        cells = [name, str(job.options.limit), f"{accuracy:.3f} ({low:.3f}-{high:.3f})"]
        cells += [f"{reward_before:.3f} to {own:.3f} ({own_low:.3f}-{own_high:.3f})", f"{margin:.3f}", chosen, rejected]
        cells += [f"{base.tokens:.0f} to {trained.tokens:.0f}", f"{base.cut:.0%} to {trained.cut:.0%}"]
        lines.append("| " + " | ".join([*cells, f"{minutes:.0f}"]) + " |")
        names.append("\n".join([*name.split(), str(job.options.limit)]))
        axes.errorbar(number, accuracy, yerr=[[accuracy - low], [high - accuracy]], fmt="o", color="black", capsize=3)
    axes.axhline(0.5, color="grey", linestyle=":", linewidth=1)
    axes.set_xticks(range(len(jobs)), names, fontsize=6)
    axes.set(ylabel="held-out pairs judged as people did")
    figure.savefig(picture, bbox_inches="tight", metadata={"Date": None})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["online", "preference", "sft"])
    parser.add_argument("--algorithms", nargs="+", default=None, help="unless given, all")
    parser.add_argument("--seeds", nargs="+", type=int, default=None, help="0 1 2; of preference 0")
    parser.add_argument("--output", type=Path, default=Path("runs/learn"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--data", default="", help="preference: a folder that has hh-rlhf/")
    parser.add_argument("--pairs", type=int, default=800, help="preference: pairs to learn from")
    parser.add_argument("--max-tokens", type=int, default=192, help="preference: the longest of prompt and response")
    parser.add_argument("--lr", type=float, default=4e-5, help="preference")
    parser.add_argument("--more", action="store_true", help="preference: further runs, as above")
    options = parser.parse_args()
    if options.stage == "sft":
        output = (options.output / "sft").resolve()
        output.mkdir(parents=True, exist_ok=True)
        for name in options.algorithms or algorithms.SUPERVISED:
            for seed in options.seeds or (0, 1, 2):
                print(name, seed, sft_row(name, seed, output, output / f"{name}-{seed}"), flush=True)
        return
    online = options.stage == "online"
    names = options.algorithms or list(algorithms.ONLINE if online else algorithms.PREFERENCE)
    seeds = options.seeds or ([0, 1, 2] if online else [0])
    output = (options.output / options.stage).resolve()
    jobs = online_jobs(names, seeds, output) if online else preference_jobs(names, seeds, output, options)
    threads = max(1, (os.cpu_count() or 1) // options.jobs)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(train, threads=threads), jobs))
    picture = output / f"{options.stage}.svg"
    print("\n".join((online_table if online else preference_table)(jobs, picture)), f"\n\n{picture}")


if __name__ == "__main__":
    main()
