"""Reward models as a user trains and judges them, on a model that takes no time."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from posttrain.data import load_preferences
from posttrain.data.packing import Ranked
from posttrain.engine.scorer import load_scorer
from posttrain.errors import ModelError, UserError
from posttrain.evaluation.pairs import fit_temperature
from posttrain.recipes import evaluate_reward
from posttrain.recipes.evaluate_reward import EvaluateReward
from posttrain.recipes.reward_model import Scoring, heads, run
from posttrain.runs import read_run
from posttrain.training import checkpoint
from posttrain.types import Message
from tests.recipes.folders import holds_a_merged_adapter, model_folder

ROWS = [{"prompt": f"{i}+{i}", "chosen": str(2 * i), "rejected": f"it is {2 * i + 1}"} for i in range(12)]
HELDOUT = [row | {"prompt": row["prompt"] + "?", "subset": "even" if i % 2 else "odd"} for i, row in enumerate(ROWS)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(model_folder(tmp_path_factory.mktemp("model")))


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def config(tmp_path: Path, model: str) -> Scoring:
    return Scoring(
        dataset=write(tmp_path / "pairs.jsonl", ROWS),
        eval_dataset=write(tmp_path / "heldout.jsonl", HELDOUT),
        model=model,
        pairs_per_step=4,
        steps=12,
        lr=3e-3,
        warmup_steps=0,
        precision="float32",
    )


def conversations(rows: list[dict[str, Any]]) -> list[list[Message]]:
    return [
        [Message("user", row["prompt"]), Message("assistant", row[side])]
        for row in rows
        for side in ("chosen", "rejected")
    ]


def test_scores_of_a_finished_run_are_calibrated_and_centred(config, tmp_path):
    found = run(replace(config, steps=4), output=tmp_path / "run", quiet=True)
    rows = read_run(found.run).metrics
    assert found.before["accuracy"] == rows[0]["evaluation/accuracy"]
    assert {"calibration_error", "length_correlation", "temperature"} <= found.after.keys()
    latest = checkpoint.latest(found.run / "checkpoints").path
    calibrated = load_scorer(str(latest), precision="float32")(conversations(HELDOUT))
    assert sum(score for (score,) in calibrated) == pytest.approx(0.0, abs=1e-3)
    margins = [calibrated[i][0] - calibrated[i + 1][0] for i in range(0, 24, 2)]
    told = found.after["margin"] / found.after["temperature"]
    assert sum(margins) / 12 == pytest.approx(told, rel=1e-3)
    raw = run(replace(config, steps=4, calibrate=False), output=tmp_path / "raw", quiet=True)
    assert "temperature" not in raw.after
    scores = load_scorer(str(checkpoint.latest(raw.run / "checkpoints").path), precision="float32")(
        conversations(HELDOUT)
    )
    assert scores[0][0] - scores[1][0] == pytest.approx(margins[0] * found.after["temperature"], rel=1e-3)


def test_an_ensemble_learns_and_its_members_differ(config, tmp_path):
    found = run(replace(config, ensemble=3), output=tmp_path / "run", quiet=True)
    assert found.after["accuracy"] > 0.9
    scores = load_scorer(str(checkpoint.latest(found.run / "checkpoints").path), precision="float32")(
        conversations(HELDOUT)
    )
    assert len(scores[0]) == 3 and len({round(score, 4) for score in scores[0]}) == 3
    again = run(replace(config, ensemble=3, steps=1), output=tmp_path / "again", quiet=True)
    same = run(replace(config, ensemble=3, steps=1), output=tmp_path / "same", quiet=True)
    assert read_run(again.run).metrics[1]["loss"] == read_run(same.run).metrics[1]["loss"]
    with pytest.raises(ModelError, match="with 3 members; an ensemble of 2"):
        run(replace(config, model=str(found.run), ensemble=2), output=tmp_path / "two", quiet=True)
    with pytest.raises(UserError, match=r"needs a single head.*has 3"):
        run(replace(config, model=str(found.run), length_debias=1.0), output=tmp_path / "apart", quiet=True)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_adapter_learns_and_what_is_saved_scores_as_it_did(config, precision, tmp_path):
    pytest.importorskip("peft")
    adapter = replace(config, lora_rank=4, lr=0.02, precision=precision)
    found = run(adapter, output=tmp_path / "run", quiet=True)
    assert found.after["accuracy"] > 0.9
    folder = checkpoint.latest(found.run / "checkpoints").path
    holds_a_merged_adapter(folder)
    scores = [score for (score,) in load_scorer(str(folder), precision=precision)(conversations(HELDOUT))]
    margins = [chosen - rejected for chosen, rejected in zip(scores[::2], scores[1::2], strict=True)]
    off = 1e-4 if precision == "float32" else 0.05  # the sum of base and adapter is rounded
    told = found.after["margin"] / found.after["temperature"]
    assert sum(margins) / len(margins) == pytest.approx(told, rel=off)
    assert sum(scores) / len(scores) == pytest.approx(0.0, abs=off * told)
    again = run(replace(adapter, model=str(found.run), steps=1, lr=0.0), output=tmp_path / "again", quiet=True)
    assert again.before["margin"] == pytest.approx(told, rel=off)  # one more adapter, on what the first one became
    kept = load_scorer(str(checkpoint.latest(again.run / "checkpoints").path), precision=precision).model
    assert kept.comparable


def test_each_member_learns_from_a_sample_of_its_own(config, tmp_path, monkeypatch):
    units = [Ranked((), ())] * 3000
    bags = [unit.bag for unit in heads._in_bags(units, 2, seed=0)]
    assert bags == [unit.bag for unit in heads._in_bags(units, 2, seed=0)]
    assert bags != [unit.bag for unit in heads._in_bags(units, 2, seed=1)]
    for member in zip(*bags, strict=True):  # as often as in a sample with replacement: Poisson with mean 1
        assert sum(member) / 3000 == pytest.approx(1.0, abs=0.06)
        assert member.count(0.0) / 3000 == pytest.approx(math.exp(-1), abs=0.03)
    assert sum(first == second for first, second in bags) / 3000 < 0.5
    ensemble = replace(config, ensemble=3, steps=1, eval_dataset="")
    sampled = run(ensemble, output=tmp_path / "sampled", quiet=True)
    monkeypatch.setattr(heads, "_in_bags", lambda units, members, seed: units)
    alike = run(ensemble, output=tmp_path / "alike", quiet=True)
    losses = [read_run(one.run).metrics[-1]["loss"] for one in (sampled, alike)]
    assert abs(losses[0] - losses[1]) > 1e-3


@pytest.mark.parametrize(
    "changes",
    [
        {"length_debias": 1.0},
        {"ensemble": 2},
        {"margin": 1.0, "center_rewards": 0.1},
        {"lora_rank": 4, "ensemble": 2},
        {"lora_rank": 4, "length_debias": 1.0},
    ],
)
def test_a_resumed_run_equals_one_that_was_not_stopped(changes, config, tmp_path):
    config = replace(config, **changes, steps=4, save_every=2, decay="constant")
    whole = run(config, output=tmp_path / "whole", quiet=True).run
    part = run(replace(config, steps=2), output=tmp_path / "part", quiet=True).run
    run(config, resume=part, quiet=True)
    timed = ("seconds/step", "tokens_per_second", "memory_gb")
    last = [{k: v for k, v in read_run(r).metrics[-1].items() if k not in timed} for r in (whole, part)]
    assert last[0] == last[1]


def test_what_is_learned_apart_from_length_is_one_score(config, tmp_path):
    found = run(replace(config, length_debias=1.0), output=tmp_path / "run", quiet=True)
    assert "length/apart" in read_run(found.run).metrics[1]
    scores = load_scorer(str(checkpoint.latest(found.run / "checkpoints").path), precision="float32")(
        conversations(ROWS[:1])
    )
    assert [len(one) for one in scores] == [1, 1]


def test_the_strength_of_a_pair_is_used_or_spoken_of(config, tmp_path, capsys):
    strong = write(tmp_path / "strong.jsonl", [row | {"strength": i} for i, row in enumerate(ROWS)])
    told = replace(config, dataset=strong, steps=1, eval_dataset="")
    run(told, output=tmp_path / "told")
    assert "the pairs say how much better the chosen response is; `margin=1`" in capsys.readouterr().err
    run(replace(told, margin=1.0), output=tmp_path / "used")
    assert "margin" not in capsys.readouterr().err
    run(replace(config, margin=1.0, steps=1), output=tmp_path / "alike")
    assert "all pairs are of strength 1; `margin` asks the same of each" in capsys.readouterr().err
    losses = [read_run(tmp_path / name).metrics[-1]["loss"] for name in ("told", "used")]
    assert losses[1] > losses[0] + 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ensemble": 0}, "`ensemble` must be 1 or more"),
        ({"margin": -1.0}, "`margin` must be 0 or more"),
        ({"center_rewards": -0.1}, "`center_rewards` must be 0 or more"),
        ({"length_debias": -1.0}, "`length_debias` must be 0 or more"),
        ({"length_debias": 1.0, "ensemble": 2}, "leave out `ensemble`"),
        ({"ratings": "rated.jsonl"}, "`ratings` is for `heads` attributes; leave it out, or type `heads` attributes"),
        ({"gate_width": 0}, "`gate_width` is for `heads` attributes"),
    ],
)
def test_wrong_options_are_refused(changes, message, config, tmp_path):
    with pytest.raises(UserError, match=message):
        run(replace(config, **changes), output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_ranking_is_learned_in_one_batch(config, tmp_path):
    rows = [{"prompt": row["prompt"], "responses": ["one", row["chosen"], "no"], "scores": [1, 3, 2]} for row in ROWS]
    ranked = replace(config, dataset=write(tmp_path / "ranked.jsonl", rows), eval_dataset="", pairs_per_step=12)
    found = run(ranked, output=tmp_path / "run", quiet=True)
    assert found.pairs == 12 and read_run(found.run).metrics[-1]["accuracy"] > 0.9
    score = load_scorer(str(checkpoint.latest(found.run / "checkpoints").path), precision="float32")
    said = [Message("user", "3+3")]
    best, middle, worst = score([[*said, Message("assistant", text)] for text in ("6", "no", "one")])
    assert best > middle > worst


def test_the_suite_says_how_well_pairs_are_judged(config, tmp_path):
    trained = run(config, output=tmp_path / "run", quiet=True)
    asked = EvaluateReward(dataset=config.eval_dataset, model=str(trained.run), precision="float32")
    worse = run(replace(config, steps=1, lr=0.0), output=tmp_path / "worse", quiet=True)
    found = evaluate_reward.run(replace(asked, baseline=str(worse.run)), output=tmp_path / "judged", quiet=True)
    summary = found.summary()
    assert summary["accuracy"] == trained.after["accuracy"] and summary["n"] == 12
    assert {name: one["n"] for name, one in summary["categories"].items()} == {"odd": 6, "even": 6}
    assert summary["temperature"] == pytest.approx(fit_temperature(found.model.pairs))
    gain = summary["accuracy"] - summary["baseline"]["accuracy"]
    assert summary["difference"]["value"] == pytest.approx(gain)
    page = found.report.read_text(encoding="utf-8")
    assert "By category" in page and "Calibration" in page and "Better than the baseline" in page
    rows = read_run(found.run).samples
    assert len(rows) == 24 and rows[0]["chosen"] == "0" and rows[0]["completion"] == "it is 1"
    assert rows[0]["reward"] == pytest.approx(rows[0]["rewards"]["chosen"] - rows[0]["rewards"]["rejected"])
    assert any("correlation with length" in line for line in found.lines())


def test_pairs_that_people_found_equal_are_told_apart_from_others(config, tmp_path):
    trained = run(config, output=tmp_path / "run", quiet=True)
    same = [{"prompt": row["prompt"], "chosen": "it is 1", "rejected": "it is 2", "tie": True} for row in HELDOUT]
    asked = EvaluateReward(
        dataset=config.eval_dataset,
        ties=write(tmp_path / "ties.jsonl", [*same, HELDOUT[0]]),
        model=str(trained.run),
        precision="float32",
    )
    found = evaluate_reward.run(asked, output=tmp_path / "judged", quiet=True)
    said = found.summary()["ties_said"]
    assert (said["ties"], said["pairs"]) == (12, 12) and said["told"] > 0.9
    assert found.summary()["n"] == 12 and found.summary()["accuracy"] == trained.after["accuracy"]
    assert said["accuracy"] > said["never"]
    assert [tie.prompt for tie in found.model.equal] == [pair.prompt for pair in found.model.pairs]
    assert len(read_run(found.run).samples) == 12  # ties are no pairs on which it could be wrong
    assert any("12 pairs that people found equal beside 12" in line for line in found.lines())
    assert "Ties" in found.report.read_text(encoding="utf-8")
    assert any("no tie" in note for note in found.notes)
    assert replace(found.model, equal=()).summary()["ties_said"] is None


def test_pairs_that_were_trained_on_or_are_too_long_are_not_judged(config, tmp_path):
    trained = run(replace(config, steps=1), output=tmp_path / "run", quiet=True)
    rows = [*ROWS[:3], *HELDOUT[:2], {"prompt": "1", "chosen": "x" * 300, "rejected": "y"}]
    asked = EvaluateReward(
        dataset=write(tmp_path / "mixed.jsonl", rows), model=str(trained.run), exclude=config.dataset
    )
    found = evaluate_reward.run(asked, output=tmp_path / "judged", quiet=True)
    assert found.summary()["n"] == 2
    assert any("3 pairs left out: their prompt is in" in note for note in found.notes)
    assert any("1 prompts left out: over 256 tokens" in note for note in found.notes)
    with pytest.raises(UserError, match="no pair is left to evaluate on"):
        evaluate_reward.run(replace(asked, max_tokens=3), output=tmp_path / "none", quiet=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ""}, "`model` is required"),
        ({"dataset": ""}, "`dataset` is required"),
    ],
)
def test_a_suite_that_cannot_be_run_is_refused(changes, message, model, config, tmp_path):
    with pytest.raises(UserError, match=message):
        asked = replace(EvaluateReward(dataset=config.dataset, model=model), **changes)
        evaluate_reward.run(asked, output=tmp_path / "judged", quiet=True)


def test_a_language_model_is_no_reward_model(model, config, tmp_path):
    with pytest.raises(ModelError, match="no reward model; train one with posttrain reward-model"):
        asked = EvaluateReward(dataset=config.dataset, model=model)
        evaluate_reward.run(asked, output=tmp_path / "judged", quiet=True)


def test_rewardbench_is_read_as_it_is(config, tmp_path):
    row = {"id": 1, "prompt": "1+1", "chosen": "2", "chosen_model": "a", "rejected": "3", "rejected_model": "b"}
    source = write(tmp_path / "bench.jsonl", [row | {"subset": "math"}, row | {"subset": "hard", "prompt": "2"}])
    assert [one.category for one in load_preferences(source).items] == ["math", "hard"]
