"""What the rows of a batch are compared with: the rows of the same task and the same seat, however many there are."""

import doctest

import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.algorithms import rollout
from posttrain.algorithms.rollout import Rollout
from posttrain.objectives.advantages import group_normalised, leave_one_out, mean_centred
from tests.references import advantages as reference

REWARD = st.floats(-3, 3, allow_nan=False, width=32)
MEMBERS = st.lists(REWARD, min_size=2, max_size=5)
TASKS = st.lists(st.lists(MEMBERS, min_size=1, max_size=2), min_size=1, max_size=5)  # of each task its seats
FUNCTIONS = {
    mean_centred: reference.mean_centred,
    leave_one_out: reference.leave_one_out,
    group_normalised: lambda rewards: reference.group_normalised(rewards, 1e-4, 1),
}


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def of_rows(rows) -> Rollout:
    """A batch of (reward, task, seat), each of one token."""
    rewards, tasks, seats = zip(*rows, strict=True)
    row_N = torch.arange(len(rows))
    return Rollout(tensor(rewards), torch.tensor(tasks), row_N, seat_R=torch.tensor(seats))


def rows_in(tasks) -> list[tuple[float, int, int]]:
    return [(r, number, seat) for number, seats in enumerate(tasks) for seat, of in enumerate(seats) for r in of]


@given(TASKS, st.randoms(use_true_random=False))
def test_rows_are_compared_with_those_of_their_task_and_seat_alone(tasks, random):
    rows = rows_in(tasks)
    random.shuffle(rows)
    batch = of_rows(rows)
    for function, plain in FUNCTIONS.items():
        found = batch.compare(batch.rewards_R, function).tolist()
        for key in {row[1:] for row in rows}:
            places = [i for i, row in enumerate(rows) if row[1:] == key]
            expected = plain([rows[i][0] for i in places])
            torch.testing.assert_close(tensor([found[i] for i in places]), tensor(expected), rtol=1e-6, atol=1e-9)


@given(TASKS)
def test_every_row_is_in_one_group_of_its_own_size(tasks):
    batch = of_rows(rows_in(tasks))
    groups = [rows for rows_PG in batch.groups() for rows in rows_PG.tolist()]
    assert sorted(row for rows in groups for row in rows) == list(range(len(batch.rewards_R)))
    assert sorted(map(len, groups)) == sorted(len(of) for seats in tasks for of in seats)
    assert len({rows_PG.shape[1] for rows_PG in batch.groups()}) == len(batch.groups())  # stacked, one call for a size


@given(st.integers(1, 6), st.integers(2, 5), st.data())
def test_equal_groups_of_one_seat_are_one_call_on_the_rectangle(P, G, data):
    rewards = tensor(data.draw(st.lists(st.lists(REWARD, min_size=G, max_size=G), min_size=P, max_size=P)))
    batch = Rollout(rewards.flatten(), torch.arange(P).repeat_interleave(G), torch.arange(P * G))
    calls = []

    def watched(values_PG):
        calls.append(values_PG)
        return group_normalised(values_PG)

    found = batch.compare(batch.rewards_R, watched)
    assert len(calls) == 1 and torch.equal(calls[0], rewards)
    assert torch.equal(found, group_normalised(rewards).flatten())
    assert torch.equal(batch.per_group(batch.rewards_R, lambda x_PG: x_PG.std(dim=-1)), rewards.std(dim=-1))


@given(TASKS)
def test_a_number_of_each_group_is_computed_of_that_group(tasks):
    batch = of_rows(rows_in(tasks))
    found = batch.per_group(batch.rewards_R, lambda x_PG: x_PG.amax(dim=-1))
    assert sorted(found.tolist()) == sorted(max(of) for seats in tasks for of in seats)


def test_a_row_without_tokens_has_the_length_0_and_is_compared_too():
    batch = Rollout(tensor([1.0, 0.0, 0.5]), torch.zeros(3, dtype=torch.long), torch.tensor([0, 0, 1]))
    assert batch.lengths_R.tolist() == [2, 1, 0]
    assert batch.compare(batch.rewards_R, mean_centred).tolist() == [0.5, -0.5, 0.0]
    assert batch.at_end(batch.rewards_R).tolist() == [0.0, 1.0, 0.0]
    assert batch.seats == [0, 0, 0]


def test_docstring_examples_run():
    results = doctest.testmod(rollout, extraglobs={"torch": torch})
    assert results.failed == 0 and results.attempted > 0
