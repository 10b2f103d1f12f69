import time
from dataclasses import asdict

import pytest
import torch

from posttrain.errors import UserError
from posttrain.serving import checkpoints
from posttrain.serving.base import Adapter
from posttrain.serving.checkpoints import Address, Samplers
from posttrain.training.checkpoint import save_tensors
from posttrain.training.local_learner import MASTERS

MODEL = f"{'0a' * 16}:train:3"


def saved(root, *, ttl=None, overwrite=False, content="x", **about):
    checkpoints.save(
        root,
        lambda folder: (folder / "a.txt").write_text(content),
        {"k": 1, **about},
        ttl_seconds=ttl,
        overwrite=overwrite,
    )


def test_an_address_is_read_as_it_is_written(tmp_path):
    address = Address(MODEL, "sampler_weights", "step-1.b")
    assert str(address) == f"tinker://{MODEL}/sampler_weights/step-1.b" and Address.of(str(address)) == address
    assert address.folder(tmp_path) == tmp_path / MODEL.replace(":", ".") / "sampler_weights" / "step-1.b"


@pytest.mark.parametrize(
    "text",
    [
        *(f"tinker://{MODEL}/weights/{name}" for name in ("", "..", ".", ".a", "a/b", "a\n", "a b", "x" * 129)),
        *(f"tinker://{model}/weights/a" for model in ("", "..", "x", MODEL.upper(), f"{MODEL}\n", f"{MODEL}:1")),
        f"{MODEL}/weights/a",
        f"tinker://{MODEL}/results/a",
        f"http://{MODEL}/weights/a",
    ],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(UserError):
        Address.of(text)


def test_a_name_is_taken_until_it_is_overwritten_or_deleted(tmp_path):
    root = tmp_path / "a"
    assert checkpoints.read(root) is None
    saved(root)
    assert checkpoints.read(root).state["k"] == 1
    with pytest.raises(UserError, match="already"):
        saved(root)
    saved(root, overwrite=True, content="y")
    assert (checkpoints.read(root).path / "a.txt").read_text() == "y"
    checkpoints.delete(root)
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoints.delete(root)


def test_a_request_that_is_repeated_finds_the_checkpoint_that_it_saved(tmp_path):
    root = tmp_path / "a"
    saved(root, request=3)
    saved(root, request=3, content="y")
    assert (checkpoints.read(root).path / "a.txt").read_text() == "x"
    for other in ({"request": 4}, {}):
        with pytest.raises(UserError, match="already"):
            saved(root, **other)
    saved(root, request=4, overwrite=True, content="z")
    assert (checkpoints.read(root).path / "a.txt").read_text() == "z"
    saved(root, request=4)
    with pytest.raises(UserError, match="already"):
        saved(root, request=3)


def test_a_checkpoint_expires_and_is_then_deleted_by_the_thread_that_saves(tmp_path, monkeypatch):
    model = tmp_path / "model"
    saved(model / "weights" / "short", ttl=10)
    saved(model / "weights" / "long")
    assert checkpoints.names(model) == [("weights", "long"), ("weights", "short")]
    later = time.time() + 11
    monkeypatch.setattr(time, "time", lambda: later)
    assert checkpoints.read(model / "weights" / "short") is None
    assert checkpoints.names(model) == [("weights", "long")] and (model / "weights" / "short").exists()
    checkpoints.tidy(model)
    assert [path.name for path in (model / "weights").iterdir()] == ["long"]
    with pytest.raises(UserError, match="above 0"):
        saved(model / "weights" / "none", ttl=0)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_checkpoint_that_is_being_saved_is_not_listed_and_stays(tmp_path, overwrite):
    """All that other threads do while the checkpoint is written."""
    model = tmp_path / "model"
    root = model / "weights" / "a"
    if overwrite:
        saved(root)

    def write(folder):
        (folder / "a.txt").write_text("y")
        assert checkpoints.names(model) == ([("weights", "a")] if overwrite else [])
        if overwrite:
            checkpoints.delete(root)
        with pytest.raises(UserError, match="no checkpoint"):
            checkpoints.delete(root)

    checkpoints.save(root, write, {}, ttl_seconds=None, overwrite=overwrite)
    assert (checkpoints.read(root).path / "a.txt").read_text() == "y"


def test_what_an_interrupted_save_has_left_is_tidied_up_and_a_damaged_checkpoint_is_not(tmp_path):
    model = tmp_path / "model"
    (model / "weights" / "begun" / ".saving-000000-1").mkdir(parents=True)
    for name, file in (("torn", "a.txt"), ("broken", "state.json")):
        saved(model / "weights" / name)
        (model / "weights" / name / checkpoints.STEP / file).write_text("")
    checkpoints.tidy(model)
    assert [name for _, name in checkpoints.names(model)] == ["broken", "torn"] and not (
        model / "weights" / "begun"
    ).exists()


def test_weights_that_are_overwritten_have_another_name_and_the_name_of_none_is_an_error(tmp_path):
    """What samples keeps weights by that name: under the folder's own it would go on with the old ones."""
    samplers = Samplers(tmp_path / "samplers", tmp_path / "models", 8)

    def save(value):
        def write(folder):
            save_tensors(folder / MASTERS, {"w": torch.full((2,), value)})

        about = {"adapter": asdict(Adapter(4))}
        checkpoints.save(tmp_path / "models/m/named", write, about, ttl_seconds=None, overwrite=True)
        return samplers.saved("m/named")

    with pytest.raises(UserError, match="the weights of this sampler are gone"):
        samplers.load(samplers.saved("m/named"))
    first = save(1.0)
    assert samplers.saved("m/named") == first and samplers.load(first).tensors["w"].tolist() == [1.0, 1.0]
    second = save(2.0)
    assert second != first and samplers.load(second).tensors["w"].tolist() == [2.0, 2.0]
