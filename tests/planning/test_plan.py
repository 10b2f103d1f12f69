"""What a plan says is the arithmetic's, and of what a run would do: of its data, its options, its model."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from posttrain import algorithms
from posttrain.algorithms.load import Load
from posttrain.bindings.cluster_options import AsyncOptions, TrainerOptions
from posttrain.cli import main
from posttrain.data import ChatFormat
from posttrain.errors import UserError
from posttrain.models import blockwise
from posttrain.planning import Plan
from posttrain.planning import plan as recipe
from posttrain.planning import step_time as speed
from posttrain.planning.costs import GB, Speed
from posttrain.recipes import online_preference, preference, reward_model, sft
from posttrain.recipes import rl as rl_recipe
from posttrain.recipes.online_preference import OnlinePreference
from posttrain.recipes.preference import Preferences
from posttrain.recipes.reward_model import Scoring
from posttrain.recipes.rl import RL
from posttrain.recipes.sft import SFT
from posttrain.types import Message
from tests.data.families import of_family
from tests.recipes.folders import model_folder

CHAT = ChatFormat(of_family("smollm2"))
AROUND = len(CHAT.prompt_ids([Message("user", "")]))
"""Tokens of a prompt without words; each letter is one more."""
P = AROUND + 20
"""Tokens of the prompt that `rl` is given."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, and a data set of each kind whose prompts have as many letters as their file's name says."""
    where = tmp_path_factory.mktemp("models")
    model_folder(where / "model", context=512)
    return where


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """The same machine everywhere: 8 GB of memory."""
    monkeypatch.setattr("posttrain.planning.plan.available_bytes", lambda: 8 * 10**9)
    monkeypatch.setattr("posttrain.planning.plan.peak_gb", lambda: 0.5)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def prompts(folder, *letters):
    """Tasks whose prompts have so many letters."""
    rows = [{"prompt": "x" * n, "answer": "1"} for n in letters]
    return write(folder / f"{'-'.join(map(str, letters))}.jsonl", rows)


def rl(folder, *, measure=False, letters=(20,), **others) -> Plan:
    """A plan of rl, on a prompt of 20 letters."""
    words: dict[str, Any] = {"model": str(folder / "model"), "precision": "float32", "max_new_tokens": 64}
    config = RL(**{"reward": "exact", "dataset": prompts(folder, *letters), **words} | others)
    return rl_recipe.dry_run(config, algorithms.online(config.algorithm)(), measure=measure)


def fine_tuning(folder, *, measure=False, letters=(5, 15), **others) -> Plan:
    data = write(folder / "said.jsonl", [{"prompt": "x" * n, "completion": "y"} for n in letters])
    words: dict[str, Any] = {"model": str(folder / "model"), "precision": "float32", "examples_per_step": 2}
    return sft.dry_run(SFT(**{"dataset": data, **words} | others), measure=measure)


def pairs(kind, folder, *, measure=False, letters=(4, 10), **others) -> Plan:
    """A plan of learning from pairs, of ratings, or of pairs of its own."""
    rows = [{"prompt": "a" * n, "chosen": "b" * n, "rejected": "c" * 3 * n} for n in letters]
    data = write(folder / "pairs.jsonl", rows)
    words: dict[str, Any] = {"model": str(folder / "model"), "precision": "float32", "pairs_per_step": 2}
    config = kind(**{"dataset": data, **words} | others)
    if kind is Preferences:
        return preference.dry_run(config, algorithms.preference(config.algorithm)(), measure=measure)
    return reward_model.dry_run(config, measure=measure)


def test_the_batch_of_rl(folder):
    found = rl(folder, max_new_tokens=30, updates_per_step=2, steps=5, prompts_per_step=4).summary()
    assert (found["batch"], found["steps"], found["updates"]) == (32, 5, 10)
    assert found["tokens_per_step"] == 4 * (AROUND + 20 + 8 * 30)
    assert found["microbatches"] == 1 and found["epochs"] == 20
    assert found["fits"] and found["warnings"] == [] and found["seconds"] is None
    assert found["notes"] == ["`prompts_per_step=4` of 1 tasks: some are in a step twice"]


def test_prompts_are_measured_and_passes_counted(folder):
    letters = (10, 20, 60, 300)
    found = rl(folder, letters=letters, steps=3, prompts_per_step=3, max_prompt_tokens=AROUND + 60)
    assert found.work.longest.prompt_tokens == AROUND + 60  # the one of 300 is left out by the run
    assert found.work.expected.prompt_tokens == AROUND + 30
    assert found.summary()["epochs"] == 3 * 3 / 3
    assert found.notes[0].startswith("1 prompts are over")


