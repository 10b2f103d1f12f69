"""When does a policy that learns from a model of people stop pleasing people? The synthetic-gold protocol, in minutes.

    python benchmarks/overoptimization.py --output runs/overoptimization
    python benchmarks/overoptimization.py --output runs/overoptimization --seeds 0 --pairs 100 --steps 60

As Gao et al. 2022 (https://arxiv.org/abs/2210.10760) did it at scale: a gold reward stands for people. It labels pairs
of the policy's own completions, each choice drawn with the odds that Bradley and Terry give it; reward models learn
from more or fewer of these pairs; a policy is optimised on each of them, by best of n and by PPO without a KL; and gold
is read beside. Policy and models are Llamas of two layers that write up to 24 digits; gold is a wider one of three
layers whose weights are random, scaled so that what the policy says at first scores 0 with a deviation of 2.

The first table says how far along d = sqrt(KL) gold was highest, where the law that was fitted has its highest point,
and what was left of the gold reward in the end; the second the same of the mean over seeds at the same updates, d from
the mean of their KL, and between which distances the peaks lie in 95% of draws of as many seeds. Then how often a
single seed turned, and what ensembles change. Whatever has been done is not done again: give the same --output to go
on.
"""

import argparse
import json
import math
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from learn import tiny
from scipy.stats import t as student
from transformers import LlamaConfig, LlamaForSequenceClassification

from posttrain import algorithms
from posttrain.data import load_tokenizer
from posttrain.engine.policy import load_policy
from posttrain.engine.scorer import Scorer, load_scorer
from posttrain.environments.scored import overseen
from posttrain.episodes.episodes import Players, sample_groups
from posttrain.models.heads import Calibration, RewardModel
from posttrain.models.language_model import LanguageModel, ready
from posttrain.recipes import reward_model, rl
from posttrain.recipes.reward_model import Scoring
from posttrain.recipes.rl import RL
from posttrain.report.overoptimization import (
    Point,
    best_of_n_kl,
    fit,
    observed_peak,
    points_of,
    tenths,
    together,
)
from posttrain.rewards import COMBINATIONS
from posttrain.runs import read_run
from posttrain.statistics import best_of_n
from posttrain.training.resolve_model import saved_model
from posttrain.types import Message, Sampling, Task

TOKENS = 24
PROMPTS = [str(number) for number in range(100)]
HELDOUT = [str(number) for number in range(100, 132)]
HELD = 300  # pairs that calibrate a proxy, of a prompt of its own each
OTHERS = [str(number) for number in range(200, 200 + HELD)]
MOST = 512  # completions of each held-out prompt, to choose the best from
SPREAD = 2.0  # standard deviation of gold on what the policy says at first, in nats of odds
ENSEMBLE = 5
DRAWS = 500  # of the seeds, to see how far a peak depends on which they are
FAR = 100.0  # a distance that no policy comes to


@dataclass(frozen=True)
class Proxy:
    """A reward model, and how a policy uses it."""

    name: str
    pairs: int
    ensemble: int = 1
    use: str = "mean"


def world(output: Path, seed: int) -> tuple[Path, Path, Path]:
    """One seed's folder, the policy at first, and gold. From here on one thread computes: seeds run side by side."""
    torch.set_num_threads(1)
    folder = output / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    policy = folder / "policy"
    if not (policy / "config.json").exists():
        tiny(policy, seed)
    return folder, policy, gold_model(folder / "gold", policy, seed)


def gold_model(folder: Path, policy: Path, seed: int) -> Path:
    """A random classifier, wider and deeper than the proxies, scaled on what the policy says."""
    if (folder / "config.json").exists():
        return folder
    config = LlamaConfig.from_pretrained(policy)
    config.update(
        {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 6, "num_labels": 1}
        | {"num_key_value_heads": 3, "head_dim": 16, "initializer_range": 0.18, "pad_token_id": 10}
    )
    torch.manual_seed(1000 + seed)
    network = LlamaForSequenceClassification(config)
    model = RewardModel(LanguageModel(ready(network), config.max_position_embeddings, "gold"))
    load_tokenizer(str(policy)).save_pretrained(str(folder))
    model.save(folder, padding=10)
    said = [score for group in sample(policy, PROMPTS, 16, folder, seed) for score in group[1]]
    model.save(folder, padding=10, calibration=Calibration((fmean(said),), pstdev(said) / SPREAD))
    return folder


