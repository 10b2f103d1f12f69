"""Small files in the layouts of the public data sets, and what is read from them."""

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.data import load_judgements, load_preferences, load_ratings
from posttrain.errors import DataError
from posttrain.types import Message, Preference


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def load(tmp_path: Path, *rows: dict[str, Any]) -> list[Preference]:
    return load_preferences(write(tmp_path / "data.jsonl", *rows)).items


def compared(found: list[Preference]) -> list[tuple[str, str, float]]:
    return [(p.chosen, p.rejected, p.strength) for p in found]


def asked(text: str) -> tuple[Message, ...]:
    return (Message("user", text),)


def test_responses_with_scores_make_a_pair_of_every_two_that_differ(tmp_path):
    row = {"prompt": "1+1?", "responses": ["2", "3", "two"], "scores": [1.0, 0, 1]}
    found = load(tmp_path, row)
    assert compared(found) == [("2", "3", 1.0), ("two", "3", 1.0)]
    assert {p.prompt for p in found} == {asked("1+1?")} and found[0].source.endswith("data.jsonl line 1")
    assert compared(load(tmp_path, row | {"scores": [0, 1, 3]})) == [
        ("3", "2", 1.0),
        ("two", "2", 3.0),
        ("two", "3", 2.0),
    ]


def test_responses_that_say_the_same_make_no_pair_whatever_their_scores(tmp_path):
    row = {"prompt": "p", "responses": ["a", "a", "b"], "scores": [1, 2, 3]}
    assert compared(load(tmp_path, row)) == [("b", "a", 2.0), ("b", "a", 1.0)]


SCORED = {"prompt": "p", "responses": ["a", "b"], "scores": [1, 2]}

ULTRAFEEDBACK = {
    "source": "evol_instruct",
    "instruction": "Name a colour.",
    "models": ["a", "b"],
    "completions": [
        {"model": "a", "response": "Red.", "fine-grained_score": 3.5, "overall_score": 10.0, "annotations": {}},
        {"model": "b", "response": "Red, like a rose.", "fine-grained_score": 4.75, "overall_score": 8.0},
    ],
}


def test_ultrafeedback_goes_by_the_fine_grained_score(tmp_path):
    (found,) = load(tmp_path, ULTRAFEEDBACK)
    assert (found.prompt, found.chosen, found.rejected) == (asked("Name a colour."), "Red, like a rose.", "Red.")
    assert found.strength == 1.25


def test_ultrafeedback_that_was_made_into_pairs(tmp_path):
    said = [{"role": "user", "content": "Hi"}]
    row = {
        "prompt": "Hi",
        "prompt_id": "7",
        "chosen": [*said, {"role": "assistant", "content": "Hello"}],
        "rejected": [*said, {"role": "assistant", "content": "What"}],
        "messages": [*said, {"role": "assistant", "content": "Hello"}],
        "score_chosen": 8.5,
        "score_rejected": 4.0,
    }
    assert compared(load(tmp_path, row)) == [("Hello", "What", 1.0)]


def test_skywork_s_conversations(tmp_path):
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    chosen, rejected = ([*said, {"role": "assistant", "content": text}] for text in ("d", "e"))
    (found,) = load(tmp_path, {"chosen": chosen, "rejected": rejected, "source": "magpie"})
    assert [m.content for m in found.prompt] == ["a", "b", "c"] and (found.chosen, found.rejected) == ("d", "e")


def test_helpsteer2_has_a_row_for_each_response(tmp_path):
    def row(prompt: str, response: str, helpfulness: int) -> dict[str, Any]:
        return {"prompt": prompt, "response": response, "helpfulness": helpfulness, "correctness": 4, "verbosity": 2}

    rows = [row("p", "bad", 1), row("p", "good", 4), row("q", "so", 2), row("q", "also so", 2), row("r", "alone", 3)]
    found = load_preferences(write(tmp_path / "data.jsonl", *rows))
    assert compared(found.items) == [("good", "bad", 3.0)] and found.items[0].prompt == asked("p")
    places = [place.split(": ")[0].split()[-1] for place in found.left_out]
    assert places == ["3", "5"]  # where the prompts begin whose responses are not told apart


def test_comparisons_of_summaries(tmp_path):
    row = {
        "info": {"id": "t3", "post": "I lost it.", "title": "Lost", "subreddit": "pets"},
        "split": "train",
        "summaries": [{"text": " It is gone.", "policy": "a"}, {"text": " Help!", "policy": "b"}],
        "choice": 1,
        "worker": "w9",
    }
    (found,) = load(tmp_path, row)
    assert found.prompt == asked("SUBREDDIT: r/pets\n\nTITLE: Lost\n\nPOST: I lost it.\n\nTL;DR:")
    assert (found.chosen, found.rejected) == ("Help!", "It is gone.")