def test_memory_by_phase_is_what_is_held_and_what_comes_on_top(folder):
    found = rl(folder).summary()
    p = found["parameters"]
    sampling, update = found["memory"]["sampling"], found["memory"]["update"]
    for parts in (sampling, update):
        assert parts["Python, libraries and data"] == 0.5 * GB
        assert (parts["weights"], parts["reference"], parts["Adam state"]) == (4 * p, 4 * p, 8 * p)
    assert update["gradients"] == 4 * p and "gradients" not in sampling
    assert found["peak_bytes"] == max(sum(sampling.values()), sum(update.values()))
    assert found["available_bytes"] == 8.5 * GB
    assert found["disk_bytes"] == (2 + 2) * 16 * p


def test_an_optimizer_in_host_memory_is_a_line_of_its_own(folder, monkeypatch):
    assert fine_tuning(folder, offload_optimizer=True).notes == fine_tuning(folder).notes  # there is no GPU
    monkeypatch.setattr("posttrain.planning.plan.default_device", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10**9, 10**9))
    found = fine_tuning(folder, offload_optimizer=True)
    p = found.training.shape.parameters
    assert "Adam state" not in found.training.held() and found.available == 10**9
    assert found.notes[-1] == (
        f"the optimizer is in host memory: float32 masters {4 * p / GB:.2f} GB, float32 gradients {4 * p / GB:.2f} GB, "
        f"Adam state {8 * p / GB:.2f} GB"
    )
    assert not found.warnings
    monkeypatch.setattr("posttrain.planning.plan.available_bytes", lambda: 16 * p - 1)
    assert fine_tuning(folder, offload_optimizer=True).warnings[-1].endswith("type `lora_rank=16`")
    monkeypatch.setattr(blockwise, "LEAST", 256)  # so that 8 bits are for some of it
    assert fine_tuning(folder, offload_optimizer=True).warnings[-1].endswith('type `optim="adamw-8bit"`')


def test_what_one_process_would_need_is_no_warning_about_shards(folder, monkeypatch):
    monkeypatch.setattr("posttrain.planning.plan.available_bytes", lambda: 1)
    data = write(folder / "said.jsonl", [{"prompt": "x", "completion": "y"}])
    config = SFT(dataset=data, model=str(folder / "model"), precision="float32", examples_per_step=1)
    for fsdp in (False, True):
        found = sft.dry_run(config, TrainerOptions(trainers=2, fsdp=fsdp), measure=False)
        assert any("update needs" in line for line in found.warnings) != fsdp


def test_checkpointing_and_8_bits_have_their_lines(folder, monkeypatch):
    monkeypatch.setattr(blockwise, "LEAST", 256)
    plain, lean = fine_tuning(folder), fine_tuning(folder, gradient_checkpointing=True, optim="adamw-8bit")
    ours, theirs = lean.summary()["memory"]["update"], plain.summary()["memory"]["update"]
    assert theirs.keys() - ours.keys() == {"activations", "Adam state"}
    assert ours.keys() - theirs.keys() == {"layer inputs", "activations of one layer", "Adam state in 8 bits"}
    assert ours["layer inputs"] + ours["activations of one layer"] < theirs["activations"]
    quantized = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 48)
    p = plain.summary()["parameters"]
    assert ours["Adam state in 8 bits"] == 8 * p - 6 * quantized + 8 * quantized // 256
    assert lean.disk < plain.disk
    text = "\n".join(lean.lines())
    assert "Adam state in 8 bits" in text and "activations of one layer" in text


def test_the_plan_s_copies_of_the_model_are_trained_as_the_run_will_be(folder, monkeypatch):
    monkeypatch.setattr(blockwise, "LEAST", 256)
    seen = []
    monkeypatch.setattr(speed, "checkpoint_layers", lambda network: seen.append(len(network.model.layers)))
    made = speed.MasterAdamW
    monkeypatch.setattr(
        speed, "MasterAdamW", lambda *parts, **more: seen.append(more["moment_bits"]) or made(*parts, **more)
    )
    fine_tuning(folder, measure=True, gradient_checkpointing=True, optim="adamw-8bit")
    assert seen == [2, 8]
    fine_tuning(folder, measure=True)
    assert seen == [2, 8, 32]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optim": "adam"}, "unknown optim 'adam'; did you mean 'adamw'?"),
        ({"optim": "adamw-8bit"}, '`optim="adamw-8bit"` would change nothing'),
        ({"optim": "adamw-8bit", "lora_rank": 4}, '`optim="adamw-8bit"` would change nothing'),
    ],
)
def test_an_optimiser_that_the_run_would_refuse_is_refused(changes, message, folder):
    with pytest.raises(UserError, match=f"^{message}"):
        fine_tuning(folder, **changes)


