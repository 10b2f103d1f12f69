import doctest
import hashlib
import pickle

import pytest
import reasoning_gym
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.data import gym, heldout
from posttrain.data.gym import load_gym, parse_gym, split_of
from posttrain.data.heldout import disjoint
from posttrain.errors import UserError

SMALL = "gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1"  # fewer than 200 questions in all


def questions(tasks):
    return [task.prompt[0].content for task in tasks]


def test_the_same_arguments_make_the_same_tasks():
    first, again = (load_gym("gym:chain_sum", size=20, seed=5) for _ in range(2))
    assert first == again
    assert questions(first) != questions(load_gym("gym:chain_sum", size=20, seed=6))
    assert len({task.id for task in first}) == 20


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(-3, 2**40), other=st.integers(-3, 2**40), size=st.integers(1, 25))
def test_splits_never_meet_even_where_questions_are_few(seed, other, size):
    train, heldout = load_gym(SMALL, size=300, seed=seed), load_gym(SMALL, size=size, seed=other, split="heldout")
    assert not set(questions(train)) & set(questions(heldout))
    assert len(set(questions(heldout))) == size
    assert disjoint(train, heldout)[1] == 0


def test_neighbouring_seeds_do_not_share_their_questions():
    one, two = (set(questions(load_gym("gym:chain_sum?min_terms=6&max_terms=6", size=50, seed=s))) for s in (0, 1))
    assert len(one & two) <= 2


def test_a_fifth_of_all_questions_is_held_out():
    share = sum(split_of(f"{a} + {b} =") == "heldout" for a in range(40) for b in range(40)) / 1600
    assert abs(share - 0.2) < 0.04  # four standard deviations


def test_the_side_of_a_question_is_the_same_in_every_process_and_for_ever():
    sides = {text: int(hashlib.sha256(text.encode()).hexdigest()[:16], 16) % 5 == 0 for text in map(str, range(30))}
    assert {text: split_of(text) == "heldout" for text in sides} == sides
    assert 0 < sum(sides.values()) < 30


def test_metadata_is_what_the_familys_own_scorer_needs():
    for spec in ("gym:chain_sum", "gym:countdown", "gym:simple_equations?min_terms=3"):
        for task in load_gym(spec, size=3):
            made = pickle.loads(pickle.dumps(task.metadata))  # the scorer runs in another process
            assert (made["dataset"], made["options"]) == parse_gym(spec)
            score = reasoning_gym.create_dataset(made["dataset"], **made["options"]).score_answer
            assert score(str(task.answer), made["entry"]) == 1.0
            assert score("no answer", made["entry"]) < 0.5
            assert task.prompt[0].content == made["entry"]["question"]


def test_options_have_the_type_of_their_defaults():
    spec = "gym:basic_arithmetic?min_terms=3&allow_parentheses=FALSE&operators=+,-&format_style=natural"
    expected = {"min_terms": 3, "allow_parentheses": False, "operators": ("+", "-"), "format_style": "natural"}
    assert parse_gym(spec) == ("basic_arithmetic", expected)
    for question in questions(load_gym(spec, size=10)):
        assert "*" not in question and "(" not in question


@pytest.mark.parametrize(
    "spec, problem",
    [
        ("gym:", "write gym:NAME"),
        ("gym:chain_sums", "unknown gym: task 'chain_sums'; did you mean 'chain_sum'?"),
        ("gym:chain_sum?min_term=3", "unknown option of gym:chain_sum 'min_term'; did you mean 'min_terms'?"),
        ("gym:chain_sum?min_terms", "cannot read the option 'min_terms'"),
        ("gym:chain_sum?min_terms=three", "cannot read 'min_terms=three'"),
        ("gym:chain_sum?min_terms=2.5", "expected a value like its default, 2"),
        ("gym:chain_sum?min_terms=true", "expected a value like its default, 2"),
        ("gym:chain_sum?allow_negation=1", "expected a value like its default, False"),
        ("gym:chain_sum?min_terms=9", "refused by reasoning-gym: max_terms must be >= min_terms"),
        ("gym:chain_sum?seed=3", "is set by `seed`"),
        ("gym:chain_sum?size=3", "is set by `limit`"),
    ],
)
def test_wrong_sources_say_what_to_type(spec, problem):
    with pytest.raises(UserError) as caught:
        load_gym(spec, size=2)
    assert problem in str(caught.value) and "\n" not in str(caught.value)


def test_wrong_split_and_size():
    with pytest.raises(UserError, match="'held-out'; did you mean 'heldout'"):
        load_gym("gym:chain_sum", size=2, split="held-out")
    with pytest.raises(UserError, match="must be 1 or more; got 0"):
        load_gym("gym:chain_sum", size=0)


def test_a_family_that_runs_out_of_questions_says_how_many_it_has():
    with pytest.raises(
        UserError, match=r"gave only \d+ heldout questions in 12000 draws, 200 were requested; request fewer"
    ):
        load_gym(SMALL, size=200, split="heldout")


@pytest.mark.parametrize("module", [gym, heldout])
def test_docstring_examples_run(module):
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0
