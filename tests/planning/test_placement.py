"""What a dry run says of the processes of a cluster."""

import inspect
from dataclasses import replace

import pytest

from posttrain.bindings.cluster_options import ONE_PROCESS, AsyncOptions, ClusterOptions, TrainerOptions
from posttrain.engine.policy import load_policy
from posttrain.errors import UserError
from posttrain.planning.costs import Phase
from posttrain.planning.result import placed
from posttrain.planning.step_time import StepTime, weights_bytes
from tests.planning.test_plan import fine_tuning, folder, rl  # noqa: F401  a fixture

TWO = ClusterOptions(trainers=2, samplers=3)


def test_one_process_is_planned_as_before(folder):  # noqa: F811
    plan = rl(folder)
    assert placed(plan, ONE_PROCESS) is plan


def test_each_kind_of_process_has_what_it_holds(folder):  # noqa: F811
    plan = rl(folder, precision="bfloat16")
    held, memory = plan.training.shape.parameters, plan.summary()["memory"]
    update = sum(memory["update"].values())
    sampling = ("Python, libraries and data", "keys and values", "logits", "packed weights")
    sampler = 2 * held + sum(memory["sampling"][name] for name in sampling)  # a weight has two bytes
    plan = replace(plan, available=2 * update + 3 * sampler)
    note, sent = placed(plan, TWO).notes[-1], 2 * held / 1e9
    assert note.startswith(f"2 trainers of {update / 1e9:.1f} GB and 1 CPU each; 3 samplers of {sampler / 1e9:.1f} GB")
    assert f"{sent:.2f} GB of weights are sent to each sampler" in note and not placed(plan, TWO).warnings
    little = replace(plan, available=plan.available - 1)
    assert "the processes need" in placed(little, TWO).warnings[-1]
    assert placed(little, replace(TWO, address="auto")).warnings == little.warnings


def test_reward_models_are_in_the_process_of_the_command(folder):  # noqa: F811
    plan = rl(folder)
    (sampling, update) = plan.phases
    more = replace(update, parts={**update.parts, "reward models": 10**12})
    assert placed(replace(plan, phases=(sampling, more)), TWO) == replace(placed(plan, TWO), phases=(sampling, more))


def test_a_copy_of_the_weights_is_held_where_steps_are_sampled_ahead(folder):  # noqa: F811
    plan = rl(folder, precision="bfloat16")
    sent = 2 * plan.training.shape.parameters
    several = AsyncOptions(trainers=1, max_staleness=2)
    assert placed(plan, several).notes[-1].endswith(f"a copy of them, {sent / 1e9:.2f} GB more, while it trains on")
    held, memory = plan.training.shape.parameters, plan.summary()["memory"]
    names = ("Python, libraries and data", "keys and values", "logits", "packed weights")
    both = sum(memory["update"].values()) + 2 * held + sum(memory["sampling"][name] for name in names)
    assert placed(replace(plan, available=both + sent), several).warnings == plan.warnings
    assert placed(replace(plan, available=both + sent - 1), several).warnings != plan.warnings


def test_of_an_adapter_its_float32_weights_are_sent(folder):  # noqa: F811
    plan = rl(folder, precision="bfloat16", lora_rank=2)
    assert weights_bytes(plan.training) == 4 * plan.training.adapter.low_rank


def test_with_shards_a_trainer_holds_its_part_and_the_embedding(folder):  # noqa: F811
    plan = rl(folder, precision="bfloat16")
    held, update = sum(plan.training.held().values()), sum(plan.summary()["memory"]["update"].values())
    shape = plan.training.shape
    large = replace(plan, phases=tuple(_times(phase, 1000) for phase in plan.phases))  # gigabytes, to be seen
    held *= 1000
    large = replace(large, training=replace(plan.training, shape=replace(shape, parameters=1000 * shape.parameters)))
    layer = 1000 * shape.parameters // shape.layers
    ends = 2 * shape.vocabulary * shape.hidden  # numbers, if the head has its own
    found = update * 1000 - held + held // 2 + 2 * ends + (2 * 2 + 10) * layer
    assert f"2 trainers of {found / 1e9:.1f} GB" in placed(large, replace(TWO, fsdp=True)).notes[-1]
    replicas = replace(TWO, trainers=6, fsdp=True, fsdp_replicas=3)
    assert f"6 trainers of {found / 1e9:.1f} GB" in placed(large, replicas).notes[-1]


