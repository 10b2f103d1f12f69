import asyncio
import doctest
import math
import os
import sys
import threading
import time
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from posttrain.errors import RewardError, UserError
from posttrain.rewards import apart, custom, from_function, load_reward
from posttrain.testing import check_reward
from posttrain.types import Episode, Message, Score, Task
from tests.rewards.episodes import episode, flat, scores, unguarded, value
from tests.rewards.episodes import scores as scores_of

EPISODES = [
    episode("a", 1, question="A?", id="0", level="easy", hint="x"),
    episode("bb", 2, question="B?", id="1", level="hard"),
]


def values(function, episodes=EPISODES):
    return [s.value for s in scores(from_function(function, "mine"), episodes, timeout_s=5)]


def test_single_functions_get_what_they_name():
    assert values(lambda completion, task: len(completion) + task.answer) == [2, 4]
    assert values(lambda prompt, completion, answer, **metadata: (prompt == "A?") * answer) == [1, 0]
    assert values(lambda completion, level: level == "hard") == [0, 1]
    assert values(lambda episode: len(episode.messages)) == [3, 3]
    assert values(lambda answer, completion: answer) == [1, 2]
    assert values(lambda completion, hint="none": hint == "x") == [1, 0]
    assert values(lambda completion, unknown=5: unknown) == [5, 5]


def test_metadata_arrives_by_key_and_never_hides_what_the_interface_names():
    seen = []

    def reward(completion, **metadata):
        seen.append((completion, metadata))
        return 0

    values(reward, [episode("real", 1, completion="from the data", level=3)])
    assert seen == [("real", {"prompt": "What is it?", "answer": 1, "level": 3})]


def test_batch_functions_get_lists_as_those_of_trl_do():
    assert values(lambda prompts, completions, answers, **columns: answers) == [1, 2]
    assert values(
        lambda completions, answer, level, **kwargs: [a * (v == "hard") for a, v in zip(answer, level, strict=True)]
    ) == [
        0,
        2,
    ]
    assert values(lambda completions, **kwargs: [len(kwargs["prompts"])] * 2) == [2, 2]
    assert values(lambda completions, **kwargs: ["hint" in kwargs, "level" in kwargs]) == [
        0,
        1,
    ]  # not every task has one
    assert values(lambda tasks, completions: [t.answer for t in tasks]) == [1, 2]
    assert values(lambda episodes: [len(e.completion) for e in episodes]) == [1, 2]
    assert values(lambda completions: np.array([0.5, 1.5])) == [0.5, 1.5]
    assert values(lambda completions: (len(c) for c in completions)) == [1, 2]


def test_asynchronous_functions():
    async def single(completion):
        await asyncio.sleep(0)
        return len(completion)

    async def batch(completions):
        await asyncio.sleep(0)
        return [len(c) for c in completions]

    assert values(single) == values(batch) == [1, 2]


def test_asynchronous_single_functions_run_at_the_same_time():
    async def main():
        barrier = asyncio.Event()
        arrived = []

        async def meets(completion):
            arrived.append(completion)
            if len(arrived) == 2:
                barrier.set()
            await barrier.wait()
            return 1

        return flat(await from_function(meets).score(apart(EPISODES)))

    assert [s.value for s in asyncio.run(asyncio.wait_for(main(), 5))] == [1, 1]


@pytest.mark.parametrize(
    "returned, value", [(1, 1), (True, 1), (0.5, 0.5), (np.float32(0.25), 0.25), (Fraction(1, 4), 0.25)]
)
def test_numbers_of_every_kind(returned, value):
    assert values(lambda completion: returned) == [value, value]


@pytest.mark.parametrize("function", [lambda completion: math.nan, lambda completions: [math.inf, 1.0]])
def test_a_value_that_is_not_finite_is_refused_even_without_the_guard(function):
    with pytest.raises(RewardError, match="expected a finite number"):
        unguarded(from_function(function), EPISODES)


def test_a_plain_function_does_not_block_the_event_loop_of_who_asks():
    release = threading.Event()

    async def main():
        async def let_go():
            release.set()

        return await asyncio.gather(from_function(lambda completion: release.wait(5)).score(apart(EPISODES)), let_go())

    assert [s.value for s in flat(asyncio.run(main())[0])] == [1, 1]


def test_a_plain_function_is_called_by_one_thread_at_a_time():
    inside, most = [0], []

    def counts(completion):
        inside[0] += 1
        most.append(inside[0])
        time.sleep(0.01)
        inside[0] -= 1
        return 1.0

    reward = from_function(counts)

    async def together():
        await asyncio.gather(*(reward.score(apart(EPISODES)) for _ in range(3)))

    asyncio.run(together())
    assert most == [1] * 3 * len(EPISODES)


