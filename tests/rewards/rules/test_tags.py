import pytest

from posttrain.rewards import Tags
from tests.rewards.episodes import score, value

BOTH = Tags(("think", "answer"), text_after=False)


def test_the_required_shape_scores_1():
    assert value(Tags(), "<think>2+2=4</think>4") == 1.0
    assert value(Tags(), "\n<think>\n2+2=4\n</think>\n\nIt is 4.\n") == 1.0
    assert value(BOTH, "<think>2+2=4</think> <answer>4</answer>\n") == 1.0
    assert value(Tags(opened_by_prompt=True), "2+2=4</think>4") == 1.0


@pytest.mark.parametrize(
    "completion, flaw",
    [
        ("4", "<think> occurs 0 times"),
        ("<think>2+2=4", "</think> occurs 0 times"),
        ("2+2=4</think>4", "<think> occurs 0 times"),
        ("<think>2<think>+2=4</think>4", "<think> occurs 2 times"),
        ("<think>a</think>b</think>c", "</think> occurs 2 times"),
        ("Well, <think>2+2=4</think>4", "not where it belongs"),
        ("</think>a<think>b", "not where it belongs"),
        ("<think>  </think>4", "is empty"),
        ("<think>2+2=4</think> \n", "nothing follows"),
    ],
)
def test_every_flaw_scores_0_and_is_named(completion, flaw):
    got = score(Tags(), completion)
    assert got.value == 0.0 and flaw in got.explanation


@pytest.mark.parametrize(
    "completion",
    [
        "<answer>4</answer><think>2+2=4</think>",
        "<think>2+2=4</think>so<answer>4</answer>",
        "<think>2+2=4</think><answer>4</answer>.",
        "<think>2+2=4<answer>4</answer></think>",
        "<think>2+2=4</think><answer></answer>",
        "<think>2+2=4</think>4",
    ],
)
def test_two_tags_in_order_with_nothing_between_and_after(completion):
    assert value(BOTH, completion) == 0.0


def test_an_opening_tag_from_the_prompt_must_not_be_written_again():
    assert value(Tags(opened_by_prompt=True), "<think>2+2=4</think>4") == 0.0