def test_a_trainer_holds_the_whole_model_until_it_keeps_its_shard(folder):  # noqa: F811
    plan = rl(folder, precision="bfloat16")
    training = replace(plan.training, shape=replace(plan.training.shape, parameters=10**10))
    (sampling, _) = plan.phases
    update = Phase("update", {**training.held(), "activations": 10**9})
    large = replace(plan, training=training, phases=(sampling, update))
    loaded = (2 + 2 * training.references) * (1 + 1 / 64)  # bytes of each parameter
    many = replace(large, training=replace(training, shape=replace(training.shape, layers=10**6)))
    assert f"64 trainers of {10 * loaded:.1f} GB" in placed(many, replace(TWO, trainers=64, fsdp=True)).notes[-1]
    one = (2 + 4 + 4 + 8 + 2 * training.references) * 10 + 1
    assert f"1 trainer of {one:.1f} GB" in placed(large, replace(TWO, trainers=1, fsdp=True)).notes[-1]


P = 10**10


def on_a_gpu(folder, trained=None, *, gradients=0, available=10**12, **options):  # noqa: F811
    """What is said of four trainers of a model with 10 billion parameters, on GPUs."""
    plan = rl(folder, precision="bfloat16")
    shape = replace(plan.training.shape, parameters=P, vocabulary=10**6)
    training = replace(plan.training, shape=shape, on_gpu=True, references=1, **(trained or {}))
    update = Phase(
        "update", {**training.held(), "activations": 10**9} | ({"gradients": gradients} if gradients else {})
    )
    several = ClusterOptions(**({"trainers": 4, "fsdp": True} | options))
    ends, layer = 2 * 10**6 * shape.hidden, P // shape.layers  # a head of its own, and a larger layer
    trained = 0 if training.lora_rank else training.itemsize + 8
    passes = 10**9 + training.itemsize * (ends + 2 * layer) + trained * layer
    return placed(
        replace(plan, training=training, phases=(plan.phases[0], update), available=available), several
    ), passes


def amount(size):
    return f"{size / 1e9:.1f} GB"


def test_shards_of_a_gpu_come_from_host_memory(folder):  # noqa: F811
    found, passes = on_a_gpu(folder)  # weights, reference, masters, gradients and moments
    assert f"4 trainers of {amount((4 + 16) * P // 4 + passes)} " in found.notes[-1]
    assert f"each trainer takes {amount(4 * P + P)} of host memory while it starts" in found.notes[-1]
    assert "keeps" not in found.notes[-1]


def test_each_process_has_a_gpu_of_its_own(folder):  # noqa: F811
    found, passes = on_a_gpu(folder, address="auto")
    need = 20 * P // 4 + passes
    assert not [line for line in found.warnings if "a process needs" in line]
    for room, fits in ((need, True), (need - 1, False)):
        warned, _ = on_a_gpu(folder, available=room)
        assert ("a process needs" in " ".join(warned.warnings)) != fits
    assert "the processes need" not in " ".join(warned.warnings)