def test_a_summary_of_an_article_and_a_choice_that_is_no_whole_number(tmp_path):
    row = {"info": {"id": "c", "post": None, "article": "It rained."}, "choice": 0.0}
    (found,) = load(tmp_path, row | {"summaries": [{"text": "Rain."}, {"text": "Sun."}]})
    assert found.prompt == asked("ARTICLE: It rained.\n\nTL;DR:") and found.chosen == "Rain."


def test_helpsteer2_s_conversations(tmp_path):
    prompt = "Hi<extra_id_1>Assistant\nHello.\n<extra_id_1>User\nWho?"
    rows = [{"prompt": prompt, "response": text, "helpfulness": score} for text, score in (("Me.", 4), ("No.", 1))]
    (found,) = load(tmp_path, *rows)
    assert [(m.role, m.content) for m in found.prompt] == [("user", "Hi"), ("assistant", "Hello."), ("user", "Who?")]


def test_completions_that_are_empty_or_have_no_score_are_passed_over(tmp_path):
    more = [{"response": "", "fine-grained_score": 1.0}, {"response": "Blue.", "fine-grained_score": None}]
    (found,) = load(tmp_path, ULTRAFEEDBACK | {"completions": ULTRAFEEDBACK["completions"] + more})
    assert compared([found]) == [("Red, like a rose.", "Red.", 1.25)]


def test_what_is_said_to_be_a_pair_is_one_whatever_else_the_row_has(tmp_path):
    both = SCORED | {"chosen": "x", "rejected": "y", "question": "p", "label": 1}
    assert compared(load(tmp_path, both)) == [("x", "y", 1.0)]
    judged = {"prompt": "p", "question": "p", "completion": "c", "label": True}
    ((found,),) = load_judgements(write(tmp_path / "thumbs.jsonl", judged)).items
    assert (found.response, found.good) == ("c", True)


def test_what_follows_a_wrong_step_is_not_learned_from(tmp_path):
    wrong = prm(step(("a", 1), ("b", -1), chosen=1), step(("c", 1), ("d", -1), chosen=0))
    assert [p.chosen for p in load(tmp_path, wrong)] == ["a"]
    assert all(p.partial for p in load(tmp_path, wrong))


def test_the_step_that_was_chosen_is_what_the_next_ones_go_on_from(tmp_path):
    (found,) = load(tmp_path, prm(step(("x", 0), ("1+1=2", 1), chosen=1), step(("a", 1), ("b", -1))))
    assert (found.opening, found.chosen) == ("1+1=2\n", "a")


def test_a_question_and_a_label_in_words_are_no_derivation(tmp_path):
    with pytest.raises(DataError, match="field 'chosen' is missing"):
        load(tmp_path, {"question": "1+1?", "label": "2"})


def step(*completions: tuple[str, int], chosen: int | None = None, human: Any = None) -> dict[str, Any]:
    said = [{"text": text, "rating": rating, "flagged": False} for text, rating in completions]
    return {"completions": said, "chosen_completion": chosen, "human_completion": human}


def prm(*steps: dict[str, Any]) -> dict[str, Any]:
    question = {"problem": "1+1+2?", "ground_truth_answer": "4"}
    label = {"steps": list(steps), "total_time": 9, "finish_reason": "solution"}
    return {"labeler": "x1", "timestamp": "2022-07-17", "question": question, "label": label}


def test_prm800k_has_a_pair_wherever_a_right_and_a_wrong_step_were_seen(tmp_path):
    found = load(
        tmp_path,
        prm(
            step(("1+1=2", 1), ("1+1=3", -1), ("Hm.", 0), chosen=0),
            step(("So far 2.", 0), chosen=0),
            step(("2+2=5", -1), ("2+2=6", -1), ("2+2=4", 1), chosen=None, human={"text": "Then 4."}),
            step(("Done: 4", 1), ("Done: 5", -1), chosen=None),
            step(("never reached", 1), ("nor this", -1), chosen=0),
        ),
    )
    first, second, third = "1+1=2\n", "1+1=2\nSo far 2.\n", "1+1=2\nSo far 2.\nThen 4.\n"
    assert [(p.opening, p.chosen, p.rejected) for p in found] == [
        ("", "1+1=2", "1+1=3"),
        (second, "2+2=4", "2+2=5"),
        (second, "2+2=4", "2+2=6"),
        (third, "Done: 4", "Done: 5"),
    ]
    assert first in second and found[0].prompt == asked("1+1+2?")
    assert (found[0].annotator, found[0].time) == ("x1", "2022-07-17")


def test_a_derivation_without_a_wrong_step_is_left_out_and_named(tmp_path):
    good = prm(step(("a", 1), ("b", -1), chosen=0))
    found = load_preferences(write(tmp_path / "data.jsonl", good, prm(step(("a", 1), chosen=0))))
    assert len(found.items) == 1
    (left_out,) = found.left_out
    assert left_out.endswith("line 2: no two responses of which one was found better")