def scorer(model: str | Path) -> Scorer:
    return load_scorer(str(model), precision="float32")


def sample(
    policy: Path, prompts: Sequence[str], each: int, gold: Path, seed: int
) -> list[tuple[list[str], list[float]]]:
    """For each prompt completions and their gold scores."""
    loaded = load_policy(str(policy), precision="float32")
    tasks = [Task((Message("user", prompt),), id=prompt) for prompt in prompts]
    environment = overseen("", [scorer(gold)]).environment
    players = Players(loaded.engine, loaded.chat, Sampling(TOKENS))
    groups = sample_groups(environment, tasks, players, completions_per_prompt=each, seed=seed)
    return [([row.trajectory.text for row in group.rows], list(group.rewards)) for group in groups]


def label(path: Path, prompts: Sequence[str], count: int, policy: Path, gold: Path, seed: int) -> Path:
    """Pairs of the policy's own completions, with the choices that gold makes."""
    if path.exists():
        return path
    draw = random.Random(seed)
    rows: list[dict[str, str]] = []
    each = 2 * math.ceil(count / len(prompts))
    for prompt, (texts, scores) in zip(prompts, sample(policy, prompts, each, gold, seed + 1), strict=True):
        for i in range(0, each, 2):
            first = draw.random() < 1 / (1 + math.exp(scores[i + 1] - scores[i]))
            chosen, rejected = (texts[i], texts[i + 1]) if first else (texts[i + 1], texts[i])
            if chosen.strip() and rejected.strip() and chosen != rejected:
                rows.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    draw.shuffle(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:count]), encoding="utf-8")
    return path


def learn_proxy(proxy: Proxy, folder: Path, policy: Path, gold: Path, seed: int) -> Path:
    """A reward model of so many pairs; others, of other prompts, calibrate it and say how good it is."""
    run = folder / f"proxy-{proxy.pairs}-{proxy.ensemble}"
    if (run / "done").exists():
        return run
    shutil.rmtree(run, ignore_errors=True)
    train = label(folder / f"pairs-{proxy.pairs}.jsonl", PROMPTS, proxy.pairs, policy, gold, seed)
    heldout = label(folder / "heldout.jsonl", OTHERS, HELD, policy, gold, seed + 7919)
    return learn(run, train, heldout, policy, proxy.pairs, seed, ensemble=proxy.ensemble)


def learn(run: Path, train: Path, heldout: Path, policy: Path, pairs: int, seed: int, *, ensemble: int = 1) -> Path:
    """A reward model of a file of so many pairs, into a run of its own."""
    config = Scoring(
        dataset=str(train),
        eval_dataset=str(heldout),
        eval_limit=HELD,
        model=str(policy),
        ensemble=ensemble,
        epochs=max(1.0, 6000 / pairs) if pairs < 2000 else 3.0,
        pairs_per_step=min(32, pairs),
        lr=1e-3,
        center_rewards=0.01,
        precision="float32",
        save_every=10**6,
        seed=seed,
    )
    reward_model.run(config, output=run, quiet=True)
    (run / "done").touch()
    return run