@pytest.mark.parametrize("trained", [{}, {"offload": True}])
def test_offloaded_shards_are_in_host_memory(folder, trained, monkeypatch):  # noqa: F811
    found, passes = on_a_gpu(folder, trained, fsdp_offload=True)
    assert f"4 trainers of {amount(passes)} and 1 CPU each; each trainer keeps {amount(5 * P)} " in found.notes[-1]
    assert "while it starts" not in found.notes[-1]  # that is as much: both models, and their shards
    for room, fits in ((4 * 5 * P, True), (4 * 5 * P - 1, False)):
        monkeypatch.setattr("posttrain.planning.result.available_bytes", lambda room=room: room)
        warned = [line for line in on_a_gpu(folder, fsdp_offload=True)[0].warnings if "host memory" in line]
        assert warned == [] if fits else len(warned) == 1
    one, _ = on_a_gpu(folder, trained, trainers=1, fsdp_offload=True)
    assert f"each trainer keeps {amount(20 * P)} in host memory" in one.notes[-1]


def test_a_sharded_optimizer_may_be_in_host_memory(folder):  # noqa: F811
    found, passes = on_a_gpu(folder, {"offload": True})
    assert f"4 trainers of {amount(P + passes)} and 1 CPU each; each trainer keeps {amount(4 * P)} " in found.notes[-1]
    assert f"each trainer takes {amount(5 * P)} of host memory while it starts" in found.notes[-1]


def test_gradients_of_float32_weights_are_sharded(folder):  # noqa: F811
    found, passes = on_a_gpu(folder, {"itemsize": 4}, gradients=4 * P)
    assert f"4 trainers of {amount((8 + 8 + 4) * P // 4 + passes)} " in found.notes[-1]


def test_an_adapter_is_replicated_and_nothing_sharded_has_a_gradient(folder):  # noqa: F811
    found, passes = on_a_gpu(folder, {"lora_rank": 8, "offload": True}, fsdp_offload=True)
    training = found.training
    assert f"4 trainers of {amount(training.held()['adapter'] + passes)} " in found.notes[-1]
    state = sum(training.optimizer().values())
    assert f"each trainer keeps {amount(state + P // 2)} in host memory" in found.notes[-1]


def test_without_a_gpu_no_memory_is_another_one(folder):  # noqa: F811
    plan = rl(folder, precision="bfloat16")
    assert "host memory" not in placed(plan, replace(TWO, fsdp=True, fsdp_offload=True)).notes[-1]


def test_memory_of_one_process_is_called_so_and_time_what_it_is(folder):  # noqa: F811
    assert placed(rl(folder), TWO).notes[-2] == "memory above is that of one process that does everything"
    timed = replace(rl(folder), time=StepTime(60.0, 30.0, 0.5))
    assert "; time is of processes that each compute as this one does" in placed(timed, TWO).notes[-2]
    assert any("at most 90 s a step (sampling 30 s, update 60 s, weights 0.5 s), " in line for line in timed.lines())
    ahead = replace(timed, time=StepTime(60.0, 30.0, 0.5, overlapped=True))
    expected = "at most 60 s a step (sampling 30 s and update 60 s at the same time, weights 0.5 s), "
    assert any(expected in line for line in ahead.lines())


def test_more_cpus_than_this_machine_has_are_named(folder, monkeypatch):  # noqa: F811
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    many = replace(TWO, trainer_cpus=1.5)  # 2 trainers and 3 samplers
    assert "the processes reserve 6 CPUs, and this machine has 4" in placed(rl(folder), many).notes[-3]
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    for fits in (many, replace(many, address="auto", trainer_cpus=99.0)):
        assert not any("this machine has" in note for note in placed(rl(folder), fits).notes)


def _times(phase, factor):
    return replace(phase, parts={name: factor * size for name, size in phase.parts.items()})


def test_what_samples_elsewhere_is_said(folder):  # noqa: F811
    assert "and not of http://a:1" in rl(folder, engine="http://a:1").notes[-1]
    assert not any("embedded" in note for note in rl(folder).notes)


def test_what_samples_nothing_has_no_samplers(folder):  # noqa: F811
    note = placed(fine_tuning(folder), TrainerOptions(trainers=2)).notes[-1]
    assert "2 trainers of" in note and "sampler" not in note


@pytest.mark.parametrize("cpus", [0.5, 2])
def test_cpus_are_named(folder, cpus):  # noqa: F811
    assert f"{cpus:g} CPUs each" in placed(rl(folder), replace(TWO, trainer_cpus=cpus)).notes[-1]


