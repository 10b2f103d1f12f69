"""The pages say what there is: every reward is in the table, every command and option of an example exists."""

import dataclasses
import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import posttrain as pt
from posttrain.algorithms import ONLINE, online
from posttrain.bindings.judges import named_models
from posttrain.cli import SHARED, find, read
from posttrain.commands import COMMANDS
from posttrain.options.option import Form
from posttrain.rewards import REWARDS, Judge, parse_rewards

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / name for name in ("rewards.md", "data.md", "judges.md")]
LINES = [
    (page.name, line.strip()) for page in PAGES for line in page.read_text().splitlines() if "    posttrain " in line
]


def test_every_reward_is_in_the_table():
    named = re.findall(r"^\| `([a-z_-]+)` \| [^|]* \| [^|]* \|$", PAGES[0].read_text(), flags=re.MULTILINE)
    assert sorted(named) == sorted(REWARDS)


@pytest.mark.parametrize(("page", "line"), LINES)
def test_an_example_s_command_and_options_exist(page, line, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)[1:]
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    command = COMMANDS[name]
    form = command.form
    options = {field.name for field in dataclasses.fields(form)} | set(command.shared) & set(SHARED)
    if getattr(form, "algorithm", "") in ONLINE:
        options |= {field.name for field in dataclasses.fields(online(form.algorithm))}
    flags = [word for word in words if word.startswith("--")]
    assert flags and {flag[2:].replace("-", "_") for flag in flags} <= options
    if "--reward" in words:
        typed = words[words.index("--judge") + 1] if "--judge" in words else ""
        judges = {name: Judge(Unasked(), name) for name in named_models("judge", typed)}
        parse_rewards(words[words.index("--reward") + 1], judges=judges)


class Unasked:
    async def chat(self, messages, **asked):
        raise AssertionError


README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("line", re.findall(r"`(posttrain [a-z][^`]*)`", README))
def test_what_the_readme_types_is_a_command(line):
    name, argv = find(shlex.split(line)[1:])
    assert read(name, argv)


@pytest.mark.parametrize("line", re.findall(r"`(pt\.[A-Z][^`]*)`", README))
def test_what_the_readme_has_for_python_is_a_form(line):
    rows, made = [{"prompt": "1+1="}], type("Made", (), {"run": Path("runs/rl-2026-01-31-1")})()
    given = {"pt": pt, "rows": rows, "score": len, "judge": made, "Game": object, "a": made, "b": made, "trained": made}
    assert isinstance(eval(line, given), Form)


def test_the_pages_have_examples():
    assert {page for page, _ in LINES} == {page.name for page in PAGES} and len(LINES) >= 6


def walk():
    """The commands of the walk in adapters.md, what the page says they print, and what is typed to Python."""
    page = (ROOT / "docs/adapters.md").read_text().split("## A walk")[1].replace("\\\n", "")
    blocks = re.findall(r"^    \$ (.*)\n((?:    \S.*\n)+)", page, flags=re.MULTILINE)
    return [(command, re.sub("^    ", "", printed, flags=re.MULTILINE)) for command, printed in blocks], page


def shape(text):
    return re.sub(r"\d+(\.\d+)?(e-\d+)?", "#", text).splitlines()


@pytest.mark.model
def test_the_walk_prints_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands, page = walk()
    for command, printed in commands:
        words = [word.replace("examples/", f"{ROOT}/examples/") for word in shlex.split(command)]
        words = [sys.executable, *(words[1:] if words[0] == "python" else ["-m", *words])]
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "120"})
        assert shape(done.stdout) == shape(printed), done.stdout
    losses = [float(loss) for loss in re.findall(r"held-out loss (\S+) before, (\S+) after", page)[0]]
    assert len(commands) == 3 and losses[1] < losses[0]
    typed = doctest.DocTestParser().get_doctest(page, {}, "walk", None, None)
    assert doctest.DocTestRunner().run(typed) == doctest.TestResults(failed=0, attempted=3)
