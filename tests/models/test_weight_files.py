"""What is refused before a network is built: sizes that do not fit the weights, pickles, strange indices."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from posttrain.cli import main
from posttrain.errors import ModelError
from posttrain.models.footprint import read_shape
from posttrain.models.heads import load_reward_model
from posttrain.models.load import load_model
from tests.matrix.families import save_family
from tests.recipes.folders import model_folder

LOADERS = {
    "shape": read_shape,
    "policy": lambda name: load_model(name, dtype=torch.float32),
    "scores": lambda name: load_reward_model(name, dtype=torch.float32),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("made")
    model_folder(where / "llama")
    for family, name in (("Mixtral", "mixtral"), ("GPT-2", "gpt2")):
        save_family(family, where / name)
    return where


@pytest.fixture
def changed(made, tmp_path):
    """A model's folder with other fields in its config.json."""

    def change(name: str = "llama", **fields: Any) -> Path:
        folder = shutil.copytree(made / name, tmp_path / name)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        return folder

    return change


def refusals(folder: Path) -> set[str]:
    """What every loader says, without how it begins."""
    said = set()
    for load in LOADERS.values():
        with pytest.raises(ModelError) as caught:
            load(str(folder))
        assert "\n" not in str(caught.value)
        said.add(str(caught.value).replace(str(folder), "FOLDER").partition("'FOLDER'")[2])
    return said


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("llama", "num_hidden_layers", 10**7, "num_hidden_layers is 10000000 in config.json, and its weights have 2;"),
        ("llama", "num_hidden_layers", 3, "num_hidden_layers is 3 in config.json, and its weights have 2;"),
        ("gpt2", "n_layer", 10**7, "num_hidden_layers is 10000000 in config.json, and its weights have 2;"),
        ("llama", "num_hidden_layers", 0, "num_hidden_layers is 0 in config.json; expected 1 or more;"),
        ("llama", "num_hidden_layers", -3, "num_hidden_layers is -3 in config.json; expected 1 or more;"),
        ("llama", "vocab_size", -3, "vocab_size is -3"),
        ("llama", "hidden_size", 0, "hidden_size is 0"),
        ("llama", "intermediate_size", 0, "intermediate_size is 0"),
        ("llama", "num_key_value_heads", -1, "num_key_value_heads is -1"),
        ("llama", "max_position_embeddings", -1, "max_position_embeddings is -1"),
        ("llama", "hidden_size", 10**9, " weights, and by its config.json "),
        ("llama", "vocab_size", 10**9, " weights, and by its config.json "),
        ("llama", "intermediate_size", 10**9, " weights, and by its config.json "),
        ("llama", "num_key_value_heads", 10**9, " weights, and by its config.json "),
        ("llama", "head_dim", 10**9, " weights, and by its config.json "),
        ("gpt2", "n_positions", 10**9, " weights, and by its config.json "),
        ("mixtral", "num_local_experts", 10**9, " weights, and by its config.json "),
        ("mixtral", "num_local_experts", -1, "num_experts_per_tok is 2 of -1 experts"),
        ("mixtral", "num_experts_per_tok", 5, "num_experts_per_tok is 5 of 4 experts"),
        ("mixtral", "num_experts_per_tok", 0, "num_experts_per_tok is 0 of 4 experts"),
        ("llama", "hidden_size", "many", "Field 'hidden_size' expected int, got str"),
        ("llama", "vocab_size", float("nan"), "Field 'vocab_size' expected int, got float"),
        ("llama", "num_attention_heads", 0, "ZeroDivisionError"),
        ("llama", "dtype", "no-such", "has no attribute 'no-such'"),
    ],
)
def test_sizes_that_cannot_be_are_refused_before_anything_is_built(changed, name, field, value, message):
    (said,) = refusals(changed(name, **{field: value}))
    assert message in said


def test_without_weights_only_what_nobody_builds_is_refused(changed):
    folder = changed(num_hidden_layers=10**7)
    (folder / "model.safetensors").unlink()
    (said,) = refusals(folder)
    assert "num_hidden_layers is 10000000 in config.json, and at most 10000 are built;" in said
    shutil.rmtree(folder)
    folder = changed(num_hidden_layers=3, vocab_size=10**9)
    (folder / "model.safetensors").unlink()
    assert read_shape(str(folder)).layers == 3


def test_weights_of_another_shape_are_named(changed):
    folder = changed(intermediate_size=56)
    for kind in ("policy", "scores"):
        with pytest.raises(ModelError, match=r"model\.\S+mlp\.down_proj\.weight is \[32, 48\] and not \[32, 56\];"):
            LOADERS[kind](str(folder))


@pytest.mark.parametrize("words", [("data", "show"), ("sft", "--dry-run")])
def test_a_command_says_it_in_one_line(changed, tmp_path, capsys, words):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "completion": "b"}\n')
    folder = changed(num_hidden_layers=10**7)
    assert main([*words, "--model", str(folder), "--dataset", str(rows)]) == 2
    out, err = capsys.readouterr()
    assert "num_hidden_layers is 10000000" in err and err.count("\n") == 1 and not out


def test_a_pickle_is_not_read_and_it_is_said_how_to_convert_it(changed, monkeypatch):
    folder = changed()
    weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    monkeypatch.setattr(torch, "load", lambda *args, **options: pytest.fail("a pickle was read"))
    (said,) = refusals(folder)
    assert "has pytorch_model.bin and no model.safetensors, and a pickle can run code when it is read" in said
    assert "convert it: python -c" in said
    monkeypatch.undo()
    exec(said.partition("python -c ")[2].strip('"').replace("FOLDER", str(folder)), {})
    assert load_model(str(folder), dtype=torch.float32).context == 256


def sharded(folder: Path) -> dict[str, Any]:
    """Save the model in several files; returns what its index says."""
    network = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    network.save_pretrained(folder, max_shard_size="20KB")
    return json.loads((folder / "model.safetensors.index.json").read_text())


@pytest.mark.parametrize(
    "place", ["../x.safetensors", "/tmp/x.safetensors", "a/../../x.safetensors", "none.safetensors"]
)
def test_an_index_names_files_of_its_folder_alone(changed, place):
    folder = changed()
    index = sharded(folder)
    first = next(iter(index["weight_map"]))
    shutil.copy(folder / index["weight_map"][first], folder.parent / "x.safetensors")
    index["weight_map"][first] = place
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (said,) = refusals(folder)
    assert said.startswith(f": model.safetensors.index.json names '{place}', which is no file in the folder")


@pytest.mark.parametrize("text", ["", "[]", "3", '{"weight_map": ["a"]}', '{"weight_map": {"a": 3}}', "[" * 100_000])
def test_an_index_that_is_none_is_refused(changed, text):
    folder = changed()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(text)
    (said,) = refusals(folder)
    assert "model.safetensors.index.json has no map from weights to files" in said


def test_links_as_in_the_cache_of_the_hub_are_followed(changed, tmp_path):
    folder = changed()
    sharded(folder)
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        shutil.copy(path, blobs / str(number))
        (snapshot / path.name).symlink_to(Path(os.path.relpath(blobs / str(number), snapshot)))
    assert load_model(str(snapshot), dtype=torch.float32).context == read_shape(str(snapshot)).context == 256
