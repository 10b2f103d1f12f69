"""Judges through the command line, against a server that fails in every way that servers fail in."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from posttrain.cli import main
from posttrain.data.digests import model_digest
from posttrain.engine import openai_chat
from posttrain.engine.transformers import TransformersDecoding
from posttrain.runs import read_run
from tests.fake_openai import Fault, error, fake_openai

pytest.importorskip("openai")

SIZE = ["--prompts-per-step", "2", "--completions-per-prompt", "2", "--max-new-tokens", "8", "--precision", "float32"]
SECRET = "sk-secret-of-kind"


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(openai_chat, "PAUSE_S", 0.001)
    monkeypatch.setattr(openai_chat, "ATTEMPTS", 3)
    monkeypatch.setenv("KIND_API_KEY", SECRET)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server():
    with fake_openai(key=SECRET) as server:
        yield server


@pytest.fixture
def posttrain(capsys):
    """Exit code, standard output and standard error of one command."""

    def run(*words):
        capsys.readouterr()
        code = main([*map(str, words)])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def rl(folder, server):
    """A run of two steps, of four completions each."""
    names = ["--dataset", folder / "tasks.jsonl", "--model", folder / "model", "--judge", f"kind={server.url}"]
    return ["rl", *names, *SIZE, "--lr", "1e-2", "--warmup-steps", "0", "--steps", "2", "--save-every", "1", "--quiet"]


def rewards(run="run") -> list[dict[str, float]]:
    rows = read_run(Path(run)).metrics
    return [{key: value for key, value in row.items() if key.startswith("reward/")} for row in rows]


def questions(server) -> list[str]:
    return [body["messages"][0]["content"] for body in server.asked]


def asked_twice(server) -> bool:
    """Whether a question, with its seed, was asked twice."""
    asked = [json.dumps(body, sort_keys=True) for body in server.asked]
    return len(set(asked)) < len(asked)


def test_a_run_learns_from_a_judge(posttrain, rl, server):
    assert posttrain(*rl, "--output", "run")[0] == 0
    found = rewards()
    assert len(found) == 2 and all(
        0 <= row["reward/kind"] <= 1 and row["reward/kind"] == row["reward/mean"] for row in found
    )
    assert not any("accuracy" in row for row in read_run(Path("run")).metrics)  # 1 is not what solved means
    assert len(server.asked) <= 8 and not asked_twice(server)
    assert all(body["max_tokens"] == 1024 and body["temperature"] == 0 for body in server.asked)
    assert all(re.search(r"\[[0-9a-f]{16} answer\]", question) for question in questions(server))


def test_transient_failures_change_no_score(posttrain, rl, server):
    posttrain(*rl, "--output", "run")
    server.faults.extend([error(500), error(429, headers={"retry-after": "0.1"}), Fault(body=b"<html>"), error(503)])
    assert posttrain(*rl, "--output", "other")[0] == 0
    assert rewards("other") == rewards("run")


def test_a_server_that_goes_down_stops_the_run_and_a_resumed_one_asks_nothing_twice(posttrain, rl, server):
    posttrain(*rl, "--output", "whole")
    server.asked.clear()
    server.fault = lambda body: error(500) if len(server.asked) > 5 else None
    rl = [*rl, "--judge-concurrency", "1"]
    code, out, err = posttrain(*rl, "--output", "run")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"posttrain: kind gave no reply in 3 attempts at {server.address}; the last one: HTTP 500")
    assert err.endswith("; step 1 is saved in run, --resume continues from there\n")
    answered = len(server.asked) - 3
    server.fault = lambda body: None
    assert posttrain("rl", "--resume", "run", "--quiet")[0] == 0
    assert rewards("run") == rewards("whole")
    failed = json.dumps(server.asked[answered], sort_keys=True)
    asked = [json.dumps(body, sort_keys=True) for body in server.asked]
    assert all(asked.count(one) == (4 if one == failed else 1) for one in asked)


def test_a_server_that_is_gone_and_comes_back_at_another_port(posttrain, rl, server):
    posttrain(*rl, "--steps", "1", "--output", "run")
    first = len(server.asked)
    server.stop()
    code, _, err = posttrain("rl", "--resume", "run", "--steps", "2", "--quiet")
    assert code == 1 and "the last one: no connection" in err and "step 1 is saved in run" in err
    server.port = 0
    server.start()
    moved = ["--judge", f"kind={server.url}"]
    assert posttrain("rl", "--resume", "run", "--steps", "2", "--quiet", *moved)[0] == 0
    assert len(rewards()) == 2 and len(server.asked) <= first + 4 and not asked_twice(server)
    other = ["--judge", f"kind={server.address}#another"]
    code, _, err = posttrain("rl", "--resume", "run", "--steps", "3", "--quiet", *other)
    assert code == 2 and "what --judge read changed" in err.replace("reads", "read")


def test_a_hanging_server_is_given_up(posttrain, rl, server, monkeypatch):
    monkeypatch.setattr(openai_chat, "TIMEOUT_S", 0.2)
    server.fault = lambda body: Fault(hang_s=5)
    code, _, err = posttrain(*rl, "--output", "run")
    assert code == 1 and "the last one: no reply within 0.2 s" in err


def test_a_wrong_key_is_an_error_at_once_and_stands_nowhere(posttrain, rl, server, tmp_path, monkeypatch):
    monkeypatch.setenv("KIND_API_KEY", "sk-wrong-and-secret")
    code, out, err = posttrain(*rl, "--output", "run", "--debug")
    assert code == 2 and "refused: HTTP 401: " in err and "put the key in the variable KIND_API_KEY" in err
    assert len(server.asked) <= 4
    monkeypatch.setenv("KIND_API_KEY", SECRET)
    posttrain(*rl, "--output", "right")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "judge-cache.jsonl" for path in files)
    for secret in (SECRET, "sk-wrong-and-secret"):
        assert secret not in out + err
        assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_a_model_that_is_not_there_is_an_error_at_once(posttrain, rl, server):
    rl[rl.index("--judge") + 1] = f"kind={server.address}#other"
    code, _, err = posttrain(*rl, "--output", "run")
    assert code == 2 and "The model 'other' does not exist." in err and "is there a model 'other'" in err


def test_a_budget_stops_the_run_and_a_larger_one_goes_on(posttrain, rl, server):
    posttrain(*rl, "--output", "whole")
    needed = len(server.asked)
    server.asked.clear()
    code, _, err = posttrain(*rl, "--judge-budget", "5", "--output", "run")
    assert (code, len(server.asked), err.count("\n")) == (1, 5, 1)
    assert "the budget of judges, 5 requests, is used up; their replies are cached: raise --judge-budget" in err
    assert "step 1 is saved in run" in err
    assert posttrain("rl", "--resume", "run", "--quiet")[0] == 1 and len(server.asked) == 5
    assert posttrain("rl", "--resume", "run", "--judge-budget", "0", "--quiet")[0] == 0
    assert rewards() == rewards("whole") and len(server.asked) == needed and not asked_twice(server)


def test_a_run_that_is_done_again_from_a_cache_asks_nothing(posttrain, rl, server):
    posttrain(*rl, "--judge-cache", "mine.jsonl", "--output", "run")
    asked = len(server.asked)
    posttrain(*rl, "--judge-cache", "mine.jsonl", "--output", "again")
    assert len(server.asked) == asked and rewards("again") == rewards()
    assert not Path("run/judge-cache.jsonl").exists()
    with Path("mine.jsonl").open("r+b") as file:
        file.truncate(Path("mine.jsonl").stat().st_size - 5)
    posttrain(*rl, "--judge-cache", "mine.jsonl", "--output", "torn")
    assert len(server.asked) == asked + 1 and rewards("torn") == rewards()


def test_a_judge_without_a_score_is_asked_again_and_then_left_out(posttrain, rl, server):
    server.answer = lambda body: "Hm." if body["temperature"] == 0 else "Score: 3"
    assert posttrain(*rl, "--output", "run")[0] == 0
    assert {row["reward/kind"] for row in rewards()} == {0.3}
    server.answer = lambda body: "Score: nan"
    code, _, err = posttrain(*rl, "--output", "none")
    assert code == 1 and "each of the first 2 prompts has a completion to which no reward ('kind') applies" in err
    assert "('kind': none of 3 verdicts ends with a line 'Score: N'; the last one ends 'Score: nan')" in err
    assert posttrain(*rl, "--reward", "length", "--output", "both")[0] == 0
    assert {row["not_applicable/kind"] for row in read_run(Path("both")).metrics} == {1.0}


def test_a_judge_is_weighed_named_and_prompted(posttrain, rl, server):
    Path("short.txt").write_text("Rate:{answer}|{question}|{scale 0 to 100}")
    server.answer = lambda body: "Score: 50"
    options = ["--reward", "length=2 kind=0.5", "--judge-prompt", "kind=short.txt", "--judge-temperature", "0.7"]
    assert posttrain(*rl, *options, "--judge-max-new-tokens", "7", "--output", "run")[0] == 0
    assert {row["reward/kind"] for row in rewards()} == {0.5} and {row["reward/mean"] for row in rewards()} == {0.25}
    assert all(re.fullmatch(r"(?s)Rate:.*\|\d\?\|0 to 100", question) for question in questions(server))
    assert {(body["temperature"], body["max_tokens"]) for body in server.asked} == {(0.7, 7)}


def test_a_changed_prompt_is_noticed_and_the_runs_own_copy_is_found(posttrain, rl, server):
    Path("p.txt").write_text("{answer} {scale 0 to 10}")
    assert posttrain(*rl, "--judge-prompt", "p.txt", "--output", "run")[0] == 0
    Path("p.txt").write_text("{answer}? {scale 0 to 10}")
    code, _, err = posttrain("rl", "--resume", "run", "--steps", "3", "--quiet")
    assert code == 2 and "what --judge-prompt reads changed" in err and "--accept-changes judge_prompt" in err
    Path("p.txt").unlink()
    assert posttrain("rl", "--resume", "run", "--steps", "3", "--quiet")[0] == 0
    assert all(question.endswith(" 0 to 10") and not question.endswith("? 0 to 10") for question in questions(server))


def test_a_judge_as_gold_is_asked_in_evaluations_alone(posttrain, rl, folder, server):
    options = [
        "--reward",
        f"{folder / 'scorer.py'}:score",
        "--gold",
        "kind",
        "--eval-every",
        "2",
        "--eval-samples",
        "1",
    ]
    options += ["--eval-dataset", Path("held.jsonl")]
    Path("held.jsonl").write_text('{"prompt": "a?", "answer": ""}\n')
    assert posttrain(*rl, *options, "--output", "run")[0] == 0
    assert len(server.asked) <= 2 and "evaluation/gold" in read_run(Path("run")).metrics[-1]


ASKS = """
from posttrain.types import Message, Sampling