def test_an_adapter_needs_no_reference_of_its_own(folder):
    found = rl(folder, lora_rank=4).summary()
    assert "reference" not in found["memory"]["update"]
    # two layers of q, o (32 + 32), k, v (32 + 16), gate, up, down (32 + 48)
    assert found["trainable"] == 4 * 2 * (2 * 64 + 2 * 48 + 3 * 80)


def test_demonstrations_are_measured(folder):
    found = fine_tuning(folder, letters=(5, 15, 300), epochs=3, examples_per_step=2, max_tokens=200)
    shortest = len(CHAT.training_ids([Message("user", "x" * 5), Message("assistant", "y")]).token_ids)
    assert (found.work.longest.completion_tokens, found.work.expected.completion_tokens) == (
        shortest + 10,
        shortest + 5,
    )
    assert found.work.steps == 3 and found.summary()["epochs"] == 3.0
    assert [phase.name for phase in found.phases] == ["update"]


def test_time_is_what_was_measured_times_what_is_done(folder, monkeypatch):
    monkeypatch.setattr(recipe, "measured_speed", lambda *_: Speed(1e-3, 0.0, 0.5, 0.0))
    found = rl(folder, measure=True, max_new_tokens=30, steps=10)
    assert found.time.update == pytest.approx(16e-3 * (P + 240)) and found.time.sampling == pytest.approx(15.0)
    assert found.summary()["seconds"] == pytest.approx(150 + 0.16 * (P + 240))
    said = "at most 21 s a step (sampling 15 s, update 5.7 s), 3 min in all"
    assert any(said in line and "scoring" not in line for line in found.lines())
    judged = replace(found, training=replace(found.training, chat_models=1000))
    assert any(f"{said}, without scoring" in line for line in judged.lines())
    again = rl(folder, measure=True, max_new_tokens=30, steps=10, updates_per_step=3)
    assert again.time.update == pytest.approx(3 * 16e-3 * (P + 240)) and again.time.sampling == pytest.approx(15.0)


def test_what_is_sampled_and_not_learned_from_takes_its_time(folder, monkeypatch):
    """A prompt's token takes 1 ms to read, a decoding step half a second for up to 128 sequences."""
    monkeypatch.setattr(recipe, "measured_speed", lambda *_: Speed(0.0, 1e-3, 0.5, 0.0))
    words = {"measure": True, "max_new_tokens": 30, "prompts_per_step": 2}
    two = {"completions_per_prompt": 2}

    def seconds(algorithm):
        return rl(folder, algorithm=algorithm, **words, **two).time.sampling

    plain = 2 * P * 1e-3 + 30 * 0.5
    assert seconds("rloo") == pytest.approx(plain)
    assert seconds("remax") == pytest.approx(2 * plain)  # a greedy completion of each prompt
    # 25 states at most: 2 beginnings and 4 x 24 later ones, half a completion done; each continued nine times
    later = 96 * (P + 15) * 1e-3 + 7 * 15 * 0.5  # 864 in rounds of 128
    assert seconds("vineppo") == pytest.approx(plain + plain + later)
    words["max_new_tokens"] = 9  # as many states as tokens: 4 x 8 later ones, 288 continuations of 5 tokens
    assert seconds("vineppo") == pytest.approx(2 * (2 * P * 1e-3 + 9 * 0.5) + 32 * (P + 4) * 1e-3 + 3 * 5 * 0.5)
    words["max_new_tokens"] = 30
    batch = rl(folder, algorithm="vineppo", **words, **two).work.batch
    assert batch.endswith("= 4 completions a step, and up to 882 continuations of them")
    assert rl(folder, algorithm="remax", **words, **two).work.batch.endswith("a step, and 2 greedy ones")


def test_each_load_is_decoded_at_the_speed_of_its_own_batch(folder, monkeypatch):
    asked = []

    def measured(training, load, dtype, device, together):
        asked.append(together)
        return Speed(0.0, 0.0, 0.01 * together, 0.0)

    monkeypatch.setattr(recipe, "measured_speed", measured)
    words = {"measure": True, "max_new_tokens": 30, "prompts_per_step": 2, "completions_per_prompt": 2}
    # 4 completions, 18 continuations of prompts, 864 of later states in rounds of 128
    expected = 30 * 0.04 + 30 * 0.18 + 7 * 15 * 1.28
    assert rl(folder, algorithm="vineppo", **words).time.sampling == pytest.approx(expected)
    assert sorted(asked) == [4, 18, 128]  # each once


