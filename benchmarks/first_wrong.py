"""ProcessBench's rows whose answer is right, by a head on a frozen trunk: which have a wrong step, and where?

    python benchmarks/first_wrong.py --data PROCESSBENCH

PROCESSBENCH is a folder with math.json.gz and olympiadbench.json.gz (Zheng et al. 2024, arXiv 2412.06559). Of each, all
rows whose answer is right though a step is wrong, and as many right ones. The states of the packaged model at the ends
of steps are computed once; a logistic regression on them judges each problem, learned from the four fifths that the
problem is not in. Beside it the same with shuffled labels, and of the number of the step in place of its state. Prints
a table in Markdown.
"""

import argparse
import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from posttrain.data import ChatFormat, load_tokenizer
from posttrain.data.packing import Stepwise, pack, size_of
from posttrain.data.ratings import Reasoning, first_steps, stepwise_of
from posttrain.evaluation.steps import crossfitted
from posttrain.models.heads import StepModel, load_step_model
from posttrain.models.load import locate
from posttrain.models.precision import dtype_of
from posttrain.types import Message

Judged = tuple[str, Stepwise]  # a problem and its steps up to the first wrong one


def rows_of(file: Path, seed: int) -> list[dict[str, Any]]:
    """Rows whose answer is right: all with a wrong step, and as many others."""
    every = [row for row in json.loads(gzip.decompress(file.read_bytes())) if row["final_answer_correct"]]
    wrong = [row for row in every if row["label"] >= 0]
    right = [row for row in every if row["label"] < 0]
    return [*wrong, *random.Random(seed).sample(right, min(len(right), len(wrong)))]


def units_of(rows: Sequence[dict[str, Any]], chat: ChatFormat, longest: int) -> list[Judged]:
    """As tokens; of long ones the steps that fit, if the first wrong one is among them."""
    found = list[Judged]()
    for row in rows:
        steps = row["steps"] if row["label"] < 0 else row["steps"][: row["label"] + 1]
        labels = tuple(place != row["label"] for place in range(len(steps)))
        unit = stepwise_of(chat, Reasoning((Message("user", row["problem"]),), tuple(steps), labels))
        short = first_steps(unit, longest) if size_of(unit.example) > longest else unit
        if short is not None and (False in labels) == (False in short.right):
            found.append((row["problem"], short))
    return found


@torch.inference_mode()
def states_of(model: StepModel, units: Sequence[Judged], microbatch_tokens: int) -> list[torch.Tensor]:
    """The states at the ends of the steps of each, [S, D]."""
    found: dict[int, torch.Tensor] = {}
    for packed in pack([unit.example for _, unit in units], microbatch_tokens):
        flat = model.body.learned_states(packed).float()
        counts = [sum(row == example for row in packed.rows) for example in packed.examples]
        found |= dict(zip(packed.examples, flat.split(counts), strict=True))
        print(f"{len(found)} of {len(units)}", flush=True)
    return [found[place] for place in range(len(units))]


def judged(
    states: list[torch.Tensor], truth: list[torch.Tensor], numbers: list[int], *, shuffled: bool, seed: int
) -> list[list[float]]:
    """Logits of each reasoning, by a logistic regression on the states of the problems of four other fifths."""
    found: list[list[float]] = [[] for _ in truth]
    for fold in range(5):
        seen = [place for place, number in enumerate(numbers) if number % 5 != fold]
        x, y = torch.cat([states[p] for p in seen]), torch.cat([truth[p] for p in seen])
        mean, std = x.mean(0), x.std(0) + 1e-6
        x = (x - mean) / std
        if shuffled:
            y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]
        w, b = torch.zeros(x.shape[1], requires_grad=True), torch.zeros((), requires_grad=True)
        optimizer = torch.optim.LBFGS([w, b], max_iter=100)

        def closure(x=x, y=y, w=w, b=b, optimizer=optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(x @ w + b, y) + 0.02 * w.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.inference_mode():
            for place, number in enumerate(numbers):
                if number % 5 == fold:
                    found[place] = (((states[place] - mean) / std) @ w + b).tolist()
    return found


def auc(units: Sequence[Judged], logits: Sequence[Sequence[float]]) -> float:
    """The chance that a right step scores above a wrong one."""
    pairs = [pair for (_, unit), own in zip(units, logits, strict=True) for pair in zip(own, unit.right, strict=True)]
    right, wrong = ([logit for logit, label in pairs if bool(label) is kind] for kind in (True, False))
    return fmean((r > w) + 0.5 * (r == w) for r in right for w in wrong)


def main() -> None:
    """Both sets, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    where = locate("smollm2-135m-instruct")
    model = load_step_model(where, dtype=dtype_of("auto", "cpu"))
    chat = ChatFormat(load_tokenizer(where), model.body.stop_ids)
    table = [
        "| set | head | AUC of steps | F1 | first wrong step found | right ones left alone |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("math", "olympiadbench"):
        units = units_of(rows_of(options.data / f"{name}.json.gz", options.seed), chat, options.longest)
        states = states_of(model, units, 2 * options.longest)
        problems = {text: place for place, text in enumerate(dict.fromkeys(problem for problem, _ in units))}
        numbers = [problems[problem] for problem, _ in units]
        labels = [unit.right.index(False) if False in unit.right else -1 for _, unit in units]
        truth = [torch.tensor(unit.right, dtype=torch.float32) for _, unit in units]
        counts = [torch.arange(1.0, len(unit.right) + 1) for _, unit in units]
        places = [torch.stack([n, n.sqrt(), 1 / n], 1) for n in counts]
        for head, read in (("trained", states), ("shuffled labels", states), ("place of the step alone", places)):
            logits = judged(read, truth, numbers, shuffled=head == "shuffled labels", seed=options.seed)
            if found := crossfitted(labels, logits, numbers):
                low, high = found.ci95
                table.append(
                    f"| {name} | {head} | {auc(units, logits):.3f} | {found.f1:.3f} ({low:.3f}-{high:.3f}) | "
                    f"{found.wrong:.3f} of {found.n_wrong} | {found.right:.3f} of {found.n_right} |"
                )
        table.append(f"| {name} | always right | 0.5 | 0 | 0 | 1 |")
    print("\n".join(table))


if __name__ == "__main__":
    main()