def test_the_prompt_is_the_last_thing_that_the_user_said():
    prompt = (Message("user", "first"), Message("assistant", "yes"), Message("user", "last"), Message("system", "!"))
    conversation = Episode(Task(prompt), (*prompt, Message("assistant", "done")))
    assert values(lambda prompt, completion: prompt == "last" and completion == "done", [conversation]) == [1]


def test_a_score_passes_unchanged():
    kept = Score(0.0, explanation="why", unparsed=True)
    assert scores(from_function(lambda completion: kept), EPISODES) == [kept, kept]


@pytest.mark.parametrize("returned", [None, math.nan, math.inf, "1", [1.0], Score(math.nan)])
def test_a_single_value_that_is_not_a_finite_number_names_the_task(returned):
    with pytest.raises(RewardError, match=r"'mine' returned .* on task '1'; expected a finite number"):
        values(lambda completion: 1.0 if completion == "a" else returned)


@pytest.mark.parametrize(
    "returned, said",
    [
        ([1.0], "a list of 1 for 2 completions"),
        ([1.0] * 3, "a list of 3 for 2 completions"),
        (1.0, "got float"),
        (None, "got NoneType"),
        ([1.0, "1"], "'1' on task '1'"),
        ([1.0, math.nan], "nan on task '1'"),
        ({"a": 1, "b": 2}, "'a' on task '0'"),
    ],
)
def test_a_batch_that_is_not_one_finite_number_each(returned, said):
    with pytest.raises(RewardError, match=said):
        values(lambda completions: returned)


def test_an_exception_names_the_task_and_the_line():
    def reward(completion):
        return 1 / (len(completion) - 2)

    with pytest.raises(RewardError, match=r"'mine' raised ZeroDivisionError.*test_custom.py:\d+\) on task '1'"):
        values(reward)


@pytest.mark.parametrize("batch", [False, True])
def test_a_hang_hits_the_time_limit(batch):
    release = threading.Event()
    hangs = (lambda completions: release.wait(20)) if batch else (lambda completion: release.wait(20))
    with pytest.raises(RewardError, match=r"did not finish within 0\.1 s on task"):
        scores(from_function(hangs, "mine"), EPISODES, timeout_s=0.1)
    release.set()


def test_a_key_that_a_task_lacks_names_task_key_and_the_nearest():
    with pytest.raises(RewardError, match=r"task '0': .*needs the column 'levle', .* has: prompt.*mean 'level'\?"):
        values(lambda completion, levle: 1)
    with pytest.raises(RewardError, match=r"task '1': .*needs the column 'hint'"):
        values(lambda completions, hint: [1, 1])


@pytest.mark.parametrize(
    ("function", "column"),
    [
        (lambda completion, answer: 1, "answer"),
        (lambda completions, answers, **columns: [1], "answer"),
        (lambda group, completions, gold: [1], "gold"),
        (lambda completion, prompts: 1, "prompts"),  # one at a time there is 'prompt'
        (lambda completion, target: 1, "target"),
        (lambda completion, answer=None, target="": 1, ""),
        (lambda prompts, completions, completion_ids, log_extra, reward_context: [1], ""),
        (partial(lambda completion, target: 1, target="4"), ""),
    ],
)
def test_a_column_that_rows_lack_is_known_before_anything_is_sampled(function, column):
    reward = from_function(function, "mine")
    tasks = [Task((Message("user", "2+2"),), metadata={"result": "4"}), Task((Message("user", "1"),))]
    first, second = asyncio.run(reward.unreadable(tasks))
    said = f"reward 'mine' needs the column '{column}', and the row has: prompt, result" if column else ""
    assert first.startswith(said) and bool(first) == bool(second) == bool(said)
    answered = [*tasks, Task((Message("user", "1"),), answer=1)]  # the others give None
    assert [bool(why) for why in asyncio.run(reward.unreadable(answered))] == [column not in ("", "answer")] * 3
    if column == "target":
        assert first.endswith(
            'type `columns="target=COLUMN"` to rename one, or give the argument a default, target=None'
        )


@pytest.mark.parametrize(
    "function",
    [
        lambda: 1,
        lambda text: 1,
        lambda *args: 1,
        lambda **kwargs: 1,
        lambda completion, *rest: 1,
        lambda completion, /: 1,
        lambda completion, completions: 1,
        lambda prompt, answer: 1,
    ],
)
def test_a_signature_that_is_not_understood_is_refused(function):
    with pytest.raises(
        UserError, match=r"cannot understand the parameters .* of reward 'mine'; expected \(completion, task\)"
    ):
        from_function(function, "mine")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rewards.py"
    (tmp_path / "neighbour_of_rewards.py").write_text("BONUS = 2\n")
    path.write_text("""
import neighbour_of_rewards
calls = []
limit = 3
def brief(completion):
    calls.append(completion)
    return neighbour_of_rewards.BONUS
def count(completion):
    return len(calls)
""")
    return path


