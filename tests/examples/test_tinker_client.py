import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tinker", reason="needs the extra server")

from tests.recipes.folders import model_folder
from tests.serving.serving import KEY, base_of, serving

FILE = Path(__file__).parents[2] / "examples" / "tinker_client.py"


def test_the_example_trains_by_demonstrations_and_rewards(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("tinker_client", FILE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    folder = model_folder(tmp_path / "model", context=64)
    with serving(replace(base_of(folder), name=str(folder)), tmp_path / "store") as (url, _):
        rewards = example.main(url, str(folder), key=KEY, steps=16, samples=32)
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert losses[-1] < losses[0] - 1.5 and sum(rewards[-4:]) > sum(rewards[:4])
