"""Judges by name: what is typed, where their replies are kept, and what they may cost together."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from posttrain.bindings.judges import judges_in, named_models, rewards_with
from posttrain.engine.chat_models import LateChat
from posttrain.engine.openai_chat import OpenAIChat
from posttrain.errors import ModelError, RewardError, UserError
from posttrain.options.online import SampledOptions
from posttrain.types import Message, Reply, Sampling, StopReason, Usage
from tests.fake_openai import fake_openai
from tests.recipes.folders import model_folder
from tests.rewards.episodes import episode, parts

pytest.importorskip("openai")


def options(**changes: Any) -> SampledOptions:
    return SampledOptions(**changes)


def ask(chat, text: str) -> str:
    return asyncio.run(chat.chat([Message("user", text)], sampling=Sampling(4, 0.0))).text


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("http://x/v1#m", "a judge is NAME=MODEL, NAME=URL#MODEL or NAME=policy"),
        ("OWNER/NAME", "a judge is NAME=MODEL"),
        ("=OWNER/NAME", "a judge is NAME=MODEL"),
        ("kind=", "a judge is NAME=MODEL"),
        ("1st=OWNER/NAME", "a judge is NAME=MODEL"),
        ("a=x a=y", "two judges are called 'a'"),
        ("a='x", "cannot read `judge="),
        ("a=http://x/v1", "judge 'a' has a URL without a model; write a=URL#MODEL"),
        ("a=http://x/v1#", "judge 'a' has a URL without a model"),
        (
            "a=localhost:8000/v1#m",
            "the address of judge 'a' has no http:// or https://; write a=http://localhost:8000/v1#m",
        ),
        ("a=http://me:pw@x/v1#m", "has a password"),
    ],
)
def test_what_is_no_judge_is_refused(typed, message):
    with pytest.raises(UserError, match=message):
        judges_in(options(judge=typed))


class Own:
    async def chat(self, messages, *, sampling, tools=(), seed=0):
        return Reply(Message("assistant", "Score: 5"), StopReason.STOP, Usage(1, 1))


def test_objects_are_judges_and_players_without_a_text():
    own = Own()
    typed = options(judge={"kind": own, "far": "http://x/v1#m", "self": "policy"}, judge_max_new_tokens=9)
    found = judges_in(typed, seats={"second": own})
    assert found.models["kind"] is own and found.seats["second"] is own and found.models["self"] is found.policy
    assert isinstance(found.models["far"], OpenAIChat) and found.folders == {}
    typed = replace(typed, judge={"kind": own})
    alone = judges_in(typed)
    rewards, _, _ = rewards_with(alone, typed, {"tags": 0.5})
    (scores,) = parts(rewards, [episode("a")])
    assert rewards.weights == {"tags": 0.5, "kind": 1.0} and scores["kind"].value == 0.5
    for wrong, said in [
        ({"kind": 3}, "judge 'kind' is 3; expected a model's name, URL#MODEL, or an object with a method async chat"),
        ({"1st": own}, "a judge is NAME=MODEL"),
        ({"kind": "http://x/v1"}, "judge 'kind' has a URL without a model"),
    ]:
        with pytest.raises(UserError, match=said):
            judges_in(options(judge=wrong))


def test_addresses_and_models_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my model").mkdir()
    assert named_models("judge", "") == {}
    found = judges_in(options(judge="a=http://x/v1#o/m b=OWNER/NAME 'c=my model'", judge_concurrency=3))
    assert (found.models["a"].address, found.models["a"].model, found.models["a"].at_once) == ("http://x/v1", "o/m", 3)
    assert isinstance(found.models["b"], LateChat) and isinstance(found.models["a"], OpenAIChat)
    assert found.folders == {"OWNER/NAME": "OWNER/NAME", "my model": "my model"}


@pytest.mark.parametrize("where", ["nowhere", "/no/such/folder"])
def test_a_local_model_that_is_not_there_is_told_with_the_name_of_its_judge_or_seat(where):
    with pytest.raises(ModelError, match=f"judge 'kind': no model '{where}': it is no folder here"):
        judges_in(options(judge=f"kind={where}"))
    with pytest.raises(ModelError, match=f"seat 'second': no model '{where}': it is no folder here"):
        judges_in(options(), seats=f"second={where}")


def test_one_local_model_under_two_names_is_loaded_once(tmp_path):
    folder = model_folder(tmp_path / "model", context=64)
    found = judges_in(options(judge=f"a={folder} b={folder}", precision="float32"))
    found.load()
    assert found.models["a"] is found.models["b"] and ask(found.models["a"], "1") == ask(found.models["b"], "1")


def test_replies_and_budget_are_shared_and_outlive_the_process(tmp_path):
    with fake_openai() as server:
        typed = options(judge=f"a={server.url} b={server.url}", judge_budget=3)
        first = judges_in(typed)
        with first.kept_in(tmp_path):
            said = [ask(first.models["a"], "x"), ask(first.models["b"], "xy")]
        again = judges_in(typed)
        with again.kept_in(tmp_path):
            assert [ask(again.models["a"], "x"), ask(again.models["b"], "xy")] == said and len(server.asked) == 2
            ask(again.models["b"], "xyz")
            with pytest.raises(RewardError, match="3 requests, is used up"):
                ask(again.models["a"], "more")
        assert len(server.asked) == 3 and (tmp_path / "judge-cache.jsonl").is_file()
        larger = judges_in(replace(typed, judge_budget=4))
        with larger.kept_in(tmp_path):
            assert ask(larger.models["a"], "more") and len(server.asked) == 4


def test_the_user_says_where_replies_are_kept(tmp_path):
    """That file stays, whatever its name is."""
    mine = tmp_path / "out.jsonl.judge-cache.jsonl"
    with fake_openai() as server:
        found = judges_in(options(judge=f"a={server.url}", judge_cache=str(mine)))
        for kept in (found.kept_in(tmp_path), found.kept_beside(tmp_path / "out.jsonl")):
            with kept:
                ask(found.models["a"], "x")
    assert list(tmp_path.iterdir()) == [mine] and len(server.asked) == 1


def test_beside_a_file_replies_are_kept_until_it_is_written(tmp_path):
    with fake_openai() as server:
        found = judges_in(options(judge=f"a={server.url}"))
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt), found.kept_beside(tmp_path / "out.jsonl"):
                ask(found.models["a"], "x")
                raise KeyboardInterrupt
        assert len(server.asked) == 1 and (tmp_path / "out.jsonl.judge-cache.jsonl").is_file()
        with found.kept_beside(tmp_path / "out.jsonl"):
            ask(found.models["a"], "x")
    assert list(tmp_path.iterdir()) == [] and len(server.asked) == 1


def test_without_an_address_nothing_is_kept(tmp_path):
    with judges_in(options(judge="a=OWNER/NAME")).kept_in(tmp_path):
        pass
    with judges_in(options()).kept_in(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_verdicts_are_sampled_as_typed():
    typed = options(judge="a=OWNER/NAME", judge_temperature=0.3, judge_max_new_tokens=5, seed=9)
    rewards, _, _ = rewards_with(judges_in(typed), typed, "")
    ((judge, weight),) = rewards.parts
    assert (judge.sampling, judge.seed, weight, judge.at_once) == (Sampling(5, temperature=0.3), 9, 1.0, 256)
