"""Seconds of a step by hand, for SmolLM2-135M in bfloat16: a batch of 34,368 tokens in nine micro-batches."""

from dataclasses import replace

import pytest
import torch

from posttrain.algorithms.load import Load
from posttrain.bindings.cluster_options import ONE_PROCESS, AsyncOptions, ClusterOptions, TrainerOptions
from posttrain.planning.costs import Speed
from posttrain.planning.step_time import SENT, computing_with, step_time
from posttrain.planning.work import Work
from tests.planning.test_costs import FULL, LOAD, SHAPE, P

WORK = Work("rl", SHAPE, LOAD, LOAD, rows=1, steps=1, batch="", lengths="", cache=2**40)
READS = 34_368 * 1e-3  # the reference
UPDATE = 34_368 * 3e-3
ADAM = P * 1e-8
PREFILL, DECODE = 16 * 100 * 1e-3, 256 * 0.5
SYNC = 2 * P / SENT
FIVE, THREE = 5 * 4096 / 34_368, 3 * 4096 / 34_368  # parts of the batch in so many full micro-batches


@pytest.fixture(autouse=True)
def threads():
    with computing_with(6):
        yield


def speed(slots, threads):
    """A decoding step takes half a second for 128 sequences, and nothing depends on threads."""
    return Speed(trained_token=3e-3, read_token=1e-3, decode_step=0.5 * slots / 128, parameter=1e-8)


def timed(cluster, work=WORK):
    return step_time(FULL, work, cluster, speed)


def test_one_process():
    found = timed(ONE_PROCESS)
    assert found.update == pytest.approx(READS + UPDATE + ADAM) and found.sync is None
    assert found.sampling == pytest.approx(PREFILL + DECODE)
    assert found.step == pytest.approx(found.update + found.sampling)
    assert timed(ONE_PROCESS, replace(WORK, cache=0)) == found._replace(sampling=None)


def test_a_trainer_and_a_sampler_are_one_process_and_a_transfer():
    alone, found = timed(ONE_PROCESS), timed(ClusterOptions(trainers=1))
    assert found.sync == pytest.approx(SYNC)
    assert (found.update, found.sampling) == pytest.approx((alone.update, alone.sampling))
    assert found.step == pytest.approx(alone.step + SYNC)


def test_processes_share_the_batch():
    """Of nine micro-batches the busier of two trainers has five; of 16 prompts one of three samplers has six."""
    found = timed(ClusterOptions(trainers=2, samplers=3))
    summed = 8 * P * (1 / 2) / SENT
    assert found.update == pytest.approx(FIVE * (READS + UPDATE) + ADAM + summed)
    assert found.sampling == pytest.approx(6 * 100 * 1e-3 + 256 * 0.5 * 48 / 128)
    assert found.sync == pytest.approx(3 * SYNC)
    assert found.step == pytest.approx(found.update + found.sampling + found.sync)
    assert timed(ClusterOptions(trainers=2, samplers=3, address="auto")).sync == pytest.approx(2 * SYNC)
    assert timed(TrainerOptions(trainers=2), replace(WORK, cache=0)) == (pytest.approx(found.update), None, None, False)


def test_more_samplers_than_prompts_share_completions():
    few = replace(LOAD, prompts=2)
    found = timed(ClusterOptions(trainers=1, samplers=4), replace(WORK, longest=few, expected=few))
    assert found.sampling == pytest.approx(100 * 1e-3 + 256 * 0.5 * 4 / 128)  # of one prompt four completions


def test_shards_share_the_optimiser_and_gather_weights_for_each_row():
    found = timed(ClusterOptions(trainers=4, fsdp=True, fsdp_replicas=2))
    gathered = 2 * P * (1 / 2) / SENT  # of two shards
    row = 2 * gathered + 4 * P * (1 / 2) / SENT + 8 * P / 2 * (1 / 2) / SENT  # scattered, and summed over two replicas
    assert found.update == pytest.approx(THREE * (READS + UPDATE) + ADAM / 2 + 3 * row + 3 * gathered)
    one = timed(ClusterOptions(trainers=2, fsdp=True), replace(WORK, text=Load(12, 1, 0, 1000, 4096))).update
    row -= 8 * P / 2 * (1 / 2) / SENT
    learned = FIVE * (READS + UPDATE) + ADAM / 2 + 2 * 4096 * 3e-3
    assert one == pytest.approx(learned + (5 + 2) * row + 5 * gathered)  # the reference reads no text


def test_text_is_learned_in_every_update():
    text = Load(12, 1, 0, 1000, 4096)  # three micro-batches
    one, two = (timed(ClusterOptions(trainers=2), replace(WORK, updates=n, text=text)).update for n in (1, 2))
    learned = FIVE * UPDATE + ADAM + 4 * P / SENT + 2 * 4096 * 3e-3
    assert (one, two) == pytest.approx((FIVE * READS + learned, FIVE * READS + 2 * learned))


def test_ahead_of_training_the_slower_part_counts():
    found = timed(AsyncOptions(trainers=2, samplers=1, max_staleness=2))
    assert found.sampling > found.update
    assert found.step == pytest.approx(found.sampling + SYNC)
    faster = timed(AsyncOptions(trainers=2, samplers=4, max_staleness=2))
    assert faster.step == pytest.approx(faster.update + 4 * SYNC)


def test_each_kind_is_measured_with_its_threads():
    asked = []

    def spied(slots, threads):
        asked.append((slots, threads))
        return speed(slots, threads)

    step_time(FULL, WORK, ONE_PROCESS, spied)
    assert set(asked) == {(128, 6)}
    asked.clear()
    step_time(FULL, WORK, ClusterOptions(trainers=2, samplers=4), spied)
    step_time(FULL, WORK, ClusterOptions(trainers=2, samplers=4, trainer_threads=5, sampler_threads=2), spied)
    assert asked == [(0, 3), (32, 1), (0, 5), (32, 2)]


def test_threads_are_put_back():
    with pytest.raises(KeyError), computing_with(2):
        assert torch.get_num_threads() == 2
        raise KeyError
    assert torch.get_num_threads() == 6
