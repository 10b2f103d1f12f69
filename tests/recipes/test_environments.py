"""Environments of several turns through the command line: what is learned, kept, resumed, lost, and refused."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from posttrain.cli import main
from posttrain.runs import read_run
from tests.recipes.folders import model_folder

GAME = '''
"""Two questions or more; early letters pay."""

import asyncio, os, signal, time
from pathlib import Path

from posttrain.environments import Environment
from posttrain.types import Message, Outcome, Task

plays = []


class Letters(Environment):
    max_turns = 4

    def __init__(self, count: int = 6, turns: int = 2, fails: str = "", after: int = 10**6, hangs: bool = False):
        self.count, self.turns, self.fails, self.after, self.hangs = count, turns, fails.split(","), after, hangs

    def tasks(self, split, seed):
        return [Task((Message("user", f"{split} {n}?"),), id=f"{split}-{n}") for n in range(self.count)]

    def demonstrations(self, seed):
        said = lambda n: (Message("user", f"{n}?"), Message("assistant", "ab"), Message("user", "More."))
        return [(*said(n), Message("assistant", "cd")) for n in range(self.count)]

    async def play(self, task, seats, seed):
        plays.append(task.id)
        if Path("kill").exists() and len(plays) == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        new, said = task.prompt, ""
        for turn in range(self.turns):
            reply = await seats["policy"].turn(new)
            said += reply.text
            new = [Message("user", f"More {turn}.")]
            if self.hangs:
                Path(__file__).with_name("hanging").touch()
                time.sleep(30)
        if task.id in self.fails or len(plays) > self.after:
            raise {}[task.id]
        early = sum(letter in "abcdefghijklm" for letter in said) / max(1, len(said))
        return Outcome({"policy": early}, solved=early > 0.5, metrics={"letters": len(said)})


class Other:
    pass
'''
SIZE = ["--prompts-per-step", "4", "--completions-per-prompt", "3", "--max-new-tokens", "6"]
QUICK = ["--lr", "1e-2", "--warmup-steps", "0", "--precision", "float32", "--save-every", "1", "--quiet"]
TIMED = ("seconds/", "tokens_per_second", "memory_gb")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(model_folder(tmp_path_factory.mktemp("environments") / "model"))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("game.py").write_text(GAME)
    return tmp_path


@pytest.fixture
def posttrain(capsys):
    """Exit code and standard error of one command."""

    def run(*words):
        capsys.readouterr()
        code = main([*map(str, words)])
        return code, capsys.readouterr().err

    return run


@pytest.fixture
def rl(model):
    return ["rl", "--environment", "game.py:Letters", "--model", model, *SIZE, *QUICK]


def rows(run="run"):
    return [{k: v for k, v in row.items() if not k.startswith(TIMED)} for row in read_run(Path(run)).metrics]


def samples(run="run"):
    return [json.loads(line) for line in Path(run, "samples.jsonl").read_text().splitlines()]


def test_a_run_learns_turns_and_says_what_they_were(posttrain, rl):
    assert posttrain(*rl, "--steps", "8", "--eval-every", "8", "--eval-samples", "2", "--output", "run")[0] == 0
    found = rows()
    trained = [row for row in found if "turns" in row]
    assert len(trained) == 8 and all(row["turns"] == 2 and row["environment/letters"] > 2 for row in trained)
    assert trained[-1]["reward/mean"] > trained[0]["reward/mean"] + 0.1
    assert all(row["reward/mean"] == row["reward/environment"] for row in trained)
    assert all(0 <= row["accuracy"] <= 1 and row["tokens"] <= 12 * 12 for row in trained)
    held = [row for row in found if "evaluation/reward" in row]
    assert [row["evaluation/turns"] for row in held] == [2, 2] and "evaluation/environment/letters" in held[0]
    assert held[-1]["evaluation/reward"] > held[0]["evaluation/reward"]
    heldout = [json.loads(line) for line in Path("run/heldout.jsonl").read_text().splitlines()]
    for sample in (*samples(), *heldout):
        assert re.fullmatch(r"user: (train|heldout) \d\?", sample["prompt"]), sample["prompt"]
        assert re.fullmatch(r"assistant: .*\nuser: More 0\.\nassistant: .*", sample["completion"], re.DOTALL)
    assert {sample["prompt"].split()[1] for sample in samples()} == {"train"}
    assert {sample["prompt"].split()[1] for sample in heldout} == {"heldout"}
    assert not any("episodes/lost" in row for row in found)


def test_a_run_that_is_resumed_equals_one_that_was_not_stopped(posttrain, rl):
    assert posttrain(*rl, "--steps", "4", "--output", "whole")[0] == 0
    assert posttrain(*rl, "--steps", "2", "--output", "part")[0] == 0
    assert posttrain("rl", "--resume", "part", "--steps", "4", "--quiet")[0] == 0
    assert rows("whole") == rows("part") and len(rows("part")) == 4
    assert samples("whole") == samples("part")
    last = [sorted(Path(run, "checkpoints").glob("step-*"))[-1] / "masters.safetensors" for run in ("whole", "part")]
    assert last[0].read_bytes() == last[1].read_bytes()


@pytest.mark.slow
def test_a_run_that_was_killed_in_an_episode_goes_on_as_if_it_had_not_been(rl):
    def apart(*words):  # all on the same number of threads, on which rounding depends
        command = [sys.executable, "-m", "posttrain", *words]
        return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode

    assert apart(*rl, "--steps", "3", "--output", "whole") == 0
    Path("kill").touch()
    assert apart(*rl, "--steps", "3", "--output", "part") == -signal.SIGKILL
    Path("kill").unlink()
    assert len(rows("part")) == 1
    assert apart("rl", "--resume", "part", "--quiet") == 0
    assert rows("whole") == rows("part") and samples("whole") == samples("part")


def test_a_run_reads_its_environment_from_itself_and_refuses_another_one(posttrain, rl, here, monkeypatch):
    assert posttrain(*rl, "--steps", "1", "--output", "run")[0] == 0
    Path("elsewhere").mkdir()
    shutil.move("run", "elsewhere/moved")
    changed = GAME.replace('f"More {turn}."', 'f"Again {turn}."')
    Path("game.py").write_text(changed)
    code, err = posttrain("rl", "--resume", "elsewhere/moved", "--steps", "2", "--quiet")
    assert code == 2 and err.count("\n") == 1
    assert "what --environment reads changed since the run started" in err and "--accept-changes environment" in err
    more = ["--resume", "elsewhere/moved", "--accept-changes", "environment", "--quiet"]
    assert posttrain("rl", *more, "--steps", "2")[0] == 0
    assert read_run(Path("elsewhere/moved")).environment["resumed"][-1]["accepted"] == ["environment"]
    assert "More 0." in samples("elsewhere/moved")[0]["completion"]
    assert "Again 0." in samples("elsewhere/moved")[-1]["completion"]
    Path("game.py").unlink()  # a copy of what it read last is in the run
    monkeypatch.chdir("elsewhere")
    assert posttrain("rl", "--resume", "moved", "--steps", "3", "--quiet")[0] == 0
    assert "Again 0." in samples("moved")[-1]["completion"]
    copies = [path.read_text() for path in Path("moved/inputs/environment").glob("*/game.py")]
    assert sorted(copies) == sorted([GAME, changed])


@pytest.mark.parametrize("command", ["rl", "online-preference"])
def test_episodes_that_fail_are_counted_and_the_run_goes_on(posttrain, rl, command):
    words = [command, *rl[1:], "--rounds" if command == "online-preference" else "--steps", "2"]
    options = ["--environment-args", "fails=train-1,heldout-0", "--max-lost", "0.5", "--eval-every", "2"]
    assert posttrain(*words, *options, "--output", "run")[0] == 0
    found = rows()
    lost = [row["episodes/lost/KeyError"] for row in found if "episodes/lost" in row]
    assert lost and all(each in (3, 6) for each in lost)  # whole groups: the task fails for all its completions
    assert [row["evaluation/episodes/lost"] for row in found if "evaluation/turns" in row] == [4, 4]
    assert not any("train 1?" in sample["prompt"] for sample in samples())


def test_too_many_failures_stop_a_run_with_a_checkpoint_and_one_line(posttrain, rl):
    options = ["--steps", "4", "--environment-args", "after=24", "--output", "run"]
    code, err = posttrain(*rl, *options)
    assert code == 1 and err.count("\n") == 1
    assert "12 of 12 episodes failed (12 KeyError), more than --max-lost 0.1; the first: KeyError: 'train-" in err
    assert "step 2 is saved in run" in err and len(rows()) == 2


def test_ctrl_c_ends_a_run_whose_environment_hangs(posttrain, rl):
    sent = []

    def interrupt():
        while not Path("hanging").exists():
            time.sleep(0.01)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    code, err = posttrain(*rl, "--steps", "2", "--environment-args", "hangs=true", "--output", "run")
    assert time.monotonic() - sent[0] < 8 and code == 130 and "stopped by SIGINT after step 0" in err


def test_evaluate_plays_held_out_tasks(posttrain, model):
    names = ["--environment", "game.py:Letters", "--environment-args", "count=3 turns=3", "--model", model]
    code, _ = posttrain("evaluate", *names, "--samples", "2", "--max-new-tokens", "6", "--quiet", "--output", "run")
    assert code == 0 and len(samples()) == 6
    assert {sample["task"] for sample in samples()} == {f"heldout-{n}" for n in range(3)}
    for sample in samples():
        assert sample["completion"].count("assistant: ") == 3 and "user: More 1." in sample["completion"]
        assert set(sample["rewards"]) == {"environment", "solved"}


def test_the_best_of_n_is_written_as_a_whole_conversation(posttrain, model):
    names = ["--environment", "game.py:Letters", "--environment-args", "count=4", "--model", model]
    size = ["--completions-per-prompt", "6", "--max-new-tokens", "50", "--precision", "float32", "--quiet"]
    assert posttrain("best-of-n", *names, *size, "--output", "best.jsonl")[0] == 0
    written = [json.loads(line) for line in Path("best.jsonl").read_text().splitlines()]
    assert written
    for row in written:
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"] * 2
        assert row["messages"][2]["content"] == "More 0." and row["id"].startswith("train-")
        said = row["messages"][1]["content"] + row["messages"][3]["content"]
        early = sum(letter in "abcdefghijklm" for letter in said) / max(1, len(said))
        assert row["reward"] == pytest.approx(early)
    learn = ["sft", "--dataset", "best.jsonl", "--model", model, "--steps", "1", "--examples-per-step", "1"]
    assert posttrain(*learn, *QUICK, "--output", "sft")[0] == 0


def test_demonstrations_of_an_environment_are_learned(posttrain, model):
    words = ["sft", "--environment", "game.py:Letters", "--model", model, "--steps", "30", "--examples-per-step", "2"]
    assert posttrain(*words, *QUICK, "--output", "run")[0] == 0
    losses = [row["loss"] for row in rows()]
    assert losses[-1] < losses[0] / 4
    play = ["--environment", "game.py:Letters", "--model", "run", "--greedy", "--max-new-tokens", "6", "--quiet"]
    assert posttrain("evaluate", *play, "--output", "played")[0] == 0
    assert any("assistant: ab\nuser: More 0.\nassistant: cd" in sample["completion"] for sample in samples("played"))


def test_an_evaluation_says_what_it_lost_and_stops_above_a_share(posttrain, model, capsys):
    play = ["evaluate", "--environment", "game.py:Letters", "--environment-args", "fails=heldout-1", "--model", model]
    play += ["--samples", "2", "--max-new-tokens", "6", "--quiet"]
    code, err = posttrain(*play)
    assert code == 1 and "2 of 12 episodes failed (2 KeyError), more than --max-lost 0.1" in err and "game.py:" in err
    assert main([*play, "--max-lost", "0.5", "--output", "run"]) == 0
    said = capsys.readouterr().out
    assert "Held-out tasks: game.py:Letters" in said
    assert "note: 2 of 12 episodes failed (2 KeyError) and are in no denominator" in said
    (row,) = read_run(Path("run")).metrics
    assert (row["episodes/lost"], row["episodes/lost/KeyError"]) == (2, 2)
    code, err = posttrain(*play, "--environment-args", "after=-1", "--max-lost", "1")
    assert code == 1 and "episodes failed" in err and "no task has enough of them left" in err
    assert "--max-lost must be 0 to 1" in posttrain(*play, "--max-lost", "2")[1]


def test_demonstrations_that_are_no_messages_are_refused(posttrain, model):
    Path("wrong.py").write_text(
        "from game import Letters\n\nclass Wrong(Letters):\n    def demonstrations(self, seed):\n"
        "        return [[{'role': 'user', 'content': 'a'}]]\n"
    )
    code, err = posttrain("sft", "--environment", "wrong.py:Wrong", "--model", model, "--quiet")
    assert code == 2 and "posttrain: Wrong.demonstrations returned conversations with a dict; expected" in err


@pytest.mark.parametrize("command", ["rl", "online-preference", "evaluate", "best-of-n", "sft"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--environment", "gme.py:Letters"], "gme.py"),
        (["--environment", "game.py:Leters"], "did you mean 'Letters'"),
        (["--environment", "game.py:Other"], "is no subclass of posttrain.environments.Environment"),
        (["--environment", "letters"], "unknown environment 'letters'"),
        (
            ["--environment", "game.py:Letters", "--environment-args", "cuont=3"],
            "unknown argument of the environment 'game.py:Letters': 'cuont'; did you mean 'count'?",
        ),
        (
            ["--environment", "game.py:Letters", "--environment-args", "count=many"],
            "argument count of the environment 'game.py:Letters' is 'many'; expected a whole number",
        ),
        (["--environment", "game.py:Letters", "--environment-args", "hangs=1"], "expected true or false"),
        (["--environment", "game.py:Letters", "--environment-args", "count"], "expected KEY=VALUE"),
        (["--environment", "game.py:Letters", "--environment-args", "fails='a"], "cannot read the arguments"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(posttrain, model, command, words, said):
    code, err = posttrain(command, *words, "--model", model, "--output", "run.jsonl")
    assert code == 2 and err.count("\n") == 1 and said in err, err
    assert not Path("run.jsonl").exists()


def test_arguments_without_an_environment_are_refused(posttrain, model):
    code, err = posttrain("rl", "--dataset", "gym:chain_sum", "--environment-args", "a=1", "--model", model)
    assert code == 2 and "--environment-args needs --environment; pass it too" in err


def test_an_environment_without_tasks_or_demonstrations_says_what_to_name(posttrain, model):
    for command, wanted in (("rl", "--dataset"), ("evaluate", "--dataset"), ("sft", "--dataset")):
        words = ["--environment", "game.py:Letters", "--environment-args", "count=0", "--model", model]
        code, err = posttrain(command, *words, "--output", "run")
        assert code == 2 and err.count("\n") == 1 and "of its own" in err and wanted in err, err


@pytest.mark.parametrize("command", ["rl", "evaluate"])
@pytest.mark.parametrize(
    "words", [("--system", "Win."), ("--prompt-template", "{prompt}!"), ("--columns", "prompt=question")]
)
def test_what_shapes_prompts_of_a_data_set_is_refused_with_the_tasks_of_an_environment(
    posttrain, model, command, words
):
    code, err = posttrain(command, "--environment", "game.py:Letters", *words, "--model", model, "--output", "run")
    assert code == 2 and f"{words[0]} is for tasks of --dataset" in err and err.count("\n") == 1, err
