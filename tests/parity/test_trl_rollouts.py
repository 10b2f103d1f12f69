"""TRL's own trainer on a tiny model, recorded and verified; and with a filter that its loss ignores."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed; type: pip install -e '.[test]'")

from posttrain.recipes.verify.imported import verify_dump
from tests.recipes.folders import model_folder

EXAMPLE = Path(__file__).parents[2] / "examples" / "trl_rollouts.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(model_folder(tmp_path_factory.mktemp("trl") / "model"))


@pytest.mark.parametrize(
    "said", [[], ["top_p=0.5", "loss_type=dapo", "steps_per_generation=2", "beta=0.1"]], ids=["grpo", "dapo"]
)
def test_trl_s_rollouts(said, folder, tmp_path):
    path = tmp_path / "rollouts.jsonl"
    words = [sys.executable, str(EXAMPLE), "--model", folder, "--output", str(path), "--tokens", "12"]
    done = subprocess.run([*words, "--set", *said], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    items = {item.name: item for item in verify_dump(str(path))}
    wrong = {name for name, item in items.items() if not item.passed} - {"truncated"}  # random weights hardly stop
    assert wrong == ({"sampling"} if said else set()), [item.line() for item in items.values()]
    measured = {name for name, item in items.items() if item.measured is not None}
    assert {"loss mask", "advantages", "loss", "repeats"} <= measured
    assert ("first update" in measured) == (not said)  # where a batch is one update, TRL's ratio is 1 by construction
    assert json.loads(path.read_text().splitlines()[0])["source"] == "trl"
