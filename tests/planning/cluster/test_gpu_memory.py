"""What GPUs hold, by hand for 7.6B parameters."""

from dataclasses import replace

import pytest

from posttrain.planning.cluster.gpu_memory import Room
from posttrain.planning.cluster.shapes import dense_shape
from posttrain.planning.cluster.workload import Workload

SHAPE = dense_shape(7.6e9)  # Qwen2.5-7B: 28 layers, 3584 hidden, keys of 512, 18944 units, 152064 words
WORK = Workload(64, 8, prompt_tokens=500, mean_tokens=1000.0, spread=0.0, max_tokens=3500, microbatch_tokens=4000)
ROOM = Room(SHAPE, WORK, usable=72e9)
HEAD = 2**27 + 3 * 4 * 2**20 + 152064 * 3584 * 6  # chunk of logits, blocks in float32, gradient and what is added to it


def row_bytes(tokens):
    widths = 4 * 3584 + 2 * 3584 + 2 * 512 + 2 * 18944
    kept = tokens * (28 * 2 * 3584 + 2 * 2 * 3584 + 4 + 2 * 3584)
    return kept + tokens * (2 * widths + 8)


def test_trainers_hold_18_bytes_for_a_parameter_together():
    assert ROOM.held() == pytest.approx(18 * 7.6e9)
    assert ROOM.trainer(1) == pytest.approx(18 * 7.6e9 + ROOM.row())


def test_a_row_is_layer_inputs_one_layer_and_the_head():
    assert ROOM.row() - replace(ROOM, work=replace(WORK, microbatch_tokens=2000)).row() == row_bytes(2000)
    assert ROOM.row() == pytest.approx(row_bytes(4000) + HEAD, rel=0.01)


def test_shards_are_gathered_two_layers_at_a_time_with_embedding_and_head():
    body = 7.6e9 - (SHAPE.parameters - SHAPE.active)
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
    assert ROOM.slots(1, 10**6) == int((72e9 - 15.2e9) / token / (500 + 500))
    assert ROOM.slots(1, 100) == 100


def test_a_sampler_has_room_for_the_longest_sequence():
    assert ROOM.fewest_of_sampler(8) == 1
    token = 2 * 28 * 512 * 2
    just = replace(ROOM, usable=15.2e9 + 4000 * token)
    assert just.fewest_of_sampler(8) == 1 and replace(just, usable=just.usable - token).fewest_of_sampler(8) == 2
    assert replace(ROOM, shape=dense_shape(400e9)).fewest_of_sampler(8) == 0
    assert replace(ROOM, shape=dense_shape(400e9)).fewest_of_sampler(64) == 16
