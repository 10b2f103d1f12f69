r"""Knights and knaves: tasks, a cold start that tries the cases, and a verifier of who is what.

    python examples/knights.py knights                                # two people, of reasoning-gym
    python examples/knights.py knights --logic-kk 3ppl_train.parquet  # three people, of Logic-RL's data
    posttrain sft --dataset knights/cold.jsonl
    posttrain rl --model runs/sft-2026-01-31-1 --dataset knights/train.jsonl --eval-dataset knights/heldout.jsonl \
        --reward "examples/knights.py:score tags=0.1" --max-new-tokens 96

The task and the rewards are Logic-RL's (Xie et al. 2025, https://arxiv.org/abs/2502.14768): one for the form, thinking
in tags, and one for the answer, who is a knight and who a knave. The paper trains a model of 7 billion parameters
without a cold start. `roles` of a row says who is what in the order of the names: its most common value is the best
constant answer.
"""

import argparse
import ast
import json
import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from posttrain.data.gym import load_gym

FORMAT = " Think in <think> </think>, then answer: <answer>{} is {}, ...</answer>."
_ROLE = re.compile(r"(\w+) is an? (\w+)")


def score(completion: str, answer: str) -> float:
    """1 if the completion's last answer in tags says of the same people the same as the task's, and nothing else."""
    said = re.findall(r"<answer>(.*?)</answer>", completion.rpartition("</think>")[2], re.DOTALL)
    return float(bool(said) and sorted(_ROLE.findall(said[-1].lower())) == sorted(_ROLE.findall(answer.lower())))


def holds(statement: Any, roles: Sequence[bool]) -> bool:
    """Whether a statement is true where these people are knights."""
    kind, *parts = statement
    if kind in ("telling-truth", "lying"):
        return roles[parts[0]] == (kind == "telling-truth")
    values = [holds(part, roles) for part in parts]
    if kind in ("and", "or", "not"):
        return all(values) if kind == "and" else any(values) if kind == "or" else not values[0]
    return values[0] == values[1] if kind == "<=>" else not values[0] or values[1]


def cases(names: Sequence[str], statements: Sequence[Any], knight: str, knave: str) -> str:
    """Case after case, and the first person whose words do not fit it, until all do."""
    said: list[str] = []
    for roles in product((True, False), repeat=len(names)):
        wrong = [name for name, one, role in zip(names, statements, roles, strict=True) if holds(one, roles) != role]
        case = ", ".join(knight if role else knave for role in roles)
        said.append(f"{case}: {f'not {wrong[0]}' if wrong else 'fits'}.")
        if not wrong:
            break
    return " ".join(said)


def row(quiz: str, names: Sequence[str], statements: Any, solution: Sequence[bool], terms: Any) -> dict[str, Any]:
    """A task with its demonstration."""
    knight, knave = terms["knight"], terms["knave"]
    who = [f"{name} is {terms['a_knight' if one else 'a_knave']}" for name, one in zip(names, solution, strict=True)]
    answer = ", ".join(who)
    thought = cases(names, statements, knight, knave)
    completion = f"<think>{thought}</think><answer>{answer}</answer>"
    roles = " ".join("knight" if one else "knave" for one in solution)
    return {
        "prompt": re.sub(r" \(Format your answer.*", "", quiz) + FORMAT.format(names[0], terms["a_knight"]),
        "completion": completion,
        "answer": answer,
        "roles": roles,
    }


def of_gym(split: str, size: int) -> Iterator[dict[str, Any]]:
    """Two people: tasks of reasoning-gym's `knights_knaves`."""
    for task in load_gym("gym:knights_knaves?n_people=2", size=size, split=split):
        found = task.metadata["entry"]["metadata"]
        quiz = task.metadata["entry"]["question"]
        yield row(quiz, found["names"], found["statements"], found["solution"], found["knight_knave_terms"])


def of_logic_kk(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of Logic-RL's files, which have the prompt of another model around the quiz."""
    import pyarrow.parquet as parquet

    for one in parquet.read_table(path).to_pylist():
        terms = one["knight_knave"]
        yield row(one["quiz"], one["names"], ast.literal_eval(one["statements"]), one["solution"], terms)


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--logic-kk", type=Path, help="3ppl_train.parquet; its last 100 rows are held out")
    given = parser.parse_args()
    if given.logic_kk:
        rows = list(of_logic_kk(given.logic_kk))
        train, heldout = rows[:-100], rows[-100:]
    else:
        train, heldout = list(of_gym("train", 800)), list(of_gym("heldout", 100))
    given.folder.mkdir(parents=True, exist_ok=True)
    for name, some in (("cold", train[:256]), ("train", train[256:]), ("heldout", heldout)):
        (given.folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in some), encoding="utf-8")


if __name__ == "__main__":
    main()
