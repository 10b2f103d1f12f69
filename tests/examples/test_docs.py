"""The pages say what there is: every reward is in the table, every command and option of an example exists."""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from posttrain.cli import SHARED
from posttrain.commands import COMMANDS
from posttrain.rewards import REWARDS, parse_rewards

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / name for name in ("rewards.md", "data.md")]
LINES = [
    (page.name, line.strip()) for page in PAGES for line in page.read_text().splitlines() if "    posttrain " in line
]


def test_every_reward_is_in_the_table():
    named = re.findall(r"^\| `([a-z_]+)` \| [^|]* \| [^|]* \|$", PAGES[0].read_text(), flags=re.MULTILINE)
    assert sorted(named) == sorted(REWARDS)


@pytest.mark.parametrize(("page", "line"), LINES)
def test_an_example_s_command_and_options_exist(page, line, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)[1:]
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    command = COMMANDS[name]
    options = {field.name for field in dataclasses.fields(command.load()[0])} | set(command.shared) & set(SHARED)
    flags = [word for word in words if word.startswith("--")]
    assert flags and {flag[2:].replace("-", "_") for flag in flags} <= options
    if "--reward" in words:
        parse_rewards(words[words.index("--reward") + 1])


def test_the_pages_have_examples():
    assert {page for page, _ in LINES} == {"rewards.md", "data.md"} and len(LINES) >= 6
