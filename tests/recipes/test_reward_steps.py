"""Process reward models as a user trains and uses them, on a model that takes no time."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from posttrain.engine.scorer import load_scorer
from posttrain.errors import ModelError, UserError
from posttrain.evaluation.steps import crossfitted, first_below
from posttrain.recipes import evaluate_reward
from posttrain.recipes.evaluate_reward import EvaluateReward
from posttrain.recipes.reward_model import Scoring, dry_run, run
from posttrain.runs import read_run
from posttrain.training import checkpoint
from posttrain.types import Message
from tests.recipes.folders import holds_a_merged_adapter, model_folder
from tests.recipes.test_reward_model import write

GOOD, BAD = "fine", "oops"  # what makes a step right or wrong
ROWS = [
    {
        "prompt": f"{i}+{i}?",
        "steps": [f"{GOOD} {i}", f"{BAD if i % 3 == 0 else GOOD} {i + 1}", f"{BAD if i % 3 == 1 else GOOD} {i + 2}"],
        "labels": [True, i % 3 != 0, i % 3 != 1],
    }
    for i in range(12)
]
HELDOUT = [row | {"prompt": f"again {row['prompt']}"} for row in ROWS]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(model_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture
def config(tmp_path: Path, model: str) -> Scoring:
    return Scoring(
        heads="steps",
        dataset=write(tmp_path / "steps.jsonl", ROWS),
        eval_dataset=write(tmp_path / "heldout.jsonl", HELDOUT),
        model=model,
        pairs_per_step=6,
        steps=40,
        lr=1e-2,
        warmup_steps=0,
        precision="float32",
    )


def logits(run_: Path, prompt: str, *replies: str) -> list[tuple[float, ...]]:
    score = load_scorer(str(checkpoint.latest(run_ / "checkpoints").path), precision="float32")
    return score([[Message("user", prompt), Message("assistant", reply)] for reply in replies])


def test_steps_are_told_right_from_wrong_and_the_first_wrong_one_is_found(config, tmp_path):
    found = run(config, output=tmp_path / "run", quiet=True)
    assert found.before["accuracy"] == 0.5 and found.before["loss"] == pytest.approx(0.6931, abs=1e-4)
    assert found.after["accuracy"] == found.after["first_error"] == 1.0 and found.after["wrong"] == pytest.approx(2 / 3)
    assert found.after["calibration_error"] < 0.2 and found.after["temperature"] > 0
    rows = read_run(found.run).metrics
    assert rows[-1]["loss"] < 0.1 < rows[1]["loss"] and rows[-1]["accuracy"] == 1.0
    both, none = logits(found.run, "5+5?", f"{GOOD} 3\n\n  {BAD} 4\n", "")
    assert [logit > 0 for logit in both] == [True, False] and none == ()


def test_a_step_scores_the_same_in_training_and_whatever_follows(config, tmp_path):
    found = run(replace(config, steps=3, calibrate=False, eval_dataset=""), output=tmp_path / "run", quiet=True)
    short, long = logits(found.run, "5+5?", "a\nb", "a\nb\nc")
    assert long[:2] == pytest.approx(short, abs=1e-5) and len(long) == 3
    assert found.after is None


def test_the_scores_that_are_saved_are_calibrated(config, tmp_path):
    runs = [
        run(replace(config, steps=4, calibrate=calibrate), output=tmp_path / str(calibrate), quiet=True)
        for calibrate in (True, False)
    ]
    cooled, raw = (logits(one.run, "5+5?", f"{GOOD} 3")[0][0] for one in runs)
    assert raw / cooled == pytest.approx(runs[0].after["temperature"], rel=1e-3)
    assert "temperature" not in runs[1].after


def test_an_adapter_learns_steps_and_is_saved_in_the_weights(config, tmp_path):
    pytest.importorskip("peft")
    found = run(replace(config, lora_rank=4, lr=0.02), output=tmp_path / "run", quiet=True)
    assert found.after["accuracy"] > 0.9
    holds_a_merged_adapter(checkpoint.latest(found.run / "checkpoints").path)


def test_a_resumed_run_equals_one_that_was_not_stopped(config, tmp_path):
    config = replace(config, steps=4, save_every=2, decay="constant")
    whole = run(config, output=tmp_path / "whole", quiet=True).run
    part = run(replace(config, steps=2), output=tmp_path / "part", quiet=True).run
    run(config, resume=part, quiet=True)
    timed = ("seconds/step", "tokens_per_second", "memory_gb")
    last = [{k: v for k, v in read_run(r).metrics[-1].items() if k not in timed} for r in (whole, part)]
    assert last[0] == last[1]
    more = run(replace(config, model=str(whole), steps=1, lr=0.0), output=tmp_path / "more", quiet=True)
    assert more.before["accuracy"] == read_run(whole).metrics[-1]["evaluation/accuracy"]


def test_heads_of_other_kinds_are_named(config, tmp_path):
    trained = run(replace(config, steps=1), output=tmp_path / "run", quiet=True)
    pairs = write(tmp_path / "pairs.jsonl", [{"prompt": f"q{i}", "chosen": "a", "rejected": "b"} for i in range(6)])
    scoring = replace(config, heads="preference", dataset=pairs, eval_dataset="", steps=1)
    with pytest.raises(ModelError, match=r"is a process reward model.*`heads=\"steps\"`"):
        run(replace(scoring, model=str(trained.run)), output=tmp_path / "scores", quiet=True)
    scores = run(scoring, output=tmp_path / "scores", quiet=True)
    with pytest.raises(ModelError, match="a reward model with other heads; start from a language model"):
        run(replace(config, model=str(scores.run)), output=tmp_path / "steps", quiet=True)
    with pytest.raises(UserError, match="field 'steps' is missing"):
        evaluate_reward.run(EvaluateReward(dataset=pairs, model=str(trained.run)), output=tmp_path / "e", quiet=True)
    with pytest.raises(UserError, match="`ensemble` is for `heads` preference"):
        run(replace(config, ensemble=2), output=tmp_path / "several", quiet=True)


def test_a_model_is_evaluated_on_labelled_steps_beside_one_that_learned_nothing(config, tmp_path):
    trained = run(config, output=tmp_path / "run", quiet=True)
    other = run(replace(config, steps=1, lr=0.0), output=tmp_path / "none", quiet=True)
    asked = EvaluateReward(dataset=config.eval_dataset, model=str(trained.run), precision="float32")
    found = evaluate_reward.run(replace(asked, baseline=str(other.run)), output=tmp_path / "judged", quiet=True)
    told = found.summary()
    assert told["accuracy"] == 1.0 and told["n"] == sum(len(labels_until_wrong(row)) for row in HELDOUT)
    first = told["first_wrong"]
    assert (first["f1"], first["wrong"], first["right"]) == (1.0, 1.0, 1.0)
    assert (first["n_wrong"], first["n_right"]) == (8, 4)
    assert told["baseline"]["first_wrong"]["f1"] == 0.0  # equal logits: no threshold finds anything
    assert told["difference"]["value"] == pytest.approx(0.5)
    assert any("First wrong step" in line for line in found.lines())
    assert "First wrong step" in found.report.read_text(encoding="utf-8")
    rows = read_run(found.run).samples
    assert len(rows) == 24 and rows[0]["answer"] == "first wrong step: 2" and rows[0]["reward"] > 0
    (measured,) = read_run(found.run).metrics
    assert measured["accuracy"] == measured["first_error"] == 1.0 and measured["loss"] < 0.1  # none is the baseline's


def labels_until_wrong(row: dict) -> list[bool]:
    labels = row["labels"]
    return labels[: labels.index(False) + 1] if False in labels else labels


def test_an_evaluation_on_steps_says_what_it_leaves_out_and_refuses_the_rest(config, tmp_path):
    trained = run(replace(config, steps=1), output=tmp_path / "run", quiet=True)
    right = [row for row in HELDOUT if all(row["labels"])]
    source = write(tmp_path / "some.jsonl", [*right, ROWS[2], {"prompt": "z?", "steps": ["x" * 300], "labels": [1]}])
    asked = EvaluateReward(dataset=source, model=str(trained.run), exclude=config.dataset, precision="float32")
    found = evaluate_reward.run(asked, output=tmp_path / "judged", quiet=True)
    assert found.summary()["n"] == 3 * len(right) and "first_wrong" not in found.summary()
    for said in ("1 rows left out: their prompt is in", "1 rows left out: no labelled step ends", "is not measured"):
        assert any(said in note for note in found.notes)
    with pytest.raises(UserError, match="leave out `ties`"):
        evaluate_reward.run(replace(asked, ties=source), output=tmp_path / "ties", quiet=True)
    with pytest.raises(UserError, match="no labelled step is left"):
        evaluate_reward.run(replace(asked, max_tokens=3), output=tmp_path / "none", quiet=True)
    with pytest.raises(UserError, match="`dataset` is required: labelled steps"):
        evaluate_reward.run(replace(asked, dataset=""), output=tmp_path / "no", quiet=True)


def test_what_is_cut_before_its_wrong_step_is_not_all_right_and_both_models_get_the_same(config, tmp_path, model):
    trained = run(replace(config, steps=1), output=tmp_path / "run", quiet=True)
    small = model_folder(tmp_path / "small", context=144)
    other = run(replace(config, model=str(small), steps=1), output=tmp_path / "other", quiet=True)
    cut = {"prompt": "z?", "steps": [GOOD, BAD + "x" * 120], "labels": [True, False]}  # only the larger holds it
    asked = EvaluateReward(model=str(trained.run), precision="float32")
    asked = replace(asked, dataset=write(tmp_path / "cut.jsonl", [cut, *HELDOUT]))
    alone = evaluate_reward.run(asked, output=tmp_path / "alone", quiet=True).summary()
    both = evaluate_reward.run(replace(asked, baseline=str(other.run)), output=tmp_path / "both", quiet=True)
    told = both.summary()
    steps = sum(len(labels_until_wrong(row)) for row in HELDOUT)
    assert alone["n"] == steps + 2 and told["n"] == told["baseline"]["n"] == steps + 1
    assert (alone["first_wrong"]["n_wrong"], alone["first_wrong"]["n_right"]) == (9, 4)
    assert (told["first_wrong"]["n_wrong"], told["first_wrong"]["n_right"]) == (8, 4)
    assert any("1 reasonings were cut before a wrong step" in note for note in both.notes)


def test_the_threshold_of_a_half_is_that_of_the_other():
    labels, logits = [1, 1, -1, -1], [(2.0, -1.0), (2.0, 3.0), (4.0, 1.0), (4.0, 4.0)]
    # prompts 0 and 2 are one half: -1 < t <= 1 finds all there, so the other half, all above that, has none found
    found = crossfitted(labels, logits, [0, 1, 2, 3])
    assert found is not None and (found.wrong, found.right) == (0.5, 0.5)
    assert crossfitted(labels, logits, [0, 2, 1, 3]) is None  # a half with wrong ones alone
    assert first_below((1.0, -1.0, -2.0), 0.0) == 1 and first_below((1.0,), 0.0) == -1 and first_below((), 0.0) == -1


def test_soft_labels_are_learned_as_probabilities(config, tmp_path):
    soft = [row | {"labels": [0.75 if label else 0.25 for label in row["labels"]]} for row in ROWS]
    found = run(
        replace(config, dataset=write(tmp_path / "soft.jsonl", soft), eval_dataset="", calibrate=False),
        output=tmp_path / "run",
        quiet=True,
    )
    (one,) = logits(found.run, "5+5?", f"{GOOD} 3\n{BAD} 4")
    assert [1 / (1 + math.exp(-logit)) for logit in one] == pytest.approx([0.75, 0.25], abs=0.08)


def test_held_out_shares_are_not_rounded(config, tmp_path, capsys):
    soft, heldout = (
        write(tmp_path / name, [row | {"labels": [0.75, 0.75, 0.75]} for row in rows])
        for name, rows in (("soft.jsonl", ROWS), ("heldout.jsonl", HELDOUT))
    )
    found = run(replace(config, dataset=soft, eval_dataset=heldout), output=tmp_path / "run")
    assert found.after["loss"] == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25), abs=0.01)
    assert "temperature" not in found.after
    assert "not calibrated: held-out labels are shares" in "".join(capsys.readouterr())


def test_a_run_that_is_only_planned_reads_no_weights(config, monkeypatch):
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", None)
    plan = dry_run(config, measure=False)
    assert plan.work.rows == 12 and "6 reasonings a step" in plan.work.batch
