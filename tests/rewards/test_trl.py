"""TRL's own reward functions, asked as its trainers ask them and through posttrain: the numbers are the same."""

import inspect
import math

import pytest
from trl.rewards import (
    accuracy_reward,
    get_cosine_scaled_reward,
    get_repetition_penalty_reward,
    get_soft_overlong_punishment,
    reasoning_accuracy_reward,
    think_format_reward,
)

from posttrain.data import in_memory, load_tasks
from posttrain.errors import RewardError, UserError
from posttrain.rewards import Weighted, from_function
from posttrain.types import Episode, Message, Score, Task, ToolCall
from tests.rewards.episodes import parts as parts_of
from tests.rewards.episodes import scores as scores_of
from tests.rewards.episodes import unguarded

ROWS = [
    {"question": "1/3?", "solution": r"$\frac{1}{3}$", "said": r"<think>a</think> \boxed{\frac{1}{3}}", "tokens": 5},
    {"question": "1/3?", "solution": r"$\frac{1}{3}$", "said": r"\boxed{\frac{1}{2}}", "tokens": 90},
    {"question": "why?", "solution": "because", "said": r"<think>b</think> \boxed{7}", "tokens": 99},
    {"question": "2+2?", "solution": "$4$", "said": r"<think>never ends \boxed{4}", "tokens": 120},
]
IDS = [tuple(i % 7 for i in range(row["tokens"])) for row in ROWS]


def middle(x):
    """The middle of 0.5 and 1, and how far a share x of the longest completion is above it."""
    return 0.75 + 0.25 * math.cos(x * math.pi)


def prompts(conversational):
    system = {"role": "system", "content": "Think."}
    return [
        [system, {"role": "user", "content": row["question"]}] if conversational else row["question"] for row in ROWS
    ]


def as_trl(function, conversational):
    """The call of `GRPOTrainer._calculate_rewards`."""
    completions = [[{"role": "assistant", "content": r["said"]}] if conversational else r["said"] for r in ROWS]
    columns = {key: [row[key] for row in ROWS] for key in ("solution", "tokens")}
    ids = [list(each) for each in IDS]
    return function(prompts=prompts(conversational), completions=completions, completion_ids=ids, **columns)


def episodes(conversational):
    rows = [
        {"prompt": prompt, "solution": row["solution"], "tokens": row["tokens"]}
        for prompt, row in zip(prompts(conversational), ROWS, strict=True)
    ]
    tasks = load_tasks(in_memory(rows), system=None if conversational else "Think.")
    return [
        Episode(task, (*task.prompt, Message("assistant", row["said"])), completion_ids=ids)
        for task, row, ids in zip(tasks, ROWS, IDS, strict=True)
    ]


def through(function, conversational):
    scores = scores_of(from_function(function), episodes(conversational))
    return [score.value if score.applicable else None for score in scores]


