"""The environments of examples/: they conform, and go as they say."""

import asyncio
import importlib.util
import json
from pathlib import Path

import pytest

from posttrain.data.chat import ChatFormat
from posttrain.environments.tools import ToolError
from posttrain.environments.user_methods import load_environment
from posttrain.testing import ScriptedSeat, check_environment
from posttrain.types import Message, ToolCall
from tests.data.families import of_family

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("guess_number.py:GuessNumber", "calculator.py:Calculator", "nim.py:Nim", "search.py:Search")


def environment(name, arguments=""):
    return load_environment(str(EXAMPLES / name), arguments)


def played(name, replies, task, arguments="", seats=("policy",)):
    one = environment(name, arguments)
    scripts = {seat: ScriptedSeat(said) for seat, said in zip(seats, replies, strict=True)}
    return asyncio.run(one.play(task(one), scripts, 0)), scripts


@pytest.mark.parametrize("name", NAMES)
def test_each_conforms_and_has_tasks_and_demonstrations(name):
    one = environment(name)
    check_environment(one)
    assert len(one.tasks("train", 0)) > 4 and len(one.tasks("heldout", 0)) > 4
    for said in one.demonstrations(0)[:50]:
        assert said[0].role == "user" and said[-1].role == "assistant"


def test_the_calculator_answers_calls():
    def task(one):
        return one.tasks("heldout", 0)[0]

    answer = task(environment("calculator.py:Calculator")).answer
    expression = task(environment("calculator.py:Calculator")).prompt[0].content.removeprefix("What is ")[:-1]
    call = Message("assistant", "", (ToolCall("call00000", "calculate", json.dumps({"expression": expression})),))
    outcome, seats = played("calculator.py:Calculator", [[call, f"It is {answer}"]], task)
    assert outcome.solved and outcome.metrics == {"calls": 1}
    assert seats["policy"].told[1] == (Message("tool", str(answer), tool_call_id="call00000", name="calculate"),)
    assert "calculate" in seats["policy"].tools[0]
    wrong, _ = played("calculator.py:Calculator", [[call, f"{answer}0"]], task)
    never, _ = played("calculator.py:Calculator", [[call]], task)
    assert wrong.solved is never.solved is False and never.metrics == {"calls": 3}


def calculator():
    spec = importlib.util.spec_from_file_location("calculator_example", EXAMPLES / "calculator.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.calculate.function


@pytest.mark.parametrize(("expression", "value"), [("1 + 2 * 3", "7"), ("(2 - 5) * 4", "-12"), (" 7 ", "7")])
def test_the_calculator_computes(expression, value):
    assert calculator()(expression) == value


@pytest.mark.parametrize(
    "expression", ["2 ** 99999", "__import__('os')", "1 / 2", "1.5 + 1", "", "1 +", "True + 1", "9" * 101, "a"]
)
def test_the_calculator_refuses_all_else(expression):
    with pytest.raises(ToolError):
        calculator()(expression)


def test_the_template_of_the_calculator_writes_calls_that_are_read_back():
    chat = ChatFormat(of_family("hermes", template=(EXAMPLES / "tools.jinja").read_text()))
    one = environment("calculator.py:Calculator")
    said = next(said for said in one.demonstrations(0) if len(said) == 4)
    (ids,) = chat.training_examples(said)
    learned = [token for token, mine in zip(*ids, strict=True) if mine]
    text = chat.decode(learned)
    assert (
        chat.parse(text[: text.index("</tool_call>") + 12]).tool_calls[0].arguments == said[1].tool_calls[0].arguments
    )
    assert text.endswith(said[3].content) and "tool_response" not in text


def sticks(number):
    return lambda one: next(t for split in ("train", "heldout") for t in one.tasks(split, 0) if t.answer == number)


@pytest.mark.parametrize(
    ("first", "second", "rewards", "broken"),
    [
        (["1", "3"], ["1", "1"], {"first": 1.0, "second": -1.0}, 0.0),
        (["2"], ["3"], {"first": -1.0, "second": 1.0}, 0.0),
        (["4"], ["1"], {"first": -1.0, "second": 1.0}, 1.0),
        (["3"], ["3"], {"second": -1.0, "first": 1.0}, 1.0),
    ],
)
def test_who_takes_the_last_stick_wins_and_who_breaks_the_rules_loses(first, second, rewards, broken):
    outcome, seats = played("nim.py:Nim", [first, second], sticks(5), seats=("first", "second"))
    assert outcome.rewards == rewards and outcome.metrics["broken"] == broken
    if len(seats["first"].told) > 1:
        assert seats["first"].told[1][0].content.startswith("I take ")


def test_search_goes_on_after_what_it_found():
    def task(one):
        return one.tasks("heldout", 0)[0]

    answer, name = task(environment("search.py:Search")).answer, task(environment("search.py:Search")).id
    said = [f"I look. <search>Where does {name} live?</search> ...", f"So. <answer> {answer.upper()}\n</answer> or"]
    outcome, seats = played("search.py:Search", [said], task)
    assert outcome.solved and outcome.rewards == {"policy": 1.0} and outcome.metrics == {"searches": 1}
    (inserted,) = seats["policy"].told[1]
    lines = inserted.content.strip().splitlines()
    assert lines[0] == "<information>" and lines[1] == f"{name} lives in {answer}." and len(lines) == 5
    assert [message.content for message in seats["policy"].said] == [said[0][:-4], said[1][:-3]]
    often, _ = played("search.py:Search", [["<search>zzz</search>"]], task)
    assert not often.solved and often.metrics == {"searches": 2}


def test_search_reads_documents_of_a_file(tmp_path):
    (tmp_path / "found.txt").write_text("Moss is green.\nRust is red.\nMoss grows on stones.\n")
    one = environment("search.py:Search", f"documents={tmp_path / 'found.txt'} top=1")
    assert one.find("what colour is rust") == ["Rust is red."] and one.find("zzz") == []
