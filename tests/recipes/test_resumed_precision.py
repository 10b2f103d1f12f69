"""A run goes on in the number format in which it began, whatever the machine finds faster by then."""

import json

import pytest
import torch

from posttrain.cli import main
from posttrain.models import precision
from posttrain.models.precision import Fastest
from tests.recipes.kills import RECIPES, write_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("data")
    write_data(found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_resumed_run_keeps_its_number_format(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    words = RECIPES[name].split()
    words[words.index("--steps" if "--steps" in words else "--rounds") + 1] = "1"
    found = []
    for dtype, more in ((torch.float32, [*words, "--model", "model", "--output", name]), (torch.bfloat16, None)):
        monkeypatch.setattr(precision, "fastest", lambda device="cpu", dtype=dtype: Fastest(dtype, "measured"))
        steps = "--rounds" if "--rounds" in words else "--steps"
        assert main([*(more or [words[0], "--resume", name, steps, "2"]), "--quiet"]) == 0
        environment = json.loads((folder / name / "environment.json").read_text())
        found.append((environment | (environment["resumed"] or [{}])[-1])["precision"])
    assert found == ["torch.float32"] * 2
