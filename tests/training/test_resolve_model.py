import json
import shutil
from pathlib import Path

import pytest

from posttrain.data.digests import model_digest
from posttrain.errors import CheckpointError, ModelError, UserError
from posttrain.training import checkpoint
from posttrain.training.resolve_model import SavedModel, began_from, precision_of, saved_model, spoken_otherwise
from tests.recipes.folders import model_folder


def save(run: Path, step: int, score: float | None = None) -> Path:
    def write(folder: Path) -> None:
        (folder / "config.json").write_text(f'{{"step": {step}}}')

    return checkpoint.save(run / "checkpoints", step, write, {}, keep_last=9, score=score)


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "runs" / "rl-1"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("steps = 3\n")
    return folder


def test_a_name_or_a_model_folder_stays_what_it_is(tmp_path):
    assert saved_model("OWNER/NAME").where == "OWNER/NAME"
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "config.toml").write_text("")  # whatever that is, this is a model
    found = saved_model(str(tmp_path))
    assert (found.where, found.title, found.run) == (str(tmp_path), str(tmp_path), None)


def test_a_run_that_is_not_there_is_not_looked_for_on_the_hub(run, monkeypatch):
    monkeypatch.chdir(run.parents[1])
    with pytest.raises(UserError, match="unknown run 'rl-2'; did you mean 'rl-1'"):
        saved_model("runs/rl-2")
    assert saved_model("OWNER/rl-2").where == "OWNER/rl-2"


def test_beside_runs_a_packaged_model_is_still_one(run, monkeypatch):
    monkeypatch.chdir(run.parent)
    assert saved_model("smollm2-135m-instruct").where == "smollm2-135m-instruct"
    with pytest.raises(UserError, match="unknown run 'smollm2'"):
        saved_model("smollm2")


def test_a_run_stands_for_its_latest_checkpoint(run):
    save(run, 10)
    expected = save(run, 20)
    found = saved_model(str(run))
    assert (found.where, found.run, found.title) == (str(expected), run, f"{run} (step-000020)")


def test_or_for_its_best_where_some_were_scored(run):
    expected = save(run, 10, score=0.5)
    save(run, 20, score=0.25)
    save(run, 30)
    assert saved_model(str(run)).where == str(expected)


def test_a_damaged_checkpoint_is_passed_over_and_named(run):
    expected = save(run, 10)
    (save(run, 20) / "config.json").write_text("torn")
    found = saved_model(str(run))
    assert found.where == str(expected)
    assert len(found.skipped) == 1 and "step-000020" in found.skipped[0]


def test_a_checkpoint_is_checked_and_knows_its_run(run):
    folder = save(run, 10)
    found = saved_model(str(folder))
    assert (found.where, found.run) == (str(folder), run)
    (folder / "config.json").write_text("torn")
    with pytest.raises(CheckpointError, match="damaged"):
        saved_model(str(folder))


def test_a_checkpoint_that_was_copied_away_has_no_run(run, tmp_path):
    folder = save(run, 10)
    elsewhere = tmp_path / "kept" / "deep" / "step-000010"
    elsewhere.parent.mkdir(parents=True)
    folder.rename(elsewhere)
    assert saved_model(str(elsewhere)).run is None


def test_a_run_without_a_checkpoint_names_the_models_in_it(run):
    with pytest.raises(ModelError, match="has no checkpoint; wait"):
        saved_model(str(run))
    (run / "rl" / "model").mkdir(parents=True)
    (run / "rl" / "model" / "config.json").write_text(json.dumps({}))
    with pytest.raises(ModelError, match=r"there are models in it: .*rl/model"):
        saved_model(str(run))


def test_a_home_folder_is_expanded(run, monkeypatch):
    monkeypatch.setenv("HOME", str(run.parent))
    expected = save(run, 10)
    assert saved_model("~/rl-1").where == str(expected)


def test_other_words_than_in_training_are_named(run):
    trained = SavedModel("x", "a run", run)
    (run / "config.toml").write_text('system = "Think."\nprompt_template = "{prompt}"\n')
    assert spoken_otherwise(trained, system="Think.", prompt_template="{prompt}") == []
    assert spoken_otherwise(trained, system=None, prompt_template="{prompt}?") == [
        "a run was trained with `system` 'Think.', not with None",
        "a run was trained with `prompt_template` '{prompt}', not with '{prompt}?'",
    ]


@pytest.mark.parametrize("config", ["problems = 3\n", "torn = ", None])
def test_a_run_without_such_options_says_nothing_about_them(run, config):
    (run / "config.toml").unlink()
    if config is not None:
        (run / "config.toml").write_text(config)
    assert spoken_otherwise(SavedModel("x", "a run", run), system="Think.", prompt_template="{prompt}") == []
    assert spoken_otherwise(SavedModel("x", "a model"), system="Think.", prompt_template="{prompt}") == []