async def court(completion, task, reward_context):
    seed = reward_context.seed_for(task.id, completion)
    judge = reward_context.judge("kind")
    reply = await judge.chat([Message("user", completion)], sampling=Sampling(5, 0.0), seed=seed)
    return len(reply.text) % 7 / 7
"""


def test_a_function_asks_a_judge(posttrain, rl, server):
    Path("mine.py").write_text(ASKS)
    rl.remove("--quiet")
    code, _, err = posttrain(*rl, "--reward", "mine.py:court", "--output", "run")
    assert code == 0 and "judge 'kind' is no reward of its own: 'court' may ask it" in err
    assert rewards()[0].keys() == {"reward/mean", "reward/std", "reward/court", "reward/length_correlation"} - {
        key for key in ("reward/length_correlation",) if key not in rewards()[0]
    }
    assert {body["max_tokens"] for body in server.asked} == {5} and not asked_twice(server)


def test_preference_evaluate_best_of_n_and_score_take_judges(posttrain, folder, server):
    names = ["--dataset", folder / "tasks.jsonl", "--model", folder / "model", "--judge", f"kind={server.url}"]
    more = ["--rounds", "1", "--warmup-steps", "0", "--quiet"]
    assert posttrain("online-preference", *names, *SIZE, *more, "--output", "pairs")[0] == 0
    assert 0 <= rewards("pairs")[0]["reward/kind"] <= 1 and Path("pairs/judge-cache.jsonl").is_file()
    answers = ["--greedy", "--split", "train", "--max-new-tokens", "4", "--precision", "float32", "--quiet", "--json"]
    code, out, _ = posttrain("evaluate", *names, *answers, "--output", "evaluated")
    assert code == 0 and "reward" in json.loads(out.splitlines()[-1]) and Path("evaluated/judge-cache.jsonl").is_file()
    best = ["--completions-per-prompt", "2", "--max-new-tokens", "60", "--precision", "float32", "--quiet"]
    code, out, err = posttrain("best-of-n", *names, *best, "--output", "best.jsonl")
    assert "what the best of n earns" in out and not Path("best.jsonl.judge-cache.jsonl").exists(), err
    rows = [{"prompt": "a?", "completion": "b" * n} for n in range(1, 4)]
    Path("said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judge = ["--judge", f"kind={server.url}", "--json", "--quiet"]
    code, out, _ = posttrain("score", "--dataset", "said.jsonl", *judge, "--output", "scored.jsonl")
    found = json.loads(out.splitlines()[-1])
    assert code == 0 and len({row["scores"]["kind"] for row in found["rows"]}) == 3
    assert not Path("scored.jsonl.judge-cache.jsonl").exists()
    assert json.loads(Path("scored.jsonl").read_text().splitlines()[0])["explanation"]["kind"].startswith("Fine.")


def test_a_score_that_was_interrupted_asks_nothing_twice(posttrain, server):
    rows = [{"prompt": "a?", "completion": "b" * n} for n in range(1, 100)]
    Path("said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        "score",
        "--dataset",
        "said.jsonl",
        "--judge",
        f"kind={server.url}",
        "--output",
        "scored.jsonl",
        "--quiet",
    ]
    assert posttrain(*command, "--judge-budget", "80")[0] == 1 and len(server.asked) == 80
    assert posttrain(*command)[0] == 0 and len(server.asked) == 99 and not asked_twice(server)


@pytest.fixture
def interrupt_when():
    """Sends Ctrl-C once something is true; the list has when that was."""
    sent: list[float] = []

    def start(ready):
        def wait():
            while not ready():
                time.sleep(0.01)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=wait, daemon=True).start()
        return sent

    return start


def test_ctrl_c_ends_a_wait_for_a_server_at_once(posttrain, rl, server, interrupt_when):
    server.fault = lambda body: Fault(hang_s=120)
    sent = interrupt_when(lambda: server.asked)
    code, _, err = posttrain(*rl, "--output", "run")
    assert time.monotonic() - sent[0] < 60
    assert code == 130 and "stopped by SIGINT after step 0" in err
    asked = len(server.asked)
    time.sleep(0.2)
    assert len(server.asked) == asked


def test_ctrl_c_ends_the_verdicts_of_a_local_model_at_once(posttrain, rl, folder, monkeypatch, interrupt_when):
    steps, decode = [], TransformersDecoding._decode

    def slow(self):
        steps.append(threading.current_thread() is threading.main_thread())
        time.sleep(0.05)
        return decode(self)

    monkeypatch.setattr(TransformersDecoding, "_decode", slow)
    Path("p.txt").write_text("{answer}{scale 0 to 9}")
    rl[rl.index("--judge") + 1] = f"kind={folder / 'model'}"
    options = ["--reward", f"{folder / 'scorer.py'}:score", "--judge-prompt", "p.txt", "--judge-max-new-tokens", "200"]
    sent = interrupt_when(lambda: False in steps)  # ten seconds of the judge's thread begin
    code, _, err = posttrain(*rl, *options, "--output", "run")
    assert time.monotonic() - sent[0] < 5
    assert code == 130 and "stopped by SIGINT after step 0" in err
    time.sleep(0.3)
    done = len(steps)
    time.sleep(0.3)
    assert len(steps) == done  # nothing is sampled for nobody


def test_a_local_model_judges(posttrain, rl, folder):
    """A model of random weights writes no score: the reward applies to nothing, and costs the run nothing."""
    Path("p.txt").write_text("{answer}{scale 0 to 9}")
    rl[rl.index("--judge") + 1] = f"kind={folder / 'model'}"
    options = ["--reward", f"{folder / 'scorer.py'}:score", "--judge-prompt", "p.txt", "--judge-max-new-tokens", "4"]
    assert posttrain(*rl, *options, "--output", "run")[0] == 0
    assert len(rewards()) == 2 and not Path("run/judge-cache.jsonl").exists()
    kept = json.loads(Path("run/environment.json").read_text())
    assert kept["inputs"]["judge"] == f"kind=sha256:{model_digest(folder / 'model')}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--judge", "http://x/v1#m"], "a judge is NAME=MODEL, NAME=URL#MODEL or NAME=policy"),
        (["--judge", "numbers=http://x/v1#m"], "a judge cannot be called 'numbers'"),
        (["--judge-prompt", "nowhere.txt"], "cannot read the judge's prompt nowhere.txt: No such file"),
        (["--judge-prompt", "reference"], "row 1 (tasks.jsonl:1): "),
        (["--judge", "", "--judge-budget", "3"], "--judge-budget needs a judge"),
        (["--judge-concurrency", "0"], "must be 1 or more"),
    ],
)
def test_mistakes_are_said_before_anything_is_asked_or_written(posttrain, rl, server, folder, words, message):
    Path("tasks.jsonl").write_text('{"prompt": "a?"}\n')
    code, _, err = posttrain(*rl, "--dataset", "tasks.jsonl", "--reward", "length", *words, "--output", "run")
    assert code == 2 and message in err and err.count("\n") == 1
    assert not server.asked and not Path("run").exists()


ASKS_ITSELF = """
from posttrain.types import Message, Sampling

