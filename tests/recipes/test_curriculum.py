"""`rl --curriculum`: what it draws and logs, resumed as undisturbed, and what is refused before anything is sampled."""

import json
from dataclasses import replace

import pytest

from posttrain.errors import UserError
from posttrain.runs import read_run
from tests.recipes.test_rl import config, train

SOLVE = """
def score(completion):
    return 1.0 if len(completion) % 2 else 0.0
"""


@pytest.fixture
def tasks(folder):
    (folder / "even.py").write_text(SOLVE)
    rows = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
    rows = [{**row, "level": number, "id": f"t{number}"} for number, row in enumerate(rows)]
    (folder / "levels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return replace(
        config(folder, steps=4, prompts_per_step=2),
        dataset=str(folder / "levels.jsonl"),
        reward=f"{folder / 'even.py'}:score",
    )


def test_a_resumed_run_draws_what_an_undisturbed_one_does(tasks, tmp_path):
    tasks = replace(tasks, curriculum="success", save_every=1)
    whole = train(tasks, output=tmp_path / "whole").run
    assert any(key.startswith("curriculum/") for key in read_run(whole).metrics[0])
    run = tmp_path / "stopped"
    train(replace(tasks, steps=2), output=run)
    train(tasks, resume=run)
    of = [[(row["step"], row["prompt"]) for row in read_run(each).samples] for each in (whole, run)]
    assert of[0] == of[1]
    for key in ("reward/mean", "curriculum/seen", "curriculum/success"):
        assert len({tuple(row[key] for row in read_run(each).metrics) for each in (whole, run)}) == 1


def test_the_easiest_tasks_come_first(tasks, tmp_path):
    run = train(replace(tasks, curriculum="level", steps=1), output=tmp_path / "run").run
    assert {row["prompt"].split()[-1] for row in read_run(run).samples} == {"0?", "1?"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"curriculum": "depth"}, "needs a number in the column 'depth'; task 't0' has None"),
        ({"curriculum": "success", "reward": "length"}, "needs a `reward` that says what is solved"),
    ],
)
def test_what_cannot_be_drawn_is_refused(changes, says, tasks, tmp_path):
    with pytest.raises(UserError, match=says):
        train(replace(tasks, **changes), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()
