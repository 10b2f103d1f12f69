"""Seconds on GPUs by hand for round figures, and what GPUs hold for 7.6B parameters."""

from dataclasses import replace

import pytest

from posttrain.planning.cluster.coefficients import Workload
from posttrain.planning.cluster.gpus import GPU, GPUS, PUBLISHED, Efficiency, GPUCluster, dense_shape

# 1e9 parameters, 10 layers, 1000 hidden units and query widths, keys of 100
SHAPE = replace(PUBLISHED[0], layers=10, hidden=1000, query_width=1000, key_width=100, parameters=10**9, active=10**9)
WORK = Workload(64, 8, 100, 1000.0, 0.0, 3000, microbatch_tokens=4000)
PLAIN = GPU(flops=1e12, memory=100e9, bandwidth=1e12, nvlink=1e11, network=1e10)
ALL = Efficiency(mfu=0.5, bandwidth=0.5, links=0.5, latency=1e-4, memory=1.0)
CLUSTER = GPUCluster(PLAIN, ALL, SHAPE, WORK)


def test_decoding_reads_weights_and_cache_and_computes_two_operations_for_a_weight():
    one = CLUSTER.decoding(1)
    assert one.step == pytest.approx(2e9 / 0.5e12)
    assert one.sequence == one.prompt == pytest.approx(2e9 / 0.5e12)
    assert one.cached == pytest.approx(2 * 10 * 100 * 2 / 0.5e12)
    assert one.slots == 256


def test_tensor_parallel_decoding_shares_all_and_reduces_twice_a_layer():
    four = CLUSTER.decoding(4)
    assert four.step == pytest.approx(2e9 / 2e12 + 2 * 10 * 1e-4 * 2)
    reduced = 2 * 10 * 2 * (3 / 4) * 1000 * 2 / 0.5e11  # layers x 2 calls x 2 (t - 1) / t of 1000 numbers of 2 bytes
    assert four.sequence == pytest.approx(2e9 / 2e12 + reduced)
    assert four.cached == pytest.approx(4000 / 2e12)
    sixteen = CLUSTER.decoding(16)  # over the network, each GPU by its own link
    assert sixteen.sequence == pytest.approx(2e9 / 8e12 + 2 * 10 * 2 * (15 / 16) * 2000 / 0.5e10)


def test_an_update_computes_eight_operations_for_a_weight_and_sends_shards():
    one, four = CLUSTER.updating(1), CLUSTER.updating(4)
    assert one.token == pytest.approx(8e9 / 0.5e12) and one.square == pytest.approx(8 * 10 * 1000 / 0.5e12)
    assert one.row == 0 and one.begin == pytest.approx(30e9 / 0.5e12)
    assert four.row == pytest.approx(8e9 * (3 / 4) / 0.5e11 + 3 * 10 * 1e-4 * 2)
    assert four.begin == pytest.approx(one.begin / 4) and four.token == one.token
    more = replace(CLUSTER, work=replace(WORK, passes=1.0))
    assert more.updating(1).token == pytest.approx(10e9 / 0.5e12)


def test_rings_through_a_node_use_all_its_links():
    assert CLUSTER.link(8) == pytest.approx(0.5e11)
    assert CLUSTER.link(16) == pytest.approx(0.5 * 8e10)
    assert replace(CLUSTER, gpu=replace(PLAIN, network=1e11)).link(16) == pytest.approx(0.5e11)


def test_weights_are_gathered_and_broadcast():
    gathered = 2e9 * (3 / 4) / 0.5e11
    assert CLUSTER.apart(4, 10, 1).sync == pytest.approx(gathered + 2e9 / 0.5e10)
    for samplers, seconds in [(1, 2.0), (2, 4.0), (3, 4.0), (4, 6.0), (7, 6.0), (8, 8.0)]:
        assert replace(CLUSTER, channel=1e9).apart(4, samplers, 1).sync == pytest.approx(gathered + seconds)
    assert CLUSTER.colocated(4, 1).sync == pytest.approx(gathered)


def test_colocated_samplers_have_less_room_for_their_cache():
    cluster = replace(CLUSTER, max_sequences=10**9)
    apart, shared = cluster.apart(4, 4, 1), cluster.colocated(4, 1)
    assert shared.samplers == 4 and shared.updating == apart.updating
    assert apart.decoding.slots - shared.decoding.slots == pytest.approx(18e9 / 4 / 4000 / (100 + 500), abs=1)


