import doctest

import pytest
import torch

from posttrain.objectives import shaping
from posttrain.objectives.shaping import adaptive_length_penalty, soft_overlong


def test_the_punishment_grows_over_the_buffer_and_is_whole_where_a_completion_was_cut():
    lengths = torch.tensor([[0, 12, 13], [14, 16, 20]])
    expected = [[0.0, 0.0, -0.25], [-0.5, -1.0, -1.0]]
    assert soft_overlong(lengths, longest=16, buffer=4).tolist() == expected


@pytest.mark.parametrize("buffer", [0, 17, -1])
def test_a_buffer_that_is_none_is_refused(buffer):
    with pytest.raises(ValueError, match="1 to 16 tokens"):
        soft_overlong(torch.tensor([1]), longest=16, buffer=buffer)
    assert soft_overlong(torch.tensor([16]), longest=16, buffer=16).tolist() == [-1.0]


def test_length_costs_most_where_a_prompt_is_easy():
    rewards = torch.tensor([[1.0, 1.0, 0.5, 1.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    lengths = torch.tensor([[5, 10, 20, 0]] * 3)
    found = adaptive_length_penalty(rewards, lengths, longest=20)
    assert found[0].tolist() == [0.25, 0.5, 1.0, 0.0]  # always solved
    assert found[1].tolist() == found[2].tolist() == [0.0625, 0.125, 0.25, 0.0]  # once, and never: as if once
    assert torch.equal(adaptive_length_penalty(rewards[1], lengths[1], longest=20), found[1])  # one group alone
    with pytest.raises(ValueError, match="1 token or more"):
        adaptive_length_penalty(rewards, lengths, longest=0)


def test_docstring_examples_run():
    results = doctest.testmod(shaping)
    assert results.failed == 0 and results.attempted > 0