def test_memory_is_that_of_continuations_of_the_longest_prompt(folder, tmp_path):
    data = write(tmp_path / "t.jsonl", [{"prompt": "x" * n, "answer": "1"} for n in (*[1] * 9, 120)])
    words = {"prompts_per_step": 1, "completions_per_prompt": 2, "max_new_tokens": 20, "algorithm": "vineppo"}
    found = rl(folder, dataset=data, **words)
    slots, longest = 128, found.work.longest.prompt_tokens + 20
    assert longest > found.work.expected.prompt_tokens + 20
    per_token = 2 * 2 * 16 * 4  # keys and values, layers, width, bytes
    assert found.summary()["memory"]["sampling"]["keys and values"] == slots * longest * per_token


def test_the_advice_is_for_what_takes_the_most(folder, monkeypatch):
    """Here that is the text, for which a smaller micro-batch is enough."""
    words = {"algorithm": "ppo-ptx", "prompts_per_step": 1, "completions_per_prompt": 2, "max_new_tokens": 8}
    text = write(folder / "texts.jsonl", [{"text": f"{'x' * 126} y"}])
    words |= {"letters": (8,), "max_prompt_tokens": 128, "pretraining_per_step": 64, "pretraining_dataset": text}
    fits = rl(folder, **words).summary()["memory"]
    update = sum(fits["update"].values())
    monkeypatch.setattr(recipe, "available_bytes", lambda: int(update - 0.2 * fits["update"]["activations"] - 0.5 * GB))
    (warning,) = rl(folder, **words).warnings
    assert warning.endswith("type `microbatch_tokens=2048`")


def test_more_is_decoded_together_where_continuations_are(folder):
    words = {"max_new_tokens": 30, "prompts_per_step": 2, "completions_per_prompt": 2}
    (plain, many) = (
        rl(folder, algorithm=name, **words).summary()["memory"]["sampling"] for name in ("rloo", "vineppo")
    )
    assert many["keys and values"] == 32 * plain["keys and values"]  # 128 for 4


def test_a_critic_of_its_own_is_a_second_network(folder, monkeypatch):
    monkeypatch.setattr(recipe, "measured_speed", lambda *_: Speed(1e-3, 0.0, 0.0, 1e-6))
    trunk, own = (rl(folder, measure=True, algorithm="ppo", critic=which) for which in ("trunk", "own"))
    p = trunk.training.shape.parameters
    held = [found.summary()["memory"]["update"] for found in (trunk, own)]
    assert [parts["weights"] for parts in held] == [4 * p, 8 * p]
    assert [parts["Adam state"] for parts in held] == [8 * p, 16 * p]
    assert [parts["gradients"] for parts in held] == [4 * p, 8 * p]
    assert held[1]["activations"] == 2 * held[0]["activations"] and held[1]["reference"] == held[0]["reference"]
    assert own.time.update == pytest.approx(2 * trunk.time.update)
    assert own.disk - trunk.disk == 4 * 12 * p


def test_text_that_is_learned_beside_takes_its_time(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "measured_speed", lambda *_: Speed(1e-3, 0.0, 0.0, 0.0))
    words = {"measure": True, "updates_per_step": 3, "max_prompt_tokens": 100, "pretraining_per_step": 4}
    words |= {"letters": (1,), "max_new_tokens": 16}
    plain = rl(folder, algorithm="ppo", **words).time.update
    words["pretraining_dataset"] = write(tmp_path / "t.jsonl", [{"text": f"{'x' * (n - 2)} y"} for n in (30, 50, 250)])
    found = rl(folder, algorithm="ppo-ptx", **words)
    assert found.time.update == pytest.approx(plain + 3 * 4 * 60 * 1e-3)
    assert found.work.batch.endswith("a step, and 4 texts of 60 tokens in an update")
    cut = rl(folder, algorithm="ppo-ptx", **words | {"microbatch_tokens": 150, "max_prompt_tokens": 300})
    assert cut.work.batch.endswith("4 texts of 77 tokens in an update")  # 30, 50 and 150
    write(tmp_path / "t.jsonl", [{"text": "x"}])
    with pytest.raises(UserError, match="has two words or more"):
        rl(folder, algorithm="ppo-ptx", **words)


def test_the_measurement_itself(folder, monkeypatch):
    """Seconds of a few and of more layers are measured on rows like those of the run, and extended to all."""
    monkeypatch.setattr(speed, "seconds_of", lambda work, device: (work(), 1.0)[1])
    found = rl(folder, measure=True, max_new_tokens=30, prompts_per_step=2, steps=1)
    # every work takes one second, whatever it is, so more layers cost nothing: two families of 8 branches
    tokens = 2 * (P + 8 * 30)
    assert found.time.update == pytest.approx(2 * (P + 8 * 30) * 2 / tokens + 1.0)
    assert found.time.sampling == pytest.approx(2 * P / tokens)  # a longer and a shorter decoding took the same


