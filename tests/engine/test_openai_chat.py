"""Asking an OpenAI-compatible server that fails in every way that servers fail in."""

import asyncio
import threading
import time

import pytest

from posttrain.engine import openai_chat
from posttrain.engine.budget import Budget, ReplyCache
from posttrain.engine.openai_chat import OpenAIChat
from posttrain.errors import RewardError, UserError
from posttrain.types import Message, Reply, Sampling, StopReason, ToolCall, Usage
from tests.fake_openai import Fault, error, fake_openai

pytest.importorskip("openai")

GREEDY = Sampling(64, temperature=0.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name in ("KIND_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(openai_chat, "PAUSE_S", 0.001)


@pytest.fixture
def server():
    with fake_openai() as server:
        yield server


def chat_model(server, **options) -> OpenAIChat:
    return OpenAIChat("kind", server.address, server.model, **options)


def ask(chat, *texts, sampling=GREEDY, seed=0, **options) -> list[Reply]:
    """All at once; the first error, if there is one."""

    async def together():
        asked = [chat.chat([Message("user", text)], sampling=sampling, seed=seed, **options) for text in texts]
        return await asyncio.gather(*asked, return_exceptions=True)

    found = asyncio.run(together())
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found


def test_what_is_sent_and_what_comes_back(server):
    (reply,) = ask(chat_model(server), "abc", sampling=Sampling(64, 0.5, top_k=3, top_p=0.9), seed=2**40 + 5)
    (body,) = server.asked
    assert reply == Reply(Message("assistant", "Fine.\nScore: 3"), StopReason.STOP, Usage(100, 10))
    assert body == {
        **{"model": "judge", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 64, "seed": 5},
        **{"temperature": 0.5, "top_p": 0.9, "top_k": 3},
    }


def test_tools_calls_reasoning_and_ends(server):
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
    server.answer = lambda body: {
        "content": None,
        "tool_calls": [call],
        "reasoning_content": "Hm.",
        "finish_reason": "length",
    }
    said = [Message("assistant", "", (ToolCall("c", "look", "{}"),)), Message("tool", "found", tool_call_id="c")]
    chat = chat_model(server)
    reply = asyncio.run(chat.chat(said, sampling=GREEDY, tools=['{"type": "function", "function": {"name": "look"}}']))
    assert reply.message == Message("assistant", "", (ToolCall("c", "look", '{"x": 1}'),), reasoning="Hm.")
    assert reply.stop_reason is StopReason.LENGTH
    assert server.asked[0]["tools"][0]["function"]["name"] == "look"
    assert server.asked[0]["messages"][1] == {"role": "tool", "content": "found", "tool_call_id": "c"}
    assert server.asked[0]["messages"][0]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
def test_an_error_that_passes_costs_nothing(server, status):
    right = ask(chat_model(server), "a", "ab")
    server.faults.extend([error(status)] * 3)
    assert ask(chat_model(server), "a", "ab") == right
    assert len(server.asked) == 2 + 5


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b"<html>",
        b"{",
        b"[]",
        b"null",
        b'{"choices": []}',
        b'{"choices": [{"message": {"content": 3}}]}',
        b'"a"',
    ],
)
@pytest.mark.parametrize("kind", ["application/json", "text/html"])
def test_garbage_is_asked_for_again(server, body, kind):
    server.faults.append(Fault(200, {"content-type": kind}, body))
    assert ask(chat_model(server), "ab")[0].text == "Fine.\nScore: 2" and len(server.asked) == 2


def test_garbage_for_good_ends_in_one_line(server, monkeypatch):
    monkeypatch.setattr(openai_chat, "ATTEMPTS", 2)
    server.fault = lambda body: Fault(200, {}, b"{}")
    with pytest.raises(RewardError, match=r"^kind gave no reply in 2 attempts at .*: the reply is no chat completion$"):
        ask(chat_model(server), "ab")


def test_a_server_that_hangs_is_asked_again(server, monkeypatch):
    monkeypatch.setattr(openai_chat, "TIMEOUT_S", 2.0)
    server.faults.append(Fault(hang_s=60))
    began = time.monotonic()
    assert ask(chat_model(server), "ab")[0].text == "Fine.\nScore: 2"
    assert len(server.asked) == 2 and time.monotonic() - began < 30


