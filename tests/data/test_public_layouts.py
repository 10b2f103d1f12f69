"""Small files in the layouts that people have (tests/data/layouts), and what each becomes, written by hand.

`python -m tests.data.test_public_layouts` writes the table of docs/data.md anew.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from posttrain.data import load_demonstrations, load_judgements, load_preferences, load_ratings, load_tasks
from posttrain.errors import DataError, as_typed
from posttrain.types import Message

FILES = Path(__file__).with_name("layouts")
PAGE = Path(__file__).parents[2] / "docs" / "data.md"
BEGIN, END = "<!-- layouts: made by tests/data/test_public_layouts.py -->\n", "<!-- end of layouts -->\n"


def spoken(messages: Sequence[Message]) -> str:
    """`u: user | a: assistant, learned | (a: assistant, given)`."""
    found: list[str] = []
    for message in messages:
        calls = "".join(f"{call.name}({call.arguments})" for call in message.tool_calls)
        text = f"{message.role[0]}: {message.content}{calls}"
        found.append(f"({text})" if message.role == "assistant" and not message.learned else text)
    return " | ".join(found).replace("\n", "↵")


def sft(source: str) -> list[str]:
    return [spoken(one) for one in load_demonstrations(source)]


def preference(source: str) -> list[str]:
    return [
        f"{spoken(p.prompt)} | {p.opening}{p.chosen} > {p.rejected} by {p.strength:g}" for p in load_preferences(source)
    ]


def kto(source: str) -> list[str]:
    """A labelled response; what stands before `/` are the steps before it."""
    found = [one for row in load_judgements(source) for one in row]
    before = [f"{one.opening}/ ".replace("\n", "↵") if one.partial else "" for one in found]
    return [
        f"{spoken(one.prompt)} | {steps}{one.response} {'good' if one.good else 'bad'}"
        for one, steps in zip(found, before, strict=True)
    ]


def ratings(source: str) -> list[str]:
    return [
        f"{spoken(one.prompt)} | {one.response} {name} {value:.3g}"
        for one in load_ratings(source)
        for name, value in one.ratings.items()
    ]


def rl(source: str) -> list[str]:
    return [f"{spoken(task.prompt)} | answer {task.answer}" for task in load_tasks(source)]


class Case(NamedTuple):
    layout: str
    file: str
    read: Any
    becomes: tuple[str, ...]


FRUIT = "u: A fruit? | a: Apple."
PAIR = "u: A fruit? | Apple. > Stone. by "
READ = (
    Case("messages with `weight` (OpenAI); `train` (axolotl), `loss` (ms-swift)", "openai_messages.jsonl", sft,
         ("s: Be brief. | u: Capital of France? | (a: Lyon.) | u: Sure? | a: Paris.",)),
    Case("ShareGPT with a column `system`", "sharegpt_system.jsonl", sft, (f"s: Be brief. | {FRUIT}",)),
    Case("ShareGPT with `function_call` and a result that is an object", "sharegpt_calls.jsonl", sft,
         ('u: Rain in Paris? | a: weather({"city": "Paris"}) | t: {"rain": true} | a: Yes.',)),
    Case("Alpaca", "alpaca.jsonl", sft, ("u: Add.↵↵1 and 1 | a: 2", "u: Name a fruit. | a: Apple.")),
    Case("Alpaca with `history`", "alpaca_history.jsonl", sft,
         ("s: Be brief. | u: 1 + 1? | (a: 2) | u: And 2 + 2? | a: 4",)),
    Case("Dolly", "dolly.jsonl", sft, ("u: Who wrote it?↵↵Emma is by Jane Austen. | a: Jane Austen.",)),
    Case("prompt and completion as messages (TRL)", "trl_prompt_completion.jsonl", sft,
         ("u: Capital of France? | (a: Lyon.) | u: Sure? | a: Paris.",)),
    Case("WildChat", "wildchat.jsonl", sft, (FRUIT,)),
    Case("Capybara", "capybara.jsonl", sft, (f"{FRUIT} | u: Another? | a: Pear.",)),
    Case("FLAN: `inputs`, `targets`", "flan.jsonl", sft, (FRUIT,)),
    Case("MetaMathQA, ms-swift: `query`, `response`", "metamath.jsonl", sft, ("u: 1 + 1? | a: 2",)),
    Case("OpenOrca", "openorca.jsonl", sft, (f"s: Be brief. | {FRUIT}",)),
    Case("OpenAssistant, trees", "oasst_tree.jsonl", sft, (FRUIT,)),
    Case("OpenAssistant, trees", "oasst_tree.jsonl", preference, (f"{PAIR}1",)),
    Case("OpenAssistant, a row for each message", "oasst_flat.jsonl", sft, (FRUIT,)),
    Case("OpenAssistant, a row for each message", "oasst_flat.jsonl", preference, (f"{PAIR}1",)),
    Case("a list as Python writes it, in a CSV", "python_repr.csv", sft, (FRUIT,)),
    Case("JSON text, in any format", "json_text.jsonl", sft, (FRUIT,)),
    Case("another encoding: `rows.csv?encoding=cp1252`", "cp1252.csv?encoding=cp1252", sft,
         ("u: Un café ? | a: Très bon.",)),
    Case("a .json file of one row", "one_row.json", sft, (FRUIT,)),
    Case("HH-RLHF, transcripts", "hh_transcripts.jsonl", preference, (f"{PAIR}1",)),
    Case("a transcript as `prompt`", "hh_prompt.jsonl", preference, (f"{PAIR}1",)),
    Case("Skywork, UltraFeedback as pairs: whole conversations", "skywork.jsonl", preference, (f"{PAIR}1",)),
    Case("Orca DPO", "orca_dpo.jsonl", preference, (f"s: Be brief. | {PAIR}1",)),
    Case("LLaMA-Factory, ShareGPT pairs", "llamafactory_dpo.jsonl", preference, (f"{PAIR}1",)),
    Case("OpenAI's preference format", "openai_preference.jsonl", preference, (f"{PAIR}1",)),
    Case("UltraFeedback, by `fine-grained_score`", "ultrafeedback.jsonl", preference, (f"{PAIR}3",)),
    Case("HelpSteer2, by `helpfulness`", "helpsteer2.jsonl", preference, (f"{PAIR}4",)),
    Case("HelpSteer3", "helpsteer3.jsonl", preference, (f"{PAIR}2",)),
    Case("Nectar, K-wise", "nectar.jsonl", preference,
         (f"{PAIR}1", "u: A fruit? | Apple. > Dust. by 2", "u: A fruit? | Stone. > Dust. by 1")),
    Case("PKU-SafeRLHF, by `better_response_id`", "pku_saferlhf.jsonl", preference, (f"{PAIR}1",)),
    Case("SHP", "shp.jsonl", preference, (f"{PAIR}1",)),
    Case("Auto-J, pairwise; ties are left out", "autoj_pairwise.jsonl", preference, (f"{PAIR}1", f"{PAIR}1")),
    Case("JudgeBench", "judgebench.jsonl", preference, (f"{PAIR}1", f"{PAIR}1")),
    Case("HHH alignment (Prometheus)", "hhh_alignment.jsonl", preference,
         (f"{PAIR}1", "u: Hello. | a: Hello. What is it? | u: A fruit? | Apple. > Stone. by 1")),
    Case("MT-bench and Vicuna with GPT-4's scores (Prometheus)", "gpt4_rated.jsonl", ratings,
         ("u: A fruit? | Apple. gpt-4 4.67", "u: A fruit? | Stone. gpt-4 1")),
    Case("LMSYS arena, conversations; ties are left out", "lmsys_arena.jsonl", preference, (f"{PAIR}1",)),
    Case("LMSYS arena, turns as JSON", "lmsys_arena_turns.jsonl", preference, (f"{PAIR}1",)),
    Case("your own, scored", "scored.jsonl", preference, (f"{PAIR}3",)),
    Case("Argilla, `chosen_response`", "argilla_pairs.jsonl", preference, (f"{PAIR}1",)),
    Case("Argilla, distilabel: `generations`, `ratings`", "distilabel.jsonl", preference, (f"{PAIR}4",)),
    Case("Argilla 2, records", "argilla_record.jsonl", preference, (f"{PAIR}1",)),
    Case("Argilla 1, records", "argilla_record_v1.jsonl", preference, (f"{PAIR}1",)),
    Case("Label Studio, pairwise", "label_studio_pairwise.json", preference, (f"{PAIR}1",)),
    Case("Label Studio, ranker", "label_studio_ranker.json", preference, (f"{PAIR}1",)),
    Case("Label Studio, JSON-MIN", "label_studio_min.json", preference, (f"{PAIR}1",)),
    Case("PRM800K", "prm800k.jsonl", preference, ("u: 1 + 1 + 1? | 1 + 1 = 2. > 1 + 1 = 3. by 1",)),
    Case("labels true and false (TRL)", "kto.jsonl", kto, ("u: A fruit? | Apple. good", "u: A fruit? | Stone. bad")),
    Case("labels as words", "thumbs_words.jsonl", kto, ("u: A fruit? | Apple. good", "u: A fruit? | Stone. bad")),
    Case("labels 1 and -1", "thumbs_signs.jsonl", kto, ("u: A fruit? | Apple. good", "u: A fruit? | Stone. bad")),
    Case("LLaMA-Factory, labelled conversations (`label`, `kto_tag`)", "llamafactory_kto.jsonl", kto,
         ("u: A fruit? | Apple. good", "u: A fruit? | Stone. bad")),
    Case("stepwise labels (TRL), up to the first wrong step", "trl_stepwise.jsonl", kto,
         ("u: 1 + 1 + 1? | / 1 + 1 = 2. good", "u: 1 + 1 + 1? | 1 + 1 = 2.↵/ 2 + 1 = 4. bad")),
    Case("Math-Shepherd", "math_shepherd.jsonl", kto,
         ("u: 1 + 1 + 1? | / Step 1: 1 + 1 = 2. good", "u: 1 + 1 + 1? | Step 1: 1 + 1 = 2.↵/ Step 2: 2 + 1 = 4. bad")),
    Case("GSM8K", "gsm8k.jsonl", rl, ("u: 1 + 1? | answer 2",)),
    Case("verl", "verl.jsonl", rl, ("u: 1 + 1? | answer 2",)),
)  # fmt: skip
REFUSED = (
    ("images", "images.jsonl", sft, "the column 'images' would change the conversation"),
    ("`context` beside a question (SQuAD)", "squad.jsonl", sft, "the column 'context' would change"),
    ("demonstrations that are labelled", "labelled_demonstrations.jsonl", sft, "the column 'label' would change"),
    ("a prompt that ends with a begun answer", "prefill.jsonl", sft, "field 'prompt' ends with an assistant message"),
    ("a prompt that is templated already", "templated.jsonl", sft, "is rendered by a chat template already"),
    ("a number that is not finite", "infinite.jsonl", preference, "field 'margin' must be"),
    ("a weight between 0 and 1", "half_weight.jsonl", sft, "message 2 has the weight 0.5"),
    ("an empty system message", "empty_system.jsonl", sft, "a system message without text; remove that message"),
    ("the assistant speaks first", "assistant_first.jsonl", sft, "the conversation begins with the assistant"),
)  # fmt: skip


@pytest.mark.parametrize("case", READ, ids=lambda case: f"{case.file.partition('?')[0]}-{case.read.__name__}")
def test_a_public_layout_becomes_what_it_says(case):
    assert tuple(case.read(str(FILES / case.file))) == case.becomes


@pytest.mark.parametrize(("file", "read", "line"), [case[1:] for case in REFUSED], ids=lambda one: str(one)[:20])
def test_a_layout_that_means_something_else_is_refused_in_one_line(file, read, line):
    with pytest.raises(DataError) as caught:
        read(str(FILES / file))
    assert line in str(caught.value) and str(caught.value).startswith(file) and "\n" not in str(caught.value)


def test_every_file_is_in_the_table():
    named = {case.file.partition("?")[0] for case in READ} | {case[1] for case in REFUSED}
    assert named == {file.name for file in FILES.iterdir()}


def table() -> str:
    """The table of docs/data.md, from what the files become."""
    rows = ["| layout | for | a row becomes |", "|---|---|---|"]
    for case in READ:
        becomes = " and ".join(f"`{line}`" for line in case.read(str(FILES / case.file))).replace("|", "\\|")
        rows.append(f"| {case.layout} | {case.read.__name__} | {becomes} |")
    rows += ["", "| refused | for | with |", "|---|---|---|"]
    for layout, file, read, _ in REFUSED:
        try:
            raise AssertionError(read(str(FILES / file)))
        except DataError as error:
            rows.append(
                f"| {layout} | {read.__name__} | {as_typed(str(error)).partition(': ')[2]} |".replace(
                    "<|", "<\\|"
                ).replace("|>", "\\|>")
            )
    return "\n".join(rows) + "\n"


def test_the_page_has_the_table():
    assert PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0] == table()


def main() -> None:
    """Write the table into docs/data.md."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
