"""What each of reasoning-gym's families earns for answers that are right, and for ones that are none."""

import asyncio
import json
from typing import Any

import pytest
import reasoning_gym
from reasoning_gym.factory import DATASETS

from posttrain.rewards import GymVerifier
from posttrain.rewards.combine import unreadable_answers
from posttrain.rewards.verifiers.gym import as_the_task_writes_it
from posttrain.rewards.verifiers.gym_forms import REFUSED
from tests.rewards.episodes import episode, scores

FAMILIES = sorted(DATASETS.keys() - REFUSED.keys())
SIZE = 3

# Where a family gives no answer of its own, or another right one would do as "wrong".
RIGHT = {
    "graph_color": lambda entry: json.dumps({str(k): v for k, v in entry["metadata"]["possible_answer"].items()}),
    "rubiks_cube": lambda entry: entry["metadata"]["example_correct_answer"],
    "rush_hour": lambda entry: "A+4",
}
WRONG = {
    "graph_color": lambda entry: json.dumps({str(k): 1 for k in entry["metadata"]["possible_answer"]}),
    "rubiks_cube": lambda entry: "U",
    "rush_hour": lambda entry: "A+1",
    "n_queens": lambda entry: entry["answer"].replace("Q", "_", 1),
}


def entries(family: str) -> list[dict[str, Any]]:
    rows = [reasoning_gym.create_dataset(family, seed=11, size=SIZE)[i] for i in range(SIZE)]
    if family == "rush_hour":  # its puzzles come without a solution
        rows = [{"question": "", "answer": None, "metadata": {"board_config": "o" * 12 + "AAoooo" + "o" * 18}}]
    return rows


def changed(text: str) -> str:
    """`text` with its first digit, or else its first letter, another one."""
    for kind, other in ((str.isdigit, {"1": "2"}), (str.isalpha, {"Q": "R"})):
        for i, character in enumerate(text):
            if kind(character):
                return text[:i] + other.get(character, next(iter(other))) + text[i + 1 :]
    return text + "x"


def answers(family: str, entry: dict[str, Any], others: list[str]) -> dict[str, str]:
    """One right answer, and by name those that are none."""
    right = RIGHT[family](entry) if family in RIGHT else str(entry["answer"])
    different = next(
        (other for other in others if other.strip().casefold() != right.strip().casefold()), changed(right)
    )
    wrong = WRONG[family](entry) if family in WRONG else different
    said = {
        **{"right": right, "wrong": wrong, "empty": "", "nan": "nan", "inf": "inf", "0": "0", "True": "True"},
        **{"list": ", ".join([right, wrong, "0", "1", "True", "False"]), "lines": f"{right}\n{wrong}"},
        **{"or": f"{right} or {wrong}", "not": f"not {right}", "beside": f"{wrong} {right}", "word": "banana"},
        **{"sign": f"-{right}", "comment": f"{right} # {wrong}", "nani": "1 + nani"},
    }
    if f"-{right}" in (wrong, "-0") or right.startswith("-"):
        del said["sign"]
    if family == "rush_hour":  # moves after the one that solves it, or before, are moves
        del said["lines"], said["beside"]
    return {name: text for name, text in said.items() if name == "right" or not same(family, text, right, entry)}


def same(family: str, text: str, right: str, entry: dict[str, Any]) -> bool:
    told = as_the_task_writes_it(family, text, entry)
    return told.strip().casefold() == right.strip().casefold()


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_right_answer_of_a_family_is_paid(family):
    rows = entries(family)
    own = [str(row["answer"]) for row in rows]
    asked = [(row, name, text) for row in rows for name, text in answers(family, row, own).items()]
    episodes = [
        episode(f"<answer>{text}</answer>", row["answer"], question=row["question"], dataset=family, entry=row)
        for row, _, text in asked
    ]
    paid = [
        (name, text) for (_, name, text), got in zip(asked, scores(GymVerifier(), episodes), strict=True) if got.value
    ]
    assert [name for name, _ in paid] == ["right"] * len(rows), [text for name, text in paid if name != "right"]


def test_every_family_is_judged_or_refused():
    assert len(DATASETS) >= 105
    assert {*FAMILIES} | REFUSED.keys() == DATASETS.keys()


@pytest.mark.parametrize("family", sorted(REFUSED))
def test_a_family_that_cannot_be_guarded_is_refused_when_the_data_is_loaded(family):
    row = {"question": "", "answer": "5", "metadata": {"source_dataset": "gcd"}}
    fine = {"question": "", "answer": "5", "metadata": {}}
    tasks = [episode("", None, dataset=family, entry=row).task, episode("", "5", dataset="gcd", entry=fine).task]
    refused, judged = asyncio.run(unreadable_answers(GymVerifier(), tasks))
    assert refused == f"reward 'gym' cannot judge {family}: {REFUSED[family]}" and judged == ""
