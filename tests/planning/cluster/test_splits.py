"""Which splits are looked at, and what is said of them."""

from dataclasses import replace
from functools import cache
from itertools import islice

import pytest

from posttrain.planning.cluster.coefficients import Workload
from posttrain.planning.cluster.gpus import GPUS, REACHED, GPUCluster, dense_shape
from posttrain.planning.cluster.simulation import simulate
from posttrain.planning.cluster.splits import COLOCATED, MEASURED, SIMULATED, Search, simulated
from tests.planning.cluster.closed_form import synchronous

WORK = Workload(32, 4, prompt_tokens=200, mean_tokens=500.0, spread=0.8, max_tokens=4000, microbatch_tokens=8192)


def search(gpus, staleness=1, parameters=7e9, fewest=3, sizes=(1,), **more):
    cluster = GPUCluster(GPUS["h100"], REACHED, dense_shape(parameters), WORK, **more)
    return Search(cluster, gpus, fewest, sizes, staleness)


@cache
def eight():
    return search(8).splits()


def test_below_two_nodes_every_number_of_trainers_is_looked_at():
    assert list(search(8).trainers(1)) == [3, 4, 5, 6, 7]
    assert list(search(8).trainers(4)) == [3, 4]
    assert list(search(1, fewest=1).trainers(1)) == []


def test_colocated_samplers_have_room_beside_the_shards():
    """30B: shards of 540 / 16 GB and weights of 60 GB exceed the 72 GB of one GPU, and not those of two."""
    assert [size for size, _ in search(16, parameters=30e9, fewest=1, sizes=(1, 2)).colocated()] == [2]


def test_from_two_nodes_on_trainers_are_whole_nodes_or_the_fewest():
    assert list(search(64).trainers(1)) == [3, 8, 16, 24, 32, 40, 48, 56]
    assert all(number % 8 == 0 for number in list(search(4096).trainers(1))[1:])
    assert len(list(search(4096).trainers(1))) == 16
    assert list(search(64, fewest=20).trainers(1)) == [20, 24, 32, 40, 48, 56]


def test_samplers_of_every_size_are_compared():
    found = search(16, sizes=(1, 2, 8)).apart()
    assert {size for size, _ in found} == {1, 2, 8}
    assert all(costs.samplers == (16 - costs.updating.trainers) // size > 0 for size, costs in found)
    assert [size for size, _ in search(8, sizes=(1, 2, 8)).colocated()] == [1, 2, 8]
    large = search(64, parameters=70e9, fewest=40, sizes=(2, 4, 8), staleness=1).splits()
    assert {split.of_sampler for split in large if split.mode == "asynchronous"} - {2}  # two hold few sequences


def test_splits_are_sorted_and_of_each_mode_no_more_than_may_be():
    found = eight()
    assert [split.step for split in found] == sorted(split.step for split in found)
    modes = [split.mode for split in found]
    assert modes.count("asynchronous") == modes.count("synchronous") == min(SIMULATED, 5)
    assert all(split.trainers + split.samplers == 8 for split in found if split.mode != COLOCATED)


def test_the_parts_of_a_step_are_the_step():
    for split in eight():
        if split.mode == "asynchronous":
            assert split.update + split.sync + split.wait == pytest.approx(split.step)
        else:
            total = split.sampling + split.update + split.sync + split.scoring + split.wait
            assert total == pytest.approx(split.step) and split.age == 0
        assert 0 < split.busy <= 1
        gpus = split.trainers * split.update + split.samplers * split.sampling
        assert split.busy == pytest.approx(gpus / 8 / split.step)


def test_the_bound_is_below_what_is_simulated():
    """Of the mean batch: the simulated batches are others."""
    one = search(8)
    groups = list(islice(WORK.groups(), WORK.prompts))
    for split in eight():
        if split.mode != COLOCATED:
            costs = one.cluster.apart(split.trainers, split.samplers, 1)
            assert one.bound(costs, split.mode == "asynchronous", groups) <= 1.1 * split.step


def test_a_synchronous_batch_takes_as_long_as_its_longest_completion():
    one = search(8)
    costs = one.cluster.apart(4, 4, 1)
    alone = costs.decoding.seconds(4000, 1, WORK.prompt_tokens)
    groups = [(4000, 1, 1, 1)] + [(1, 1, 1, 1)] * 31
    train = costs.update(WORK, groups) + costs.sync
    assert one.bound(costs, 0, groups) == pytest.approx(train + alone)
    slow = replace(costs, sync=100.0)
    assert one.bound(slow, 1, groups) == pytest.approx(slow.update(WORK, groups) + 100)  # samplers go on meanwhile


def test_asynchronous_is_faster_and_its_groups_older():
    found = eight()
    best = {mode: next(s for s in found if s.mode == mode) for mode in ("asynchronous", "synchronous")}
    assert best["asynchronous"].step < best["synchronous"].step
    assert 0 < best["asynchronous"].age <= 1
    assert {split.mode for split in search(8, staleness=0).splits()} == {COLOCATED, "synchronous"}


def test_cost_is_all_gpus_and_throughput_what_is_trained():
    split = eight()[0]
    assert split.tokens_per_second == split.trained / split.step
    assert split.gpu_hours() == pytest.approx(8 / 3600 * 1e6 / split.tokens_per_second)


def test_one_gpu_colocates_what_fits_on_it():
    assert [split.mode for split in search(1, parameters=5e8, fewest=1).splits()] == [COLOCATED]
    assert search(1).splits() == []


def test_means_leave_out_the_first_updates():
    costs = search(8).cluster.apart(4, 4, 1)
    found = simulate(costs, WORK, steps=1 + MEASURED)
    kept = simulated(costs, WORK, 0)
    assert kept.step == pytest.approx((found.updates[-1].synced - found.updates[0].synced) / MEASURED)
    assert kept.trained == sum(u.trained for u in found.updates[1:]) / MEASURED
    assert kept.sampling == pytest.approx((found.sampling[-1] - found.sampling[0]) / MEASURED)


def test_lengths_may_be_given():
    costs = replace(search(8).cluster.apart(4, 4, 1), sync=0.0)
    same = [(100,) * 4] * 32 * (1 + MEASURED)
    assert simulated(costs, WORK, 0, same).step == pytest.approx(synchronous(costs, WORK, same[:32]))
