"""Gains of a pipeline's table, by hand: pairs of tasks, rewards without an outcome, and what has no pair."""

import json
from pathlib import Path

import pytest

from posttrain.pipelines.table import Row, gain, table_of, with_stage
from posttrain.statistics import normal_interval, paired_difference_interval


def evaluated(folder: Path, name: str, rewards: dict[str, list[float | None]], *, outcome: str = "gym") -> Row:
    """A stage whose samples have these outcomes by task, and greedy ones and those of a baseline that do not count."""
    where = folder / name
    where.mkdir()
    said = [
        {
            "task": task,
            "decoding": decoding,
            "model": model,
            "reward": one,
            "rewards": {} if one is None else {"gym": one},
        }
        for task, some in rewards.items()
        for one in some
        for decoding, model in (("sampled", "m"), ("greedy", "m"), ("sampled", "baseline"))
    ]
    said = [
        row if (row["decoding"], row["model"]) == ("sampled", "m") else row | {"rewards": {"gym": 7.0}} for row in said
    ]
    (where / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in said))
    found = {"decoding": "sampled", "model": "m", "outcome": outcome, "ci95": [0, 1]}
    found |= {"accuracy": 0.5} if outcome else {"reward": 0.5}
    return Row(name, "sft", where, {}, 60.0, found, where)


def test_accuracy_is_paired_by_task(tmp_path):
    before = evaluated(tmp_path, "a", {"1": [1, 0], "2": [0, 0.9], "3": [1], "other": [1]})
    after = evaluated(tmp_path, "b", {"3": [1, 1], "2": [1, 0], "1": [1, 1], "new": [0], "none": [None]})
    found = gain(before, after)
    assert found is not None
    assert found.value == pytest.approx((0.5 + 0.5 + 0.0) / 3) and found.n == 3
    assert found.ci95 == pytest.approx(paired_difference_interval([0.5, 0.0, 1.0], [1.0, 0.5, 1.0]))


def test_rewards_without_an_outcome_are_paired_as_they_are(tmp_path):
    before = evaluated(tmp_path, "a", {"1": [2.0, 4.0], "2": [1.0]}, outcome="")
    after = evaluated(tmp_path, "b", {"1": [5.0], "2": [1.5]}, outcome="")
    found = gain(before, after)
    assert found is not None
    assert found.value == pytest.approx(1.25) and found.ci95 == pytest.approx(normal_interval([2.0, 0.5]))


def test_other_tasks_and_other_measures_have_no_gain(tmp_path):
    rows = [evaluated(tmp_path, "a", {"1": [1]}), evaluated(tmp_path, "b", {"2": [1]})]
    assert gain(*rows) is None
    assert gain(rows[0], evaluated(tmp_path, "c", {"1": [1]}, outcome="")) is None


def test_the_gain_is_over_the_last_stage_that_has_an_evaluation(tmp_path):
    first = evaluated(tmp_path, "a", {"1": [0], "2": [0]})
    last = evaluated(tmp_path, "d.evaluate", {"1": [1], "2": [0]})
    rows = [first]
    for name, command, result in (
        ("pairs", "best-of-n", {"kept": 1200, "prompts": 0}),
        ("scores", "reward-model", {"after": {"pair_accuracy": 0.75}}),
        ("d", "rl", {}),
        ("d.evaluate", "evaluate", last.evaluation),
    ):
        rows = with_stage(rows, name, {"command": command, "result": result, "seconds": 90.0}, tmp_path)
    assert [row.name for row in rows] == ["a", "pairs", "scores", "d"]
    assert rows[-1].gain is not None and rows[-1].gain.value == 0.5
    assert [str(row[2]) for row in table_of("t", rows).rows] == [
        "0.500 (0.000 to 1.000)",
        "1,200 kept",
        "0.750 of held-out pairs",
        "0.500 (0.000 to 1.000)",
    ]
    assert [row[5] for row in table_of("t", rows).rows] == ["1.0", "1.5", "1.5", "1.5"]
