"""Rows with tools and calls through the commands, with a chat template of one's own, as one would type them."""

import json
from pathlib import Path

import pytest

from posttrain.cli import main
from tests.data.families import TEMPLATES
from tests.data.test_tools import CALL, ROW, TOOL
from tests.recipes.folders import model_folder

OWN = TEMPLATES / "hermes.jinja"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(model_folder(tmp_path_factory.mktemp("tools") / "model", context=1024))


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path / "cache"))

    def write(**fields) -> str:
        (tmp_path / "rows.jsonl").write_text(f"{json.dumps(fields)}\n" * 2, encoding="utf-8")
        return "rows.jsonl"

    return write


def typed(capsys, *words: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main([*words, "--precision", "float32", "--quiet"])
    return code, capsys.readouterr().err


def template_of(run: str) -> str:
    (found,) = Path(run).glob("checkpoints/*/chat_template.jinja")
    return found.read_text(encoding="utf-8")


def test_calls_are_learned_by_a_template_of_ones_own_which_is_saved_and_used_again(capsys, model, write):
    sft = ["sft", "--dataset", write(**ROW), "--model", model, "--examples-per-step", "2", "--steps", "1"]
    code, err = typed(capsys, *sft, "--output", "none")
    assert code == 2 and err.count("\n") == 1
    assert "the chat template does not render the tool 'weather'; give one that knows tools with --chat-template" in err
    assert typed(capsys, *sft, "--chat-template", str(OWN), "--output", "run")[0] == 0
    assert template_of("run") == OWN.read_text(encoding="utf-8")
    prompts = ["--prompts", write(prompt=ROW["messages"][:3], tools=[TOOL]), "--max-new-tokens", "2"]
    assert typed(capsys, "generate", "--model", "run", *prompts)[0] == 0
    code, err = typed(capsys, "generate", "--model", model, *prompts)
    assert code == 2 and "does not render the tool" in err
    assert typed(capsys, "generate", "--model", model, *prompts, "--chat-template", str(OWN))[0] == 0


def test_pairs_and_rollouts_take_the_template_too(capsys, model, write):
    said = [{"role": "assistant", "content": "", "tool_calls": [CALL]}]
    row = {"chosen": said, "rejected": "No.", "answer": "x", "prompt": ROW["messages"][:1], "tools": [TOOL]}
    own = ["--model", model, "--chat-template", str(OWN), "--dataset", write(**row), "--steps", "1"]
    pairs = ["--pairs-per-step", "2"]
    assert typed(capsys, "preference", *own, *pairs, "--output", "dpo")[0] == 0
    assert typed(capsys, "reward-model", *own, "--pairs-per-step", "1", "--output", "scores")[0] == 0
    size = ["--prompts-per-step", "1", "--completions-per-prompt", "2", "--max-new-tokens", "2"]
    assert typed(capsys, "rl", *own, *size, "--reward", "exact", "--output", "rl")[0] == 0
    whole = OWN.read_text(encoding="utf-8")
    assert template_of("dpo") == template_of("rl") == whole and whole in template_of("scores")


@pytest.mark.parametrize("command", ["sft", "preference", "reward-model", "rl", "evaluate", "best-of-n"])
def test_a_template_that_is_not_there_is_one_line(capsys, model, write, command):
    rows = write(prompt="a", completion="b", chosen="b", rejected="c", answer="x")
    judged = ["--reward", "exact"] if command in ("rl", "evaluate", "best-of-n") else []
    judged += ["--output", "best.jsonl"] if command == "best-of-n" else []
    code, err = typed(capsys, command, "--dataset", rows, "--model", model, "--chat-template", "none.jinja", *judged)
    assert code == 2 and err.count("\n") == 1
    assert "cannot read --chat-template 'none.jinja': No such file or directory; give a Jinja file" in err
