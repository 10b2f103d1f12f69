"""Sums in host memory are those of `add_`, in the order of the calls, and what fails is told."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.models.rounding import add_, narrow_
from posttrain.training import host_sums
from posttrain.training.host_sums import BUFFERS, HostSums
from posttrain.training.optimizer import MasterAdamW
from tests.tiny import tiny_llama

SIZES = [(3,), (4, 5), (1, 2), (70, 9)]


def part(place, number, dtype):
    return torch.randn(SIZES[place], generator=torch.Generator().manual_seed(number)).to(dtype)


PIECES = pytest.mark.parametrize("piece", [host_sums.PIECE, 256], ids=["whole", "in pieces"])


@PIECES
@given(st.lists(st.integers(0, len(SIZES) - 1), max_size=20), st.sampled_from([torch.float32, torch.bfloat16]))
def test_sums_are_those_of_one_thread(piece, places, dtype):
    expected = {}
    found = [torch.full(size, torch.nan) for size in SIZES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_sums, "PIECE", piece)
        sums = HostSums()
        for number, place in enumerate(places):
            given_part = part(place, number, dtype)
            sums.add(found[place], given_part, first=place not in expected)
            if place in expected:
                add_(expected[place], given_part)
            else:
                expected[place] = given_part.float().clone()
            given_part.fill_(torch.nan)  # its memory is used again at once
        sums.wait()
    assert all(torch.equal(found[place], total) for place, total in expected.items())


def test_rows_of_an_embedding_are_added():
    sums, total = HostSums(), torch.full((4, 2), torch.nan)
    values = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    rows = torch.sparse_coo_tensor([[1, 3, 1]], values, (4, 2), check_invariants=True)
    for first in (True, False):
        sums.add(total, rows, first=first)
    sums.wait()
    assert total.tolist() == [[0, 0], [12, 16], [0, 0], [6, 8]]


def test_an_addition_that_fails_is_told_once_and_keeps_no_buffer():
    sums, total = HostSums(), torch.zeros(2, 3)
    for _ in range(2 * BUFFERS):
        sums.add(total, torch.ones(5, 1), first=True)
    with pytest.raises(RuntimeError, match="size"):
        sums.wait()
    sums.add(total, torch.ones(2, 3), first=False)
    sums.wait()
    assert total.tolist() == [[1.0] * 3] * 2


def test_a_copy_that_fails_keeps_no_buffer(monkeypatch):
    sums, total = HostSums(), torch.zeros(2)
    with monkeypatch.context() as patch:
        patch.setattr("posttrain.training.host_sums.torch.empty", lambda *size, **how: 1 / 0)
        for _ in range(BUFFERS):
            with pytest.raises(ZeroDivisionError):
                sums.add(total, torch.ones(2), first=True)
            with pytest.raises(ZeroDivisionError):
                sums.narrow(total, torch.ones(2), 0)
    sums.add(total, torch.ones(2), first=True)
    sums.wait()
    assert total.tolist() == [1.0, 1.0]


def test_what_waits_takes_no_more_memory(monkeypatch):
    """A computation that is ahead waits until a buffer is free."""
    goes_on, sums, total = threading.Event(), HostSums(), torch.zeros(2)
    monkeypatch.setattr("posttrain.training.host_sums.add_", lambda *two: goes_on.wait(60) and add_(*two))

    def computing():
        for _ in range(BUFFERS + 2):
            sums.add(total, torch.ones(2), first=False)

    thread = threading.Thread(target=computing)
    thread.start()
    thread.join(0.2)
    ahead = thread.is_alive()
    goes_on.set()
    thread.join(60)
    sums.wait()
    assert ahead and total.tolist() == [BUFFERS + 2.0] * 2


@PIECES
@pytest.mark.parametrize("shape", [(3, 700), (700, 3)], ids=["rows", "columns"])
def test_masters_are_rounded_as_elsewhere(piece, shape, monkeypatch):
    monkeypatch.setattr(host_sums, "PIECE", piece)
    master = torch.randn(3, 700, generator=torch.Generator().manual_seed(0))
    found, expected = (torch.zeros(shape, dtype=torch.bfloat16) for _ in range(2))
    found, expected = (x if shape == (3, 700) else x.T for x in (found, expected))  # the latter is not contiguous
    HostSums().narrow(found, master, 100)
    narrow_(expected, master, 100)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_a_gpu_nothing_changes(dtype):
    plain, other = (MasterAdamW(tiny_llama(dtype=dtype).trainable(), offload=offload) for offload in (False, True))
    for one, same in zip(plain.masters, other.masters, strict=True):
        assert torch.equal(one, same)
    assert [m is p for m, p in zip(other.masters, other._weights, strict=True)] == [dtype == torch.float32] * len(
        plain.masters
    )