async def own(prompt, completion, reward_context):
    asked = [Message("user", f"How good is {completion}?")]
    seed = reward_context.seed_for(prompt, completion)
    reply = await reward_context.policy.chat(asked, sampling=Sampling(8), seed=seed)
    return sum(map(ord, reply.text)) % 101 / 100
"""


def test_the_policy_judges_itself_and_a_resumed_run_asks_it_the_same(posttrain, folder):
    Path("mine.py").write_text(ASKS_ITSELF)
    names = ["--dataset", folder / "tasks.jsonl", "--model", folder / "model", "--reward", "mine.py:own"]
    rl = ["rl", *names, *SIZE, "--lr", "1e-2", "--warmup-steps", "0", "--steps", "3", "--save-every", "1", "--quiet"]
    assert posttrain(*rl, "--output", "whole")[0] == 0
    assert posttrain(*rl, "--steps", "1", "--output", "run")[0] == 0
    assert posttrain("rl", "--resume", "run", "--steps", "3", "--quiet")[0] == 0
    assert len(rewards()) == 3 and rewards() == rewards("whole")
    assert len({row["reward/own"] for row in rewards()}) > 1


@pytest.mark.parametrize("command", ["score", "evaluate"])
def test_commands_without_a_policy_that_is_trained_refuse_it_as_a_judge(posttrain, folder, command):
    names = ["--dataset", folder / "tasks.jsonl"] + (["--model", folder / "model"] if command == "evaluate" else [])
    code, _, err = posttrain(command, *names, "--judge", "mine=policy")
    assert code == 2 and f"posttrain {command} has no policy to ask" in err