def train_policy(
    proxy: Proxy, folder: Path, policy: Path, gold: Path, model: Path, steps: int, seed: int
) -> list[Point]:
    """What a policy gained by the proxy and by gold along a run of PPO without a KL."""
    run = folder / f"rl-{proxy.name}"
    if not (run / "done").exists():
        shutil.rmtree(run, ignore_errors=True)
        prompts, heldout = folder / "prompts.jsonl", folder / "heldout-prompts.jsonl"
        for path, words in ((prompts, PROMPTS), (heldout, HELDOUT)):
            path.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in words), encoding="utf-8")
        config = RL(
            dataset=str(prompts),
            eval_dataset=str(heldout),
            model=str(policy),
            algorithm="ppo",
            reward_model=str(model),
            ensemble_aggregation=proxy.use,
            gold_model=str(gold),
            steps=steps,
            eval_every=3,
            eval_limit=len(HELDOUT),
            eval_samples=16,
            prompts_per_step=32,
            completions_per_prompt=4,
            max_new_tokens=TOKENS,
            lr=1e-4,
            critic_lr=1e-3,
            precision="float32",
            save_every=10**6,
            keep_last=1,
            seed=seed,
        )
        rl.run(config, algorithms.online("ppo")(kl_coefficient=0.0), output=run, quiet=True)
        (run / "done").touch()
    return points_of(read_run(run).metrics)


def choose(folder: Path, policy: Path, gold: Path, models: dict[str, tuple[Proxy, Path]], seed: int) -> dict[str, Any]:
    """Best of n by each proxy, over the same completions of the policy before training."""
    sampled = sample(policy, HELDOUT, MOST, gold, seed + 2)
    found: dict[str, list[Point]] = {}
    sizes = [2**i for i in range(int(math.log2(MOST)) + 1)]
    for name, (proxy, model) in models.items():
        ask = scorer(saved_model(str(model)).where)
        points: list[Point] = []
        scored = []
        for prompt, (texts, golds) in zip(HELDOUT, sampled, strict=True):
            told = ask([[Message("user", prompt), Message("assistant", text)] for text in texts])
            scored.append(([COMBINATIONS[proxy.use](scores, 0.5) for scores in told], golds))
        for n in sizes:
            by_proxy = fmean(best_of_n(told, told, n) for told, _ in scored)
            by_gold = fmean(best_of_n(told, golds, n) for told, golds in scored)
            points.append(Point(math.sqrt(best_of_n_kl(n)), by_proxy, by_gold))
        first = points[0]
        found[name] = [Point(p.distance, p.proxy - first.proxy, p.gold - first.gold) for p in points]
    return found


