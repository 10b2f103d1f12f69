"""Numbers of draws: none is trained on twice, none is left out, whatever is sampled ahead and lost."""

from hypothesis import given
from hypothesis import strategies as st

from posttrain.episodes.sampler import Draws


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=12), st.data())
def test_each_number_is_used_once_over_all_resumed_runs(starts, data):
    """Each start of a run takes some numbers, in any order uses some of them, and loses the others."""
    first, used, every = 0, [], []
    for ahead, steps in starts:
        draws = Draws(first, used)
        open_steps = []
        for _ in range(steps):
            open_steps += [next(draws) for _ in range(ahead)]
            mine = data.draw(st.sampled_from(open_steps))
            open_steps.remove(mine)
            draws.use([mine])
            every.append(mine)
        first, used = draws.first, draws.used
        assert all(number >= first for number in used)
        assert sorted(every) == [*range(first), *used]
    assert len(every) == len({*every})


def test_those_that_follow_are_in_order():
    draws = Draws(2, [3, 5])
    assert [next(draws) for _ in range(4)] == [2, 4, 6, 7]
    draws.use([2, 4])
    assert (draws.first, draws.used) == (6, [])