def test_a_reply_that_comes_a_byte_at_a_time_is_given_up(server, monkeypatch):
    monkeypatch.setattr(openai_chat, "TIMEOUT_S", 2.0)
    server.faults.append(Fault(drip_s=0.1, body={"long": "x" * 600}))
    began = time.monotonic()
    assert ask(chat_model(server), "ab")[0].text == "Fine.\nScore: 2"
    assert len(server.asked) == 2 and time.monotonic() - began < 30


def test_a_server_that_is_gone_is_named_with_the_cause(server, monkeypatch):
    monkeypatch.setattr(openai_chat, "ATTEMPTS", 3)
    server.stop()
    with pytest.raises(
        RewardError, match=rf"^kind gave no reply in 3 attempts at {server.address}; the last one: no con"
    ):
        ask(chat_model(server), "ab")
    server.start()


@pytest.mark.parametrize(
    ("asked", "least"), [("0.4", 0.4), ("-1", 0.0), ("soon", 0.0), ("Fri, 31 Dec 1999 23:59:59 GMT", 0)]
)
def test_the_server_says_how_long_to_wait(server, asked, least):
    server.faults.append(error(429, headers={"retry-after": asked}))
    began = time.monotonic()
    ask(chat_model(server), "ab")
    assert least <= time.monotonic() - began < least + 5


def test_a_server_may_not_ask_to_wait_for_ever(server, monkeypatch):
    monkeypatch.setattr(openai_chat, "LONGEST_PAUSE_S", 0.05)
    server.faults.append(error(503, headers={"retry-after": "9"}))
    began = time.monotonic()
    assert ask(chat_model(server), "ab") and time.monotonic() - began < 5


@pytest.mark.parametrize("asked", ["-1", "nan", "soon"])
def test_what_is_no_time_to_wait_is_not_waited_for(server, asked, monkeypatch):
    monkeypatch.setattr(openai_chat, "PAUSE_S", 0.3)
    server.faults.append(error(503, headers={"retry-after": asked}))
    began = time.monotonic()
    assert ask(chat_model(server), "ab") and 0.2 < time.monotonic() - began < 5


def test_pauses_get_longer(server, monkeypatch):
    monkeypatch.setattr(openai_chat, "PAUSE_S", 0.2)
    server.faults.extend([error(500)] * 3)
    began = time.monotonic()
    ask(chat_model(server), "ab")
    assert time.monotonic() - began >= 0.2 * (1 + 2 + 4) * 0.75


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (error(401, "bad key"), "refused: HTTP 401: .*bad key.*; put the key in the variable KIND_API_KEY"),
        (error(403), "put the key in the variable KIND_API_KEY"),
        (error(404), "is there a model 'judge', and does the address end with /v1?"),
        (error(400, "no such thing"), "HTTP 400: .*no such thing"),
        (error(422), "HTTP 422"),
        (error(429, "no credit", code="insufficient_quota"), "HTTP 429: .*no credit"),
    ],
)
def test_an_error_that_does_not_pass_is_one_at_once(server, fault, message):
    server.faults.append(fault)
    with pytest.raises(UserError, match=message) as caught:
        ask(chat_model(server), "ab")
    assert len(server.asked) == 1 and "\n" not in str(caught.value)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_a_redirect_is_refused_at_once_and_not_followed(server, status):
    with fake_openai() as other:
        server.fault = lambda body: error(status, headers={"location": f"{other.address}/chat/completions"})
        with pytest.raises(UserError) as caught:
            ask(chat_model(server), "ab")
        assert len(server.asked) == 1 and not other.asked
    assert str(caught.value) == (
        f"kind at {server.address} redirects to {other.address}/chat/completions; redirects are not followed, so name "
        f"the API itself: kind={other.url}"
    )


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("https://me:pw@b.example:8/v1/chat/completions?a=pw#pw", "kind=https://b.example:8/v1#judge"),
        ("/api/v1/chat/completions", r"kind=http://127.0.0.1:\d+/api/v1#judge"),
        ("https://b.example/login", "https://b.example/login; .* kind=URL#judge, whose URL ends with /v1"),
        ("https://b.example/\x1b[31m`lr`/sk-secret", r"https://b.example/\[31m'lr'/\*\*\*; .*"),
        ("", "to somewhere it does not say; .*"),
        ("http://[::1", "to somewhere it does not say; .*"),
        ("file:///etc/passwd", "to somewhere it does not say; .*"),
    ],
)
def test_where_a_redirect_leads_is_shown_without_secrets(server, place, message, monkeypatch):
    monkeypatch.setenv("KIND_API_KEY", "sk-secret")
    server.faults.append(error(301, headers={"location": place} if place else None))
    with pytest.raises(UserError, match=f" {message}$") as caught:
        ask(chat_model(server), "ab")
    said = str(caught.value)
    assert "pw" not in said and "secret" not in said and said.isprintable()


