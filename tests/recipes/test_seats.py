"""Seats that other models take: frozen, behind an address, or a person; the policy trains its own seats alone."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from posttrain import algorithms
from posttrain.bindings.cluster_options import AsyncOptions
from posttrain.engine.chat_models import PastPolicy
from posttrain.errors import EpisodeError, UserError
from posttrain.recipes import evaluate, generate, rl
from posttrain.recipes.evaluate import Evaluate
from posttrain.recipes.generate import Generate
from posttrain.recipes.rl import RL
from posttrain.runs import read_run
from posttrain.runs.inputs import InputsChanged
from posttrain.training import checkpoint
from tests.fake_openai import fake_openai
from tests.recipes.folders import model_folder
from tests.recipes.test_self_play import DUEL, found_in

pytest.importorskip("openai")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model_folder(tmp_path / "model")
    model_folder(tmp_path / "opponent", seed=7)
    (tmp_path / "duel.py").write_text(DUEL)
    return tmp_path


OPTIONS = RL(
    environment="duel.py:Duel",
    model="model",
    prompts_per_step=2,
    completions_per_prompt=3,
    max_new_tokens=4,
    steps=3,
    save_every=1,
    lr=1e-2,
    precision="float32",
)
GRPO = algorithms.get("grpo")


def seats_in(run) -> set[str]:
    return {row["seat"] for row in read_run(run).samples}


def test_a_frozen_opponent_is_asked_and_only_the_policy_is_trained(here):
    alone = rl.run(OPTIONS, GRPO(), output=here / "alone", quiet=True).run
    against = rl.run(replace(OPTIONS, seats="second=opponent"), GRPO(), output=here / "against", quiet=True).run
    assert seats_in(alone) == {"first", "second"} and seats_in(against) == {""}  # one seat is trained
    first = read_run(against).metrics[0]
    assert "seats/second/reward" not in first and first["length/mean"] <= 4
    assert read_run(against).environment["judges"]["opponent"].endswith("opponent")


def test_a_run_against_an_address_is_resumed_equal_and_asks_nothing_twice(here):
    with fake_openai(answer=lambda body: "abc") as server:
        options = replace(OPTIONS, seats=f"second={server.url}")
        whole = rl.run(options, GRPO(), output=here / "whole", quiet=True).run
        assert {body["messages"][-1]["role"] for body in server.asked} == {"user"}
        rl.run(replace(options, steps=1), GRPO(), output=here / "part", quiet=True)
        asked = len(server.asked)
        part = rl.run(options, GRPO(), resume=here / "part", quiet=True).run
    assert asked < len(server.asked)
    (rows, state, weights), (others, other_state, other_weights) = found_in(whole), found_in(part)
    assert rows == others and state == other_state
    assert all(weights[name].equal(other_weights[name]) for name in weights)


def test_another_opponent_is_noticed_where_a_run_goes_on(here):
    options = replace(OPTIONS, seats="second=opponent", steps=1)
    run = rl.run(options, GRPO(), output=here / "run", quiet=True).run
    model_folder(here / "opponent", seed=8)
    with pytest.raises(InputsChanged, match="seats"):
        rl.run(replace(options, steps=2), GRPO(), resume=run, quiet=True)


@pytest.mark.parametrize(
    ("seats", "message"),
    [
        ("secnd=opponent", "unknown seat of Duel: 'secnd'; did you mean 'second'"),
        ("first=opponent second=opponent", "the policy must take a trained seat"),
        ("second", r"a seat is NAME=MODEL or NAME=URL#MODEL \(with generate NAME=human\); got 'second'"),
        ("second=a second=b", "the seat 'second' is given twice"),
        ("second=http://x/v1", "seat 'second' has a URL without a model"),
        ("second=duel.py", "cannot read the seat 'second' 'duel.py'; expected path/to/file.py:class"),
        ("second=duel.py:Dual", "unknown class of 'duel.py': 'Dual'; did you mean 'Duel'"),
        ("second=duel.py:Duel", "seat 'second': duel.py:Duel has no method async chat"),
    ],
)
def test_seats_that_are_none_are_refused_before_weights_are_read(here, monkeypatch, seats, message):
    for name in ("bindings.backend.trained_policy", "recipes.evaluate.load_policy", "recipes.generate.load_policy"):
        monkeypatch.setattr(f"posttrain.{name}", lambda *_, **__: pytest.fail("weights were loaded"))
    where = {"environment": "duel.py:Duel", "model": "model", "seats": seats}
    for run in (
        lambda: rl.run(replace(OPTIONS, seats=seats), GRPO(), output=here / "x", quiet=True),
        lambda: rl.dry_run(replace(OPTIONS, seats=seats), GRPO(), measure=False),
        lambda: evaluate.run(Evaluate(**where), output=here / "x", quiet=True),
        lambda: generate.run(Generate(**where), quiet=True),
    ):
        with pytest.raises(UserError, match=message):
            run()


@pytest.mark.parametrize(
    "typed", ["policy?behind=0", "policy?behind=2&copies=1", "policy?", "policy?ago=2", "policy?behind=x"]
)
def test_an_earlier_policy_that_is_none_is_refused(here, typed):
    with pytest.raises(UserError, match=r"an earlier policy is policy\?behind=N"):
        rl.run(replace(OPTIONS, seats=f"second={typed}"), GRPO(), output=here / "x", quiet=True)


def test_an_earlier_policy_plays_only_where_one_is_trained(here):
    where = {"environment": "duel.py:Duel", "model": "model", "seats": "second=policy?behind=2"}
    with pytest.raises(UserError, match="only plays seats in rl"):
        evaluate.run(Evaluate(**where), output=here / "x", quiet=True)
    with pytest.raises(UserError, match="leave out `trainers`"):
        rl.run(replace(OPTIONS, seats=where["seats"]), GRPO(), AsyncOptions(trainers=1), output=here / "x", quiet=True)


@pytest.mark.parametrize(("seats", "begun"), [("policy?behind=2", [0, 0, 0, 1]), ("policy?behind=3&copies=2", [0] * 4)])
def test_an_opponent_of_some_updates_ago_is_renewed_and_a_resumed_run_is_equal(here, monkeypatch, seats, begun):
    options = replace(OPTIONS, seats=f"second={seats}", steps=3, eval_every=1)
    (here / "duel.py").write_text(DUEL)
    renewed, renew = [], PastPolicy.renew

    def watched(self, step):
        renew(self, step)
        now = dict(self._own.network.named_parameters())
        renewed.append((step, self.begun_at, {name: p.clone() for name, p in now.items()}, len(self._kept)))

    monkeypatch.setattr(PastPolicy, "renew", watched)
    whole = rl.run(options, GRPO(), output=here / "whole", quiet=True).run
    assert [each[1] for each in renewed] == begun and max(each[3] for each in renewed) <= 5
    weights = checkpoint.load_tensors(here / "model" / "model.safetensors")
    last = renewed[-1]
    apart = max((last[2][name] - weight).abs().max() for name, weight in weights.items() if name in last[2])
    assert (apart > 0) == (last[1] > 0)
    part = rl.run(replace(options, steps=2), GRPO(), output=here / "part", quiet=True).run
    rl.run(options, GRPO(), resume=part, quiet=True)
    (rows, state, ended), (others, its, theirs) = found_in(whole), found_in(part)
    assert rows == others and state == its and all(torch.equal(ended[name], theirs[name]) for name in ended)
    again = renewed[-1]
    assert again[:2] == last[:2] and all(torch.equal(last[2][name], again[2][name]) for name in last[2])


PLAYER = '''
from posttrain.types import Message, Reply, StopReason, Usage


class Silent:
    """Says nothing."""

    async def chat(self, messages, *, sampling, tools=(), seed=0):
        return Reply(Message("assistant", ""), StopReason.STOP, Usage(1, 1))
'''


def test_a_class_of_a_file_plays_a_seat_and_its_code_stays_in_the_run(here):
    (here / "player.py").write_text(PLAYER)
    options = replace(OPTIONS, seats="second=player.py:Silent", steps=1)
    run = rl.run(options, GRPO(), output=here / "run", quiet=True).run
    assert seats_in(run) == {""} and "sha256:" in read_run(run).environment["inputs"]["seats"]
    assert [path.name for path in run.glob("inputs/seats/*/*")] == ["player.py"]
    (here / "player.py").write_text(PLAYER.replace('nt", ""', 'nt", "a"'))
    with pytest.raises(InputsChanged, match="seats"):
        rl.run(replace(options, steps=2), GRPO(), resume=run, quiet=True)


def test_seats_need_an_environment(here):
    for run in (
        lambda: rl.run(replace(OPTIONS, environment="", dataset="gym:chain_sum", seats="a=b"), GRPO(), quiet=True),
        lambda: generate.run(Generate(prompt="x", seats="a=b"), quiet=True),
    ):
        with pytest.raises(UserError, match="`seats` needs"):
            run()


def test_evaluate_measures_the_model_against_an_opponent(here):
    (here / "duel.py").write_text(DUEL.replace("return [Task(", "return [] if split == 'train' else [Task("))
    words = {"environment": "duel.py:Duel", "model": "model", "samples": 2, "max_new_tokens": 4}
    with fake_openai(answer=lambda body: "aaaaaaaaa") as server:
        lost = evaluate.run(Evaluate(**words, seats=f"second={server.url}"), output=here / "lost", quiet=True)
    with fake_openai(answer=lambda body: "zzz") as server:
        won = evaluate.run(Evaluate(**words, seats=f"second={server.url}"), output=here / "won", quiet=True)
    assert (lost.model.headline.accuracy, won.model.headline.accuracy) == (-1.0, 1.0)
    assert lost.model.headline.n == 4 and seats_in(lost.run) == {""}


def test_generate_plays_episodes_and_prints_them(here):
    options = Generate(environment="duel.py:Duel", model="model", max_new_tokens=4, limit=2, n=3)
    found = generate.run(options, quiet=True)
    summary, lines = found.summary(), "\n".join(found.lines())
    assert len(summary["episodes"]) == 6 and [e["task"] for e in summary["episodes"]] == ["0"] * 3 + ["1"] * 3
    for episode in summary["episodes"]:
        said = [episode["seats"][seat][-1]["content"] for seat in ("first", "second")]
        first, second = (sum(letter in "abcdefghijklm" for letter in one) for one in said)
        assert episode["rewards"]["first"] == (1 if first >= second else -1) == -episode["rewards"]["second"]
    assert "episode 1: 0" in lines and "user> 0?" in lines and "first earned" in lines
    assert json.dumps(summary) and generate.run(options, quiet=True).summary()["episodes"] == summary["episodes"]


def test_a_person_plays_a_seat(here, capsys):
    options = Generate(environment="duel.py:Duel", model="model", max_new_tokens=4, limit=2, seats="second=human")
    found = generate.run(options, lines=["aaaaaaaa\n", "zz\n"])
    second = [episode["seats"]["second"][-1]["content"] for episode in found.summary()["episodes"]]
    assert second == ["aaaaaaaa", "zz"]
    assert [episode["rewards"]["second"] for episode in found.summary()["episodes"]] == [1.0, -1.0]
    assert capsys.readouterr().out.count("second, your turn:") == 2
    one = generate.run(replace(options, n=1), lines=["aaaaaaaa\n"], quiet=True)  # what was played is kept
    assert [episode["rewards"]["second"] for episode in one.summary()["episodes"]] == [1.0]
    assert "[first earned -1, you earned 1]" in capsys.readouterr().out
    with pytest.raises(UserError, match="the input ended before an episode did"):
        generate.run(options, lines=[])


def test_a_game_with_a_person_ends_by_a_signal_while_it_waits_for_a_line(here):
    words = [sys.executable, "-m", "posttrain", "generate", "--environment", "duel.py:Duel", "--model", "model"]
    process = subprocess.Popen(
        [*words, "--seats", "second=human", "--max-new-tokens", "4"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdin and process.stdout
    while "your turn" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 130
    process.stdin.close()


def test_an_episode_that_fails_says_where_and_why(here):
    (here / "duel.py").write_text(DUEL.replace("won = ", "raise KeyError('moves')\n        won = "))
    with pytest.raises(EpisodeError, match=r"all 3 episodes failed; the first: KeyError: 'moves' \(.*duel.py:\d+\)"):
        generate.run(Generate(environment="duel.py:Duel", model="model", max_new_tokens=4), quiet=True)


def test_prompts_replace_the_tasks_of_the_environment(here):
    (here / "mine.txt").write_text("Mine?\n")
    found = generate.run(
        Generate(environment="duel.py:Duel", model="model", prompts="mine.txt", max_new_tokens=4), quiet=True
    )
    assert [e["seats"]["first"][0]["content"] for e in found.summary()["episodes"]] == ["Mine?"]
    assert found.notes == ()


def test_tasks_that_are_not_played_are_counted(here):
    (here / "mine.txt").write_text("One?\nTwo?\nThree?\n")
    options = Generate(environment="duel.py:Duel", model="model", prompts="mine.txt", max_new_tokens=4, limit=1)
    assert generate.run(options, quiet=True).notes == ("2 more tasks were not played; `limit` is 1",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "x"}, "leave out `prompt` and `chat`"),
        ({"chat": True}, "leave out `prompt` and `chat`"),
        ({"limit": 0}, "`limit`"),
        ({"seats": "first=human second=human"}, "one person can play"),
        ({"seats": "first=human second=model"}, "the policy must take a trained seat"),
        ({"environment_args": "nope=1"}, "argument of the environment"),
        ({"system": "Win."}, "`system` is for tasks of `prompts`; the environment writes the prompts of its own tasks"),
    ],
)
def test_generate_refuses_what_does_not_fit(here, options, message):
    with pytest.raises(UserError, match=message):
        generate.run(Generate(environment="duel.py:Duel", model="model", **options), quiet=True)
