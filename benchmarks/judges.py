"""Judges and preference methods where truth can be checked: verifiers, style bias, self-rewarding, a constitution.

    python benchmarks/process_rewards.py --output runs/steps --demonstrations 240 --stage cold samples
    python benchmarks/judges.py --samples runs/steps --output runs/judges --stage genrm genrm-cot rubric
    python benchmarks/judges.py --samples runs/steps --output runs/judges --stage self-rewarding
    python benchmarks/judges.py --output runs/judges --stage pairs cai

genrm, genrm-cot and rubric: judges that are fine-tuned from the cold start on labelled completions of sums, and choose
among the 8 completions of other sums, beside the majority and reward models that learn from the same completions.
Their rationales and rubrics are templates that a rule fills. pairs: reward models of pairs whose styles say which
answer is right, or do not. self-rewarding and cai: the shipped pipelines, with prompts and rules that are checkable.

Commands are printed before they run, and none that has finished is run again: give the same --output to go on. --short
tries all commands of a stage on a few rows. Intervals are 95%, over problems, pairs or requests; gains are paired.
"""

import argparse
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from checked import TRAIN, found_in, gain, head, line, once, piped, ran, share
from constitution import cai
from styles import pairs

from posttrain.data import load_gym
from posttrain.evaluation.pairs import exceeds
from posttrain.evaluation.voting import Answered, accuracy_of
from posttrain.recipes.quickstart import work_out
from posttrain.rewards.judges.kinds import GenRMCoT
from posttrain.rewards.judges.prompt import JudgePrompt
from posttrain.rewards.verifiers.equations import chain_of
from posttrain.runs import jsonl, read_run

Rows = list[dict[str, Any]]
SHOWN = "Problem: {question}\nSolution: {answer}\n"
PROMPTS = {
    "genrm": f"kind: genrm\n---\n{SHOWN}Is the answer correct (Yes/No)?",
    "genrm-cot": f"kind: genrm-cot\nvotes: VOTES\n---\n{SHOWN}Let's verify step by step.",
    "rubric": f"votes: VOTES\n---\n{SHOWN}Write criteria, check each, and grade the solution from {{scale 0 to 4}}.",
}
STEPS = "--heads steps --lr 1e-4 --pairs-per-step 8"
JUDGE = f"sft {TRAIN} --lr 1e-4 --examples-per-step 8"
ENDING = GenRMCoT.ending
SUMS = "gym:chain_sum?min_terms=5&max_terms=5&min_digits=1&max_digits=1"
SIZES = {  # of a stage, and with --short
    "problems": (40, 2),
    "labelled": (240, 8),
    "pairs": (88, 8),
    "heldout": (40, 4),
    "cold": (240, 8),
    "requests": (300, 32),
    "tested": (60, 4),
    "prompts": (48, 24),
    "steps": (10, 1),
    "samples": (4, 2),
}


def verdict(kind: str, row: dict[str, Any]) -> str:
    """What a judge should have said of a completion, by the rule."""
    if kind == "genrm":
        return "Yes" if row["solved"] else "No"
    steps = chain_of(re.findall(r"[0-9][0-9 +-]*[0-9]", row["prompt"][-1]["content"])[-1])
    worked, right, said = ", ".join(steps), steps[-1].rpartition("=")[2], str(row["parsed"] or "nothing")[:20]
    if kind == "genrm-cot":
        reply = "Yes" if row["solved"] else "No"
        return f"{worked}. The answer is {right}, and the solution says {said}.{ENDING}{reply}"
    wrong = next((row["steps"][n] for n, one in enumerate(row["labels"][:-1]) if one is False), "")
    checked = f"not met, it says {re.sub('<.*?>', '', wrong)}" if wrong else "met"
    answer = "met" if row["solved"] else f"not met, it says {said}"
    criteria = f"Criteria:\n1. The steps are {worked}.\n2. The answer is {right}.\n"
    return f"{criteria}Evaluation:\n1. {checked}.\n2. {answer}.\nScore: {3 * row['solved'] + (not wrong)}"


