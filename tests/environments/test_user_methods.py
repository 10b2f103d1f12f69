"""Mistakes in an environment's own methods are one line, with the method and its place in the user's file."""

import re

import pytest

from posttrain.engine.scripted import ScriptedEngine
from posttrain.environments.user_methods import demonstrations_of, load_environment, tasks_of
from posttrain.episodes.episodes import opened, play
from posttrain.errors import EpisodeError, UserError
from posttrain.testing import check_environment
from tests.episodes.conversations import CHAT, players, question, scored
from tests.violations import violations

HEAD = """import json
from posttrain.environments import Environment
from posttrain.types import Message, Outcome, Task


class Mine(Environment):
    max_turns = 2

    def tasks(self, split, seed):
        return [Task((Message("user", split),), id=split)]

    async def play(self, task, seats, seed):
        return Outcome({"policy": float(bool((await seats["policy"].turn(task.prompt)).text))})

"""


@pytest.fixture
def mine(tmp_path):
    """Makes the environment, with lines of its own from line 15 on."""

    def made(*lines):
        (tmp_path / "mine.py").write_text(HEAD + "\n".join(f"    {line}" for line in lines))
        return load_environment(f"{tmp_path / 'mine.py'}:Mine")

    return made


def test_what_tasks_and_demonstrations_raise_is_one_line_with_its_place(mine):
    broken = mine("def tasks(self, split, seed):", "    return json.loads('nothing')")
    with pytest.raises(UserError, match=r"^Mine\.tasks raised JSONDecodeError: Expecting value.* \(.*mine\.py:16\)$"):
        tasks_of(broken, "train", 0)
    broken = mine("def demonstrations(self, seed):", "    return [self.missing]")
    with pytest.raises(UserError, match=r"^Mine\.demonstrations raised AttributeError: .*missing.* \(.*mine\.py:16\)$"):
        demonstrations_of(broken, 0)
    broken = mine("async def open(self):", "    raise OSError('no such server')")
    with (
        pytest.raises(UserError, match=r"^Mine\.open raised OSError: no such server \(.*mine\.py:16\)$"),
        opened(broken),
    ):
        pass


def test_what_is_no_task_and_no_message_is_named(mine):
    with pytest.raises(UserError, match=r"^Mine\.tasks returned a str; expected posttrain\.types\.Task$"):
        tasks_of(mine("def tasks(self, split, seed):", "    return ['2 + 2']"), "train", 0)
    with pytest.raises(UserError, match=r"^Mine\.demonstrations returned conversations with a dict; expected"):
        demonstrations_of(mine("def demonstrations(self, seed):", "    return [[{'role': 'user'}]]"), 0)


def test_what_posttrain_refuses_is_said_as_it_is(mine):
    broken = mine(
        "def tasks(self, split, seed):",
        "    import posttrain.errors",
        "    raise posttrain.errors.UserError('no file')",
    )
    with pytest.raises(UserError, match=r"^no file$"):
        tasks_of(broken, "train", 0)


PLAYS = [
    (
        ["def play(self, task, seats, seed):", "    return Outcome()"],
        r"Mine\.play is no coroutine; write async def play",
    ),
    (
        ["async def play(self, task, seats, seed):", "    return 1.0"],
        r"Mine\.play returned a float; expected a .*Outcome",
    ),
    (
        ["async def play(self, task, seats, seed):", "    return Outcome({'polcy': 1.0})"],
        r"Mine\.play rewards the seat 'polcy'; its seats are \['policy'\]",
    ),
    (
        ["async def play(self, task, seats, seed):", "    return Outcome({'policy': '1'})"],
        r"Mine\.play rewards seat 'policy' with '1'; expected a finite number",
    ),
    (
        ["async def play(self, task, seats, seed):", "    return Outcome({'policy': float('nan')})"],
        r"Mine\.play rewards seat 'policy' with nan; expected a finite number",
    ),
    (
        ["async def play(self, task, seats, seed):", "    await seats['policy'].turn('hello')"],
        r"turn of seat 'policy' got 'h'; expected a list of posttrain\.types\.Message \(.*mine\.py:16\)",
    ),
    (
        ["async def play(self, task, seats, seed):", "    return json.loads('nothing')"],
        r"JSONDecodeError: Expecting value: line 1 column 1 \(char 0\) \(.*mine\.py:16\)",
    ),
]


@pytest.mark.parametrize(("lines", "says"), PLAYS)
def test_a_mistake_in_play_names_the_users_line_or_the_method(lines, says, mine):
    (stop,) = CHAT.tokenizer.encode("<|im_end|>", add_special_tokens=False)
    asked = players(ScriptedEngine(lambda request: (stop,), CHAT.stop_ids), max_lost=0.0)
    with pytest.raises(EpisodeError) as error:
        play(scored(mine(*lines)), [question("a")], asked, [0])
    found = str(error.value).partition("the first: ")[2]
    assert re.fullmatch(rf"(\w+: )?{says}", found), found


def test_the_kit_lists_an_exception_as_a_violation(mine):
    broken = mine("async def play(self, task, seats, seed):", "    raise KeyError('answer')")
    (found,) = violations(check_environment, broken)
    assert re.fullmatch(r"it raised KeyError: 'answer' \(.*mine\.py:16\)", found)
    check_environment(mine("pass"))
