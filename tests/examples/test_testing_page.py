"""The tests in docs/testing.md run."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from posttrain.algorithms.reinforce import Reinforce
from tests.examples.test_examples import RETRY

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_the_tests_of_the_page_pass(monkeypatch):
    mine = SimpleNamespace(Clipless=Reinforce, Retry=RETRY.Retry, brief=lambda completion: float(len(completion) < 9))
    monkeypatch.setitem(sys.modules, "mine", mine)
    blocks = re.findall(r"(?:^(?:    .*)?\n)+", PAGE.read_text(), flags=re.MULTILINE)
    names: dict[str, Any] = {}
    for block in blocks:
        if "def test_" in block:
            exec(re.sub("^    ", "", block, flags=re.MULTILINE), names)
    tests = [name for name in names if name.startswith("test_")]
    assert len(tests) == 4
    for name in tests:
        names[name]()
