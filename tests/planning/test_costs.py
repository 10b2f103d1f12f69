"""Arithmetic by hand, mostly for SmolLM2-135M in bfloat16; what is advised really helps."""

from dataclasses import replace

import pytest

from posttrain.algorithms.load import Load
from posttrain.models.footprint import Shape, head_bytes, saved_bytes
from posttrain.planning.costs import (
    Phase,
    Speed,
    Training,
    activations,
    checkpoint_bytes,
    decoded_together,
    extend,
    sampling_phase,
    sampling_seconds,
    saving_phase,
    speed_from_products,
    update_phase,
    update_seconds,
    what_to_change,
)

P = 134_515_008
SHAPE = Shape(
    name="smollm2",
    context=8192,
    layers=30,
    hidden=576,
    heads=9,
    query_width=576,
    key_width=192,
    intermediate=1536,
    vocabulary=49152,
    parameters=P,
    active=30 * 3_538_944,
    linear_widths=305_280,
    quantizable=30 * 3_538_944,
    sides=((192, 60), (576, 270), (1536, 90)),
)
Q = 30 * 3_538_944
FULL = Training(SHAPE, itemsize=2, references=1, reads=1)
LOAD = Load(prompts=16, group=8, prompt_tokens=100, completion_tokens=256, microbatch_tokens=4096)


def activation_bytes(training: Training, load: Load) -> int:
    return sum(activations(training, load).values())


def test_a_teacher_is_held_beside_an_adapter_too_and_reads_as_slowly_as_it_is_large():
    twice = replace(SHAPE, parameters=2 * P, active=2 * SHAPE.active, hidden=2 * SHAPE.hidden)
    for rank in (0, 16):
        training = Training(SHAPE, 2, rank, reads=1, teachers=(twice,))
        assert training.held()["teacher"] == 2 * 2 * P and "teacher" not in Training(SHAPE, 2, rank).held()
        assert training.passes == 2.0
    assert replace(FULL, teachers=(SHAPE,)).passes == 1.0
    assert replace(FULL, reads=2, teachers=(twice,)).passes == 3.0  # of the reference, and of the teacher
    speed = Speed(trained_token=3.0, read_token=1.0, decode_step=5.0, parameter=0.0)
    both = [update_seconds(each, LOAD, speed) for each in (replace(FULL, teachers=(twice,)), FULL)]
    assert both[0] - both[1] == LOAD.tokens * 1.0


def test_a_batch_is_prompts_times_completions():
    assert LOAD.sequences == 128
    assert LOAD.tokens == 16 * (100 + 8 * 256) == 34_368
    assert LOAD.microbatches == 9  # 8.4
    assert replace(LOAD, microbatch_tokens=34_368).microbatches == 1


