"""Prompts in, completions out; and a conversation whose tokens are never encoded again."""

import json
import shutil
from dataclasses import replace

import pytest

from posttrain.data import ChatFormat
from posttrain.engine.policy import load_policy
from posttrain.engine.scripted import ScriptedEngine
from posttrain.errors import UserError
from posttrain.recipes import generate as recipe
from posttrain.recipes.generate import Generate, run
from posttrain.report.markup import printable
from posttrain.training import checkpoint
from posttrain.types import Message, Sampling
from tests.data.families import of_family
from tests.recipes.folders import model_folder

CHAT = ChatFormat(of_family("smollm2"))
STOP = max(CHAT.stop_ids)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(model_folder(tmp_path_factory.mktemp("models") / "model"))


@pytest.fixture
def engine(monkeypatch):
    """Says "2+2=4" and stops; what it was asked is kept."""
    scripted = ScriptedEngine(lambda request: [*CHAT.tokenizer.encode("2+2=4"), STOP], CHAT.stop_ids, logprob=-0.5)
    monkeypatch.setattr(recipe, "load_policy", lambda *a, **k: replace(load_policy(*a, **k), engine=scripted))
    return scripted


def asked(engine):
    return [request for batch in engine.asked for request in batch]


def test_a_prompt_is_answered_n_times_with_a_seed_each(folder, engine):
    found = run(Generate(model=folder, prompt=" 2+2? ", n=3, temperature=0.7, top_k=5, top_p=0.9), quiet=True)
    assert [(r.prompt, r.text, r.tokens, r.logprob) for r in found.replies] == [("2+2?", "2+2=4", 6, -3.0)] * 3
    requests = asked(engine)
    assert len({request.seed for request in requests}) == 3
    assert {request.sampling for request in requests} == {Sampling(256, 0.7, 5, 0.9)}
    assert requests[0].token_ids == tuple(CHAT.prompt_ids([Message("user", "2+2?")]))


def test_a_prompt_over_the_context_is_refused_before_the_weights_are_read(folder, monkeypatch):
    monkeypatch.setattr(recipe, "load_policy", None)
    with pytest.raises(UserError, match="256"):
        run(Generate(model=folder, prompt="x" * 300), quiet=True)


def test_greedy_is_temperature_0_whatever_else_is_set(folder, engine):
    run(Generate(model=folder, prompt="2+2?", greedy=True, top_k=5, top_p=0.5), quiet=True)
    assert asked(engine)[0].sampling == Sampling(256, 0.0)


def test_standard_input_is_one_prompt_and_a_text_file_one_a_line(folder, engine, tmp_path):
    found = run(Generate(model=folder), quiet=True, lines=["first line\n", "second\n"])
    assert [reply.prompt for reply in found.replies] == ["first line\nsecond"]
    (tmp_path / "questions.txt").write_text("one\n\ntwo\n")
    found = run(Generate(model=folder, prompts=str(tmp_path / "questions.txt"), n=2), quiet=True)
    assert [reply.prompt for reply in found.replies] == ["one", "one", "two", "two"]
    assert found.lines()[0] == "> one" and found.lines()[5] == "> two"
    (tmp_path / "questions.jsonl").write_text(json.dumps({"prompt": "three"}) + "\n")
    found = run(Generate(model=folder, prompts=str(tmp_path / "questions.jsonl")), quiet=True)
    assert [reply.prompt for reply in found.replies] == ["three"]


def test_system_message_and_template_are_those_of_training(folder, engine):
    run(Generate(model=folder, prompt="2+2", system="Think.", prompt_template="{prompt} = ?"), quiet=True)
    expected = CHAT.prompt_ids([Message("system", "Think."), Message("user", "2+2 = ?")])
    assert asked(engine)[0].token_ids == tuple(expected)


def test_other_words_than_those_of_training_are_noted(folder, engine, tmp_path):
    checkpoint.save(tmp_path / "checkpoints", 3, lambda new: shutil.copytree(folder, new, dirs_exist_ok=True), {})
    (tmp_path / "config.toml").write_text('system = "Think."\nprompt_template = "{prompt}"\n')
    note = f"{tmp_path} (step-000003) was trained with --system 'Think.', not with None"
    assert run(Generate(model=str(tmp_path), prompt="x"), quiet=True).lines()[0] == f"note: {note}"
    assert run(Generate(model=str(tmp_path), prompt="x", system="Think."), quiet=True).notes == ()


def test_speed_and_the_reason_of_the_end(folder, engine):
    found = run(Generate(model=folder, prompt="2+2?", max_new_tokens=3, n=2), quiet=True)
    assert found.tokens_per_second == pytest.approx(6 / found.seconds)
    assert found.lines()[:2] == ["2+2", "  [3 tokens, truncated by --max-new-tokens]"]
    summary = found.summary()
    assert summary["completions"][0] == {
        "prompt": "2+2?",
        "text": "2+2",
        "stop_reason": "length",
        "tokens": 3,
        "logprob": -1.5,
    }
    json.dumps(summary)


