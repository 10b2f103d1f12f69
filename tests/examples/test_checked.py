"""The examples that make tasks which a program checks: demonstrations pass, splits are apart; what the table counts."""

import asyncio
import json
from itertools import product

import pytest

from posttrain.data.tasks import load_tasks
from posttrain.rewards import apart, parse_rewards
from posttrain.types import Episode, Message
from tests.examples.test_examples import example

AND = ("and", ("telling-truth", 0), ("lying", 1))
EMMA = (("lying", 1), ("<=>", ("telling-truth", 0), ("lying", 1)))  # Emma: Liam lies. Liam: Emma is what I am not.
TERMS = {"knight": "saint", "knave": "sinner", "a_knight": "a saint", "a_knave": "a sinner"}


def test_cases_are_tried_until_one_fits():
    knights = example("knights")
    assert [knights.holds(AND, roles) for roles in product((True, False), repeat=2)] == [False, True, False, False]
    assert [knights.holds(("->", *AND[1:]), roles) for roles in product((True, False), repeat=2)] == [
        False,
        True,
        True,
        True,
    ]
    assert knights.holds(("not", ("or", *AND[1:])), (False, True)) and not knights.holds(EMMA[1], (True, True))
    assert knights.cases(("Emma", "Liam"), EMMA, "saint", "sinner") == (
        "saint, saint: not Emma. saint, sinner: not Liam. sinner, saint: fits."
    )
    row = knights.row("Who? (Format your answer like: x)", ("Emma", "Liam"), EMMA, (False, True), TERMS)
    assert row["prompt"].startswith("Who? Think in <think>") and row["roles"] == "knave knight"
    assert row["answer"] == "Emma is a sinner, Liam is a saint" and knights.score(row["completion"], row["answer"]) == 1


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("<answer>Liam is a saint, and Emma is a sinner.</answer>", 1.0),
        ("<answer>Emma is a sinner, Liam is a saint, Liam is a sinner</answer>", 0.0),
        ("<answer>Emma is a sinner</answer>", 0.0),
        ("Emma is a sinner, Liam is a saint", 0.0),
        ("<think><answer>Emma is a sinner, Liam is a saint</answer></think> no", 0.0),
        ("<answer>Emma is a saint, Liam is a sinner</answer>", 0.0),
    ],
)
def test_who_is_what_must_be_said_of_all_and_once(said, value):
    assert example("knights").score(said, "Emma is a sinner, Liam is a saint") == value


def test_tasks_of_two_people_have_demonstrations_that_are_paid():
    knights = example("knights")
    rows = list(knights.of_gym("train", 12))
    assert all(knights.score(row["completion"], row["answer"]) == 1 for row in rows)
    assert not {row["prompt"] for row in rows} & {row["prompt"] for row in knights.of_gym("heldout", 12)}


def test_held_out_constraints_are_of_other_kinds_and_can_all_be_read(tmp_path):
    constraints = example("constraints")
    rows = [*constraints.rows(36, constraints.TRAINED), *constraints.rows(36, constraints.OTHERS, "other")]
    kinds = [{one["kind"] for row in some for one in row["constraints"]} for some in (rows[:36], rows[36:])]
    assert len(kinds[0]) == len(kinds[1]) == 6 and not kinds[0] & kinds[1]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = load_tasks(str(tmp_path / "rows.jsonl"), named=("constraints",))
    assert [task.id for task in tasks[-1:]] == ["other-35"]
    episodes = [Episode(task, (*task.prompt, Message("assistant", "Tea."))) for task in tasks]
    found = asyncio.run(parse_rewards("constraints").score_parts(apart(episodes)))
    values = [of_one["constraints"].value for (of_one,) in found]
    assert 0 < sum(values) < len(values)  # all are read; some follow
