"""Gradients repeat themselves bit for bit, whatever the threads do."""

import threading

import pytest
import torch
from torch import nn

from posttrain.data.packing import Example
from posttrain.errors import TrainingError
from posttrain.training.learner import Share
from posttrain.training.microbatch import accumulate_gradients
from posttrain.training.optimizer import MasterAdamW

EXAMPLES = [Example.whole([0] * 600, [False] + [True] * 599)]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_what_many_tokens_add_to_one_entry_is_added_in_a_fixed_order(two_threads):
    """As with the biases of experts, where 600 tokens read one of four rows of 192: enough for two threads."""
    bias = nn.Parameter(torch.randn(4, 192))
    optimizer = MasterAdamW([("bias", bias)])
    rows, slope = torch.arange(600) % 4, torch.randn(600, 192)

    def share_of(row):
        return Share((bias[rows] * slope).sum(), {})

    found = set()
    for _ in range(20):
        accumulate_gradients(optimizer, EXAMPLES, share_of, microbatch_tokens=1000)
        found.add(optimizer.masters[0].grad.numpy().tobytes())
        optimizer.discard()
    assert len(found) == 1


def test_a_loss_that_is_not_finite_leaves_no_gradient_and_the_settings_of_torch():
    memory = torch.utils.deterministic
    inside = []
    parameter = nn.Parameter(torch.zeros(1))

    def share_of(row):
        inside.append((torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory))
        return Share(parameter.sum() * torch.nan, {})

    optimizer = MasterAdamW([("p", parameter)])
    with pytest.raises(TrainingError, match="the loss is nan for examples \\[0\\] of the batch"):
        accumulate_gradients(optimizer, EXAMPLES, share_of, microbatch_tokens=1000)
    assert optimizer.masters[0].grad is None and parameter.grad is None
    assert inside == [(True, False)]
    assert not torch.are_deterministic_algorithms_enabled() and memory.fill_uninitialized_memory


def test_of_two_threads_the_last_one_puts_the_settings_back():
    memory = torch.utils.deterministic
    inside, first_is_done = threading.Barrier(2), threading.Event()
    seen = []

    def learn(waits):
        parameter = nn.Parameter(torch.ones(1))

        def share_of(row):
            inside.wait(10)
            if waits:
                assert first_is_done.wait(10)
            seen.append((torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory))
            return Share(parameter.sum(), {})

        accumulate_gradients(MasterAdamW([("p", parameter)]), EXAMPLES, share_of, microbatch_tokens=1000)
        first_is_done.set()

    threads = [threading.Thread(target=learn, args=(waits,)) for waits in (False, True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == [(True, False)] * 2
    assert not torch.are_deterministic_algorithms_enabled() and memory.fill_uninitialized_memory