def test_the_key_is_sent_to_its_own_server_and_stands_in_no_error(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    server.key = "sk-secret-of-kind"
    with pytest.raises(UserError, match="HTTP 401"):
        ask(chat_model(server), "ab")
    monkeypatch.setenv("KIND_API_KEY", server.key)
    assert ask(chat_model(server), "ab")
    assert server.keys == ["Bearer none", f"Bearer {server.key}"]
    server.key = "another"
    with pytest.raises(UserError, match=r"Incorrect API key provided: Bearer \*\*\*") as caught:
        ask(chat_model(server), "ab")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__  # nor in what --debug prints


def test_the_key_of_openai_is_for_openai_alone(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    assert OpenAIChat("kind", "https://api.openai.com/v1", "m")._key() == "sk-x"
    for other in ("https://example.org/v1", "https://api.openai.com.example.org/v1", "http://localhost/v1"):
        assert OpenAIChat("kind", other, "m")._key() == ""
    monkeypatch.setenv("KIND_API_KEY", "sk-y")
    assert OpenAIChat("kind", "https://api.openai.com/v1", "m")._key() == "sk-y"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://me:pw@localhost/v1", "has a password or a query; put a key in the variable KIND_API_KEY"),
        ("http://localhost/v1?key=pw", "has a password or a query"),
        ("ftp://localhost/v1", "must begin with http"),
        ("http:///v1", "must begin with http"),
    ],
)
def test_an_address_with_a_key_or_without_a_host_is_refused(address, message):
    with pytest.raises(UserError, match=message) as caught:
        OpenAIChat("kind", address, "m")
    assert "pw" not in str(caught.value)


def test_parameters_that_a_model_refuses_are_written_otherwise_from_then_on(server):
    """Reasoning models take `max_completion_tokens`, and no temperature."""

    def refuses(body):
        for name in ("max_tokens", "temperature"):
            if name in body:
                return error(400, f"Unsupported parameter: '{name}'", param=name, code="unsupported_parameter")
        return None

    server.fault = refuses
    chat = chat_model(server)
    assert len(ask(chat, *map(str, range(8)))) == 8
    server.asked.clear()
    ask(chat, "abc")
    (body,) = server.asked
    assert body["max_completion_tokens"] == 64 and not {"max_tokens", "temperature"} & body.keys()


@pytest.mark.parametrize("about", [{"code": "context_length_exceeded"}, {"message": "maximum context length is 10"}])
def test_a_conversation_that_is_too_long_is_a_reply_that_says_so(server, about):
    server.faults.append(error(400, **about))
    (reply,) = ask(chat_model(server), "ab" * 100_000)
    assert (reply.text, reply.stop_reason) == ("", StopReason.CONTEXT)


def test_half_a_character_is_sent_as_a_question_mark(server):
    ask(chat_model(server), "a\ud83d\0{x}")
    assert server.asked[0]["messages"][0]["content"] == "a?\0{x}"