def test_every_layout_is_also_judgements(tmp_path):
    found = load_judgements(
        write(tmp_path / "data.jsonl", ULTRAFEEDBACK, prm(step(("a", 1), ("b", -1), chosen=0)))
    ).items
    assert [[(one.response, one.good) for one in row] for row in found] == [
        [("Red, like a rose.", True), ("Red.", False)],
        [("a", True), ("b", False)],
    ]


AUTOJ = {"scenario": "s", "prompt": "A fruit?", "response 1": "Apple.", "response 2": "Stone."}


def hhh(*asked):
    """A row of two prompts to a judge."""
    texts = [
        f"###The instruction to evaluate:\n{prompt}\n\n###Response to evaluate:\n{said}\n\n###Score Rubrics:\n[?]\n"
        for prompt, said in zip(asked, ("Apple.", "Stone."), strict=True)
    ]
    return {"source": "helpful", "chosen_instruction": texts[0], "rejected_instruction": texts[1]}


def test_benchmarks_of_judges_say_what_their_labels_are_of(tmp_path):
    bench = {"source": "mmlu-pro", "question": "A fruit?", "response_A": "Stone.", "response_B": "Apple."}
    for row, kind in (
        (AUTOJ | {"label": 0}, "people: s"),
        (hhh("A fruit?", "A fruit?"), "people: helpful"),
        (bench | {"label": "B>A"}, "objective: mmlu-pro"),
    ):
        (found,) = load(tmp_path, row)
        assert (found.chosen, found.rejected, found.category) == ("Apple.", "Stone.", kind)
    told = "Below is an instruction that says what to do.\n\n### Response:"  # of a user, about another model
    (found,) = load(tmp_path, AUTOJ | {"label": 0, "prompt": told})
    assert found.prompt == asked(told)
    file = write(tmp_path / "data.jsonl", *(AUTOJ | {"label": label} for label in (0, 1, 2)))
    assert [one.source for one in load_preferences(file, ties=True)] == ["data.jsonl line 3"]


def test_a_dialogue_that_mt_bench_writes_into_its_instruction_is_one_message(tmp_path):
    talk = "Here is a dialogue.\n\nUser: A fruit?\n\nAssistant: "
    row = {"instruction": hhh(talk, talk)["chosen_instruction"], "gpt4_score": [2, 3, 3]}
    (found,) = load_ratings(write(tmp_path / "data.jsonl", row))
    assert (found.prompt, found.response) == (asked(talk), "Apple.")
    assert found.ratings == {"gpt-4": pytest.approx(8 / 3)}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (SCORED | {"scores": [1]}, "2 'responses' need as many 'scores'; got 1"),
        (SCORED | {"scores": [1, "two"]}, "'scores' must be a number; got 'two'"),
        (SCORED | {"scores": [1, True]}, "'scores' must be a number; got True"),
        (SCORED | {"responses": ["a", ""]}, "'responses' is empty"),
        (SCORED | {"responses": "ab"}, "'responses' must be a list; got 'ab'"),
        (ULTRAFEEDBACK | {"completions": ["x"]}, "'completions' must be an object"),
        (ULTRAFEEDBACK | {"completions": [{"response": "x", "fine-grained_score": "good"}]}, "must be a number"),
        (ULTRAFEEDBACK | {"completions": [{"response": "x"}]}, "no two responses of which one was found better"),
        ({"info": {"post": "x"}, "summaries": [{"text": "a"}], "choice": 0}, "two 'summaries' and a 'choice'"),
        ({"info": {"post": "x"}, "summaries": [{"text": "a"}, {"text": "b"}], "choice": 2}, "two 'summaries'"),
        (prm() | {"question": {"problem": ""}}, "'question problem' must be text"),
        (prm() | {"label": {"steps": None}}, "'label steps' must be a list"),
        (prm(step(("a", 1), ("b", -1), chosen=2)), "'chosen_completion' is 2 of 2 completions"),
        ({"info": {"id": "x"}, "summaries": [{"text": "a"}, {"text": "b"}], "choice": 0}, "'info post or article'"),
        (AUTOJ | {"label": 3}, "field 'label' must be one of 0 .response 1., 1 .response 2., 2 .a tie.; got 3"),
        (hhh("A fruit?", "A stone?"), "have different instructions to evaluate"),
        (hhh("A fruit?", "A fruit?") | {"chosen_instruction": "A fruit?"}, "is not a prompt of Prometheus"),
    ],
)
def test_what_is_not_as_the_layout_has_it_is_named(tmp_path, row, problem):
    with pytest.raises(DataError, match=f"data.jsonl line 1: .*{problem}"):
        load(tmp_path, row)
