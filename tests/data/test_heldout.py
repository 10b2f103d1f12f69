import datasets
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data import load_demonstrations, load_preferences, load_tasks
from posttrain.data.heldout import disjoint, divide, hold_out, split
from posttrain.errors import DataError, UserError
from posttrain.types import Message, Task


def task(*texts) -> Task:
    return Task(tuple(Message("assistant" if i % 2 else "user", text) for i, text in enumerate(texts)))


def test_disjoint_compares_questions_and_says_how_many_it_dropped():
    with_system = Task((Message("system", "s"), Message("user", "1 + 1")))
    train = [task("1 + 1"), task("a", "b", "c")]
    heldout = [with_system, task("1  + 1\n"), task("2 + 2"), task("a", "b", "c"), task("a", "x", "c"), task("2 + 2")]
    kept, removed = disjoint(train, heldout)
    assert kept == [heldout[2], heldout[4]] and removed == 4
    with pytest.raises(UserError, match="all 1 held-out tasks are also in the training data"):
        disjoint(train, [task("1 + 1")])


QUESTIONS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), min_size=40, max_size=60)


def asked(questions) -> list[Task]:
    """The same question with several system messages, spacings and answers."""
    return [
        Task((Message("system", f"s{reply}"), Message("user", f"what is{' ' * (reply + 1)}{q}")), answer=f"{q}{reply}")
        for q, reply in questions
    ]


@given(QUESTIONS, st.integers(0, 5))
def test_held_out_and_trained_share_no_question_and_lose_none(questions, seed):
    try:
        learned, heldout = hold_out(asked(questions), 0.5, seed)
    except UserError:
        return
    assert sorted(map(str, learned + heldout)) == sorted(map(str, asked(questions)))
    assert not {t.answer[:-1] for t in learned} & {t.answer[:-1] for t in heldout}


def test_a_row_more_moves_no_other_row():
    some, more = asked([(q, 0) for q in range(100)]), asked([(q, 0) for q in range(150)])
    fewer, all_of_them = ({t.answer for t in hold_out(tasks, 0.3, 0)[1]} for tasks in (some, more))
    assert fewer <= all_of_them


def test_share_held_out_is_about_what_was_asked_for_and_depends_on_the_seed():
    everything = asked([(q, 0) for q in range(2000)])
    heldout = {seed: hold_out(everything, 0.1, seed)[1] for seed in (0, 1)}
    assert 150 < len(heldout[0]) < 250  # 200 expected; a standard deviation is 13
    assert heldout[0] != heldout[1]


def test_what_is_held_out_is_a_share_or_what_is_offered_and_no_more_than_the_limit():
    tasks, others = asked([(q, 0) for q in range(100)]), asked([(q, 0) for q in range(95, 120)])
    learned, heldout, notes = divide(tasks, share=0.3, offered=None, limit=10, seed=0)
    assert len(heldout) == 10 and len(learned) < 80
    assert notes == (f"of {100 - len(learned)} held-out rows the first 10 are used (`eval_limit`)",)
    learned, heldout, notes = divide(tasks, share=0.0, offered=lambda: others, limit=20, seed=0)
    assert learned == tasks and [t.answer for t in heldout] == [f"{q}0" for q in range(100, 120)]
    assert notes == ("5 held-out rows are also in the training data, or twice, and were left out",)
    assert divide(tasks, share=0.0, offered=None, limit=10, seed=0) == (tasks, [], ())


@pytest.mark.parametrize(("share", "problem"), [(1e-9, "no rows to hold out"), (1 - 1e-9, "no rows to train on")])
def test_a_share_that_leaves_one_side_empty_is_refused(share, problem):
    with pytest.raises(UserError, match=problem):
        hold_out(asked([(1, 0), (2, 0)]), share, 0)


SUMS = [{"prompt": f"{a}+{b}=", "answer": str(a + b), "n": n} for a in range(9) for b in range(9) for n in range(2)]
SAID = [
    {"messages": [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": "?"}]} for row in SUMS
]
HH = [{name: f"\n\nHuman: {row['prompt']}\n\nAssistant: {name}" for name in ("chosen", "rejected")} for row in SUMS]


@pytest.mark.parametrize("rows", [SUMS, datasets.Dataset.from_list(SUMS), pandas.DataFrame(SUMS), iter(SUMS)], ids=type)
def test_rows_of_any_kind_are_divided_into_the_same_lists(rows):
    train, heldout = split(rows, heldout=0.3, seed=1)
    sides = [{row["prompt"] for row in side} for side in (train, heldout)]
    assert not sides[0] & sides[1] and 10 < len(sides[1]) < 40
    assert sorted(train + heldout, key=str) == sorted(SUMS, key=str)
    assert (train, heldout) == split(SUMS, heldout=0.3, seed=1) != split(SUMS, heldout=0.3, seed=2)


@pytest.mark.parametrize(
    ("rows", "prompts"),
    [
        (SUMS, lambda rows: [t.prompt for t in load_tasks(rows)]),
        (SAID, lambda rows: [conversation[:-1] for conversation in load_demonstrations(rows)]),
        (HH, lambda rows: [p.prompt for p in load_preferences(rows)]),
    ],
    ids=["tasks", "demonstrations", "preferences"],
)
def test_the_side_of_a_row_is_that_of_eval_share(rows, prompts):
    tasks = [Task(prompt) for prompt in prompts(rows)]
    for side, expected in zip(split(rows, heldout=0.4, seed=3), hold_out(tasks, 0.4, 3), strict=True):
        assert prompts(side) == [t.prompt for t in expected]


def test_rows_of_one_prompt_in_other_layouts_stay_together():
    together = [{"instruction": "Add.", "input": f"{n}", "output": "x"} for n in range(20)] + [
        {"prompt": f"Add.\n\n{n}", "chosen": "a", "rejected": "b"} for n in range(20)
    ]
    train, heldout = split(together, heldout=0.5)
    numbers = [{int(row["input"]) for row in side if "input" in row} for side in (train, heldout)]
    assert numbers == [{int(row["prompt"].split()[-1]) for row in side if "prompt" in row} for side in (train, heldout)]
    assert numbers[0] and numbers[1]
    tree = [{"message_tree_id": f"{n // 3}", "message_id": f"{n}", "text": "a", "role": "user"} for n in range(30)]
    train, heldout = split(tree, heldout=0.5)
    assert not {row["message_tree_id"] for row in train} & {row["message_tree_id"] for row in heldout}
    same = [{"prompt": f"{n}", "chosen": "a", "rejected": "a"} for n in range(20)]  # no reader keeps these
    assert sum(map(len, split(same, heldout=0.5))) == 20


def test_what_cannot_be_divided():
    for share in (0, 1, -0.1):
        with pytest.raises(UserError, match=f"the share to hold out must be above 0 and below 1; got {share}"):
            split(SUMS, heldout=share)
    with pytest.raises(UserError, match=r"a held-out share of 0\.2 of 2 rows leaves no rows to"):
        split(SUMS[:2])
    with pytest.raises(DataError, match="row 1 of the rows given: field 'prompt' is missing; this row has: level"):
        split([{"level": 3}])
