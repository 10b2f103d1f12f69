"""Reward functions in processes: the scores of one process, whoever is lost."""

import asyncio
import json
import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial

import pytest

from posttrain import algorithms
from posttrain.bindings.cluster_options import AsyncOptions
from posttrain.errors import ProcessLost, RewardError, UserError
from posttrain.recipes import rl
from posttrain.recipes.rl import RL
from posttrain.rewards import TIME_LIMITS, load_reward, score_all
from posttrain.runs import read_run
from posttrain.training import checkpoint
from posttrain.types import Episode, EpisodeGroup, Message, Task
from tests.distributed.fakes import pids
from tests.distributed.test_recipes import curve, options, same
from tests.recipes.conftest import folder  # noqa: F401  a fixture

pytest.importorskip("ray")

from posttrain.distributed import scorers
from posttrain.distributed.scorers import Models, ScorerGroup, ScoringProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FUNCTIONS = """
import asyncio
import os
import time
from pathlib import Path

import numpy as np

from posttrain.rewards import TIME_LIMITS
from posttrain.types import Score, Span


def single(completion, answer):
    return np.float32(len(completion) + 0.1 * answer)


async def single_async(completion):
    await asyncio.sleep(0.02 / len(completion))
    return {"policy": Score(len(completion), parsed=completion, spans=(Span(0, 0, 1, 0.5),))}


def batch(completions, level):
    return [None if each == "hard" else len(said) for said, each in zip(completions, level)]


async def batch_async(tasks, completions):
    return [0.1 * task.answer + len(said) for task, said in zip(tasks, completions)]


def group(group, completions):
    return [len(completions) + (len(said) == max(map(len, completions))) for said in completions]


async def group_async(group, completions):
    return [0.1 * rank + 10 * len(completions) for rank, _ in enumerate(completions)]


def who(completion):
    return Score(0, explanation=str(os.getpid()))


def slow(completion, log):
    with open(log, "a") as file:
        file.write(f"{os.getpid()} {completion}\\n")
    time.sleep(1.0)
    return len(completion)


def fails(completion, answer):
    if answer in (5, 9):
        raise ValueError(f"no {answer}")
    return 0


def ends_once(completion, answer, log):
    if answer == 9 and not Path(log).exists():
        Path(log).touch()
        os._exit(3)
    return answer


def limited(completion):
    known = completion in TIME_LIMITS.known  # a digest, to a verifier
    TIME_LIMITS.add(completion)
    return known


def hangs(completion, answer):
    time.sleep(1000 if answer == 2 else 0)
    return answer
"""


def groups_of(*sizes, **metadata):
    """Groups of these sizes, of answers of different lengths."""
    found, count = [], 0
    for number, size in enumerate(sizes):
        more = {"level": "hard" if number % 2 else "easy", **metadata}
        prompt = (Message("user", f"{number}?"),)
        task = Task(prompt, answer=number, metadata=more, id=f"task-{number}")
        said = [(*prompt, Message("assistant", "x" * ((count + i) * 7 % 5 + 1))) for i in range(size)]
        found.append(EpisodeGroup(task, tuple(Episode(task, messages) for messages in said)))
        count += size
    return found


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    file = tmp_path_factory.mktemp("functions") / "functions.py"
    file.write_text(FUNCTIONS)
    names = [line.split("(")[0].split()[-1] for line in FUNCTIONS.splitlines() if "def " in line]
    return {name: load_reward(f"{file}:{name}") for name in names}


def started(size, functions, timeout_s=15.0):
    loads = partial(ScorerGroup, size, lambda precision: Models(), precision="float32", timeout_s=timeout_s)
    return loads(functions=list(functions.values()))


@pytest.fixture(scope="module")
def two(cluster, functions):
    with started(2, functions) as found:
        yield found


@pytest.fixture(scope="module")
def one(cluster, functions):
    with started(1, functions) as found:
        yield found


def here(function, groups, timeout_s=60.0):
    return asyncio.run(score_all(function, groups, timeout_s=timeout_s))


@pytest.mark.parametrize("size", ["one", "two"])
@pytest.mark.parametrize("name", ["single", "single_async", "batch", "batch_async", "group", "group_async"])
def test_scores_are_those_of_one_process_in_order(size, name, functions, request):
    ask = request.getfixturevalue(size).reward(functions[name], 60.0)
    for sizes in [(3, 1, 5, 2), (4,), (1, 1, 1), ()]:
        groups = groups_of(*sizes)
        assert repr(ask(groups)) == repr(here(functions[name], groups)), sizes


