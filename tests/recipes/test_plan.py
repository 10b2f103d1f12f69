"""The plan's options are those of the runs; its numbers are the arithmetic's; what it says is what a run does."""

import dataclasses
import json
from dataclasses import replace

import pytest
import torch

from posttrain.data import ChatFormat
from posttrain.errors import UserError
from posttrain.models import blockwise
from posttrain.recipes import plan as recipe
from posttrain.recipes.plan import PlanPreference, PlanRewardModel, PlanRL, PlanSFT, run, speed
from posttrain.recipes.preference import Preferences
from posttrain.recipes.reward_model import Scoring
from posttrain.recipes.rl import RL
from posttrain.recipes.sft import SFT
from posttrain.training.plan import GB, Load, Speed
from posttrain.types import Message
from tests.data.families import of_family
from tests.recipes.folders import model_folder

CHAT = ChatFormat(of_family("smollm2"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(model_folder(tmp_path_factory.mktemp("models") / "model"))


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """The same machine everywhere: 8 GB of memory."""
    monkeypatch.setattr(recipe, "available_bytes", lambda: 8 * 10**9)
    monkeypatch.setattr(recipe, "peak_gb", lambda: 0.5)
    monkeypatch.setattr(recipe.torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(
    ("plan", "real", "own"),
    [
        (PlanRL, RL, {"prompt_tokens", "measure"}),
        (PlanSFT, SFT, {"measure"}),
        (PlanPreference, Preferences, {"measure"}),
        (PlanRewardModel, Scoring, {"measure"}),
    ],
)
def test_options_have_the_names_types_and_defaults_of_the_run(plan, real, own):
    theirs = {field.name: field for field in dataclasses.fields(real)}
    ours = {field.name: field for field in dataclasses.fields(plan)}
    assert set(ours) - set(theirs) == own
    for name in set(ours) - own:
        assert (ours[name].default, ours[name].type) == (theirs[name].default, theirs[name].type), name


def rl(folder, **others):
    return PlanRL(**{"model": folder, "precision": "float32", "measure": False, "max_new_tokens": 64} | others)


def sft(folder, **others):
    return PlanSFT(**{"model": folder, "precision": "float32", "measure": False} | others)


def test_the_batch_of_rl(folder):
    found = run(rl(folder, prompt_tokens=20, max_new_tokens=30, updates_per_step=2, steps=5)).summary()
    assert (found["batch"], found["steps"], found["updates"]) == (128, 5, 10)
    assert found["tokens_per_step"] == 16 * (20 + 8 * 30) == 4160
    assert found["microbatches"] == 2 and found["epochs"] is None
    assert found["fits"] and found["warnings"] == [] and found["seconds"] is None


@pytest.mark.parametrize("kind", [PlanRL, PlanSFT, PlanPreference, PlanRewardModel])
def test_lengths_that_nobody_measured_are_said_to_be_assumed(folder, kind):
    plan = run(kind(model=folder, precision="float32", measure=False))
    assert "taken to have" in plan.lengths and "average" not in plan.lengths


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_prompts_are_measured_and_passes_counted(folder, tmp_path):
    data = write(tmp_path / "t.jsonl", [{"prompt": "x" * n, "answer": "1"} for n in (10, 20, 60, 500)])
    around = len(CHAT.prompt_ids([Message("user", "")]))
    limit = around + 60
    found = run(rl(folder, dataset=data, steps=3, prompts_per_step=8, max_prompt_tokens=limit))
    assert found.longest.prompt_tokens == around + 60  # the one of 500 is left out by the run
    assert found.expected.prompt_tokens == around + 30
    assert found.summary()["epochs"] == 3 * 8 / 4


def test_memory_by_phase_is_what_is_held_and_what_comes_on_top(folder):
    found = run(rl(folder)).summary()
    p = found["parameters"]
    sampling, update = found["memory"]["sampling"], found["memory"]["update"]
    for parts in (sampling, update):
        assert parts["Python and libraries"] == 0.5 * GB
        assert (parts["weights"], parts["reference"], parts["Adam state"]) == (4 * p, 4 * p, 8 * p)
    assert update["gradients"] == 4 * p and "gradients" not in sampling
    assert found["peak_bytes"] == max(sum(sampling.values()), sum(update.values()))
    assert found["available_bytes"] == 8.5 * GB
    assert found["disk_bytes"] == (2 + 2) * 16 * p


def test_checkpointing_and_8_bits_have_their_lines(folder, monkeypatch):
    monkeypatch.setattr(blockwise, "LEAST", 256)
    plain, lean = run(sft(folder)), run(sft(folder, gradient_checkpointing=True, optim="adamw-8bit"))
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
    run(sft(folder, measure=True, gradient_checkpointing=True, optim="adamw-8bit", max_tokens=32))
    assert seen == [2, 8]
    run(sft(folder, measure=True, max_tokens=32))
    assert seen == [2, 8, 32]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optim": "adam"}, "unknown optimiser 'adam'; did you mean 'adamw'?"),
        ({"optim": "adamw-8bit"}, "--optim adamw-8bit would change nothing"),
        ({"optim": "adamw-8bit", "lora_rank": 4}, "--optim adamw-8bit would change nothing"),
    ],
)
def test_an_optimiser_that_the_run_would_refuse_is_refused(changes, message, folder):
    with pytest.raises(UserError, match=f"^{message}"):
        run(sft(folder, **changes))


def test_an_adapter_needs_no_reference_of_its_own(folder):
    found = run(rl(folder, lora_rank=4)).summary()
    assert "reference" not in found["memory"]["update"]
    # two layers of q, o (32 + 32), k, v (32 + 16), gate, up, down (32 + 48)
    assert found["trainable"] == 4 * 2 * (2 * 64 + 2 * 48 + 3 * 80)


def test_demonstrations_are_measured(folder, tmp_path):
    rows = [{"prompt": "x" * n, "completion": "y"} for n in (5, 15, 400)]
    found = run(sft(folder, dataset=write(tmp_path / "d.jsonl", rows), epochs=2, examples_per_step=2, max_tokens=200))
    shortest = len(CHAT.training_ids([Message("user", "x" * 5), Message("assistant", "y")]).token_ids)
    assert (found.longest.completion_tokens, found.expected.completion_tokens) == (shortest + 10, shortest + 5)
    assert found.steps == 3 and found.summary()["epochs"] == 2.0
    assert [phase.name for phase in found.phases] == ["update"]
    assert run(sft(folder)).longest.completion_tokens == 256  # without data as long as the context allows


def test_time_is_what_was_measured_times_what_is_done(folder, monkeypatch):
    monkeypatch.setattr(recipe, "measured_speed", lambda *_: Speed(1e-3, 0.0, 0.5, 0.0))
    found = run(rl(folder, measure=True, prompt_tokens=20, max_new_tokens=30, steps=10))
    assert found.update_seconds == pytest.approx(4.16) and found.sampling_seconds == pytest.approx(15.0)
    assert found.summary()["seconds"] == pytest.approx(191.6)
    assert any("at most 19 s a step (sampling 15 s, update 4.2 s), 3 min in all" in line for line in found.lines())
    again = run(rl(folder, measure=True, prompt_tokens=20, max_new_tokens=30, steps=10, updates_per_step=3))
    assert again.update_seconds == pytest.approx(3 * 4.16) and again.sampling_seconds == pytest.approx(15.0)


def test_what_is_sampled_and_not_learned_from_takes_its_time(folder, monkeypatch):
    """A prompt's token takes 1 ms to read, a decoding step half a second for up to 128 sequences."""
    monkeypatch.setattr(recipe, "measured_speed", lambda *_: Speed(0.0, 1e-3, 0.5, 0.0))
    words = {"measure": True, "prompt_tokens": 20, "max_new_tokens": 30, "prompts_per_step": 2}
    two = {"completions_per_prompt": 2}

    def seconds(algorithm):
        return run(rl(folder, algorithm=algorithm, **words, **two)).sampling_seconds

    plain = 2 * 20 * 1e-3 + 30 * 0.5
    assert seconds("rloo") == pytest.approx(plain)
    assert seconds("remax") == pytest.approx(2 * plain)  # a greedy completion of each prompt
    # 25 states at most: 2 beginnings and 4 x 24 later ones, half a completion done; each continued nine times
    later = 96 * 35 * 1e-3 + 7 * 15 * 0.5  # 864 in rounds of 128
    assert seconds("vineppo") == pytest.approx(plain + plain + later)
    words["max_new_tokens"] = 9  # as many states as tokens: 4 x 8 later ones, 288 continuations of 5 tokens
    assert seconds("vineppo") == pytest.approx(2 * (0.04 + 9 * 0.5) + 32 * 24 * 1e-3 + 3 * 5 * 0.5)
    words["max_new_tokens"] = 30
    batch = run(rl(folder, algorithm="vineppo", **words, **two)).batch
    assert batch.endswith("= 4 completions a step, and up to 882 continuations of them")
    assert run(rl(folder, algorithm="remax", **words, **two)).batch.endswith("a step, and 2 greedy ones")


def test_each_load_is_decoded_at_the_speed_of_its_own_batch(folder, monkeypatch):
    asked = []

    def measured(training, load, dtype, device, together):
        asked.append(together)
        return Speed(0.0, 0.0, 0.01 * together, 0.0)

    monkeypatch.setattr(recipe, "measured_speed", measured)
    words = {"measure": True, "max_new_tokens": 30, "prompts_per_step": 2, "completions_per_prompt": 2}
    # 4 completions, 18 continuations of prompts, 864 of later states in rounds of 128
    expected = 30 * 0.04 + 30 * 0.18 + 7 * 15 * 1.28
    assert run(rl(folder, algorithm="vineppo", **words)).sampling_seconds == pytest.approx(expected)
    assert sorted(asked) == [4, 18, 128]  # each once


def test_memory_is_that_of_continuations_of_the_longest_prompt(folder, tmp_path):
    data = write(tmp_path / "t.jsonl", [{"prompt": "x" * n} for n in (*[1] * 9, 120)])
    words = {"prompts_per_step": 1, "completions_per_prompt": 2, "max_new_tokens": 20, "algorithm": "vineppo"}
    found = run(rl(folder, dataset=data, **words))
    slots, longest = 128, found.longest.prompt_tokens + 20
    assert longest > found.expected.prompt_tokens + 20
    per_token = 2 * 2 * 16 * 4  # keys and values, layers, width, bytes
    assert found.summary()["memory"]["sampling"]["keys and values"] == slots * longest * per_token


def test_the_advice_is_for_what_takes_the_most(folder, monkeypatch):
    """Here that is the text, for which a smaller micro-batch is enough."""
    words = {"algorithm": "ppo-ptx", "prompts_per_step": 1, "completions_per_prompt": 2, "max_new_tokens": 8}
    words |= {"prompt_tokens": 8, "max_prompt_tokens": 128, "pretraining_per_step": 64}
    fits = run(rl(folder, **words)).summary()["memory"]
    update = sum(fits["update"].values())
    monkeypatch.setattr(recipe, "available_bytes", lambda: int(update - 0.2 * fits["update"]["activations"] - 0.5 * GB))
    (warning,) = run(rl(folder, **words)).warnings
    assert warning.endswith("type --microbatch-tokens 2048")


def test_more_is_decoded_together_where_continuations_are(folder):
    words = {"prompt_tokens": 20, "max_new_tokens": 30, "prompts_per_step": 2, "completions_per_prompt": 2}
    (plain, many) = (
        run(rl(folder, algorithm=name, **words)).summary()["memory"]["sampling"] for name in ("rloo", "vineppo")
    )
    assert many["keys and values"] == 32 * plain["keys and values"]  # 128 for 4


def test_a_critic_of_its_own_is_a_second_network(folder, monkeypatch):
    monkeypatch.setattr(recipe, "measured_speed", lambda *_: Speed(1e-3, 0.0, 0.0, 1e-6))
    trunk, own = (run(rl(folder, measure=True, algorithm="ppo", critic=which)) for which in ("trunk", "own"))
    p = trunk.training.shape.parameters
    held = [found.summary()["memory"]["update"] for found in (trunk, own)]
    assert [parts["weights"] for parts in held] == [4 * p, 8 * p]
    assert [parts["Adam state"] for parts in held] == [8 * p, 16 * p]
    assert [parts["gradients"] for parts in held] == [4 * p, 8 * p]
    assert held[1]["activations"] == 2 * held[0]["activations"] and held[1]["reference"] == held[0]["reference"]
    assert own.update_seconds == pytest.approx(2 * trunk.update_seconds)
    assert own.disk - trunk.disk == 4 * 12 * p


def test_text_that_is_learned_beside_takes_its_time(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "measured_speed", lambda *_: Speed(1e-3, 0.0, 0.0, 0.0))
    words = {"measure": True, "updates_per_step": 3, "max_prompt_tokens": 100, "pretraining_per_step": 4}
    plain, text = (run(rl(folder, algorithm=name, **words)).update_seconds for name in ("ppo", "ppo-ptx"))
    assert text == pytest.approx(plain + 3 * 4 * 100 * 1e-3)
    data = write(tmp_path / "t.jsonl", [{"text": "x" * 30}, {"text": "x" * 50}, {"text": "x" * 250}])
    words["pretraining_dataset"] = data
    found = run(rl(folder, algorithm="ppo-ptx", **words))
    assert found.update_seconds == pytest.approx(plain + 3 * 4 * 60 * 1e-3)
    assert found.batch.endswith("a step, and 4 texts of 60 tokens in an update")
    cut = run(rl(folder, algorithm="ppo-ptx", **words | {"microbatch_tokens": 40}))
    assert cut.batch.endswith("4 texts of 37 tokens in an update")  # 30, 40 and 40


def test_the_measurement_itself(folder, monkeypatch):
    """Seconds of a few and of more layers are measured on rows like those of the run, and extended to all."""
    monkeypatch.setattr(speed, "seconds_of", lambda work, device: (work(), 1.0)[1])
    found = run(rl(folder, measure=True, prompt_tokens=20, max_new_tokens=30, prompts_per_step=2, steps=1))
    # every work takes one second, whatever it is, so more layers cost nothing: two families of 8 branches
    tokens = 2 * (20 + 8 * 30)
    assert found.update_seconds == pytest.approx(2 * (20 + 8 * 30) * 2 / tokens + 1.0)
    assert found.sampling_seconds == pytest.approx(2 * 20 / tokens)  # a longer and a shorter decoding took the same


def test_a_deep_model_s_speed_is_extended_from_two_cut_copies_and_a_shallow_one_s_is_its_own(folder, monkeypatch):
    cut = []

    def probed(training, load, dtype, device, layers, together):
        cut.append(layers)
        return Speed(10.0 + layers, 1.0, 20.0 + 2 * layers, 0.5)

    monkeypatch.setattr(speed, "_probed", probed)
    training = run(rl(folder)).training
    deep = replace(training, shape=replace(training.shape, layers=30))
    words = (Load(1, 1, 1, 1, 1), torch.float32, "cpu", 4)
    assert speed.measured_speed(deep, *words) == Speed(40.0, 1.0, 80.0, 0.5)
    assert cut == [8, 2]
    assert speed.measured_speed(training, *words) == Speed(12.0, 1.0, 24.0, 0.5) and cut[2:] == [2]


def test_a_large_model_is_estimated_from_products(folder, monkeypatch):
    monkeypatch.setattr(speed, "MOST_PROBED", 0)
    monkeypatch.setattr(speed, "products_per_second", lambda dtype, device: 1e9)
    monkeypatch.setattr(speed, "probe", None)
    found = run(sft(folder, measure=True))
    shape = found.training.shape
    forward = 2 * (shape.active + shape.vocabulary * shape.hidden) / 0.5e9
    expected = 16 * 256 * 3 * forward + shape.parameters * 30 / 1e10
    assert found.update_seconds == pytest.approx(expected)


def test_what_does_not_fit_is_said_with_what_to_change(folder, monkeypatch):
    monkeypatch.setattr(recipe, "available_bytes", lambda: 10**8)
    found = run(rl(folder, max_new_tokens=200, microbatch_tokens=10**6, prompts_per_step=512))
    assert not found.summary()["fits"]
    warnings = "\n".join(found.warnings)
    assert "update needs" in warnings and "--microbatch-tokens" in warnings and "GB are available" in warnings
    assert any(line.startswith("WARNING") for line in found.lines()) and "It fits." not in found.lines()


def test_sequences_longer_than_a_microbatch_or_the_context_are_said(folder):
    (warning,) = run(rl(folder, prompt_tokens=100, max_new_tokens=150, microbatch_tokens=200)).warnings
    assert "250 tokens" in warning and "--microbatch-tokens 250" in warning
    (warning,) = run(rl(folder, prompt_tokens=100, max_new_tokens=200)).warnings
    assert "300 tokens, but the model holds 256" in warning


def test_a_full_disk_is_said(folder, monkeypatch):
    usage = recipe.shutil.disk_usage("/")
    monkeypatch.setattr(recipe.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    (warning,) = run(rl(folder)).warnings
    assert "checkpoints take" in warning and "--keep-last 1" in warning
    assert "--lora-rank 16" in warning
    (adapted,) = run(rl(folder, lora_rank=4)).warnings
    assert "--keep-last 1" in adapted and "--lora-rank" not in adapted


def test_lines_and_summary_can_be_read(folder):
    found = run(rl(folder))
    assert found.lines()[0].startswith("rl: ") and "computed in float32" in found.lines()[0]
    assert found.lines()[1] == "batch    16 prompts x 8 completions = 128 completions a step; 100 steps, 100 updates"
    assert found.lines()[-1] == "It fits."
    json.dumps(found.summary())
    assert run(sft(folder, steps=1)).lines()[1] == "batch    16 examples a step; 1 step, 1 update"


@pytest.mark.parametrize(
    ("make", "wrong", "message"),
    [
        (rl, {"completions_per_prompt": 1}, "2 or more"),
        (rl, {"steps": 0}, "1 or more"),
        (rl, {"algorithm": "grop"}, "did you mean 'grpo'"),
        (rl, {"precision": "float8"}, "precision must be"),
        (rl, {"critic": "onw"}, "did you mean 'own'"),
        (rl, {"critic": "own"}, "grpo has no critic; leave out --critic"),
        (rl, {"pretraining_dataset": "x"}, "grpo learns from no text"),
        (rl, {"algorithm": "ppo-ptx", "pretraining_per_step": 0}, "--pretraining-per-step must be 1 or more; got 0"),
        (rl, {"max_new_tokens": 0}, "--max-new-tokens must be 1 or more"),
        (rl, {"model": "./nowhere"}, "no model"),
        (rl, {"dataset": "nowhere.jsonl"}, "no file or folder"),
        (rl, {"dataset": "gym:chain_sum", "limit": 3, "max_prompt_tokens": 2}, "all prompts are longer"),
    ],
)
def test_mistakes_are_one_line(folder, make, wrong, message):
    with pytest.raises(UserError, match=message) as raised:
        run(make(folder, **wrong))
    assert "\n" not in str(raised.value)


def test_examples_that_are_all_too_long(folder, tmp_path):
    data = write(tmp_path / "d.jsonl", [{"prompt": "x", "completion": "y" * 300}])
    with pytest.raises(UserError, match="all examples are longer than 256"):
        run(sft(folder, dataset=data))


def test_no_weights_are_read(folder, tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((model_folder(tmp_path / "whole") / name).read_bytes())
    assert run(rl(str(tmp_path), measure=True, max_new_tokens=8, steps=1)).update_seconds is not None


def pairs(kind, folder, **others):
    return kind(**{"model": folder, "precision": "float32", "measure": False} | others)


def test_a_pair_is_a_prompt_and_two_responses(folder):
    found = run(pairs(PlanPreference, folder, max_tokens=100, pairs_per_step=4, steps=3)).summary()
    assert (found["batch"], found["steps"], found["updates"]) == (8, 3, 3)
    assert found["tokens_per_step"] == 4 * (50 + 2 * 50)


@pytest.mark.parametrize("kind", [PlanPreference, PlanRewardModel])
def test_lengths_of_pairs_are_those_of_the_data(folder, tmp_path, kind):
    rows = [{"prompt": "a" * n, "chosen": "b" * n, "rejected": "c" * 3 * n} for n in (4, 10, 100)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = str(tmp_path / "pairs.jsonl")
    around = len(CHAT.prompt_ids([Message("user", "a")])) - 1
    stop = 1
    plan = run(pairs(kind, folder, dataset=data, max_tokens=around + 60, pairs_per_step=2, epochs=2))
    # the third is left out by the run; the longest response is 30 letters and its stop token
    assert (plan.longest.prompt_tokens, plan.longest.completion_tokens) == (around + 10, 30 + stop)
    assert (plan.expected.prompt_tokens, plan.expected.completion_tokens) == (around + 7, 14 + stop)
    assert plan.steps == 3 and "pairs a step" in plan.lines()[1]
    with pytest.raises(UserError, match="all pairs are longer than 9 tokens"):
        run(pairs(kind, folder, dataset=data, max_tokens=9))


def test_a_reward_model_predicts_no_words_and_has_no_reference(folder):
    (scored, compared) = (
        run(pairs(kind, folder)).summary()["memory"]["update"] for kind in (PlanRewardModel, PlanPreference)
    )
    assert "logits of a chunk" in compared and "logits of a chunk" not in scored
    assert "reference" not in compared and "reference" not in scored  # what it said is remembered
    whole = run(pairs(PlanPreference, folder, algorithm="tdpo")).summary()["memory"]["update"]
    assert (
        "reference" in whole
        and "reference" in run(pairs(PlanPreference, folder, algorithm="kto")).summary()["memory"]["update"]
    )


def test_a_reward_model_may_have_an_adapter_which_is_merged_into_what_is_saved(folder):
    scored, compared = (run(pairs(kind, folder, lora_rank=4)).summary() for kind in (PlanRewardModel, PlanPreference))
    assert scored["trainable"] == compared["trainable"] == 4 * 2 * (2 * 64 + 2 * 48 + 3 * 80)
    assert scored["disk_bytes"] == compared["disk_bytes"] + 4 * (4 * scored["parameters"] - 4 * scored["trainable"])
    assert scored["memory"]["saving"]["merged weights"] == 4 * scored["parameters"]
    assert (
        "saving" not in compared["memory"] and "saving" not in run(pairs(PlanRewardModel, folder)).summary()["memory"]
    )


@pytest.mark.parametrize("kind", [PlanPreference, PlanRewardModel])
def test_pairs_are_measured_too(folder, monkeypatch, kind):
    monkeypatch.setattr(speed, "seconds_of", lambda work, device: (work(), 1.0)[1])
    found = run(pairs(kind, folder, measure=True, pairs_per_step=2, max_tokens=40)).summary()
    assert found["seconds_per_step"] > 0