def test_a_deep_model_s_speed_is_extended_from_two_cut_copies_and_a_shallow_one_s_is_its_own(folder, monkeypatch):
    cut = []

    def probed(training, load, dtype, device, layers, together):
        cut.append(layers)
        return Speed(10.0 + layers, 1.0, 20.0 + 2 * layers, 0.5)

    monkeypatch.setattr(speed, "_probed", probed)
    training = rl(folder).training
    deep = replace(training, shape=replace(training.shape, layers=30))
    words = (Load(1, 1, 1, 1, 1), torch.float32, "cpu", 4)
    assert speed.measured_speed(deep, *words) == Speed(40.0, 1.0, 80.0, 0.5)
    assert cut == [8, 2]
    assert speed.measured_speed(training, *words) == Speed(12.0, 1.0, 24.0, 0.5) and cut[2:] == [2]


def test_a_large_model_is_estimated_from_products(folder, monkeypatch):
    monkeypatch.setattr(speed, "MOST_PROBED", 0)
    monkeypatch.setattr(speed, "products_per_second", lambda dtype, device: 1e9)
    monkeypatch.setattr(speed, "probe", None)
    found = fine_tuning(folder, measure=True)
    shape = found.training.shape
    forward = 2 * (shape.active + shape.vocabulary * shape.hidden) / 0.5e9
    expected = 2 * found.work.expected.completion_tokens * 3 * forward + shape.parameters * 30 / 1e10
    assert found.time.update == pytest.approx(expected)


def test_what_does_not_fit_is_said_with_what_to_change(folder, monkeypatch):
    monkeypatch.setattr(recipe, "available_bytes", lambda: 10**8)
    found = rl(folder, max_new_tokens=200, microbatch_tokens=10**6, prompts_per_step=512)
    assert not found.summary()["fits"]
    warnings = "\n".join(found.warnings)
    assert "update needs" in warnings and "`microbatch_tokens`" in warnings and "GB are available" in warnings
    assert any(line.startswith("WARNING") for line in found.lines()) and "It fits." not in found.lines()


def test_sequences_longer_than_the_context_are_said(folder):
    (warning,) = rl(folder, max_new_tokens=400).warnings
    assert f"{P + 400} tokens, but the model holds 512" in warning


