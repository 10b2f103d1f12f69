"""What more sampling buys on sums of five digits, with a process reward model of steps that are labelled by rule.

    python benchmarks/solve.py --output runs/solve
    python benchmarks/solve.py --output runs/solve --shuffled    # its labels shuffled: what search is worth without it

A policy learns from --demonstrations to write a line for each term and `#### ANSWER`. Of its answers to other sums each
line is labelled: right if it takes the next term to the value before it, and its arithmetic is right. A process reward
model learns from these, and `solve` compares all ways on held-out sums. `prm.svg` is the accuracy against tokens.
Whatever has been done is not done again: give the same --output to go on.
"""

import argparse
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posttrain.options.evaluation import Evaluate, Solve
from posttrain.options.training import SFT, Scoring
from posttrain.recipes import evaluate, reward_model, sft
from posttrain.recipes.evaluate.solve import chart_of, solve
from posttrain.report.chart import picture
from posttrain.runs import read_run

TERMS = 5
TOKENS = 80


def problem(draw: random.Random) -> dict[str, str]:
    """A sum, with the reasoning and its answer."""
    terms = [draw.choice((-1, 1)) * draw.randint(1, 9) for _ in range(TERMS)]
    terms[0] = abs(terms[0])
    text = f"{terms[0]} " + " ".join(f"{'+' if term > 0 else '-'} {abs(term)}" for term in terms[1:])
    lines, value = list[str](), terms[0]
    for term in terms[1:]:
        lines.append(f"{value} {'+' if term > 0 else '-'} {abs(term)} = {value + term}")
        value += term
    return {"prompt": f"{text} = ?", "completion": "\n".join([*lines, f"#### {value}"]), "answer": str(value)}


def labels(prompt: str, steps: Sequence[str]) -> list[bool]:
    """Whether each line takes the next term to the value before it, and is right; and the last one answers."""
    first, *rest = re.findall(r"([+-]?) ?(\d+)", prompt)
    value, found = int(first[1]), list[bool]()
    for sign, term in rest:
        after = value + int(f"{sign}{term}")
        found.append(len(found) < len(steps) and steps[len(found)] == f"{value} {sign} {term} = {after}")
        value = after
    return [*found, *(step == f"#### {value}" for step in steps[len(found) :])][: len(steps)]


def write(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    """A file of rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def main(output: Path, demonstrations: int, labelled: int, heldout: int, beams: int, shuffled: bool, seed: int) -> None:
    """Policy, process reward model, and what they are worth together."""
    output.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    drawn = (problem(draw) for _ in range(demonstrations + labelled + heldout))
    rows = list({row["prompt"]: row for row in drawn}.values())
    test, more = rows[:heldout], rows[heldout:]
    train = write(output / "demonstrations.jsonl", more[:demonstrations])
    policy = output / "policy"
    if not policy.exists():
        config = SFT(train, epochs=2, examples_per_step=16, lora_rank=16, lr=5e-4, warmup_steps=4, seed=seed)
        sft.run(config, output=policy)
    sampled = output / "samples"
    common = {"reward": "numbers", "max_new_tokens": TOKENS, "seed": seed}
    if not sampled.exists():
        others = write(output / "others.jsonl", more[demonstrations:])
        evaluate.run(Evaluate(others, str(policy), samples=4, **common), output=sampled)
    judge = output / ("shuffled" if shuffled else "prm")
    if not judge.exists():
        stepwise = list[dict[str, Any]]()
        for row in read_run(sampled).samples:
            prompt = row["prompt"].rpartition("user: ")[2]
            steps = [line.strip() for line in row["completion"].splitlines() if line.strip()]
            if steps:
                stepwise.append({"prompt": prompt, "steps": steps, "labels": labels(prompt, steps)})
        if shuffled:
            every = [label for row in stepwise for label in row["labels"]]
            draw.shuffle(every)
            for row in stepwise:
                row["labels"] = [every.pop() for _ in row["labels"]]
        data = write(output / f"{judge.name}.jsonl", stepwise)
        words: dict[str, Any] = {"eval_share": 0.2, "lora_rank": 16, "lr": 5e-4, "warmup_steps": 4, "seed": seed}
        config = Scoring(data, str(policy), heads="steps", epochs=1, **words)
        reward_model.run(config, output=judge)
    config = Solve(
        write(output / "test.jsonl", test),
        str(policy),
        reward_model=str(judge),
        samples=16,
        beams=beams,
        lookahead=1,
        step_aggregation="min",
        **common,
    )
    found = solve(config, output=output / f"solve-{judge.name}")
    (output / f"{judge.name}.svg").write_text(picture(chart_of(found.points)), encoding="utf-8")
    print("\n".join(found.lines()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--demonstrations", type=int, default=480)
    parser.add_argument("--labelled", type=int, default=100)
    parser.add_argument("--heldout", type=int, default=50)
    parser.add_argument("--beams", type=int, default=8)
    parser.add_argument("--shuffled", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