def middle_of(sizes: Sequence[int]) -> int:
    """How many pairs ensembles learn from."""
    return sorted(sizes)[len(sizes) // 2]


def run_seed(output: Path, sizes: Sequence[int], steps: int, seed: int) -> None:
    """All of one seed: gold, labels, proxies, policies."""
    folder, policy, gold = world(output, seed)
    middle = middle_of(sizes)
    proxies = [Proxy(f"{pairs} pairs", pairs) for pairs in sizes]
    proxies += [Proxy(f"{middle} pairs, {use} of {ENSEMBLE}", middle, ENSEMBLE, use) for use in USES]
    models = {proxy.name: (proxy, learn_proxy(proxy, folder, policy, gold, seed)) for proxy in proxies}
    found = {"best of n": choose(folder, policy, gold, models, seed), "rl": {}}
    for name, (proxy, model) in models.items():
        found["rl"][name] = train_policy(proxy, folder, policy, gold, model, steps, seed)
        print(f"seed {seed}: {name} done", flush=True)
    accuracy = {name: read_run(model).metrics[-1]["evaluation/accuracy"] for name, (_, model) in models.items()}
    (folder / "points.json").write_text(json.dumps({"points": found, "accuracy": accuracy}), encoding="utf-8")


USES = ("mean", "worst", "uncertain")
FORMS = ("best of n", "rl")


def peaks(points: Sequence[Point], form: str) -> tuple[Point, float]:
    """The point of most gold, and where the fitted law has its highest: inf where it rises for ever."""
    law = fit([p.distance for p in points], [p.gold for p in points], form)
    return observed_peak(points), math.inf if law is None or law.peak is None else law.peak


def curve(points: Sequence[Point], form: str) -> list[Point]:
    """What is looked at: of RL, which is read at equal times, the mean in each tenth of its way."""
    return tenths(points) if form == "rl" else list(points)


Curves = dict[str, dict[str, list[list[Point]]]]  # by way and proxy, the points of each seed


def curves_of(seeds: Sequence[int], output: Path) -> Curves:
    """What all seeds found."""
    found: Curves = {form: {} for form in FORMS}
    for seed in seeds:
        read = json.loads((output / f"seed-{seed}" / "points.json").read_text(encoding="utf-8"))
        for form in FORMS:
            for name, rows in read["points"][form].items():
                found[form].setdefault(name, []).append([Point(*row) for row in rows])
    return found


Chances = dict[str, dict[str, tuple[list[float], list[float]]]]  # by way and proxy, where both peaks are in each draw


def peaks_by_chance(curves: Curves) -> Chances:
    """Where gold and the law are highest for as many seeds drawn with replacement, DRAWS times."""
    found: Chances = {form: {} for form in curves}
    for form, proxies in curves.items():
        for name, each in proxies.items():
            chance = random.Random(0)  # the same seeds for every proxy
            draws = (together(chance.choices(each, k=len(each))) for _ in range(DRAWS))
            tops, laws = zip(*(peaks(curve(points, form), form) for points in draws), strict=True)
            found[form][name] = [top.distance for top in tops], list(laws)
    return found


def told(value: float) -> str:
    """A distance, or a ratio of two."""
    return f"{value:.2f}" if value < FAR else "far"


def between(values: Sequence[float]) -> str:
    """The middle 95% of distances."""
    ordered = sorted(values)
    low, high = (ordered[round(share * (len(values) - 1))] for share in (0.025, 0.975))
    return f"{told(low)} to {told(high)}"


def table_together(curves: Curves, chances: Chances) -> list[str]:
    """In Markdown: one row for each way and proxy, of the mean over seeds."""
    lines = [
        "| optimised by | proxy | gold at its peak | at d (95% of draws) | peak of the law at d (95% of draws) | ratio "
        "| gold in the end | proxy in the end | d in the end |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for form, proxies in curves.items():
        for name, each in proxies.items():
            read = together(each)
            points, end = curve(read, form), read[-1]
            top, law = peaks(points, form)
            tops, laws = map(between, chances[form][name])
            ratio = "not reached" if top is points[-1] else told(law / top.distance)
            lines.append(
                f"| {form} | {name} | {top.gold:.2f} | {told(top.distance)} ({tops}) | {told(law)} ({laws}) | {ratio} "
                f"| {end.gold:.2f} | {end.proxy:.2f} | {end.distance:.2f} |"
            )
    return lines


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half of its 95% interval, by Student's t."""
    if len(values) < 2:
        return fmean(values), math.nan
    return fmean(values), float(student.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))


def turned(curves: Curves) -> list[str]:
    """Of single seeds: in how many gold turned down, and how often the law's peak is within 20% of the observed one."""
    lines: list[str] = []
    for form, proxies in curves.items():
        for name, each in proxies.items():
            looked = [curve(points, form) for points in each]
            found = [peaks(points, form) for points in looked if observed_peak(points) is not points[-1]]
            near = sum(abs(law / top.distance - 1) <= 0.2 for top, law in found)
            lines.append(f"{form}, {name}: gold turned in {len(found)} of {len(each)} seeds, the law near in {near}")
    return lines


def against_one(curves: Curves, chances: Chances, pairs: int) -> list[str]:
    """What an ensemble of the same pairs changes, with 95% intervals: gold in the end, and where its peak is."""
    lines: list[str] = []
    for form, proxies in curves.items():
        single = f"{pairs} pairs"
        for name in (f"{single}, {use} of {ENSEMBLE}" for use in USES):
            each = zip(proxies[single], proxies[name], strict=True)
            gained = [curve(after, form)[-1].gold - curve(before, form)[-1].gold for before, after in each]
            middle, half = interval(gained)
            tops = zip(chances[form][single][0], chances[form][name][0], strict=True)
            moved = between([to - at for at, to in tops])
            lines.append(
                f"{form}, {name}: gold as far as it went {middle:+.2f} ({middle - half:+.2f} to {middle + half:+.2f}), "
                f"its peak further out by {moved}"
            )
    return lines


def table(seeds: Sequence[int], output: Path) -> list[str]:
    """In Markdown: one row for each way, proxy and seed."""
    lines = [
        "| optimised by | proxy | its accuracy | seed | gold at its peak | at d | peak of the law at d "
        "| gold in the end | proxy in the end | d in the end |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for form in FORMS:
        for seed in seeds:
            read = json.loads((output / f"seed-{seed}" / "points.json").read_text(encoding="utf-8"))
            for name, rows in read["points"][form].items():
                points = [Point(*row) for row in rows]
                top, law = peaks(curve(points, form), form)
                last = points[-1]
                lines.append(
                    f"| {form} | {name} | {read['accuracy'][name]:.3f} | {seed} | {top.gold:.2f} | {top.distance:.2f} "
                    f"| {told(law)} | {last.gold:.2f} | {last.proxy:.2f} | {last.distance:.2f} |"
                )
    return lines


def draw(rows: Mapping[str, Callable[[list[list[Point]]], list[Point]]], curves: Curves, path: Path) -> None:
    """Proxy (thin), gold (thick; its peak a dot), the fitted law (dotted; its peak a cross): what is made of seeds."""
    plt.rcParams["svg.fonttype"] = "none"  # words as words, not as drawings of them
    figure, axes = plt.subplots(len(rows), 2, figsize=(11, 3.6 * len(rows)), squeeze=False)
    for row, (title, made) in zip(axes, rows.items(), strict=True):
        for axis, form in zip(row, FORMS, strict=True):
            for number, (name, each) in enumerate(curves[form].items()):
                points = curve(made(each), form)
                colour = f"C{number}"
                distances = [p.distance for p in points]
                axis.plot(distances, [p.proxy for p in points], color=colour, lw=0.8, alpha=0.6)
                axis.plot(distances, [p.gold for p in points], color=colour, lw=1.8, label=name)
                law = fit(distances, [p.gold for p in points], form)
                if law is not None:
                    xs = [max(distances) * i / 60 for i in range(61)]
                    axis.plot(xs, [law(x) for x in xs], color=colour, lw=1, ls=":")
                    if law.peak is not None and law.peak <= max(distances):
                        axis.plot([law.peak], [law(law.peak)], "x", color=colour, ms=6)
                top = observed_peak(points)
                axis.plot([top.distance], [top.gold], "o", color=colour, ms=4)
            axis.axhline(0, color="0.7", lw=0.6)
            axis.set_title(f"{form}, {title}", fontsize=9)
            axis.set_xlabel("d = sqrt(KL), in nats^1/2", fontsize=8)
            axis.set_ylabel("reward gained", fontsize=8)
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Run what has not been run, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/overoptimization"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--pairs", type=int, nargs="+", default=[200, 400, 1600], help="sizes of the proxies' data")
    parser.add_argument("--steps", type=int, default=300, help="updates of each policy")
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time")
    options = parser.parse_args()
    work = partial(run_seed, options.output, options.pairs, options.steps)
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        list(pool.map(work, options.seeds))
    curves = curves_of(options.seeds, options.output)
    chances = peaks_by_chance(curves)
    print("\n".join([*table(options.seeds, options.output), "", *table_together(curves, chances), ""]))
    if len(options.seeds) > 1:
        print("\n".join([*turned(curves), "", *against_one(curves, chances, middle_of(options.pairs))]))
    draw({f"mean of {len(options.seeds)} seeds": together}, curves, options.output / "overoptimization.svg")
    apart = {f"seed {seed}": itemgetter(place) for place, seed in enumerate(options.seeds)}
    draw(apart, curves, options.output / "overoptimization-seeds.svg")


if __name__ == "__main__":
    main()