def test_reserved_memory_is_named(folder):  # noqa: F811
    note = placed(rl(folder), replace(TWO, trainer_memory_gb=7.5)).notes[-1]
    assert " GB (7.5 GB reserved) and 1 CPU each; 3 samplers" in note and "reserved" not in note.partition("; ")[2]


def test_a_sampler_of_a_server_has_the_weights_alone(folder):  # noqa: F811
    plan, two = rl(folder), AsyncOptions(trainers=1, samplers=2)
    size = plan.training.shape.parameters * plan.training.itemsize / 1e9
    assert f"2 samplers of {size:.1f} GB and" in placed(plan, two, served=True).notes[-1]
    assert f"2 samplers of {size:.1f} GB and" not in placed(plan, two).notes[-1]


def libraries(plan):
    """Bytes of Python and the rest in each process."""
    return plan.phases[0].parts["Python, libraries and data"]


def test_scorers_hold_the_reward_models(folder):  # noqa: F811
    plan = rl(folder)
    models = replace(plan, training=replace(plan.training, reward_models=10**9))
    size = 10**9 * plan.training.itemsize + libraries(plan)
    note = placed(models, AsyncOptions(trainers=1, scorers=2, scorer_cpus=0.5)).notes[-1]
    assert f"2 scorers of {size / 1e9:.1f} GB and 0.5 CPUs each" in note
    assert "scorer" not in placed(models, AsyncOptions(trainers=1)).notes[-1]
    with pytest.raises(UserError, match="`scorers` has nothing to do"):
        placed(plan, AsyncOptions(trainers=1, scorers=2))


def test_scorers_hold_the_local_models_of_judges_and_seats(folder):  # noqa: F811
    plan = rl(folder)
    models = replace(plan, training=replace(plan.training, reward_models=10**9, chat_models=2 * 10**9))
    size = 3 * 10**9 * plan.training.itemsize
    cache = inspect.signature(load_policy).parameters["cache_gb"].default * 2**30
    for itemsize, packed in ((4, 0), (2, 2 * 2 * 10**9)):
        narrow = replace(models, training=replace(models.training, itemsize=itemsize))
        each = libraries(plan) + 3 * 10**9 * itemsize + packed
        note = placed(narrow, AsyncOptions(trainers=1, scorers=2)).notes[-1]
        assert f"2 scorers of {each / 1e9:.1f} GB plus at most {cache / 1e9:.1f} GB of KV cache and 1 CPU each" in note
    here = placed(models, AsyncOptions(trainers=1))
    assert here.notes[-1].endswith(
        f"the process of the command holds {size / 1e9:.1f} GB of models that score, judge or play"
    )
    assert any(
        "the processes need" in warning
        for warning in placed(replace(models, available=size), AsyncOptions(trainers=1)).warnings
    )


def test_what_reward_functions_hold_is_not_known(folder):  # noqa: F811
    plan = rl(folder)
    models = replace(plan, training=replace(plan.training, reward_models=10**9))
    base = libraries(plan) / 1e9
    size = base + plan.training.itemsize
    both = AsyncOptions(trainers=1, scorers=2)
    assert f"2 scorers of {size:.1f} GB plus what reward fu" in placed(models, both, functions=True).notes[-1]
    assert (
        f"2 scorers of {base:.1f} GB plus what reward functions hold and 1 CPU each"
        in placed(plan, both, functions=True).notes[-1]
    )


def test_gpus_are_named_where_they_are_asked_for(folder):  # noqa: F811
    note = placed(rl(folder), replace(TWO, trainer_gpus=1.0, sampler_gpus=0.5)).notes[-1]
    assert "1 CPU and 1 GPU each; " in note and "1 CPU and 0.5 GPU each; " in note
    assert "GPU" not in placed(rl(folder), replace(TWO, sampler_gpus=0.0)).notes[-1]