@pytest.mark.parametrize(
    "function, expected",
    [
        (accuracy_reward, [1.0, 0.0, None, 1.0]),
        (reasoning_accuracy_reward, [1.0, 0.0, None, 0.0]),
        (think_format_reward, [1.0, 0.0, 1.0, 0.0]),
        (get_soft_overlong_punishment(100, 20), [0.0, -0.5, -0.95, -1.0]),
        (get_repetition_penalty_reward(3), [0.0, -(1 - 7 / 88), -(1 - 7 / 97), -(1 - 7 / 118)]),
        (get_cosine_scaled_reward(100), [middle(0.05), middle(0.1) - 1.5, None, 0.5]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_functions_of_trl_on_conversations(function, expected):
    expected = [None if value is None else pytest.approx(value) for value in expected]
    assert as_trl(function, True) == expected
    assert through(function, True) == expected


def test_functions_see_what_trl_passes():
    seen = []

    def reward(prompts, completions, completion_ids, solution, **kwargs):
        seen.append((prompts, completions, completion_ids, solution, kwargs))
        return [None] * len(prompts)

    for conversational in (True, False):
        as_trl(reward, conversational)
        assert through(reward, conversational) == [None] * 4
        (*trls, extra), (*ours, more) = seen[-2:]
        assert ours == trls and type(ours[2][0]) is list
        assert more == extra | {"answers": [None] * 4, "answer": [None] * 4}  # `answer` is a column that may be absent


def test_a_multi_turn_completion_is_all_that_was_said_after_the_prompt():
    task = Task((Message("user", "a"),), conversational=True)
    said = (*task.prompt, Message("assistant", "b"), Message("user", "c"), Message("assistant", "d"))
    seen = []
    unguarded(from_function(lambda completions: seen.extend(completions) or [0]), [Episode(task, said)])
    assert [(m["role"], m["content"]) for m in seen[0]] == [("assistant", "b"), ("user", "c"), ("assistant", "d")]


def test_calls_of_tools_are_as_trl_has_them():
    task = Task((Message("user", "a"),), conversational=True)
    calls = (ToolCall("1", "add", '{"x": 1}'), ToolCall("2", "add", "{x:"))
    said = (*task.prompt, Message("assistant", "", calls), Message("tool", "3", name="add"), Message("assistant", "3"))
    seen = []
    unguarded(from_function(lambda completions: seen.extend(completions) or [0]), [Episode(task, said)])
    assert seen[0] == [
        {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "function": {"name": "add", "arguments": {"x": 1}}},
            {"type": "function", "function": {"name": "add", "arguments": "{x:"}},
        ]},
        {"role": "tool", "content": "3", "name": "add"},
        {"role": "assistant", "content": "3"},
    ]  # fmt: skip


def test_none_does_not_apply_in_a_batch_and_is_a_mistake_in_a_single_function():
    assert through(lambda completions: [0.5, None, Score.not_applicable("no unit"), 1], True) == [0.5, None, None, 1.0]
    with pytest.raises(RewardError, match=r"returned None on .* does not apply, return Score\.not_app"):
        through(lambda completion: None, True)
    assert through(lambda completion: Score.not_applicable(), True) == [None] * 4
    with pytest.raises(RewardError, match="nan"):  # which TRL takes for None, too
        through(lambda completions: [math.nan] * 4, True)


def test_what_only_a_trainer_has():
    logged = inspect.signature(accuracy_reward).parameters["log_extra"]
    assert logged.default is None  # such a parameter is left out

    def logs(completions, log_extra, log_metric):
        log_extra("x", completions)
        log_metric("y", 1.0)
        return [1] * len(completions)

    assert through(logs, True) == [1.0] * 4
    with pytest.raises(UserError, match="needs 'trainer_state', which only TRL's trainers have"):
        from_function(lambda completions, trainer_state: [1])
    from_function(lambda completions, trainer_state=None: [1])
    given = Episode(Task((Message("user", "a"),)), (Message("assistant", "b"),))
    with pytest.raises(UserError, match=r"needs completion_ids, .* use it in rl, evaluate or best-of-n") as caught:
        unguarded(from_function(get_soft_overlong_punishment(9, 3), "overlong"), [given])
    assert "'overlong'" in str(caught.value)


def test_the_other_columns_of_the_data():
    task = Task((Message("user", "a"),), answer=3, gold="it is 3", id="t7", metadata={"level": 2})
    one = [Episode(task, (Message("assistant", "b"),))]

    def reward(completions, gold, id, answer, level):
        assert (gold, id) == (["it is 3"], ["t7"])
        return [answer[0] + level[0]]

    assert unguarded(from_function(reward), one)[0].value == 5


def test_a_total_is_over_the_rewards_that_apply_and_lost_where_none_does():
    weighted = Weighted(((from_function(accuracy_reward), 1.0), (from_function(think_format_reward), 0.1)))
    parts = parts_of(weighted, episodes(True))
    # The third: its solution cannot be read, so that the form alone counts, with its weight as it is.
    assert [weighted.total(part) for part in parts] == pytest.approx([1.1, 0.0, 0.1, 1.0])
    alone = Weighted(((from_function(accuracy_reward), 2.0), (from_function(think_format_reward), 0.0)))
    found = [alone.total(part) for part in parts_of(alone, episodes(True))]
    assert found[:2] == [2.0, 0.0] and math.isnan(found[2]) and found[3] == 2.0
    only_logged = Weighted(((from_function(think_format_reward), 0.0),))
    assert only_logged.total({"think_format_reward": Score.not_applicable()}) == 0.0


def test_a_function_that_reads_messages_says_so_where_prompts_are_text():
    with pytest.raises(
        RewardError, match=r"'think_format_reward' raised TypeError: string .*: write each prompt as \[\{"
    ):
        through(think_format_reward, False)

    def wrong(completions):
        raise TypeError("string indices must be integers")

    with pytest.raises(RewardError, match=r"raised TypeError: string indices must be integers \("):
        through(wrong, True)
