"""Process rewards on sums of five terms: labels, verifiers on stored samples, first wrong steps, and what RL does.

    python benchmarks/process_rewards.py --output runs/steps --stage cold samples labels models table
    python benchmarks/process_rewards.py --output runs/steps --stage active
    python benchmarks/process_rewards.py --output runs/steps --stage rl --arms verifier sum softmin majority rlpr

A cold start on demonstrations of three to six terms writes each step of a sum as a line inside its tags. The rule by
which a completion is split is that of the library: a step is a line; `<think>` stands in the first, `</think>` and the
answer in the last. `samples.jsonl` has 8 completions of each held-out sum of five terms, with the rule's labels; all
verifiers choose among them. What a stage has finished is not done again. Prints tables in Markdown.
"""

import argparse
import json
import math
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import posttrain as pt
from posttrain.data import ChatFormat, load_gym, load_tokenizer, seed_for
from posttrain.data.packing import size_of
from posttrain.data.ratings import Reasoning, stepwise_of
from posttrain.data.tasks import dress
from posttrain.engine.policy import load_policy
from posttrain.engine.scorer import load_scorer
from posttrain.environments.scored import ScoredEnvironment
from posttrain.episodes.episodes import Players, sample_groups
from posttrain.evaluation.step_labels import most_convincing
from posttrain.evaluation.steps import crossfitted
from posttrain.evaluation.voting import Answered
from posttrain.evaluation.ways import points
from posttrain.models.load import locate
from posttrain.recipes.quickstart import work_out
from posttrain.rewards import GymVerifier, Weighted, reward_function
from posttrain.rewards.verifiers.equations import equations, labels_of
from posttrain.runs import jsonl
from posttrain.training.resolve_model import saved_model
from posttrain.types import Episode, Message, Row, Sampling, Score, Span, StopReason, Task, steps_in

SYSTEM = "Solve the problem."
ONE_DIGIT = "min_digits=1&max_digits=1"
SUMS = f"gym:chain_sum?min_terms=5&max_terms=5&{ONE_DIGIT}"
DEMONSTRATED = f"gym:chain_sum?min_terms=3&max_terms=6&{ONE_DIGIT}"
MOST = 96  # sampled tokens
TOGETHER = 32  # prompts
MOST_PROMPTS = 1000
TRAINING: dict[str, Any] = {"heads": "steps", "system": SYSTEM, "lr": 3e-5, "epochs": 2, "pairs_per_step": 8}
RULE = ScoredEnvironment(Weighted(((GymVerifier(answer_in="outside_think", name="gym_bare"), 1.0),)))
Rows = list[dict[str, Any]]


def lines(completion: str) -> float:
    """How many steps a completion has."""
    return float(len(steps_in(completion)))


@reward_function(bounds=(-math.inf, math.inf))
def paid_lines(episode: Episode) -> Score:
    """Each line with an equation is paid 1 if it holds, else -1, whatever their number: a sum that can be farmed."""
    (text,) = episode.turn_texts()
    told = [(start, end, equations(text[start:end])) for start, end in steps_in(text)]
    return Score(
        0.0,
        spans=tuple(
            Span(0, start, end, 2.0 * all(one.holds for one in found) - 1) for start, end, found in told if found
        ),
    )


def tasks(spec: str, size: int, split: str, seed: int) -> list[Task]:
    """Sums with the system message."""
    found = load_gym(spec, size=size, seed=seed, split=split)
    return [Task(dress(t.prompt, SYSTEM, "{prompt}"), t.answer, t.gold, t.metadata, t.id) for t in found]


def trained(form: Any, where: Path) -> None:
    """Run a form, or finish what there is of its run; keep the model alone, a checkpoint is three times as large."""
    run = where.with_name(f"{where.name}-run")
    if where.exists():
        return
    if run.exists():
        pt.resume(run)
    else:
        pt.run(form, output=run)
    shutil.copytree(
        saved_model(str(run)).where, where, ignore=shutil.ignore_patterns("checksums.json", "masters*", "optimizer*")
    )
    shutil.copy(run / "metrics.jsonl", where / "metrics.jsonl")
    shutil.rmtree(run)