def test_episodes_are_shared_evenly_whatever_their_group(two, functions):
    scores = [
        score.explanation for of_group in two.reward(functions["who"], 60.0)(groups_of(1, 8, 2)) for score in of_group
    ]
    first, second = pids(two)
    assert scores == [str(first)] * 6 + [str(second)] * 5


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_share_whose_process_is_lost_in_the_middle_is_scored_again_and_nothing_else(sign, two, functions, tmp_path):
    log, replaced, found = tmp_path / "log", two.replaced, []
    groups = groups_of(3, 3, log=str(log))
    thread = threading.Thread(target=lambda: found.append(two.reward(functions["slow"], 60.0)(groups)))
    places = [str(pid) for pid in pids(two)]
    thread.start()
    while not log.exists() or places[1] not in log.read_text().split():
        time.sleep(0.02)
    os.kill(int(places[1]), sign)
    thread.join(120)
    assert found == [here(functions["slow"], groups_of(3, 3, log=os.devnull))] and two.replaced == replaced + 1
    scored = [line.split() for line in log.read_text().splitlines()]
    said = [episode.completion for group in groups for episode in group.episodes]
    assert [text for pid, text in scored if pid == places[0]] == said[:3]
    assert [text for pid, text in scored if pid not in places] == said[3:]


def test_what_has_timed_out_is_kept_in_the_run_and_known_to_all_processes(two, functions, tmp_path):
    ask, groups = two.reward(functions["limited"], 60.0), groups_of(2, 3)  # completions of five lengths
    with TIME_LIMITS.kept_in(tmp_path):
        assert [score.value for of_group in ask(groups) for score in of_group] == [0.0] * 5
        assert len(TIME_LIMITS.known) == len((tmp_path / "timeouts.jsonl").read_text().splitlines()) == 5
        os.kill(pids(two)[0], signal.SIGKILL)
        backwards = [replace(group, episodes=group.episodes[::-1]) for group in groups[::-1]]
        assert [score.value for of_group in ask(backwards) for score in of_group] == [1.0] * 5


def test_a_process_that_its_function_ends_is_replaced(two, functions, tmp_path):
    log, replaced = tmp_path / "log", two.replaced
    groups = groups_of(*[1] * 12, log=str(log))
    found = two.reward(functions["ends_once"], 60.0)(groups)
    assert [score.value for (score,) in found] == list(range(12)) and two.replaced == replaced + 1


@pytest.mark.parametrize(("name", "timeout_s"), [("fails", 60.0), ("hangs", 2.0)])
def test_the_error_is_that_of_one_process(name, timeout_s, one, two, functions):
    groups = groups_of(*[1] * 12)
    with pytest.raises(RewardError) as ours:
        here(functions[name], groups, timeout_s)
    assert ("no 5" if name == "fails" else "did not finish within 2 s on task 'task-2'") in str(ours.value)
    for group in (one, two):
        with pytest.raises(RewardError) as theirs:
            group.reward(functions[name], timeout_s)(groups)
        assert str(theirs.value) == str(ours.value)
        assert group.reward(functions["single"], 60.0)(groups) == here(functions["single"], groups)


def test_a_function_that_cannot_be_loaded_is_an_error_before_anything_is_scored(functions, tmp_path):
    function = functions["single"]
    process = ScoringProcess(0, 1, 1)
    with pytest.raises(UserError, match=r"a scorer on \S+ cannot load a reward function: .*gone.py.*does not exist"):
        process.build(
            lambda precision: Models(), "float32", [replace(function.source, path=f"{tmp_path}/gone.py:single")]
        )
    with pytest.raises(UserError, match="is not what the run began with; restore it"):
        process.build(lambda precision: Models(), "float32", [replace(function.source, digest="other")])


def test_what_cannot_be_read_there_is_an_error_that_says_so(functions):
    process = ScoringProcess(0, 1, 1)
    process.build(lambda precision: Models(), "float32", [functions["single"].source])
    with pytest.raises(RewardError, match="reward 'single': episodes cannot be sent to a scorer, with the tasks'"):
        process.rewards(0, 60.0, b"cno.such.module\nName\n.", frozenset())