def test_only_so_many_requests_are_in_flight_whoever_asks(server):
    server.pause_s = 0.05
    chat = chat_model(server, at_once=3)
    texts = [[f"{i}{j}" for j in range(4)] for i in range(3)]
    threads = [threading.Thread(target=ask, args=(chat, *some)) for some in texts]  # three event loops
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.asked) == 12 and server.most == 3


def test_a_budget_ends_it_and_nothing_is_asked_beyond(server):
    chat = chat_model(server, budget=Budget(5))
    with pytest.raises(RewardError, match=r"the budget of judges, 5 requests, is used up"):
        ask(chat, *map(str, range(20)))
    time.sleep(0.1)
    assert len(server.asked) == 5


def test_failed_attempts_count_too(server):
    server.fault = lambda body: error(500)
    with pytest.raises(RewardError, match="budget of judges, 2 requests"):
        ask(chat_model(server, budget=Budget(2)), "a")
    assert len(server.asked) == 2


def test_money_is_counted_by_prices_per_million_tokens(server):
    budget = Budget(money=3e-4, prices=(1.0, 5.0))  # 1.5e-4 a reply
    chat = chat_model(server, budget=budget, at_once=1)
    with pytest.raises(RewardError, match=r"the budget of judges, 0.0003, is used up: 0.0003 is spent"):
        ask(chat, "a", "b", "c", "d")
    assert len(server.asked) == 2 and budget.spent == pytest.approx(3e-4)


def test_a_reply_is_asked_for_once(server, tmp_path):
    server.pause_s = 0.05
    cache = ReplyCache()
    chat = chat_model(server, cache=cache)
    with cache.kept_in(tmp_path / "cache.jsonl"):
        first = ask(chat, "a", "a", "a")  # at the same time
        assert first == ask(chat, "a", "a", "a") and len(server.asked) == 1
        ask(chat, "a", seed=1)
        ask(chat, "a", sampling=Sampling(65, 0.0))
        ask(chat, "b")
        ask(OpenAIChat("other", server.address, server.model, cache=cache), "a")
        ask(chat, "a", tools=['{"type": "function"}'])
        assert len(server.asked) == 6
    again = ReplyCache()
    with again.kept_in(tmp_path / "cache.jsonl"):
        assert ask(OpenAIChat("kind", f"{server.address}/", server.model, cache=again), "a")[0] == first[0]
    assert len(server.asked) == 6


def test_another_server_does_not_get_the_reply_of_the_first(server, tmp_path):
    with fake_openai(answer=lambda body: "Score: 10") as other:
        for asked, text in ((server, "Fine.\nScore: 1"), (other, "Score: 10"), (server, "Fine.\nScore: 1")):
            cache = ReplyCache()
            with cache.kept_in(tmp_path / "cache.jsonl"):
                assert ask(chat_model(asked, cache=cache), "a")[0].text == text
        assert len(server.asked) == len(other.asked) == 1
    assert "127.0.0.1" not in (tmp_path / "cache.jsonl").read_text()


def test_one_who_leaves_does_not_take_the_reply_from_another(server):
    server.pause_s = 0.2
    chat = chat_model(server)

    async def two():
        asked = [asyncio.ensure_future(chat.chat([Message("user", "a")], sampling=GREEDY)) for _ in range(2)]
        await asyncio.sleep(0.05)
        asked[0].cancel()
        return await asked[1]

    assert asyncio.run(two()).text == "Fine.\nScore: 1" and len(server.asked) == 1


def test_nothing_is_asked_for_one_who_has_left(server, monkeypatch):
    monkeypatch.setattr(openai_chat, "PAUSE_S", 0.5)
    server.fault = lambda body: error(500)

    async def leave() -> None:
        asked = asyncio.ensure_future(chat_model(server).chat([Message("user", "a")], sampling=GREEDY))
        while not server.asked:
            await asyncio.sleep(0.01)
        asked.cancel()
        await asked

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(leave())
    time.sleep(1.0)
    assert len(server.asked) == 1


def test_without_the_library_it_says_what_to_type(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openai", None)
    with pytest.raises(UserError, match=r"needs the package 'openai'; type: pip install 'posttrain\[judge\]'"):
        OpenAIChat("kind", "http://localhost/v1", "m")
