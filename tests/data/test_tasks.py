import gzip
import json

import pytest

from posttrain.data.heldout import disjoint
from posttrain.data.tasks import dress, load_tasks
from posttrain.errors import DataError, UserError
from posttrain.types import Message, Task


def write(folder, *rows) -> str:
    path = folder / "data.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def task(*texts) -> Task:
    return Task(tuple(Message("assistant" if i % 2 else "user", text) for i, text in enumerate(texts)))


def test_fields_of_a_task(tmp_path):
    chat = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes?"},
        {"role": "user", "content": "1+1?"},
    ]
    source = write(
        tmp_path,
        {"prompt": chat, "answer": 2, "gold": "It is 2.", "id": 9, "level": "easy"},
        {"prompt": "2+2?"},
    )
    first, second = load_tasks(source)
    assert [m.content for m in first.prompt] == ["hi", "yes?", "1+1?"]
    assert (first.answer, first.gold, first.metadata, first.id) == (2, "It is 2.", {"level": "easy"}, "9")
    assert second == Task((Message("user", "2+2?"),), id="data.jsonl:2")


def test_verl_s_files_have_the_answer_in_the_reward_model(tmp_path):
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "1+1?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"split": "train", "index": 7},
    }
    (tmp_path / "verl.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {"answer": "two"}) + "\n")
    found = load_tasks(str(tmp_path / "verl.jsonl"))
    assert [task.answer for task in found] == ["2", "two"]  # a field of its own says it first
    assert found[0].metadata["data_source"] == "openai/gsm8k"
    (tmp_path / "named.jsonl").write_text(json.dumps({"prompt": "1+1?", "reward_model": "a name"}) + "\n")
    assert load_tasks(str(tmp_path / "named.jsonl"))[0].answer is None


def test_gsm8k_is_recognised(tmp_path):
    gold = "48/2 = <<48/2=24>>24.\n48+24 = 72.\n#### 72"
    [read] = load_tasks(write(tmp_path, {"question": "How many clips?", "answer": gold, "source": "x"}))
    assert read == Task(
        (Message("user", "How many clips?"),), answer="72", gold=gold, metadata={"source": "x"}, id="data.jsonl:1"
    )


@pytest.mark.parametrize("answer", ["72", "#### "])
def test_gsm8k_row_without_its_number(tmp_path, answer):
    good = {"question": "q", "answer": "#### 1"}
    with pytest.raises(DataError, match=r"data.jsonl line 2: field 'answer' must end with '#### '"):
        load_tasks(write(tmp_path, good, {"question": "q", "answer": answer}))


def test_a_folder_in_gsm8k_s_layout_has_two_splits_that_never_meet(tmp_path):
    for name, numbers in (("train.jsonl.gz", range(30)), ("test-first500.jsonl.gz", range(30, 35))):
        rows = [{"question": f"What is {n} + 1?", "answer": f"{n}+1=<<{n}+1>>\n#### {n + 1}"} for n in numbers]
        with gzip.open(tmp_path / name, "wt", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
    train, test = load_tasks(str(tmp_path)), load_tasks(str(tmp_path), split="test")
    assert [t.answer for t in train] == [str(n + 1) for n in range(30)] and len(test) == 5
    assert train[0].gold is not None and train[0].gold.endswith("#### 1")
    assert disjoint(train, test)[1] == 0


def test_a_row_that_is_no_task_names_line_and_field(tmp_path):
    source = write(tmp_path, {"prompt": "a"}, {"problem": "b", "answer": "2"})
    with pytest.raises(DataError, match=r'data.jsonl line 2: field .prompt. is missing; .*`columns="prompt=problem"`'):
        load_tasks(source)
    with pytest.raises(DataError, match=r"line 1: field 'prompt' must end with a user message; .* 'assistant'"):
        load_tasks(write(tmp_path, {"prompt": [{"role": "assistant", "content": "a"}]}))


def test_columns_and_limit(tmp_path):
    source = write(tmp_path, {"q": "a", "truth": {"x": 5}}, {"q": "b", "truth": {"x": 6}})
    [read] = load_tasks(source, columns={"prompt": "q", "answer": "truth.x"}, limit=1)
    assert (read.prompt[0].content, read.answer) == ("a", 5)


def test_system_and_template_are_put_around_the_question(tmp_path):
    chat = [{"role": "system", "content": "old"}, {"role": "user", "content": "{1}?"}]
    [read] = load_tasks(write(tmp_path, {"prompt": chat}), system="new", prompt_template="Q: {prompt}\nThink.")
    assert read.prompt == (Message("system", "new"), Message("user", "Q: {1}?\nThink."))
    [read] = load_tasks(write(tmp_path, {"prompt": chat}))
    assert read.prompt == (Message("system", "old"), Message("user", "{1}?"))


@pytest.mark.parametrize("template", ["", "no place", "{prompt} {prompt}"])
def test_a_template_needs_one_place_for_the_prompt(template):
    with pytest.raises(UserError, match="exactly once"):
        dress([Message("user", "a")], None, template)


def test_only_what_the_user_says_is_dressed():
    dressed = dress(task("a", "b", "c").prompt, None, "<{prompt}>")
    assert [m.content for m in dressed] == ["<a>", "b", "<c>"]


def test_gym_sources_are_made_not_read():
    options = {"limit": 4, "seed": 3, "split": "heldout", "prompt_template": "{prompt} Think."}
    tasks = load_tasks("gym:chain_sum", **options)
    assert len(tasks) == 4 and all(t.prompt[0].content.endswith("= Think.") for t in tasks)
    assert [t.id.split("/")[:3] for t in tasks] == [["chain_sum", "heldout", "3"]] * 4
    assert len(load_tasks("gym:chain_sum", limit=3)) == 3
    with pytest.raises(UserError, match="leave out `columns`"):
        load_tasks("gym:chain_sum", columns={"prompt": "question"})