def test_a_conversation_appends_tokens_and_encodes_nothing_again(folder, engine, capsys):
    # "2020" in three tokens, where an encoder would take two
    said = [*CHAT.tokenizer.encode("20")[:1], *CHAT.tokenizer.encode("2"), *CHAT.tokenizer.encode("0")]
    engine.script = lambda request: [*said, STOP]
    config = Generate(model=folder, chat=True, system="Be brief.")
    found = run(config, lines=["Hello\n", "And then?\n", "\n", "never read\n"])
    first, second = (request.token_ids for request in asked(engine))
    assert first == tuple(CHAT.prompt_ids([Message("system", "Be brief."), Message("user", "Hello")]))
    shown = [Message("system", "Be brief."), Message("user", "Hello"), Message("assistant", "2020")]
    follow = CHAT.followup_ids(shown, [Message("user", "And then?")], stopped=True)
    assert second == (*first, *said, STOP, *follow)
    assert asked(engine)[0].seed != asked(engine)[1].seed
    assert [reply.prompt for reply in found.replies] == ["Hello", "And then?"]
    assert capsys.readouterr().out.count("2020") == 2 and "2020" not in "\n".join(found.lines())


def test_a_turn_that_was_cut_off_is_closed_before_the_next(folder, engine, capsys):
    config = Generate(model=folder, chat=True, max_new_tokens=2)
    run(config, lines=["Hello", "Go on"])
    first, second = (request.token_ids for request in asked(engine))
    assert second[len(first) + 2] == STOP
    assert "truncated by --max-new-tokens" in capsys.readouterr().out


def test_a_real_model_says_the_same_for_the_same_seed(folder):
    texts = [
        [r.text for r in run(Generate(model=folder, prompt="Hi", n=2, max_new_tokens=5, seed=s), quiet=True).replies]
        for s in (3, 3, 4)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_what_a_model_says_cannot_drive_a_terminal(folder, engine):
    assert printable("a\x1b[31mb\rc\x00\u202ed\x9b") == "a\\x1b[31mb\\rc\\x00\\u202ed\\x9b"
    assert printable("naïve 数学 🙂\n\tok") == "naïve 数学 🙂\n\tok"
    engine.script = lambda request: [*CHAT.tokenizer.encode("\x1b[2J"), STOP]
    assert run(Generate(model=folder, prompt="x"), quiet=True).lines()[0] == "\\x1b[2J"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompt": "", "lines": ["\n"]}, "a prompt is required"),
        ({"prompts": "nowhere.txt"}, "`prompt` and `prompts`"),
        ({"prompt": "", "prompts": "nowhere.txt"}, "cannot read the prompts"),
        ({"chat": True}, "`prompt` and `chat`"),
        ({"n": 0}, "1 or more"),
        ({"n": 2, "greedy": True}, "leave out `greedy`"),
        ({"temperature": 0.0}, "pass `greedy`"),
        ({"top_p": 0.0}, "`top_p`"),
        ({"top_k": -1}, "`top_k`"),
        ({"model": "./nowhere"}, "no model"),
        ({"prompt": "x" * 300}, "holds 256"),
    ],
)
def test_mistakes_are_one_line(folder, wrong, message):
    lines = wrong.pop("lines", [])
    with pytest.raises(UserError, match=message) as raised:
        run(Generate(**{"model": folder, "prompt": "x"} | wrong), quiet=True, lines=lines)
    assert "\n" not in str(raised.value)


def on_a_terminal(monkeypatch, capsys, *given, **more):
    """What is written where somebody reads it."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    found = run(*given, **more)
    return found, capsys.readouterr().out


def test_on_a_terminal_one_reply_is_shown_as_it_comes_and_once(folder, engine, monkeypatch, capsys):
    found, out = on_a_terminal(monkeypatch, capsys, Generate(model=folder, prompt="2+2?"))
    assert out == "2+2=4\n  [6 tokens, it stopped by itself]\n" and found.replies[0].text == "2+2=4" and found.shown
    assert not any("2+2=4" in line for line in found.lines())


def test_on_a_terminal_the_replies_of_a_conversation_are_shown_as_they_come(folder, engine, monkeypatch, capsys):
    engine.script = lambda request: [*CHAT.tokenizer.encode("\x1b[2Jno"), STOP]
    found, out = on_a_terminal(monkeypatch, capsys, Generate(model=folder, chat=True), lines=["one", "two", ""])
    assert out.count("\\x1b[2Jno\n") == 2 and "\x1b" not in out and len(found.replies) == 2