def test_a_full_disk_is_said(folder, monkeypatch):
    usage = recipe.shutil.disk_usage("/")
    monkeypatch.setattr(recipe.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    (warning,) = rl(folder).warnings
    assert "checkpoints take" in warning and "`keep_last=1`" in warning
    assert "`lora_rank=16`" in warning
    (adapted,) = rl(folder, lora_rank=4).warnings
    assert "`keep_last=1`" in adapted and "lora_rank" not in adapted


def test_lines_and_summary_can_be_read(folder):
    found = rl(folder)
    assert found.lines()[0].startswith("rl: ") and "computed in float32" in found.lines()[0]
    assert found.lines()[1] == (
        "batch    16 prompts x 8 completions = 128 completions a step; 100 steps, 100 updates, 1,600 passes over 1 row"
    )
    assert found.lines()[-1] == "It fits."
    json.dumps(found.summary())
    assert (
        fine_tuning(folder, steps=1).lines()[1] == "batch    2 examples a step; 1 step, 1 update, 1 passes over 2 rows"
    )


@pytest.mark.parametrize(
    ("make", "wrong", "message"),
    [
        (rl, {"completions_per_prompt": 1}, "2 or more"),
        (rl, {"steps": 0}, "1 or more"),
        (rl, {"algorithm": "grop"}, "did you mean 'grpo'"),
        (rl, {"precision": "float8"}, "unknown precision"),
        (rl, {"critic": "onw"}, "did you mean 'own'"),
        (rl, {"critic": "own"}, "grpo has no critic; leave out `critic`"),
        (rl, {"pretraining_dataset": "x"}, "grpo has no pretraining loss"),
        (rl, {"algorithm": "ppo-ptx", "pretraining_per_step": 0}, "`pretraining_per_step` must be 1 or more; got 0"),
        (rl, {"max_new_tokens": 0}, "`max_new_tokens` must be 1 or more"),
        (rl, {"model": "./nowhere"}, "no model"),
        (rl, {"dataset": ""}, "`dataset` is required"),
        (rl, {"engine": "vlm"}, "did you mean 'vllm'"),
        (rl, {"reward": "exct"}, "did you mean 'exact'"),
        (rl, {"reward_model": "./nowhere"}, "no model './nowhere'"),
        (rl, {"lr": -1.0}, "`lr` must be 0 or more"),
        (rl, {"microbatch_tokens": 100}, "type `microbatch_tokens=181` or more"),
        (rl, {"dataset": "nowhere.jsonl"}, "no file or folder"),
        (rl, {"dataset": "gym:chain_sum", "limit": 3, "max_prompt_tokens": 2}, "all 3 prompts are longer"),
    ],
)
def test_mistakes_are_one_line(folder, make, wrong, message):
    with pytest.raises(UserError, match=message) as raised:
        make(folder, **wrong)
    assert "\n" not in str(raised.value)


def test_examples_that_are_all_too_long(folder, tmp_path):
    data = write(tmp_path / "d.jsonl", [{"prompt": "x", "completion": "y" * 500}])
    with pytest.raises(UserError, match="all 1 examples are longer than 512"):
        fine_tuning(folder, dataset=data)


def test_no_weights_are_read(folder, tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((model_folder(tmp_path / "whole") / name).read_bytes())
    assert rl(folder, model=str(tmp_path), measure=True, max_new_tokens=8, steps=1).time is not None


@pytest.mark.parametrize("kind", [Preferences, Scoring])
def test_lengths_of_pairs_are_those_of_the_data(folder, kind):
    stop = 1
    words = {"letters": (4, 10, 100), "pairs_per_step": 2, "epochs": 2}
    plan = pairs(kind, folder, max_tokens=AROUND + 60, **words)
    # the third is left out by the run; the longest response is 30 letters and its stop token
    assert (plan.work.longest.prompt_tokens, plan.work.longest.completion_tokens) == (AROUND + 10, 30 + stop)
    assert (plan.work.expected.prompt_tokens, plan.work.expected.completion_tokens) == (AROUND + 7, 14 + stop)
    assert plan.work.steps == 2 and "pairs a step" in plan.lines()[1]
    assert plan.summary()["tokens_per_step"] == 2 * (AROUND + 7 + 2 * (14 + stop))
    assert (plan.summary()["batch"], plan.summary()["epochs"]) == (4, 2.0)
    with pytest.raises(UserError, match=r"all \d+ pairs are longer than 9 tokens"):
        pairs(kind, folder, max_tokens=9, **words)


def test_a_reward_model_predicts_no_words_and_has_no_reference(folder):
    (scored, compared) = (pairs(kind, folder).summary()["memory"]["update"] for kind in (Scoring, Preferences))
    assert "logits of a chunk" in compared and "logits of a chunk" not in scored
    assert "reference" not in compared and "reference" not in scored  # what it said is remembered
    whole = pairs(Preferences, folder, algorithm="tdpo").summary()["memory"]["update"]
    assert (
        "reference" in whole
        and "reference" in pairs(Preferences, folder, algorithm="kto").summary()["memory"]["update"]
    )


def test_a_reward_model_may_have_an_adapter_which_is_merged_into_what_is_saved(folder):
    scored, compared = (pairs(kind, folder, lora_rank=4).summary() for kind in (Scoring, Preferences))
    assert scored["trainable"] == compared["trainable"] == 4 * 2 * (2 * 64 + 2 * 48 + 3 * 80)
    assert scored["disk_bytes"] == compared["disk_bytes"] + 4 * (4 * scored["parameters"] - 4 * scored["trainable"])
    assert scored["memory"]["saving"]["merged weights"] == 4 * scored["parameters"]
    assert "saving" not in compared["memory"] and "saving" not in pairs(Scoring, folder).summary()["memory"]


@pytest.mark.parametrize("kind", [Preferences, Scoring])
def test_pairs_are_measured_too(folder, monkeypatch, kind):
    monkeypatch.setattr(speed, "seconds_of", lambda work, device: (work(), 1.0)[1])
    found = pairs(kind, folder, measure=True, pairs_per_step=2).summary()
    assert found["seconds_per_step"] > 0


def test_a_ranking_is_a_prompt_with_all_its_responses(folder, tmp_path):
    three = (("b", "c"), ("b", "d"), ("c", "d"))
    rows = [{"prompt": p, "chosen": good, "rejected": bad} for p in "ae" for good, bad in three]
    rows.append({"prompt": "f", "chosen": "b", "rejected": "c"})
    plan = pairs(Scoring, folder, dataset=write(tmp_path / "ranked.jsonl", rows))
    found = (plan.work.longest.group, plan.work.expected.group, plan.work.rows)
    assert found == (3, 3, 3)  # eight responses to three prompts


def test_length_debias_scores_every_batch_once_more(folder, monkeypatch):
    monkeypatch.setattr(recipe, "measured_speed", lambda *_: Speed(3e-3, 1e-3, 0.0, 0.0))
    plain, apart = (pairs(Scoring, folder, measure=True, length_debias=d).time.update for d in (0.0, 1.0))
    assert apart == pytest.approx(plain * 4 / 3)


def test_a_reference_is_read_once_a_step_and_of_single_responses_three_times(folder, monkeypatch):
    monkeypatch.setattr(recipe, "measured_speed", lambda *_: Speed(3e-3, 1e-3, 0.0, 0.0))
    seconds = {n: pairs(Preferences, folder, measure=True, algorithm=n).time.update for n in ("simpo", "dpo", "kto")}
    assert seconds["dpo"] == pytest.approx(seconds["simpo"] * 4 / 3)
    assert seconds["kto"] == pytest.approx(seconds["simpo"] * 2)


def online(folder, *, measure=False, **others) -> Plan:
    words: dict[str, Any] = {"model": str(folder / "model"), "precision": "float32", "max_new_tokens": 30}
    words |= {"dataset": prompts(folder, 20, 30), "reward": "exact", "prompts_per_step": 2, "completions_per_prompt": 4}
    config = OnlinePreference(**words | others)
    return online_preference.dry_run(config, algorithms.preference(config.algorithm)(), measure=measure)


def test_online_preference_samples_groups_and_learns_pairs(folder, monkeypatch):
    monkeypatch.setattr(recipe, "measured_speed", lambda *_: Speed(3e-3, 1e-3, 0.5, 0.0))
    plan = online(folder, measure=True, algorithm="simpo", updates_per_round=3, pairs_per_step=16, rounds=5)
    mean = P + 5
    assert plan.work.batch == "2 prompts x 4 completions = 8 completions a step, 4 pairs of them an update"
    assert (plan.work.steps, plan.summary()["updates"], plan.summary()["epochs"]) == (5, 15, 5.0)
    assert plan.time.sampling == pytest.approx(2 * mean * 1e-3 + 15)
    assert plan.time.update == pytest.approx(3 * 4 * (mean + 60) * 3e-3)
    few = online(folder, measure=True, algorithm="simpo", pairs_per_step=1)
    assert few.time.update == pytest.approx((mean + 60) * 3e-3)
    compared = online(folder, measure=True, algorithm="dpo", updates_per_round=3)
    assert compared.time.update == pytest.approx(plan.time.update * 4 / 3)
    held = [found.summary()["memory"]["update"] for found in (plan, compared)]
    assert "reference" not in held[0] and held[1]["reference"] == held[1]["weights"]
    update = plan.summary()["memory"]["update"]["activations"]
    assert update < online(folder, algorithm="simpo", prompts_per_step=4).summary()["memory"]["update"]["activations"]
    with pytest.raises(UserError, match="kto is unpaired"):
        online(folder, algorithm="kto")
    with pytest.raises(UserError, match=f"two completions may have {AROUND + 30 + 60} tokens"):
        online(folder, microbatch_tokens=150)


def test_ratings_are_planned(folder, tmp_path):
    rows = [{"prompt": "x" * n, "completion": "y" * n, "ratings": {"kind": n, "clear": -n}} for n in (4, 10, 7, 9)]
    words = {"heads": "attributes", "ratings": write(tmp_path / "rated.jsonl", rows), "pairs_per_step": 2}
    words |= {"model": str(folder / "model")}
    plan = reward_model.dry_run(Scoring(**words, epochs=2, precision="float32"), measure=False)
    assert (plan.work.longest.prompts, plan.work.longest.group, plan.work.longest.prompt_tokens) == (2, 1, AROUND + 10)
    assert plan.work.steps == 4 and "logits of a chunk" not in plan.summary()["memory"]["update"]
    with pytest.raises(UserError, match="did you mean 'kind'"):
        reward_model.dry_run(Scoring(**words, weights="kin=1"), measure=False)


def test_reward_models_and_the_beginning_are_held_beside_the_policy(folder):
    judge = str(folder / "model")
    plain, judged, gold = (
        rl(folder, algorithm="dr-grpo", **more).summary()["memory"]["update"]
        for more in (
            {},
            {"reward_model": f"{judge} {judge}"},
            {"gold_model": judge, "eval_every": 1, "eval_dataset": prompts(folder, 21)},
        )
    )
    assert "reward models" not in plain and judged["reward models"] == 2 * plain["weights"]
    both = rl(folder, reward="", judge=f"a={judge} b={judge} c=http://x/v1#m").summary()["memory"]["update"]
    name = "weights of judges and players"
    assert name not in judged and both[name] == plain["weights"]  # loaded once
    assert "reference" not in judged and gold["reference"] == gold["reward models"] == plain["weights"]


def test_a_dry_run_names_flags_in_notes_and_warnings(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(speed, "seconds_of", lambda work, device: (work(), 1.0)[1])
    monkeypatch.setattr(recipe, "available_bytes", lambda: 0)
    write(tmp_path / "said.jsonl", [{"prompt": "x", "completion": "y"}] * 3)
    words = ["sft", "--dataset", str(tmp_path / "said.jsonl"), "--examples-per-step", "2", "--warmup-steps", "9"]
    words += ["--steps", "9", "--model", str(folder / "model"), "--dry-run"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "note     --warmup-steps 9 of 9 steps: " in said and "`" not in said
    assert "WARNING  update needs" in said and "type --lora-rank 16 (and --microbatch-tokens lower" in said
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["notes"][-1].startswith("--warmup-steps 9 of 9 steps") and "`" not in repr(found)
    assert "type --lora-rank 16" in found["warnings"][0]


COMMANDS = {
    "quickstart": "",
    "sft": "--dataset said.jsonl --examples-per-step 2",
    "rl": "--dataset 20.jsonl --reward exact --max-new-tokens 8",
    "preference": "--dataset pairs.jsonl --pairs-per-step 2",
    "online-preference": "--dataset 20.jsonl --reward exact --max-new-tokens 8",
    "reward-model": "--dataset pairs.jsonl --pairs-per-step 2",
    "reward-model --heads attributes": "--ratings rated.jsonl --pairs-per-step 2",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_dry_run_writes_nothing(command, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(speed, "seconds_of", lambda work, device: (work(), 1.0)[1])
    for name, rows in (
        ("said", [{"prompt": "x", "completion": "y"}] * 3),
        ("20", [{"prompt": "x" * 20, "answer": "1"}]),
        ("pairs", [{"prompt": f"{i}", "chosen": "y", "rejected": "z"} for i in range(3)]),
        ("rated", [{"prompt": f"{i}", "completion": "y", "ratings": {"kind": i}} for i in range(3)]),
    ):
        write(tmp_path / f"{name}.jsonl", rows)
    before = sorted(tmp_path.rglob("*"))
    words = [
        *command.split(),
        *COMMANDS[command].split(),
        "--model",
        str(folder / "model"),
        "--dry-run",
        "--output",
        "run",
    ]
    assert main(words) == 0
    out, err = capsys.readouterr()
    name = command.split()[0]
    assert out.splitlines()[0].startswith(f"{name}: ") and out.splitlines()[-1] == "It fits." and err == ""
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == name
    assert sorted(tmp_path.rglob("*")) == before
    assert main([*words, "--output", "."]) == 2
    assert "run directory . is not empty" in capsys.readouterr().err
    rate = "--rl-lr" if command == "quickstart" else "--lr"
    assert main([*words, rate, "-1"]) == 2


@pytest.mark.parametrize(
    ("options", "processes", "says"),
    [
        ({}, {"trainers": -1}, "`trainers` must be 0 or more"),
        ({"engine": "http://a:1"}, {"trainers": 1, "samplers": 2}, "`engine` names 1 server; pass as many `samplers`"),
        (
            {"engine": "http://a:1 http://b:1"},
            {},
            "`engine` names 2 servers; pass as many `samplers`",
        ),
        (
            {"engine": "vllm"},
            {"trainers": 1, "max_staleness": 1, "in_flight_updates": True},
            "needs the embedded engine",
        ),
    ],
)
def test_processes_that_a_run_refuses_are_refused_before_anything_is_measured(
    folder, options, processes, says, monkeypatch
):
    monkeypatch.setattr(recipe, "measured_speed", lambda *args: pytest.fail("measured"))
    config = RL(reward="exact", dataset=prompts(folder, 20), model=str(folder / "model"), **options)
    with pytest.raises(UserError, match=says):
        rl_recipe.dry_run(config, algorithms.online(config.algorithm)(), AsyncOptions(**processes), measure=True)


def test_an_environment_is_planned_with_all_turns_that_fit_a_row(folder):
    """Two turns of 4 tokens each beside what the environment says; of a micro-batch what the prompt leaves of it."""
    words = {"environment": "examples/guess_number.py:GuessNumber", "dataset": "", "reward": "", "max_new_tokens": 4}
    words["environment_args"] = "max_turns=2"
    whole = rl(folder, **words).work.longest
    between = len(
        CHAT.followup_ids([Message("user", ""), Message("assistant", "")], [Message("user", "")], stopped=True)
    )
    assert 2 * 4 + between + len("Lower.") <= whole.completion_tokens <= 2 * 4 + between + len("Higher.")
    short = rl(folder, microbatch_tokens=whole.prompt_tokens + 20, **words).work.longest
    assert (short.prompt_tokens, short.completion_tokens) == (whole.prompt_tokens, 20)