def test_figures_are_dense_and_of_one_direction():
    """Half of the datasheets' 1,979 TFLOP/s with sparsity, and of NVLink's 900 and 400 GB/s in both directions."""
    assert GPUS["h100"].flops == GPUS["h200"].flops == 1979e12 / 2
    assert (GPUS["h100"].nvlink, GPUS["h800"].nvlink, GPUS["a100"].nvlink) == (450e9, 200e9, 300e9)
    assert GPUS["h100"].network == 400e9 / 8 and GPUS["a100"].network == 200e9 / 8


@pytest.mark.parametrize(
    ("shape", "billions"),
    list(zip(PUBLISHED, (0.494, 1.54, 7.62, 14.8, 32.8, 70.6, 405.9), strict=True)),
    ids=lambda x: str(x),
)
def test_published_models_have_their_parameters(shape, billions):
    """As their model cards say; biases and norms are left out."""
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_size_between_has_the_nearest_widths():
    shape = dense_shape(8e9)
    assert (shape.name, shape.parameters, shape.layers) == ("Qwen2.5-7B", 8 * 10**9, 28)
    assert shape.active == 8 * 10**9 - 2 * 152064 * 3584
    assert dense_shape(1e6).active == 1


LARGE = dense_shape(7.6e9)  # Qwen2.5-7B: 28 layers, 3584 hidden, keys of 512, 18944 units, 152064 words
LONG = Workload(64, 8, prompt_tokens=500, mean_tokens=1000.0, spread=0.0, max_tokens=3500, microbatch_tokens=4000)
ROOM = GPUCluster(replace(PLAIN, memory=72e9), replace(ALL, memory=1.0), LARGE, LONG, max_sequences=10**6)
HEAD = 2**27 + 3 * 4 * 2**20 + 152064 * 3584 * 6  # chunk of logits, blocks in float32, gradient and what is added to it


def with_memory(size):
    return replace(ROOM, gpu=replace(PLAIN, memory=size))


def row_bytes(tokens):
    widths = 4 * 3584 + 2 * 3584 + 2 * 512 + 2 * 18944
    kept = tokens * (28 * 2 * 3584 + 2 * 2 * 3584 + 4 + 2 * 3584)
    return kept + tokens * (2 * widths + 8)


def test_trainers_hold_18_bytes_for_a_parameter_together():
    assert ROOM.held() == pytest.approx(18 * 7.6e9)
    assert ROOM.trainer(1) == pytest.approx(18 * 7.6e9 + ROOM.row())


def test_a_row_is_layer_inputs_one_layer_and_the_head():
    assert ROOM.row() - replace(ROOM, work=replace(LONG, microbatch_tokens=2000)).row() == row_bytes(2000)
    assert ROOM.row() == pytest.approx(row_bytes(4000) + HEAD, rel=0.01)


def test_shards_are_gathered_two_layers_at_a_time_with_embedding_and_head():
    body = 7.6e9 - (LARGE.parameters - LARGE.active)
    gathered = 2 * (2 * 152064 * 3584 + 2 * body / 28)
    assert ROOM.trainer(4) == pytest.approx(18 * 7.6e9 / 4 + gathered + ROOM.row())


def test_the_fewest_trainers_fit_and_one_less_does_not():
    fewest = ROOM.fewest_trainers(64)
    assert fewest == 3 and ROOM.trainer(3) <= 72e9 < ROOM.trainer(2)
    assert ROOM.fewest_trainers(2) == 0
    large = replace(ROOM, shape=dense_shape(400e9))
    assert large.fewest_trainers(1024) % 8 == 0  # whole nodes
    assert large.trainer(large.fewest_trainers(1024)) <= 72e9 < large.trainer(large.fewest_trainers(1024) - 8)


def test_a_sampler_has_its_cache_in_what_the_weights_leave():
    token = 2 * 28 * 512 * 2
    assert ROOM.cache_tokens(1) == pytest.approx((72e9 - 15.2e9) / token)
    assert ROOM.cache_tokens(2, beside=10e9) == pytest.approx((2 * 62e9 - 15.2e9) / token)
    assert ROOM.slots(1) == int((72e9 - 15.2e9) / token / (500 + 500))
    assert replace(ROOM, max_sequences=100).slots(1) == 100


def test_a_sampler_has_room_for_the_longest_sequence():
    assert ROOM.fewest_of_sampler(8) == 1
    token = 2 * 28 * 512 * 2
    just = with_memory(15.2e9 + 4000 * token)
    assert just.fewest_of_sampler(8) == 1 and with_memory(just.usable - token).fewest_of_sampler(8) == 2
    assert replace(ROOM, shape=dense_shape(400e9)).fewest_of_sampler(8) == 0
    assert replace(ROOM, shape=dense_shape(400e9)).fewest_of_sampler(64) == 16
