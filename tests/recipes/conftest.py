"""What the recipes that learn from samples are tested on: a model and a task that take no time."""

import json
from pathlib import Path

import pytest

from tests.recipes.folders import model_folder

SCORER = '''
def score(completion: str) -> float:
    """The share of its letters that come early in the alphabet."""
    return sum(letter.lower() in "abcdefghijklm" for letter in completion) / max(1, len(completion))
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("rl")
    model_folder(where / "model")
    (where / "scorer.py").write_text(SCORER)
    rows = [{"prompt": f"{i}?", "answer": "", "kind": "even" if i % 2 == 0 else "odd"} for i in range(8)]
    (where / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (where / "texts.jsonl").write_text("".join(json.dumps({"text": f"zy {i} xw"}) + "\n" for i in range(4)))
    return where