def cold_start(model: str, output: Path, seed: int, demonstrations: int, lr: float) -> None:
    """Fine-tune a model on worked sums, a step a line."""
    chance, file = random.Random(seed), output / "demonstrations.jsonl"
    asked = tasks(DEMONSTRATED, demonstrations, "train", seed + 1)
    if not file.exists():
        said = [work_out(task, 0.0, chance).replace(", ", "\n") for task in asked]
        jsonl.write(
            file, [{"prompt": t.prompt[-1].content, "completion": one} for t, one in zip(asked, said, strict=True)]
        )
    options: dict[str, Any] = {"examples_per_step": 16, "lr": lr, "warmup_steps": 2, "decay": "linear"}
    options |= {"microbatch_tokens": 1024, "epochs": 1, "save_every": 1000, "keep_last": 1, "seed": seed}
    trained(pt.SFT(dataset=str(file), model=model, system=SYSTEM, **options), output / "cold")


def sample(model: Path, file: Path, split: str, prompts: int, completions: int, seed: int) -> None:
    """Completions with the rule's labels of their steps; more of them where there are fewer."""
    policy = load_policy(saved_model(str(model)).where)
    players = Players(policy.engine, policy.chat, Sampling(MOST))
    asked, rows = tasks(SUMS, MOST_PROMPTS, split, seed)[:prompts], jsonl.read(file)
    for start in range(len(rows) // completions, prompts, TOGETHER):
        some = asked[start : start + TOGETHER]
        found = sample_groups(RULE, some, players, completions_per_prompt=completions, seed=seed_for(seed, start))
        rows += [_stored(group.task, row) for group in found for row in group.rows]
        jsonl.write(file, rows)
        print(f"{file.name}: {start + len(some)} of {prompts} prompts", flush=True)


def _stored(task: Task, row: Row) -> dict[str, Any]:
    text, score = row.trajectory.text, row.scores["gym_bare"]
    solved = score.value == 1.0
    return {
        "id": task.id,
        "prompt": [{"role": m.role, "content": m.content} for m in task.prompt],
        "answer": task.answer,
        "completion": text,
        "steps": [text[a:b] for a, b in steps_in(text)],
        "labels": labels_of(task, text, solved),
        "solved": solved,
        "parsed": None if score.unparsed else score.parsed,
        "tokens": len(row.trajectory.logprobs),
        "ended": row.trajectory.stop_reason is StopReason.STOP,
    }


def label(model: Path, output: Path, prompts: int, seed: int) -> None:
    """Soft labels by Monte Carlo; hard ones, the rule's and the outcome's of the same completions are made of them."""
    file = output / "soft.jsonl"
    form = pt.BestOfN(
        dataset=SUMS,
        model=str(model),
        reward="gym_bare",
        system=SYSTEM,
        limit=prompts,
        completions_per_prompt=4,
        max_new_tokens=MOST,
        seed=seed,
        output=str(output / "best.jsonl"),
        step_labels=str(file),
        continuations=4,
    )
    if not file.exists():
        pt.run(form)
    rows = jsonl.read(file)
    by_id = {t.id: t for t in tasks(SUMS, prompts, "train", seed)}
    hard = [[float(one > 0) for one in row["labels"]] for row in rows]
    rule = [labels_of(by_id[row["id"]], "\n".join(row["steps"]), row["solved"]) for row in rows]
    outcome = [[*[None] * (len(row["steps"]) - 1), row["solved"]] for row in rows]
    shuffled = [one for row in rule for one in row]
    random.Random(seed).shuffle(shuffled)
    left = iter(shuffled)
    for name, labels in (
        *(("hard", hard), ("rule", rule), ("outcome", outcome)),
        ("shuffled", [[next(left) for _ in row] for row in rule]),
    ):
        jsonl.write(output / f"{name}.jsonl", [row | {"labels": own} for row, own in zip(rows, labels, strict=True)])
    both = [
        (h, r)
        for one, other in zip(hard, rule, strict=True)
        for h, r in zip(one[:-1], until_wrong(other)[: len(other) - 1], strict=False)
        if r is not None
    ]
    said = {kind: fmean(h for h, r in both if r is kind) for kind in (True, False) if any(r is kind for _, r in both)}
    print(
        f"{len(rows)} completions, {fmean(row['solved'] for row in rows):.3f} right; hard labels say right of: {said}"
    )


def until_wrong(labels: Sequence[Any]) -> list[Any]:
    """The labels up to the first wrong one."""
    return list(labels[: labels.index(False) + 1]) if False in labels else list(labels)


def train(model: Path, file: Path, where: Path, seed: int) -> None:
    """A process reward model on labelled steps."""
    options: dict[str, Any] = TRAINING | {"save_every": 1000, "keep_last": 1, "seed": seed}
    trained(pt.RewardModel(dataset=str(file), model=str(model), **options), where)


def logits_of(where: Path, rows: Rows) -> list[tuple[float, ...]]:
    """The logit of each step of each completion."""
    scorer = load_scorer(saved_model(str(where)).where)
    return scorer(
        [[*(Message(**m) for m in row["prompt"]), Message("assistant", "\n".join(row["steps"]))] for row in rows]
    )


def auc(rows: Rows, logits: Sequence[Sequence[float]]) -> float:
    """The chance that a right step scores above a wrong one, of steps up to the first wrong one."""
    pairs = [
        (logit, label)
        for row, own in zip(rows, logits, strict=True)
        for logit, label in zip(own, until_wrong(row["labels"]), strict=False)
        if label is not None
    ]
    right, wrong = ([logit for logit, label in pairs if label is kind] for kind in (True, False))
    return fmean((r > w) + 0.5 * (r == w) for r in right for w in wrong)


def table(output: Path, names: Sequence[str]) -> None:
    """All ways to choose among the stored samples, with the tokens that they cost."""
    rows = jsonl.read(output / "samples.jsonl")
    chat = ChatFormat(load_tokenizer(locate("smollm2-135m-instruct")))
    problems: dict[str, Rows] = {}
    for row in rows:
        problems.setdefault(row["id"], []).append(row)
    read = {}
    for row in rows:
        prompt = tuple(Message(**m) for m in row["prompt"])
        unit = stepwise_of(chat, Reasoning(prompt, tuple(row["steps"]), (True,) * len(row["steps"])))
        read[id(row)] = size_of(unit.example)
    print("| verifier | way | samples | tokens | accuracy | over one sample |\n|---|---|---|---|---|---|")
    for name in names:
        logits = dict(zip(map(id, rows), logits_of(output / name, rows) if name else [()] * len(rows), strict=True))
        probabilities = {key: [0.5 * (1 + math.tanh(one / 2)) for one in own] for key, own in logits.items()}
        aggregates: dict[str, Any] = {"last": lambda p: p[-1], "product": math.prod, "min": min}
        ways = {"": None} if not name else {"last": aggregates["last"]} if name == "outcome" else aggregates
        for way, of in ways.items():
            if way == "last" and name != "outcome":
                continue
            answered = [
                Answered(
                    [row["parsed"] for row in some],
                    [row["solved"] for row in some],
                    [row["tokens"] for row in some],
                    [float(of(probabilities[id(row)])) if len(row["steps"]) else 0.0 for row in some] if of else (),
                    [read[id(row)] for row in some] if of else (),
                )
                for some in problems.values()
            ]
            chosen = ("weighted", "best") if name else ("one sample", "majority", "oracle")
            for point in points(answered):
                if point.way in chosen:
                    low, high = point.ci95
                    least, most = point.over_one_ci95
                    print(
                        f"| {name} {way} | {point.way} | {point.samples:g} | {point.tokens:.0f} | {point.accuracy:.3f} "
                        f"({low:.3f}-{high:.3f}) | {point.over_one:+.3f} ({least:+.3f} to {most:+.3f}) |",
                        flush=True,
                    )
    print("\n| verifier | AUC of steps | F1 | first wrong step found | right ones left alone |\n|---|---|---|---|---|")
    numbers = {name: place for place, name in enumerate(problems)}
    kept = [row for row in rows if row["steps"] and None not in row["labels"]]
    labels = [row["labels"].index(False) if False in row["labels"] else -1 for row in kept]
    for name in filter(None, names):
        logits_ = logits_of(output / name, kept)
        cut = [own[: len(until_wrong(row["labels"]))] for own, row in zip(logits_, kept, strict=True)]
        found = crossfitted(labels, cut, [numbers[row["id"]] for row in kept])
        if found:
            low, high = found.ci95
            print(
                f"| {name} | {auc(kept, logits_):.3f} | {found.f1:.3f} ({low:.3f}-{high:.3f}) | {found.wrong:.3f} of "
                f"{found.n_wrong} | {found.right:.3f} of {found.n_right} |",
                flush=True,
            )
    print(f"| always right | 0.5 | 0 | 0 | 1 | ({len(kept)} completions)")


def active(output: Path, seed: int, first: int = 64, budget: int = 400) -> None:
    """What to label: random completions, or wrong ones that the model at hand finds convincing; one of each prompt."""
    pool, tested = jsonl.read(output / "pool.jsonl"), jsonl.read(output / "samples.jsonl")
    pool = [row for row in pool if row["ended"] and None not in row["labels"] and row["steps"]]
    tested = [row for row in tested if row["steps"] and None not in row["labels"]]
    begin, rest = pool[:first], pool[first:]
    if not (output / "active-0.jsonl").exists():
        jsonl.write(output / "active-0.jsonl", begin)
    train(output / "cold", output / "active-0.jsonl", output / "active-0", seed)
    scores = [min(own) for own in logits_of(output / "active-0", rest)]
    prompts: dict[str, list[int]] = {}
    for place, row in enumerate(rest):
        prompts.setdefault(row["id"], []).append(place)
    chance = random.Random(seed)

    def of_prompt(places: list[int], convincing: bool) -> int:
        if not convincing:
            return chance.choice(places)
        return places[most_convincing([rest[p]["solved"] for p in places], [scores[p] for p in places])[0]]

    print("| labelled | completions | labels of steps | AUC of steps |\n|---|---|---|---|")
    for name, convincing in (("active-0", None), ("random", False), ("convincing", True)):
        rows = list(begin)
        labels = 0
        for places in prompts.values() if convincing is not None else ():
            if labels >= budget:
                break
            rows.append(rest[of_prompt(places, bool(convincing))])
            labels += len(until_wrong(rows[-1]["labels"]))
        where = output / name
        if not (output / f"{name}.jsonl").exists():
            jsonl.write(output / f"{name}.jsonl", rows)
        train(output / "cold", output / f"{name}.jsonl", where, seed)
        total = sum(len(until_wrong(row["labels"])) for row in rows)
        print(f"| {name} | {len(rows)} | {total} | {auc(tested, logits_of(where, tested)):.3f} |", flush=True)


def reinforce(output: Path, arm: str, steps: int, seed: int) -> None:
    """RL by a verifier, by right lines, without either, or by a process reward model, summed or in min form."""
    where = output / f"rl-{arm}"
    learned = arm in ("sum", "softmin")
    grpo = pt.GRPO(kl_coefficient=0, process_rewards=learned or arm == "paid-lines")
    rewards: dict[str, Any] = {"gym_bare": 1.0 if arm == "verifier" else 0.0, "lines": (lines, 0.0)}
    rewards |= {"all-steps?verifier=gym_bare": 1.0} if arm == "all-steps" else {}
    rewards |= {"paid": (paid_lines, 1.0)} if arm == "paid-lines" else {}
    label_free = {"majority": "majority?answer_in=outside_think", "rlpr": "rlpr?before=</think>"}
    rewards |= {label_free[arm]: 1.0} if arm in label_free else {}
    models = {"reward_model": str(output / "rule"), "step_aggregation": arm} if learned else {}
    form = pt.RL(
        model=str(output / "cold"),
        dataset=SUMS,
        system=SYSTEM,
        limit=1000,
        reward=rewards,
        algorithm=grpo,
        steps=steps,
        prompts_per_step=4,
        completions_per_prompt=8,
        max_new_tokens=MOST,
        microbatch_tokens=1024,
        lr=1.5e-5,
        eval_every=steps,
        eval_limit=64,
        eval_samples=4,
        save_every=1000,
        keep_last=1,
        seed=seed,
        **models,
    )
    if not where.exists():
        pt.run(form, output=where)
        shutil.rmtree(where / "checkpoints")
    found = [json.loads(line) for line in (where / "metrics.jsonl").read_text().splitlines()]
    held = [row for row in found if "evaluation/accuracy" in row]
    drawn = [row for row in found if "reward/lines" in row]

    def mean(rows: Sequence[dict[str, Any]], key: str) -> float:
        return fmean(row[key] for row in rows)

    print(
        f"| {arm} | {held[0]['evaluation/accuracy']:.3f} | {held[-1]['evaluation/accuracy']:.3f} | "
        f"{mean(drawn[:3], 'reward/lines'):.2f} | {mean(drawn[-3:], 'reward/lines'):.2f} | "
        f"{mean(drawn[:3], 'reward/mean'):.2f} | {mean(drawn[-3:], 'reward/mean'):.2f} | "
        f"{sum(row.get('seconds/step', 0.0) for row in found) / 60:.1f} |",
        flush=True,
    )


def main() -> None:
    """Do the stages that are asked for, in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = ("cold", "samples", "labels", "models", "table", "active", "rl")
    parser.add_argument("--stage", nargs="+", choices=stages, required=True)
    parser.add_argument("--output", type=Path, default=Path("runs/steps"))
    parser.add_argument("--arms", nargs="+", default=["verifier", "sum", "softmin"])
    parser.add_argument("--model", default="smollm2-135m-instruct", help="of the cold start")
    parser.add_argument("--demonstrations", type=int, default=960)
    parser.add_argument("--lr", type=float, default=3e-5, help="of the cold start")
    parser.add_argument("--prompts", type=int, default=250)
    parser.add_argument("--pool", type=int, default=200)
    parser.add_argument("--labelled", type=int, default=60)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    output, seed = options.output, options.seed
    output.mkdir(parents=True, exist_ok=True)
    for stage in options.stage:
        if stage == "cold":
            cold_start(options.model, output, seed, options.demonstrations, options.lr)
        if stage == "samples":
            sample(output / "cold", output / "samples.jsonl", "heldout", options.prompts, 8, seed)
            found = jsonl.read(output / "samples.jsonl")
            print(f"{len(found)} samples, {fmean(row['solved'] for row in found):.3f} right")
        if stage == "labels" and not (output / "rule.jsonl").exists():
            label(output / "cold", output, options.labelled, seed)
        if stage == "models":
            for name in ("rule", "soft", "hard", "outcome", "shuffled"):
                train(output / "cold", output / f"{name}.jsonl", output / name, seed)
        if stage == "table":
            table(output, ["", "rule", "soft", "hard", "outcome", "shuffled"])
        if stage == "active":
            sample(output / "cold", output / "pool.jsonl", "train", options.pool, 4, seed + 7)
            active(output, seed)
        if stage == "rl":
            for arm in options.arms:
                reinforce(output, arm, options.steps, seed)


if __name__ == "__main__":
    main()