def test_who_waits_for_a_function_that_hangs_gets_an_error_when_all_is_stopped(cluster, functions, tmp_path):
    errors, log = [], tmp_path / "log"

    def ask(group, name):
        try:
            group.reward(functions[name], 1000.0)(groups_of(1, 1, 1, log=str(log)))
        except ProcessLost as error:
            errors.append(error)

    with started(1, functions, timeout_s=1000.0) as group:
        threads = [threading.Thread(target=ask, args=(group, name)) for name in ("hangs", "slow")]
        threads[0].start()
        while group._idle:
            time.sleep(0.02)
        threads[1].start()
        time.sleep(0.5)
    for thread in threads:
        thread.join(30)
    assert len(errors) == 2 and not log.exists()


REWARDS = """
import os
from pathlib import Path

def past_1(completion):
    print("scored by the function")
    return 2 * sum(letter.lower() in "abcdefghijklm" for letter in completion) / max(1, len(completion))

def ends(completion):
    file = Path(__file__).with_name("calls")
    file.write_text((file.read_text() if file.exists() else "") + ".")
    if len(file.read_text()) == 20:
        os._exit(3)
    return past_1(completion)

def most(group, completions):
    return [float(len(said) == max(map(len, completions))) for said in completions]
"""


def rewarded(folder, **more):  # noqa: F811
    file = folder / "rewards.py"
    file.write_text(REWARDS)
    (folder / "held.jsonl").write_text("".join(json.dumps({"prompt": f"{w}?", "answer": w}) + "\n" for w in ("a", "b")))
    common = {"reward": f"{file}:past_1", "gold": f"{file}:most", "steps": 2, "save_every": 1}
    common |= {"eval_dataset": str(folder / "held.jsonl"), "eval_every": 1, "eval_samples": 2}
    return partial(rl.run, RL(**options(folder, **(common | more))), algorithms.get("grpo")())


def test_a_run_with_a_scorer_is_that_of_one_process(folder, tmp_path, shared_processes):  # noqa: F811
    job = rewarded(folder)
    ours = job(output=tmp_path / "here", quiet=True).run
    theirs = job(AsyncOptions(trainers=1, samplers=1, scorers=1), output=tmp_path / "there", quiet=True).run
    assert curve(theirs) == curve(ours) and same(theirs, ours) and read_run(theirs).samples == read_run(ours).samples
    states = [checkpoint.latest(run / "checkpoints").state["unbounded"] for run in (ours, theirs)]
    assert states[0] == states[1] and states[0]["past_1"] > 1
    assert curve(ours)[0]["evaluation/gold"] > 0
    assert "scored by the function" in (theirs / "logs/scorer-0.log").read_text()
    assert all(0 < row["cluster/busy/scorer0"] <= 1 for row in read_run(theirs).metrics[1:])
    assert {span.work for span in read_run(theirs).timeline if span.process == "scorer 0"} == {"scoring"}


def test_after_losses_in_a_row_a_run_goes_on_from_its_last_checkpoint(folder, tmp_path, shared_processes, monkeypatch):  # noqa: F811
    monkeypatch.setattr(scorers, "LOSSES", 0)
    more = {"eval_dataset": "", "eval_every": 0, "gold": ""}
    ours = rewarded(folder, **more)(output=tmp_path / "here", quiet=True).run
    job = rewarded(folder, reward=f"{folder / 'rewards.py'}:ends", **more)
    theirs = job(AsyncOptions(trainers=1, samplers=1, scorers=1), output=tmp_path / "there", quiet=True).run
    assert [row["reward/mean"] for row in curve(theirs)] == [row["reward/mean"] for row in curve(ours)]
    assert same(theirs, ours) and len((folder / "calls").read_text()) == 16 + 4 + 16


def test_groups_are_scored_by_scorers_while_others_are_sampled(folder, tmp_path, shared_processes, monkeypatch):  # noqa: F811
    monkeypatch.setattr("posttrain.distributed.pool.GAP_S", 0.0)  # each share is a span
    more = {"eval_dataset": "", "eval_every": 0, "gold": ""}
    job = rewarded(folder, schedule="pipelined", reward=f"{folder / 'rewards.py'}:most", **more)
    ours = job(output=tmp_path / "here", quiet=True).run
    theirs = job(AsyncOptions(trainers=1, samplers=1, scorers=2), output=tmp_path / "there", quiet=True).run
    first = [read_run(run).metrics[0] for run in (ours, theirs)]
    assert first[0]["reward/mean"] == first[1]["reward/mean"] > 0 and len(read_run(theirs).metrics) == 2
    assert len([span for span in read_run(theirs).timeline if span.process.startswith("scorer")]) == 8
