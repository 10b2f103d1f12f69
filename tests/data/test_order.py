from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from posttrain.data.order import batch_indices, seed_for


@given(st.integers(1, 20), st.integers(1, 30), st.integers(0, 1000))
def test_every_epoch_uses_every_item_once(count, batch, seed):
    steps = 2 * count  # 2 * batch whole epochs
    drawn = [i for step in range(steps) for i in batch_indices(count, batch, step, seed)]
    for epoch in range(2 * batch):
        assert sorted(drawn[epoch * count : (epoch + 1) * count]) == list(range(count))


def test_a_step_can_be_asked_for_without_those_before_it():
    assert batch_indices(7, 3, 5, 0) == batch_indices(7, 3, 5, 0)
    assert len({tuple(batch_indices(50, 8, step, 0)) for step in range(6)}) == 6


def test_epochs_and_seeds_are_shuffled_differently():
    assert batch_indices(50, 50, 0, 0) != batch_indices(50, 50, 1, 0)
    assert batch_indices(50, 50, 0, 0) != batch_indices(50, 50, 0, 1)


def test_seeds_depend_on_every_part_and_their_order():
    seeds = [seed_for(0, 1), seed_for(1, 0), seed_for(0, "1"), seed_for(0), seed_for(0, 1, 0)]
    assert max(Counter(seeds).values()) == 1
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_are_the_same_on_every_machine():
    assert seed_for(0, "rollout", 3) == 4393340858462102590
