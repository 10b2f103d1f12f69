"""Averages of models: sums by hand, in float32 and rounded once; what has no mean is refused and nothing is written."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from posttrain.cli import main
from posttrain.errors import ModelError
from posttrain.models.averaging import averaged
from tests.recipes.folders import model_folder


def folder(path, **tensors):
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    return path


def test_sums_by_hand(tmp_path):
    a = folder(tmp_path / "a", w=torch.tensor([[1.0, 2.0], [3.0, 4.0]]), b=torch.tensor([8.0]))
    b = folder(tmp_path / "b", b=torch.tensor([0.0]), w=torch.tensor([[5.0, -2.0], [3.0, 0.0]]))
    found = averaged([a, b], [0.75, 0.25])
    assert {name: value.tolist() for name, value in found.items()} == {"w": [[2.0, 1.0], [3.0, 3.0]], "b": [6.0]}


def test_sums_are_in_float32_and_rounded_once(tmp_path):
    """In bfloat16 256 + 1 is 256: a sum in that format would lose each 1, and 256 + 3 = 259 is rounded to 260."""
    values = [256.0, 1.0, 1.0, 1.0]
    folders = [folder(tmp_path / f"{i}", w=torch.tensor([one], dtype=torch.bfloat16)) for i, one in enumerate(values)]
    found = averaged(folders, [1.0, 1.0, 1.0, 1.0])["w"]
    assert found.dtype is torch.bfloat16 and found.item() == 260.0
    wide = [
        folder(tmp_path / f"wide {i}", w=torch.tensor([one], dtype=torch.float64)) for i, one in enumerate((1.0, 1e-12))
    ]
    assert averaged(wide, [1.0, 1.0])["w"].item() == 1.0 + 1e-12


def test_the_format_is_that_of_the_first_and_whole_numbers_stay(tmp_path):
    steps = torch.tensor([3])
    a = folder(tmp_path / "a", w=torch.tensor([1.0], dtype=torch.bfloat16), n=steps)
    b = folder(tmp_path / "b", w=torch.tensor([2.0]), n=steps)
    c = folder(tmp_path / "c", w=torch.tensor([2.0]), n=steps + 1)
    assert averaged([a, b], [0.5, 0.5])["w"].dtype is torch.bfloat16
    assert averaged([b, a], [0.5, 0.5])["w"].dtype is torch.float32
    assert averaged([a, b], [0.5, 0.5])["n"].item() == 3
    with pytest.raises(ModelError, match=r"n of '.*c' is torch.int64, and not that of '.*a'; it has no mean"):
        averaged([a, c], [0.5, 0.5])


def test_other_names_and_other_shapes_are_refused(tmp_path):
    a = folder(tmp_path / "a", w=torch.zeros(2), b=torch.zeros(1))
    other = folder(tmp_path / "other", w=torch.zeros(2), head=torch.zeros(1), b=torch.zeros(1))
    wide = folder(tmp_path / "wide", w=torch.zeros(3), b=torch.zeros(1))
    with pytest.raises(ModelError, match=r"are not of one shape: head is in .*other alone"):
        averaged([a, other], [0.5, 0.5])
    with pytest.raises(ModelError, match=r"are not of one shape: head is in .*other alone"):
        averaged([other, a], [0.5, 0.5])
    with pytest.raises(ModelError, match=r"are not of one shape: w is \[2\] and \[3\]"):
        averaged([a, wide], [0.5, 0.5])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="has no weights as safetensors"):
        averaged([a, tmp_path / "empty"], [0.5, 0.5])


def test_the_command_writes_a_model_and_refuses_in_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    a, b = (model_folder(tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 1)))
    assert main(["export", "average", "--models", "a b", "--weights", "3,1", "--output", "mean", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "0.75 of a, 0.25 of b" in told["form"] and "README.md" in told["files"]
    first, second, mean = (load_file(path / "model.safetensors") for path in (a, b, tmp_path / "mean"))
    assert first.keys() == mean.keys()
    for name in first:
        torch.testing.assert_close(mean[name], 0.75 * first[name] + 0.25 * second[name], rtol=1e-6, atol=1e-7)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    for words, says in (
        (["--models", "a", "--output", "x"], '--models "A B" of two models or more and --output FOLDER are required'),
        (["--models", "a b"], "are required"),
        (["--models", "a b", "--output", "x", "--weights", "1"], "a number of 0 or more for each of the 2 models"),
        (["--models", "a b", "--output", "x", "--weights", "0 0"], "not all 0; got"),
        (["--models", "a b", "--output", "x", "--weights", "1 nan"], "a number of 0 or more"),
        (["--models", "a b", "--output", "x", "--weights", "1 -1"], "a number of 0 or more"),
        (["--models", "a b", "--output", "x", "--weights", "1 x"], "a number of 0 or more"),
        (["--models", "a b", "--output", "mean"], "exists and is not an empty folder"),
        (["--models", "a adapter", "--output", "x"], "'adapter' is an adapter; type: posttrain export merge"),
    ):
        assert main(["export", "average", *words]) == 2
        assert says in (said := capsys.readouterr().err) and said.count("\n") == 1
    assert not (tmp_path / "x").exists()