def test_a_function_of_a_file(file):
    assert load_reward(f"{file}:brief").name == "brief"
    assert [s.value for s in scores(load_reward(f"{file}:brief"), EPISODES)] == [2, 2]


def test_two_functions_of_one_file_share_its_state_until_the_file_changes(file):
    scores(load_reward(f"{file}:brief"), EPISODES)
    assert scores(load_reward(f"{file}:count"), EPISODES[:1])[0].value == 2
    file.write_text(file.read_text() + "\n")
    assert scores(load_reward(f"{file}:count"), EPISODES[:1])[0].value == 0


def test_of_two_versions_of_one_size_and_second_each_is_what_it_says(tmp_path, monkeypatch):
    """Python's cached bytecode would be that of the first for both."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "mine.py"
    for said in (1, 2):
        file.write_text(f"def score(completion):\n    return {said}\n")
        os.utime(file, (0, 0))
        assert value(load_reward(f"{file}:score"), episode("a")) == said


def test_an_asynchronous_function_that_exits_is_an_error_and_the_next_call_is_served():
    async def exits(completion):
        raise SystemExit(3)

    for _ in range(2):
        with pytest.raises(RewardError, match=r"reward 'exits' raised SystemExit: 3 "):
            scores_of(from_function(exits), EPISODES, timeout_s=20)


ENDS = """
import asyncio
import concurrent.futures


class Mute(Exception):
    def __str__(self):
        raise StopIteration

    __repr__ = __str__


class Two(Exception):
    def __init__(self, first, second):
        super().__init__(first + " " + second)


{how} f({given}):
    raise {raised}
"""


@pytest.mark.parametrize("how", ["def", "async def"])
@pytest.mark.parametrize("given", ["completion", "completions", "group"])
@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("StopIteration", "StopIteration"),
        ("StopAsyncIteration('no more')", "StopAsyncIteration: no more"),
        ("GeneratorExit", "GeneratorExit"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("SystemExit(3)", "SystemExit: 3"),
        ("asyncio.CancelledError", "CancelledError"),
        ("concurrent.futures.CancelledError", "CancelledError"),
        ("Two('a', 'b')", "Two: a b"),
        ("Mute", "Mute: its text cannot be read"),
    ],
)
def test_whatever_a_function_raises_is_the_cause_at_once(tmp_path, raised, said, how, given):
    """Also what ends loops and generators, what a future cannot hold, and what cannot say what it is."""
    (tmp_path / "ends.py").write_text(ENDS.format(raised=raised, how=how, given=given))
    reward = load_reward(f"{tmp_path}/ends.py:f")
    with pytest.raises(RewardError) as error:
        scores_of(reward, EPISODES, timeout_s=5)
    assert str(error.value).startswith(f"reward 'f' raised {said} ({tmp_path}/ends.py:19) on task"), error.value
    assert value(from_function(lambda completion: 1), "after it") == 1


def test_mistakes_in_the_path_are_named(file):
    for path, said in [
        (f"{file}:breif", "unknown function of '.*': 'breif'; did you mean 'brief'\\? There are: brief, count"),
        (f"{file}:limit", "'limit' in .* is a int, not a function"),
        (f"{file.parent}/none.py:brief", "needs the file '.*none.py', which does not exist"),
        (f"{file}", "expected path/to/file.py:function"),
        (f"{file}:", "expected path/to/file.py:function"),
        ("rewards.txt:brief", "expected path/to/file.py:function"),
    ]:
        with pytest.raises(UserError, match=said) as caught:
            load_reward(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source, said",
    [
        ("def f(:\n", "line 1: SyntaxError"),
        ("\n1/0\n", "line 2: ZeroDivisionError"),
        ("import no_such\n", "no_such"),
        ("exit(3)", "SystemExit"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_with_the_line(tmp_path, source, said):
    path = tmp_path / "broken.py"
    path.write_text(source)
    with pytest.raises(UserError, match=rf"broken.py' cannot be imported: .*{said}"):
        load_reward(f"{path}:f")


def test_conforms():
    check_reward(lambda completion: len(completion), EPISODES)
    check_reward(from_function(lambda completions: [len(c) for c in completions], "mine"), EPISODES)


def test_docstring_examples_run():
    assert doctest.testmod(custom).failed == 0