@pytest.mark.parametrize(
    ("training", "held"),
    [
        (
            FULL,
            {
                "weights": 2 * P,
                "float32 masters": 4 * P,
                "float32 gradients": 4 * P,
                "reference": 2 * P,
                "Adam state": 8 * P,
            },
        ),
        (
            Training(SHAPE, 2),
            {"weights": 2 * P, "float32 masters": 4 * P, "float32 gradients": 4 * P, "Adam state": 8 * P},
        ),
        (Training(SHAPE, 4), {"weights": 4 * P, "Adam state": 8 * P}),
        (
            Training(SHAPE, 2, lora_rank=16, references=1),
            {"weights": 2 * P, "adapter": 4 * 16 * 305_280, "Adam state": 8 * 16 * 305_280},
        ),
        (
            Training(SHAPE, 2, lora_rank=16, references=1, trained=1),
            {"weights": 4 * P, "adapter": 8 * 16 * 305_280, "Adam state": 16 * 16 * 305_280},
        ),
        (
            Training(SHAPE, 2, trained=1),
            {"weights": 4 * P, "float32 masters": 8 * P, "float32 gradients": 8 * P, "Adam state": 16 * P},
        ),
        (
            Training(SHAPE, 4, trained=1, moment_bits=8),
            # of each network all but the embedding and the norms in 2 bytes, and 8 for the scales of 256 numbers
            {"weights": 8 * P, "Adam state in 8 bits": 2 * (8 * P - 6 * Q + Q // 32)},
        ),
        (
            Training(SHAPE, 4, lora_rank=4, moment_bits=8),
            {
                "weights": 4 * P,
                "adapter": 4 * 4 * 305_280,
                "Adam state in 8 bits": 8 * 4 * 305_280 - 6 * 90 * 6144 + 90 * 6144 // 32,
            },
        ),
    ],
    ids=[
        "with reference",
        "bfloat16",
        "float32",
        "adapter",
        "adapter and critic",
        "critic",
        "8 bits",
        "8 bits, adapter",
    ],
)
def test_what_is_held_all_the_time(training, held):
    assert training.held() == held


def test_an_update_holds_gradients_activations_and_a_chunk_of_logits():
    phase = update_phase(FULL, LOAD)
    assert phase.parts["float32 gradients"] == 4 * P
    assert phase.parts["logits of a chunk"] == head_bytes(SHAPE, 2, full=True)
    assert phase.total == 20 * P + activation_bytes(FULL, LOAD) + head_bytes(SHAPE, 2, full=True)
    adapter = update_phase(replace(FULL, lora_rank=8), LOAD)
    assert adapter.parts["logits of a chunk"] == head_bytes(SHAPE, 2, full=False)


def test_gradients_come_and_go_where_the_weights_are_their_own_masters():
    assert update_phase(Training(SHAPE, 4), LOAD).parts["gradients"] == 4 * P
    assert update_phase(Training(SHAPE, 2, lora_rank=1), LOAD).parts["gradients"] == 4 * 305_280
    assert "gradients" not in update_phase(FULL, LOAD).parts


def test_with_checkpointing_the_layers_inputs_are_kept_and_one_layer_s_activations():
    parts = activations(Training(SHAPE, 2, checkpointing=True), LOAD)
    layer = 4096 * (2 * (4 * 576 + 2 * 576 + 2 * 192 + 2 * 1536) + 8)
    end = 4096 * (2 * 2 * 576 + 4) + 3906 * 2 * 576  # the last norm, and the learned states
    assert parts == {"layer inputs": 30 * 4096 * 2 * 576 + end, "activations of one layer": layer}
    two = activations(Training(SHAPE, 2, checkpointing=True, trained=1), LOAD)
    assert two == {"layer inputs": 2 * parts["layer inputs"], "activations of one layer": layer}
    assert activations(FULL, LOAD) == {"activations": 30 * layer + end}
    phase = update_phase(Training(SHAPE, 2, checkpointing=True), LOAD)
    assert phase.total == 18 * P + sum(parts.values()) + head_bytes(SHAPE, 2, full=True)


@pytest.mark.parametrize(
    ("load", "tokens", "learned"),
    [
        (LOAD, 4096, 3906),  # of a family's 2,148 tokens 2,048 are learned
        (replace(LOAD, prompts=1, group=2), 612, 512),  # the whole batch is smaller than a micro-batch
        (Load(16, 1, 0, 512, 4096), 4096, 4096),  # examples without a common prefix
    ],
)
def test_activations_are_those_of_a_full_microbatch(load, tokens, learned):
    assert activation_bytes(FULL, load) == saved_bytes(SHAPE, 2, tokens=tokens, learned=learned)


def test_the_cache_decides_how_many_are_decoded_together():
    per_sequence = 356 * 2 * 30 * 192 * 2  # tokens x keys and values x layers x width x bytes
    assert decoded_together(FULL, LOAD, cache_bytes=10 * per_sequence) == 10
    assert decoded_together(FULL, LOAD, cache_bytes=10 * per_sequence - 1) == 9
    assert decoded_together(FULL, LOAD, cache_bytes=1) == 1
    assert decoded_together(FULL, replace(LOAD, prompts=32), cache_bytes=10**12) == 128  # of 256
    assert decoded_together(FULL, replace(LOAD, prompts=2), cache_bytes=10**12) == 16  # all there are
    phase = sampling_phase(FULL, LOAD, cache_bytes=10 * per_sequence)
    assert phase.parts["keys and values"] == 10 * per_sequence
    assert phase.parts["logits"] == 3 * 4 * 10 * 49152
    packed = 2 * (30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536) + 49152 * 576)
    assert phase.parts["packed weights"] == packed
    assert phase.total == 20 * P + 10 * per_sequence + 120 * 49152 + packed


@pytest.mark.parametrize("other", [{"itemsize": 4}, {"on_gpu": True}])
def test_weights_are_packed_in_bfloat16_on_a_cpu_only(other):
    assert "packed weights" not in sampling_phase(replace(FULL, **other), LOAD, cache_bytes=2**30).parts


def test_a_context_bounds_the_cache():
    small = replace(FULL, shape=replace(SHAPE, context=200))
    assert sampling_phase(small, LOAD, cache_bytes=10**12).parts["keys and values"] == 128 * 200 * 2 * 30 * 192 * 2


def test_a_checkpoint_is_model_masters_and_adam():
    assert checkpoint_bytes(FULL) == (2 + 4 + 8) * P
    assert checkpoint_bytes(Training(SHAPE, 4)) == (4 + 4 + 8) * P
    assert checkpoint_bytes(Training(SHAPE, 4, trained=1)) == (4 + 2 * (4 + 8)) * P
    assert checkpoint_bytes(Training(SHAPE, 2, lora_rank=16)) == (4 + 4 + 8) * 16 * 305_280
    merged = Training(SHAPE, 2, lora_rank=16, head=False)
    assert checkpoint_bytes(merged) == 2 * P + (4 + 8) * 16 * 305_280
    assert saving_phase(merged).total == 2 * 2 * P + (4 + 8) * 16 * 305_280  # the weights twice, adapter, Adam's state


def test_seconds_of_a_step():
    speed = Speed(trained_token=3e-3, read_token=1e-3, decode_step=0.5, parameter=1e-8)
    assert update_seconds(FULL, LOAD, speed) == pytest.approx(34_368 * 4e-3 + P * 1e-8)  # the reference reads too
    assert update_seconds(FULL, LOAD, speed, updates=3) == pytest.approx(34_368 * (3 * 3e-3 + 1e-3) + 3 * P * 1e-8)
    assert update_seconds(Training(SHAPE, 2), LOAD, speed) == pytest.approx(34_368 * 3e-3 + P * 1e-8)
    everything = sampling_seconds(FULL, LOAD, speed, cache_bytes=10**12)
    assert everything == pytest.approx(16 * 100 * 1e-3 + 256 * 0.5)
    fifty = 50 * 356 * 2 * 30 * 192 * 2  # 128 sequences in rounds of 50
    assert sampling_seconds(FULL, LOAD, speed, cache_bytes=fifty) == pytest.approx(1.6 + 3 * 256 * 0.5)


def test_a_critic_s_own_network_is_computed_with_too():
    one, two = Training(SHAPE, 4), Training(SHAPE, 4, trained=1)
    assert activation_bytes(two, LOAD) == 2 * activation_bytes(one, LOAD)
    parts = [update_phase(training, LOAD).parts["gradients"] for training in (one, two)]
    assert parts == [4 * P, 8 * P]
    speed = Speed(trained_token=3e-3, read_token=1e-3, decode_step=0.5, parameter=1e-8)
    read = LOAD.tokens * 1e-3 * two.reads
    both = update_seconds(two, LOAD, speed) - read
    assert both == pytest.approx(2 * update_seconds(replace(two, trained=0), LOAD, speed) - 2 * read)


def test_a_straight_line_through_few_and_many_layers():
    few, many = Speed(6.0, 1.0, 5.0, 0.1), Speed(12.0, 0.9, 50.0, 0.2)
    # slopes 6 / 4; not below 0 where noise says so; and a layer not above its share of the first
    assert extend(few, many, (2, 6), 4) == Speed(9.0, 1.0, 10.0, 0.2)


def test_speed_from_the_rate_of_products_alone():
    numbers = 30 * 3_538_944 + 49152 * 576
    forward = 2 * numbers / 0.5e12
    found = speed_from_products(Training(SHAPE, 2), 128, 1e12)
    assert found.trained_token == pytest.approx(3 * forward) and found.read_token == pytest.approx(forward)
    assert found.decode_step == pytest.approx(128 * forward) and found.parameter == 30 / 1e10
    assert speed_from_products(Training(SHAPE, 2), 1, 1e12).decode_step == pytest.approx(16 * forward)
    assert speed_from_products(Training(SHAPE, 2, lora_rank=8), 1, 1e12).trained_token == pytest.approx(2 * forward)
    assert speed_from_products(Training(SHAPE, 2, on_gpu=True), 1, 1e12).parameter == 30 / 1e12
    again = speed_from_products(Training(SHAPE, 2, checkpointing=True, moment_bits=8), 1, 1e12)
    assert again.trained_token == pytest.approx(4 * forward) and again.read_token == pytest.approx(forward)
    assert again.parameter == pytest.approx(5 * 30 / 1e10)


def test_checkpoints_of_8_bits_are_smaller():
    moments = 8 * P - 6 * Q + Q // 32
    assert checkpoint_bytes(Training(SHAPE, 2, moment_bits=8)) == 2 * P + 4 * P + moments


def test_what_fits_needs_no_advice():
    phase = update_phase(FULL, LOAD)
    assert what_to_change(FULL, LOAD, phase, phase.total, cache_bytes=0) == ""
    assert what_to_change(FULL, LOAD, phase, phase.total - 1, cache_bytes=0)


def test_a_smaller_microbatch_is_advised_where_it_is_enough():
    phase = update_phase(FULL, LOAD)
    phase = Phase("update", dict(phase.parts) | {"Python and libraries": 5 * 10**8})  # what no option changes
    available = phase.total - 10**9
    line = what_to_change(FULL, LOAD, phase, available, cache_bytes=0)
    tokens = int(line.rpartition("`microbatch_tokens=")[2].rstrip("`"))
    assert update_phase(FULL, replace(LOAD, microbatch_tokens=tokens)).total + 5 * 10**8 <= available
    assert update_phase(FULL, replace(LOAD, microbatch_tokens=2 * tokens)).total + 5 * 10**8 > available
    assert "activations" in line and "\n" not in line


def test_an_adapter_is_advised_where_no_microbatch_is_small_enough():
    phase = update_phase(FULL, LOAD)
    line = what_to_change(FULL, LOAD, phase, 16 * P, cache_bytes=0)
    assert "`lora_rank=16`" in line
    adapter = Training(SHAPE, 2, lora_rank=16)
    line = what_to_change(adapter, LOAD, update_phase(adapter, LOAD), P, cache_bytes=0)
    assert "smaller model" in line


def test_what_takes_more_time_and_less_memory_is_advised_before_an_adapter():
    """Sequences as long as a micro-batch, so that no smaller one is possible."""
    long = replace(LOAD, completion_tokens=3996)
    now = update_phase(FULL, long)
    lean = replace(FULL, checkpointing=True)
    both = replace(lean, moment_bits=8)
    totals = [update_phase(one, long).total for one in (lean, replace(FULL, moment_bits=8), both)]
    assert totals[0] < totals[1] < now.total and totals[2] < totals[0]

    def advised(available):
        line = what_to_change(FULL, long, now, available, cache_bytes=0)
        return line.rpartition("; ")[2]

    assert advised(totals[0]) == advised(now.total - 1) == "type `gradient_checkpointing=True`"
    eight = '`optim="adamw-8bit"`'
    assert advised(totals[2]) == advised(totals[0] - 1) == f"type `gradient_checkpointing=True` {eight}"
    assert "`lora_rank=16`" in advised(totals[2] - 1)
    line = what_to_change(lean, long, update_phase(lean, long), totals[2], cache_bytes=0)
    assert line.endswith(f"type {eight}")
    sampling = sampling_phase(FULL, long, cache_bytes=1)
    line = what_to_change(FULL, long, sampling, sampling.total - 10**8, cache_bytes=1)
    assert line.endswith(f"type {eight}")


def test_an_offloaded_optimizer_is_on_the_host_and_advised_on_a_gpu():
    on_gpu = replace(FULL, on_gpu=True)
    offloaded = replace(on_gpu, offload=True)
    assert offloaded.held() == {"weights": 2 * P, "reference": 2 * P}
    state = {"float32 masters": 4 * P, "float32 gradients": 4 * P, "Adam state": 8 * P}
    assert offloaded.optimizer() == on_gpu.optimizer() == state
    adapter = Training(SHAPE, 4, lora_rank=16, on_gpu=True, offload=True)
    numbers = 16 * 305_280
    assert adapter.held() == {"weights": 4 * P, "adapter": 4 * numbers}
    assert adapter.optimizer() == {name: size * numbers // P for name, size in state.items()}
    assert "gradients" not in update_phase(replace(offloaded, itemsize=4), LOAD).parts
    long = replace(LOAD, completion_tokens=3996)
    bits = update_phase(replace(on_gpu, checkpointing=True, moment_bits=8), long).total
    line = what_to_change(on_gpu, long, update_phase(on_gpu, long), bits - 1, cache_bytes=0)
    assert line.endswith("type `offload_optimizer=True`")
    both = update_phase(replace(offloaded, checkpointing=True), long).total
    line = what_to_change(on_gpu, long, update_phase(on_gpu, long), both, cache_bytes=0)
    assert line.endswith("type `gradient_checkpointing=True` `offload_optimizer=True`")
    assert speed_from_products(offloaded, 1, 1e12).parameter == 100 * speed_from_products(on_gpu, 1, 1e12).parameter


def test_no_microbatch_shorter_than_a_sequence_is_advised():
    long = replace(LOAD, completion_tokens=3000)
    phase = update_phase(FULL, long)
    assert "`microbatch_tokens=2048`" not in what_to_change(FULL, long, phase, phase.total - 1, cache_bytes=0)


def test_a_smaller_cache_is_advised_where_sampling_does_not_fit():
    cache = 3 * 2**30
    phase = sampling_phase(FULL, LOAD, cache_bytes=cache)
    available = phase.total - phase.parts["keys and values"] // 2
    line = what_to_change(FULL, LOAD, phase, available, cache_bytes=cache)
    gigabytes = float(line.rpartition("`cache_gb=")[2].rstrip("`"))
    assert gigabytes > 0.1
    assert sampling_phase(FULL, LOAD, cache_bytes=int(gigabytes * 2**30)).total <= available


def test_a_phase_is_the_sum_of_its_parts():
    assert Phase("update", {"a": 3, "b": 4}).total == 7
