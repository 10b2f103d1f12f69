"""What each verifier accepts of right and of wrong answers. As a program, this writes the table in docs/rewards.md."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from posttrain.rewards import ChoiceVerifier, ExactVerifier, GymVerifier, MathVerifier, NumberVerifier, Reward
from posttrain.types import Episode, Message, Task
from tests.rewards.episodes import scores

PAGE = Path(__file__).parents[3] / "docs" / "rewards.md"
CORPORA = Path(__file__).parent / "corpora"
VERIFIERS: dict[str, Reward] = {
    "numbers": NumberVerifier(),
    "last_number": NumberVerifier(last_number=True, name="last_number"),
    "math": MathVerifier(),
    "choice": ChoiceVerifier(),
    "exact": ExactVerifier(),
    "gym": GymVerifier(),
}
HEAD = "| verifier | right | accepted | refused | unparsed | wrong | paid |\n|---" + 6 * "|---:" + "|\n"
_TABLE = re.compile(r"(?<=test_corpora -->\n).*?(?=<!-- end -->)", re.DOTALL)


@cache
def counted(name: str) -> tuple[dict[str, int], list[str]]:
    """The counts of a verifier, and the wrong answers that it pays."""
    corpus = json.loads((CORPORA / f"{name}.json").read_text(encoding="utf-8"))
    counts, paid = dict.fromkeys(("right", "accepted", "refused", "unparsed", "wrong", "paid"), 0), list[str]()
    for kind in ("right", "wrong"):
        episodes = [episode(name, corpus, of, said) for of, answers in corpus[kind].items() for said in answers]
        for one, got in zip(episodes, scores(VERIFIERS[name], episodes, timeout_s=600), strict=True):
            counts[kind] += 1
            if kind == "right":
                counts["unparsed" if got.unparsed else "accepted" if got.value == 1 else "refused"] += 1
            elif got.value > 0:
                counts["paid"] += 1
                paid.append(one.task.id)
    return counts, paid


def episode(name: str, corpus: dict[str, Any], of: str, said: str) -> Episode:
    if name == "gym":
        entry = gym_entry(of)
        said = said.replace("{}", str(entry["answer"]))
        task = Task((Message("user", entry["question"]),), entry["answer"], id=f"{of}: {said}")
        task = Task(task.prompt, task.answer, metadata={"dataset": of, "entry": entry}, id=task.id)
    else:
        metadata = {"choices": corpus["choices"]} if "choices" in corpus else {}
        task = Task((Message("user", corpus["question"]),), of, metadata=metadata, id=f"{of}: {said}")
    completion = corpus["completion"].replace(
        "{{}}" if name == "math" else "{}", f"{{{said}}}" if name == "math" else said
    )
    return Episode(task, (*task.prompt, Message("assistant", completion)))


@cache
def gym_entry(family: str) -> dict[str, Any]:
    return reasoning_gym.create_dataset(family, seed=1, size=1)[0]


def row(name: str) -> str:
    counts, _ = counted(name)
    return f"| `{name}` | " + " | ".join(f"{count:,}" for count in counts.values()) + " |\n"


@pytest.mark.parametrize("name", VERIFIERS)
def test_no_wrong_answer_of_the_corpus_is_paid_and_the_counts_are_those_of_the_page(name):
    counts, paid = counted(name)
    assert paid == []
    assert counts["right"] >= 60 and counts["wrong"] >= 60
    table = _TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert table and row(name) in table[0], "type: python -m tests.rewards.verifiers.test_corpora"


def test_right_answers_are_mostly_accepted():
    for name in VERIFIERS.keys() - {"exact"}:
        counts, _ = counted(name)
        assert counts["accepted"] >= (0.75 if name == "gym" else 0.9) * counts["right"], name


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_TABLE.sub(lambda _: HEAD + "".join(map(row, VERIFIERS)), page), encoding="utf-8")