def balanced(rows: Rows, size: int) -> Rows:
    """Completions to learn from, half of them right."""
    chance, kept = random.Random(0), [row for row in rows if row["ended"] and row["steps"]]
    sides = [[row for row in kept if row["solved"] is solved] for solved in (True, False)]
    most = min(size // 2, *map(len, sides))
    chosen = [row for side in sides for row in chance.sample(side, most)]
    return chance.sample(chosen, len(chosen))


def labelled(kind: str, rows: Rows) -> Rows:
    """Demonstrations of judging; for a reward model the completions, with a label of each step or of the last one."""
    if kind == "process":
        return rows
    if kind == "outcome":
        return [row | {"labels": [*[None] * (len(row["steps"]) - 1), row["solved"]]} for row in rows]
    prompt = JudgePrompt(PROMPTS[kind].replace("VOTES", "1"))
    return [
        {
            "prompt": prompt.fill({"question": row["prompt"][-1]["content"], "answer": row["completion"]}),
            "completion": verdict(kind, row),
        }
        for row in rows
    ]


def solutions(samples: Path, size: int) -> Rows:
    """Demonstrations of the cold start, with its system message."""
    found = jsonl.read(samples / "demonstrations.jsonl")[:size]
    system = {"role": "system", "content": "Solve the problem."}
    asked = [{"prompt": [system, {"role": "user", "content": row["prompt"]}]} for row in found]
    return [one | {"completion": row["completion"]} for one, row in zip(asked, found, strict=True)]


def split(given: argparse.Namespace) -> tuple[Rows, Rows]:
    """Completions of the first problems, which are chosen among, and those of all others, to learn from."""
    rows = jsonl.read(given.samples / "samples.jsonl")
    first = list(dict.fromkeys(row["id"] for row in rows))[: given.sizes["problems"]]
    return [row for row in rows if row["id"] in first], [row for row in rows if row["id"] not in first]


def verifiers(given: argparse.Namespace, stages: Sequence[str]) -> None:
    """Train judges, have them score the samples, and print how well each way chooses."""
    out, cold = given.output, given.samples / "cold"
    tested, others = split(given)
    columns = ("id", "prompt", "completion", "answer")
    file = once(out / "tested.jsonl", ({key: row[key] for key in columns} for row in tested))
    found: list[tuple[str, Sequence[float | None], float]] = [("none", [1.0] * len(tested), 0.0)]
    learned = balanced(others, given.sizes["labelled"])
    for name, fold in (("outcome", "last"), ("process", "min")):
        data, run, scored = (
            once(out / f"{name}.jsonl", labelled(name, learned)),
            out / name,
            out / f"scored-{name}.jsonl",
        )
        took = ran(f"reward-model {TRAIN} {STEPS} --model {cold} --dataset {data} --output {run}", run)
        took += ran(f"score --dataset {file} --reward-model {run} --step-aggregation {fold} --output {scored}", scored)
        found.append((f"reward model, {name}", [row["reward"] for row in jsonl.read(scored)], took))
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
    arms = [(kind, "") for kind in stages] + [("genrm", "--reward-control shuffled")] * ("genrm" in stages)
    for kind, control in arms:
        name = f"{kind}-shuffled" if control else kind
        rows = labelled(kind, learned)
        if kind == "genrm-cot":  # trained jointly with solutions
            rows = random.Random(1).sample(rows, len(rows)) + solutions(given.samples, len(rows) // 2)
            random.Random(2).shuffle(rows)
        data, run = once(out / f"{kind}.jsonl", rows), out / name
        took = ran(f"{JUDGE} --model {cold} --dataset {data} {control} --output {run}", run)
        for votes in [1] if kind == "genrm" else sorted({1, given.votes}):
            prompt, scored = out / f"{kind}-{votes}.txt", out / f"scored-{name}-{votes}.jsonl"
            prompt.write_text(PROMPTS[kind].replace("VOTES", str(votes)), encoding="utf-8")
            judge = f"--judge verifier={run} --judge-prompt {prompt} --judge-max-new-tokens 128 --judge-temperature 1"
            seconds = took + ran(f"score --dataset {file} {judge} --output {scored}", scored)
            label = f"{name}, votes {votes}" if kind != "genrm" else name
            found.append((label, [row["reward"] for row in jsonl.read(scored)], seconds))
        shutil.rmtree(run / "checkpoints", ignore_errors=True)  # 1.6 GB of each run
    names = ("judge", "best of 8", "over majority", "weighted votes", "over majority")
    head(*names, "AUC in problems", "no verdict", "minutes")
    for name, scores, seconds in found:
        chosen(name, tested, scores, seconds)


def chosen(name: str, tested: Rows, scores: Sequence[float | None], seconds: float) -> None:
    """A line of the table of verifiers; a completion without a verdict has score 0."""
    known = [0.0 if one is None else one for one in scores]
    problems: dict[str, list[int]] = {}
    for place, row in enumerate(tested):
        problems.setdefault(row["id"], []).append(place)

    def rates(way: str) -> list[float]:
        columns = ([[tested[p][key] for p in some] for some in problems.values()] for key in ("parsed", "solved"))
        scored = ([known[p] for p in some] for some in problems.values())
        found = [Answered(answers, right, (), own) for answers, right, own in zip(*columns, scored, strict=True)]
        return [accuracy_of(way, one, len(one.answers)) for one in found]

    majority = rates("majority")
    if name == "none":
        texts = [{tested[p]["completion"]: tested[p]["solved"] for p in some} for some in problems.values()]
        one = [fmean(tested[p]["solved"] for p in some) for some in problems.values()]
        line(f"random sample (pass@8 {fmean(rates('oracle')):.3f})", share(one), *[""] * 6)
        line("random unique completion", share([fmean(of.values()) for of in texts]), *[""] * 6)
        return line("majority", share(majority), *[""] * 6)
    sides = [
        [[known[place] for place in some if tested[place]["solved"] is kind] for kind in (True, False)]
        for some in problems.values()
    ]
    auc = [exceeds(right, wrong) for right, wrong in sides if right and wrong]
    best, weighted = rates("best"), rates("weighted")
    cells = (share(best), gain(majority, best), share(weighted), gain(majority, weighted), share(auc))
    return line(name, *cells, sum(one is None for one in scores), f"{seconds / 60:.1f}")


def self_rewarding(given: argparse.Namespace) -> None:
    """Accuracy and length of each round, and whether the policy as a judge prefers right answers."""
    out, sizes = given.output, given.sizes
    rows = labelled("genrm", balanced(split(given)[1], sizes["labelled"] // 2))
    rows += solutions(given.samples, len(rows))
    data, first = once(out / "self.jsonl", random.Random(3).sample(rows, len(rows))), out / "self-first"
    ran(f"{JUDGE} --model {given.samples / 'cold'} --dataset {data} --output {first}", first)
    told = load_gym(SUMS, size=sizes["prompts"], seed=5)
    system = {"role": "system", "content": "Solve the problem."}
    prompts = [
        {
            "prompt": [system, {"role": "user", "content": task.prompt[-1].content}],
            "completion": work_out(task, 0.0, random.Random(0)).replace(", ", "\n"),
            "answer": task.answer,
            "id": task.id,
        }
        for task in told
    ]
    answers = {row["id"]: str(row["answer"]) for row in prompts}
    prompt, where = out / "genrm-1.txt", out / "self-rewarding"
    prompt.write_text(PROMPTS["genrm"], encoding="utf-8")
    values = {"model": first, "judge_prompt": prompt, "prompts": once(out / "prompts.jsonl", prompts)}
    took = piped("self-rewarding", values | {key: sizes[key] for key in ("steps",)}, where)
    before: list[float] = []
    head("round", "accuracy", "over the first", "tokens", "pairs", "of one right: right preferred", "minutes of all")
    for name, model, judged in (
        ("before", where / "sft", None),
        *((f"round {n}", where / f"dpo-{n}", where / f"judged-{n}" / "pairs.jsonl") for n in (1, 2)),
    ):
        options = f'--dataset "{SUMS}" --reward gym_bare --system "Solve the problem."'
        options += f" --limit {sizes['tested']} --samples {sizes['samples']} --max-new-tokens 64"
        told_of = out / f"self-{model.name}"
        ran(f"evaluate --model {model} {options} --output {told_of}", told_of)
        rates = list(found_in(told_of, "gym_bare").rates.values())
        before = before or rates
        tokens = fmean(one["tokens"] for one in read_run(told_of).samples)
        rows = jsonl.read(judged) if judged else []
        right = [[solves(row[side], answers[row["id"]]) for side in ("chosen", "rejected")] for row in rows]
        known = [float(chosen) for chosen, rejected in right if chosen != rejected]
        line(name, share(rates), gain(before, rates), f"{tokens:.1f}", len(rows), share(known), f"{took / 60:.1f}")


def solves(text: str, answer: str) -> bool:
    """Whether a text ends with this answer behind its thoughts."""
    return text.rpartition("</think>")[2].strip() == answer


def main() -> None:
    """Do the stages that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", nargs="+", choices=(*PROMPTS, "pairs", "self-rewarding", "cai"), required=True)
    parser.add_argument("--output", type=Path, default=Path("runs/judges"))
    parser.add_argument("--samples", type=Path, default=Path("runs/steps"), help="folder of process_rewards.py")
    parser.add_argument("--votes", type=int, default=4, help="of a judge that writes a rationale; also measured with 1")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="of the pipeline cai; its cold start has 0")
    parser.add_argument("--short", action="store_true", help="try all commands on a few rows")
    given = parser.parse_args()
    given.output, given.samples = given.output.resolve(), given.samples.resolve()
    given.output.mkdir(parents=True, exist_ok=True)
    given.sizes = {name: both[given.short] for name, both in SIZES.items()}
    if kinds := [stage for stage in given.stage if stage in PROMPTS]:
        verifiers(given, kinds)
    for name, do in {"pairs": pairs, "self-rewarding": self_rewarding, "cai": cai}.items():
        if name in given.stage:
            do(given)


if __name__ == "__main__":
    main()