def test_a_run_that_does_not_say_what_it_began_from_takes_what_the_name_means_now(tmp_path):
    (tmp_path / "model").mkdir()
    name = str(tmp_path / "model")
    assert began_from(name, None) == saved_model(name)
    for kept in (None, "", "[]", "{}", '{"model": null}', '{"model": "OWNER/NAME"}'):
        run = tmp_path / "run"
        run.mkdir(exist_ok=True)
        if kept is not None:
            (run / "environment.json").write_text(kept)
        asked = "OWNER/NAME" if kept and "OWNER" in kept else name
        assert began_from(asked, run) == saved_model(asked)


def test_a_folder_that_is_gone_is_missed_only_where_the_name_means_another_one(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "environment.json").write_text(json.dumps({"model": str(tmp_path / "old")}))
    with pytest.raises(ModelError, match=r"which was not found, and .*new is .*new now"):
        began_from(str(tmp_path / "new"), tmp_path / "run")
    (tmp_path / "old").mkdir()
    found = began_from(str(tmp_path / "new"), tmp_path / "run")
    assert (found.where, found.title) == (str(tmp_path / "old"), str(tmp_path / "new"))


def test_a_model_that_is_gone_is_asked_for(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "environment.json").write_text(json.dumps({"model": str(tmp_path / "old")}))
    (tmp_path / "config.toml").write_text("")
    for name in ("old", str(tmp_path / "old"), "OWNER/NAME"):
        with pytest.raises(
            ModelError, match=r"run was started from .*old, which was not found; restore it, or pass its path"
        ):
            began_from(name, tmp_path / "run")
    save(tmp_path / "other", 1)
    (tmp_path / "other" / "config.toml").write_text("")
    with pytest.raises(ModelError, match="which was not found; restore it"):  # and not: unknown run, there is 'other'
        began_from(str(tmp_path / "old"), tmp_path / "run")


def test_another_model_that_is_named_is_taken_at_its_word(tmp_path):
    old, new, same = (str(model_folder(tmp_path / n, seed=s)) for n, s in (("old", 0), ("new", 1), ("same", 0)))
    (tmp_path / "run").mkdir()
    kept = {"model": old, "inputs": {"model": f"sha256:{model_digest(Path(old))}"}}
    (tmp_path / "run" / "environment.json").write_text(json.dumps(kept))
    assert began_from(new, tmp_path / "run").where == new
    assert began_from(same, tmp_path / "run").where == old
    accepted = {"model": new, "inputs": {"model": f"sha256:{model_digest(Path(new))}"}}
    (tmp_path / "run" / "environment.json").write_text(json.dumps(kept | {"resumed": [{}, accepted]}))
    shutil.rmtree(old)
    assert began_from(new, tmp_path / "run").where == new


def test_a_later_checkpoint_of_the_run_that_it_began_from_is_no_other_model(tmp_path):
    source, run = tmp_path / "source", tmp_path / "run"
    first = save(source, 1)
    (source / "config.toml").write_text("")
    run.mkdir()
    kept = {"model": str(first), "inputs": {"model": f"sha256:{model_digest(first)}"}}
    (run / "environment.json").write_text(json.dumps(kept))
    save(source, 2)
    assert began_from(str(source), run).where == str(first)


def test_another_folder_will_do_where_it_has_the_same_model(tmp_path):
    model_folder(tmp_path / "new")
    (tmp_path / "run").mkdir()
    kept = {"model": str(tmp_path / "old"), "inputs": {"model": f"sha256:{model_digest(tmp_path / 'new')}"}}
    (tmp_path / "run" / "environment.json").write_text(json.dumps(kept))
    assert began_from(str(tmp_path / "new"), tmp_path / "run").where == str(tmp_path / "new")
    model_folder(tmp_path / "new", seed=1)
    with pytest.raises(ModelError, match="which was not found"):
        began_from(str(tmp_path / "new"), tmp_path / "run")


@pytest.mark.parametrize(
    ("asked", "began", "found"),
    [
        ("auto", {"device": "cpu", "precision": "torch.float32"}, "float32"),
        ("auto", {"device": "cpu", "precision": "torch.bfloat16"}, "bfloat16"),
        ("float32", {"device": "cpu", "precision": "torch.bfloat16"}, "float32"),  # as it is asked for
        ("auto", {"device": "cuda:0", "precision": "torch.bfloat16"}, "auto"),  # what was faster there says nothing
        ("auto", {"device": "cpu", "precision": "torch.int8"}, "auto"),
        ("auto", {}, "auto"),
    ],
)
def test_a_resumed_run_computes_in_the_format_in_which_it_began(asked, began, found, tmp_path, monkeypatch):
    monkeypatch.setattr("posttrain.training.resolve_model.default_device", lambda: "cpu")
    (tmp_path / "environment.json").write_text(json.dumps(began))
    assert precision_of(asked, tmp_path) == found
    assert precision_of(asked, None) == asked
