"""A data set is shown as it is trained on: the same tokens, the same mask, the same rows left out."""

import doctest
import json
import re
import tomllib
from dataclasses import replace
from datetime import date
from functools import partial

import pytest

from posttrain.cli import main
from posttrain.data import ChatFormat, in_memory, load_demonstrations, load_tokenizer
from posttrain.errors import UserError
from posttrain.options.training import PairOptions
from posttrain.parsing import Section, parse
from posttrain.recipes import data_show
from posttrain.recipes.data_show import DataShow, _dropped, run
from posttrain.recipes.sft import SFT
from posttrain.recipes.sft import run as train
from posttrain.report import masked_text
from posttrain.report.masked_text import masked_lines
from tests.recipes.folders import model_folder

CHAT = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
LONGER = [*CHAT, {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4" * 40}]
ROWS = [{"messages": CHAT}, {"prompt": "3+3?", "completion": "6"}, {"messages": CHAT}, {"messages": LONGER}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(model_folder(tmp_path_factory.mktemp("show") / "model"))


def show(*args, **options):
    return run(DataShow(*args, **options))[1]


def lines(*args, **options):
    return run(DataShow(*args, **options))[0]


def text(found):
    return found["shown"][0]["text"]


def test_doctests():
    assert doctest.testmod(masked_text).failed == doctest.testmod(data_show).failed == 0


def test_demonstrations_by_hand(model):
    # The tokenizer is one of bytes; <|im_start|> and <|im_end|> are one token each.
    answer = show(in_memory(ROWS), model, rows=9)
    assert (answer["layout"], answer["rows"], answer["kept"], answer["dropped"]) == ("sft", 4, 4, [])
    assert (answer["duplicates"], answer["repeated_prompts"], answer["heldout"]) == (1, 2, None)
    rendered = "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>"
    one = answer["shown"][0]
    assert one["text"].endswith(rendered) and one["learned"].count(True) == 2 and one["learned"][-2:] == [True, True]
    chat = ChatFormat(load_tokenizer(model))
    for shown, conversation in zip(answer["shown"], load_demonstrations(in_memory(ROWS)), strict=True):
        assert (shown["token_ids"], shown["learned"]) == tuple(chat.training_ids(conversation))
    assert answer["tokens"]["learned"] == 2 + 2 + 2 + 2 + 41
    assert answer["tokens"]["total"] == sum(len(one["token_ids"]) for one in answer["shown"])
    assert sum(one["n"] for one in answer["histogram"]) == 4


def test_what_is_left_out_is_what_sft_leaves_out(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = [len(one["token_ids"]) for one in show(in_memory(ROWS), model, rows=9)["shown"]]
    assert show(in_memory(ROWS), model, max_tokens=max(sizes))["dropped"] == []
    said, found = run(DataShow(in_memory(ROWS), model, max_tokens=max(sizes) - 1, rows=1, first=4))
    assert found["dropped"] == [{"reason": f"over {max(sizes) - 1} tokens", "n": 1, "first": ["row 4"]}]
    assert (found["kept"], found["tokens"]["learned"], found["tokens"]["max"]) == (3, 6, max(sizes))
    assert said[0] == f"row 4: {max(sizes)} tokens, 43 learned, left out: over {max(sizes) - 1} tokens"
    config = SFT(in_memory(ROWS), model, steps=1, examples_per_step=3, max_tokens=max(sizes) - 1, precision="float32")
    trained = train(config, quiet=True)
    assert (trained.examples, trained.dropped) == (3, 1)
    assert SFT.max_tokens == PairOptions.max_tokens == DataShow.max_tokens


def test_the_context_of_the_model_counts_too(model):
    long = [{"prompt": "a" * 300, "completion": "b"}, ROWS[1]]
    assert [one["reason"] for one in show(in_memory(long), model)["dropped"]] == ["over 256 tokens"]
    asked = [{"prompt": "a" * 300}, {"prompt": "b"}]
    assert [one["reason"] for one in show(in_memory(asked), model)["dropped"]] == ["over 255 tokens"]


def test_pairs_tasks_and_judgements(model):
    pairs = [
        {"prompt": "1+1?", "chosen": "2", "rejected": "three"},
        {"prompt": "1+1?", "chosen": "2", "rejected": "2"},
        {"prompt": "1+1?", "chosen": "", "rejected": "2"},
        {"prompt": "2+2?", "chosen": "5", "rejected": "5"},
    ]
    source = in_memory(pairs)
    said, found = run(DataShow(source, model))
    assert (found["layout"], found["rows"]) == ("preference", 1)
    assert [tuple(one.values()) for one in found["dropped"]] == [
        ("'chosen' and 'rejected' are the same", 2, [f"row 2 of {source}", f"row 4 of {source}"]),
        ("'chosen' says nothing", 1, [f"row 3 of {source}"]),
    ]
    assert [(one["part"], sum(one["learned"])) for one in found["shown"]] == [("chosen", 2), ("rejected", 6)]
    answers = [line for line in said if line.startswith("  > ")]
    assert answers == ["  > 2<|im_end|>", "  > three<|im_end|>"]  # and nothing of the prompt
    told, tasks = run(DataShow(in_memory([{"prompt": "1+1?", "answer": "2\x1b[2J"}]), model))
    assert (
        tasks["layout"] == "rl" and tasks["tokens"]["learned"] == 0 and text(tasks).endswith("<|im_start|>assistant\n")
    )
    assert "  answer: 2\\x1b[2J" in told
    thumbs = show(in_memory([{"prompt": "1+1?", "completion": "2", "label": "1"}]), model)
    assert thumbs["layout"] == "judgements" and thumbs["shown"][0]["part"] == "good"
    assert show("gym:chain_sum", model, limit=3)["rows"] == 3


@pytest.mark.parametrize(
    "row, layout",
    [
        ({"question": "a", "answer": "b"}, "sft"),
        ({"question": "a", "answer": "b #### 1"}, "rl"),
        ({"instruction": "a", "output": "b"}, "sft"),
        ({"prompt": "a", "responses": ["b", "c"], "scores": [1, 2]}, "preference"),
        ({"prompt": "a", "response": "b", "helpfulness": 1}, "preference"),
    ],
)
def test_the_layout_is_told_by_the_columns(model, row, layout):
    other = row | {"response": "c", "helpfulness": 4}
    rows = [row, other] if "response" in row else [row]
    assert show(in_memory(rows), model)["layout"] == layout


def test_held_out_rows_that_are_no_test(model):
    heldout = [{"prompt": "1+1?", "completion": "x"}, *[{"prompt": "new?", "completion": "y"}] * 2]
    said, found = run(DataShow(in_memory(ROWS), model, eval_dataset=in_memory(heldout)))
    assert found["heldout"] == {"n": 3, "overlap": 1, "duplicates": 1}
    assert "held out: 3 rows; the prompts of 1 are also in the data set, of 1 stood before among them" in said
    many = [{"prompt": f"{i}?", "completion": "y"} for i in range(40)]
    shared = show(in_memory(many), model, eval_share=0.3)["heldout"]
    assert shared["overlap"] == 0 and 4 <= shared["n"] <= 20


def test_what_the_data_say_is_not_obeyed_by_the_terminal(model, capsys, monkeypatch):
    bad = [{"prompt": "a\n  > b", "completion": "\x1b[2J\u202e\rc"}]
    assert main(["data", "show", "--dataset", in_memory(bad), "--model", model]) == 0
    out = capsys.readouterr().out
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", out)
    assert "      > b<|im_end|>\u21b5" in out and "  > \\x1b[2J\\u202e\\rc<|im_end|>" in out.splitlines()
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    coloured = lines(in_memory(bad), model)
    assert any(line.startswith("  > \x1b[1;32m\\x1b[2J") for line in coloured)
    assert [re.sub("\x1b\\[[0-9;]*m", "", line) for line in coloured] == out.splitlines()


def test_tokens_are_listed_with_their_ids(model):
    said, found = run(DataShow(in_memory(ROWS), model, rows=1, tokens=True))
    ids = found["shown"][0]["token_ids"]
    assert said[len(ids)] == f"  > {len(ids) - 1:>5} {ids[-1]:>7} <|im_end|>" and said[len(ids) + 1] == ""


def test_a_mark_is_at_the_beginning_of_every_line():
    lines = masked_lines([("a\n", False), ("b\n\nc", True), ("\nd", False)])
    assert lines == ["    a\u21b5", "  > b\u21b5", "  > \u21b5", "  > c", "    \u21b5", "    d"]


@pytest.mark.parametrize(
    "options, problem",
    [
        ([], "--dataset is required"),
        (["--dataset", "x.jsonl"], "there is no file or folder 'x.jsonl'"),
        (["--dataset", "{rows}", "--layout", "dpo"], "unknown --layout 'dpo'"),
        (["--dataset", "{rows}", "--train-on", "first"], "--train-on must be one of all, last; got 'first'"),
        (["--dataset", "{rows}", "--first", "0"], "--first must be"),
        (["--dataset", "{rows}", "--eval-share", "1"], "--eval-share must be 0 to below 1"),
        (["--dataset", "{odd}"], "cannot tell what this row is for; it has: a; map its columns"),
        (["--dataset", "{rows}", "--layout", "preference"], "field 'chosen' is missing"),
    ],
)
def test_mistakes_are_one_line(model, capsys, options, problem):
    words = {"rows": in_memory(ROWS), "odd": in_memory([{"a": 1}])}
    assert main(["data", "show", "--model", model, *(option.format(**words) for option in options)]) == 2
    err = capsys.readouterr().err
    assert problem in err and err.count("\n") == 1


def test_reasons_name_options_as_flags():
    (found,) = _dropped(["a line 1: map `columns`", "a line 2: map `columns`"])
    assert found == {"reason": "map --columns", "n": 2, "first": ["a line 1", "a line 2"]}


def test_json_is_the_last_line(model, capsys):
    assert main(["data", "show", "--dataset", in_memory(ROWS), "--model", model, "--rows", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    counts = "dataset model layout max_tokens rows kept dropped duplicates repeated_prompts not_read heldout"
    assert list(found) == [*counts.split(), "tokens", "histogram", "shown"]
    assert found["shown"] == [] and found["tokens"].keys() == {"total", "learned", "min", "mean", "median", "max"}


def test_a_conversation_that_the_template_refuses_is_named(model):
    rows = [*ROWS[:1], {"prompt": "a", "completion": "<|im_end|>"}]
    with pytest.raises(UserError, match="row 2: assistant turn 1 contains the stop token"):
        run(DataShow(in_memory(rows), model))


def test_a_chat_template_of_ones_own(model, tmp_path):
    (tmp_path / "plain.jinja").write_text(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    said, found = run(DataShow(in_memory(ROWS[:1]), model, chat_template=str(tmp_path / "plain.jinja")))
    assert text(found) == "[user]1+1?<|im_end|>[assistant]2<|im_end|>" and found["tokens"]["learned"] == 2
    assert said[1:3] == ["    [user]1+1?<|im_end|>[assistant]", "  > 2<|im_end|>"]


def test_an_argument_of_the_template_is_words_or_a_table_and_is_saved_with_the_config(model, tmp_path):
    (tmp_path / "mood.jinja").write_text(
        "{% for m in messages %}[{{ mood | default('calm') }}:{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}[{{ mood | default('calm') }}:assistant]{% endif %}"
    )
    (tmp_path / "sft.toml").write_text('[template_args]\nmood = "gay"\n')
    sections = [Section("options", DataShow, table="")]
    words = {"program": "posttrain", "origin": "sft.toml"}
    read = partial(parse, sections=sections, file=tomllib.loads((tmp_path / "sft.toml").read_text()), **words)
    (table,), (typed,) = read([]), read(["--template-args", "mood=gay"])
    assert table.template_args == DataShow(template_args={"mood": "gay"}).template_args == "'mood=\"gay\"'"
    assert typed.template_args == "mood=gay"
    for one in (table, typed):
        config = replace(one, dataset=in_memory(ROWS[:1]), model=model, chat_template=str(tmp_path / "mood.jinja"))
        assert text(run(config)[1]) == "[gay:user]1+1?<|im_end|>[gay:assistant]2<|im_end|>"
        assert run(config)[1]["tokens"]["learned"] == 2
    with pytest.raises(UserError, match=r"`template_args` has a value that is no JSON: .* date"):
        DataShow(template_args={"mood": date(2026, 1, 1)})
    with pytest.raises(UserError, match="unknown name of `template_args` 'moo'; did you mean 'mood'"):
        run(replace(config, template_args="moo=gay"))
    sft = SFT(in_memory(ROWS[:1]), model, steps=1, examples_per_step=1, precision="float32", template_args="mood=gay")
    trained = train(replace(sft, chat_template=config.chat_template), output=tmp_path / "run", quiet=True).run
    assert tomllib.loads((trained / "config.toml").read_text())["template_args"] == "mood=gay"
    assert text(show(in_memory(ROWS[:1]), str(trained))) == "[gay:user]1+1?<|im_end|>[gay:assistant]2<|im_end|>"
