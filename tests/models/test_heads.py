import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save_file
from transformers import AutoModelForSequenceClassification, LlamaConfig, LlamaForSequenceClassification

from posttrain.data.packing import Example, pack
from posttrain.errors import ModelError
from posttrain.models.heads import (
    Calibration,
    RewardModel,
    StepModel,
    complete,
    load_reward_model,
    load_step_model,
    members_of,
    with_length_head,
)
from posttrain.models.language_model import LanguageModel, ready
from posttrain.models.load import load_model
from posttrain.models.lora import Lora, add_lora
from posttrain.training.optimizer import MasterAdamW
from tests.recipes.folders import model_folder
from tests.tiny import CONTEXT, VOCABULARY


def tiny_reward_model(seed: int = 0, dtype: torch.dtype = torch.float32, members: int = 1) -> RewardModel:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        num_labels=members,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = LlamaForSequenceClassification(config)
    return RewardModel(LanguageModel(ready(network.to(dtype)), CONTEXT, "tiny"), (0.0,) * members)


def plain_scores(model: RewardModel, token_ids: list[int]) -> list[float]:
    """By transformers' own classifier, with eager attention, in float64, one sequence at a time; of each head."""
    config = LlamaConfig.from_dict(model.body.network.config.to_dict() | {"num_labels": model.members})
    config._attn_implementation = "eager"
    other = LlamaForSequenceClassification(config).double().eval()
    other.load_state_dict(model.body.network.state_dict())
    with torch.no_grad():
        return other(input_ids=torch.tensor([token_ids])).logits[0].tolist()


def test_scores_are_those_of_transformers_own_classifier_for_every_sequence_of_a_row():
    model = tiny_reward_model()
    examples = [
        Example((5, 9, 3), (4, 8, 1), (True,) * 3),
        Example((5, 9, 3), (7, 1), (True,) * 2),
        Example((2, 2), (11,), (True,)),
    ]
    (row,) = pack(examples, 100)
    found = model.scores(row)
    assert found.dtype == torch.float32
    expected = [plain_scores(model, [*e.prefix, *e.continuation])[0] for e in examples]
    assert found[:, 0].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_every_head_gives_a_score_and_each_has_a_zero_of_its_own():
    model = tiny_reward_model(members=3)
    ids = [5, 9, 3, 4]
    (row,) = pack([Example.whole(ids, [False] * 4)], 100)
    plain = plain_scores(model, ids)
    model.zeros = (0.5, 0.0, -2.0)
    assert model.members == 3
    assert model.scores(row)[0].tolist() == pytest.approx([plain[0] - 0.5, plain[1], plain[2] + 2.0], rel=1e-4)
    apart = with_length_head(model, seed=0)
    found = apart.scores_and_length(row)[0]
    assert found[:3].tolist() == pytest.approx(model.scores(row)[0].tolist(), rel=1e-4)
    last = model.body.states(row)[3]
    assert found[3].item() == pytest.approx((last @ apart.length_head[0]).item(), rel=1e-5)
    assert [name for name, _ in apart.trainable()] == [*(name for name, _ in model.trainable()), "length_head"]


def test_the_last_product_is_wide_where_the_model_computes_in_bfloat16():
    model = tiny_reward_model(dtype=torch.bfloat16)
    (row,) = pack([Example((5, 9), (4, 8), (True, True)), Example((5, 9), (7,), (True,))], 100)
    found = model.scores(row)
    last = model.body.states(row)[torch.tensor(row.ends)]
    exact = last.double() @ model.head.double().T
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-6)
    assert not torch.equal(found, found.bfloat16().float())


def test_a_fresh_head_is_no_news_to_be_printed(tmp_path: Path, capfd, caplog):
    load_reward_model(str(model_folder(tmp_path / "model")), dtype=torch.float32)
    printed = capfd.readouterr()
    assert "score.weight" not in printed.out + printed.err + caplog.text


def test_a_fresh_head_is_drawn_from_the_seed_with_the_published_width(tmp_path: Path):
    folder = str(model_folder(tmp_path / "model"))
    one, again, other = (load_reward_model(folder, dtype=torch.float32, seed=s).head.detach() for s in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)
    many = torch.cat([load_reward_model(folder, dtype=torch.float32, seed=s).head.detach() for s in range(40)])
    assert many.std().item() == pytest.approx(1 / math.sqrt(33), rel=0.1)


def test_a_saved_reward_model_is_read_by_transformers_and_again_by_us(tmp_path: Path):
    model = load_reward_model(str(model_folder(tmp_path / "model")), dtype=torch.float32, seed=3)
    model.save(tmp_path / "saved", padding=0)
    again = load_reward_model(str(tmp_path / "saved"), dtype=torch.float32, seed=4)
    assert torch.equal(again.head, model.head)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", attn_implementation="eager").eval()
    (row,) = pack([Example((5, 9, 3), (4, 8, 1), (True,) * 3)], 100)
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([row.token_ids])).logits.item()
        assert again.scores(row).item() == pytest.approx(expected, rel=1e-4)


def test_an_ensemble_is_saved_and_read_again_and_a_calibration_holds_for_other_tools(tmp_path: Path):
    model = load_reward_model(str(model_folder(tmp_path / "model")), dtype=torch.float32, members=2)
    (row,) = pack([Example((5, 9, 3), (4, 8, 1), (True,) * 3)], 100)
    model.zeros = (1.0, 0.0)  # as of a model that was calibrated before, and went on learning
    before = model.scores(row)[0].tolist()
    model.save(tmp_path / "saved", padding=0, calibration=Calibration((0.5, -1.0), 4.0))
    again = load_reward_model(str(tmp_path / "saved"), dtype=torch.float32)
    expected = [(before[0] - 0.5) / 4, (before[1] + 1.0) / 4]
    assert again.scores(row)[0].tolist() == pytest.approx(expected, rel=1e-4)
    assert torch.equal(model.scores(row)[0], torch.tensor(before))  # what goes on learning is as it was
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", attn_implementation="eager").eval()
    with torch.no_grad():
        raw = theirs(input_ids=torch.tensor([row.token_ids])).logits[0].tolist()
    zeros = [(1.0 + 0.5) / 4, -1.0 / 4]
    assert raw == pytest.approx([score + zero for score, zero in zip(expected, zeros, strict=True)], rel=1e-4)
    again.save(tmp_path / "twice", padding=0)
    twice = load_reward_model(str(tmp_path / "twice"), dtype=torch.float32, members=2)
    assert twice.scores(row)[0].tolist() == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ModelError, match="with 2 members; an ensemble of 3"):
        load_reward_model(str(tmp_path / "saved"), dtype=torch.float32, members=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_of_several_files_the_one_with_the_rows_is_changed_and_in_it_nothing_else(dtype, tmp_path: Path):
    model = load_reward_model(str(model_folder(tmp_path / "model")), dtype=dtype, members=2)
    folder, sizes = tmp_path / "saved", {"max_shard_size": "20KB"}
    model.body.network.save_pretrained(str(folder), **sizes)
    before = {path.name: load(path.read_bytes()) for path in folder.glob("model-*.safetensors")}
    complete(folder, padding=3, calibration=Calibration((0.5, -1.0), 3.0))
    after = {path.name: load_file(path) for path in folder.glob("model-*.safetensors")}
    assert len(before) > 1
    changed = [
        (name, weight)
        for name, found in before.items()
        for weight, value in found.items()
        if not torch.equal(value, after[name][weight])
    ]
    assert [weight for _, weight in changed] == ["score.weight"]
    rows = after[changed[0][0]]["score.weight"]
    assert rows.dtype == dtype and torch.equal(rows, (model.head.float() / 3).to(dtype))
    config = json.loads((folder / "config.json").read_text())
    assert config["reward_zeros"] == [0.5 / 3, -1.0 / 3] and config["pad_token_id"] == 3


def test_the_number_of_scores_is_known_without_weights(tmp_path: Path):
    folder = model_folder(tmp_path / "model")
    assert members_of(str(folder)) == 1
    load_reward_model(str(folder), dtype=torch.float32, members=3).save(tmp_path / "saved", padding=0)
    assert members_of(str(tmp_path / "saved")) == 3
    with pytest.raises(ModelError):
        members_of(str(tmp_path / "missing"))


def test_a_length_head_is_drawn_apart_and_not_saved(tmp_path: Path):
    model = load_reward_model(str(model_folder(tmp_path / "model")), dtype=torch.float32, seed=3)
    apart = with_length_head(model, seed=3)
    assert not torch.equal(apart.length_head, model.head) and apart.length_head.shape == model.head.shape
    apart.save(tmp_path / "saved", padding=0)
    assert torch.equal(load_reward_model(str(tmp_path / "saved"), dtype=torch.float32).head, model.head)


def test_weights_that_are_not_there_are_named_the_head_of_a_language_model_aside(tmp_path: Path):
    load_reward_model(str(model_folder(tmp_path / "model")), dtype=torch.float32).save(tmp_path / "saved", padding=0)
    for folder, lost in (("model", "model.norm.weight"), ("saved", "score.weight"), ("saved", "model.norm.weight")):
        path = tmp_path / folder / "model.safetensors"
        kept = load_file(path)
        save_file({name: t for name, t in kept.items() if name != lost}, path, {"format": "pt"})
        with pytest.raises(ModelError, match=f"lacks 1 of the model's weights: {lost}"):
            load_reward_model(str(tmp_path / folder), dtype=torch.float32)
        save_file(kept, path, {"format": "pt"})


@pytest.mark.parametrize("members", [1, 3])
def test_an_adapter_is_merged_into_its_base_and_gets_heads(tmp_path: Path, members: int):
    base = str(model_folder(tmp_path / "model"))
    policy = add_lora(load_model(base, dtype=torch.float32), rank=4)
    with torch.no_grad():
        for _, weight in policy.trainable():
            weight.normal_(std=0.2, generator=torch.Generator().manual_seed(weight.numel()))
    policy.save(tmp_path / "adapter")
    model = load_reward_model(str(tmp_path / "adapter"), dtype=torch.float32, members=members)
    row = pack([Example((5, 9, 3), (4, 8, 1), (True,) * 3)], 64)[0]
    with torch.no_grad():
        states = model.body.states(row)
        torch.testing.assert_close(states, policy.states(row), rtol=1e-4, atol=1e-5)
        assert (states - load_model(base, dtype=torch.float32).states(row)).abs().max() > 0.1
        scores = model.scores(row)
    assert torch.equal(model.head, load_reward_model(base, dtype=torch.float32, members=members).head)
    model.save(tmp_path / "saved", padding=0)
    again = load_reward_model(str(tmp_path / "saved"), dtype=torch.float32, trained=True)
    with torch.no_grad():
        torch.testing.assert_close(again.scores(row), scores)
    with pytest.raises(ModelError, match="is no reward model"):
        load_reward_model(str(tmp_path / "adapter"), dtype=torch.float32, trained=True)


@pytest.mark.parametrize("members", [1, 2])
def test_a_fresh_adapter_is_trained_with_the_heads_and_saved_in_the_weights(tmp_path: Path, members: int):
    pytest.importorskip("peft")
    base = str(model_folder(tmp_path / "model"))
    model = load_reward_model(base, dtype=torch.float32, members=members, adapter=Lora(4), seed=1)
    (row,) = pack([Example((5, 9, 3), (4, 8, 1), (True,) * 3)], 64)
    plain = load_reward_model(base, dtype=torch.float32, members=members, seed=1)
    with torch.no_grad():
        assert torch.equal(model.scores(row), plain.scores(row))  # it begins as nothing
    names = [name for name, _ in model.trainable()]
    assert names[-1] == "score.weight" and len(names) == 29  # 2 layers x 7 linear maps x A and B, and the heads
    assert all("lora_A" in name or "lora_B" in name for name in names[:-1])
    frozen = {name: p.detach().clone() for name, p in model.body.network.named_parameters() if name not in names}
    optimizer = MasterAdamW(model.trainable())
    with optimizer.collecting():
        model.scores(row).sum().backward()
    optimizer.step(0.05)
    with optimizer.collecting():  # an adapter whose one side is zero hands nothing on to the other
        model.scores(row).sum().backward()
    optimizer.step(0.05)
    with torch.no_grad():
        scores = model.scores(row)
        heads_alone = RewardModel(plain.body, model.zeros)
        heads_alone.body.network.score.weight.copy_(model.head)
        assert (heads_alone.scores(row) - scores).abs().min() > 1e-3
    assert all(torch.equal(p, frozen[name]) for name, p in model.body.network.named_parameters() if name in frozen)
    model.save(tmp_path / "saved", padding=0, calibration=Calibration((0.5,) * members, 2.0))
    again = load_reward_model(str(tmp_path / "saved"), dtype=torch.float32, trained=True)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", attn_implementation="eager").eval()
    with torch.no_grad():
        torch.testing.assert_close(again.scores(row), (scores - 0.5) / 2, rtol=1e-4, atol=1e-5)
        raw = theirs(input_ids=torch.tensor([row.token_ids])).logits
        torch.testing.assert_close(raw, scores / 2, rtol=1e-4, atol=1e-5)
        assert torch.equal(model.scores(row), scores)  # what goes on learning is as it was


def test_the_seed_decides_a_fresh_adapter_and_no_head_is_drawn_otherwise(tmp_path: Path):
    pytest.importorskip("peft")
    base = str(model_folder(tmp_path / "model"))
    one, same, other = (
        dict(load_reward_model(base, dtype=torch.float32, adapter=Lora(4), seed=seed).trainable()) for seed in (1, 1, 2)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one if "lora_A" in name)
    assert torch.equal(one["score.weight"], load_reward_model(base, dtype=torch.float32, seed=1).head)


def test_a_classifier_with_several_scores_and_a_broken_adapter_are_refused(tmp_path: Path):
    config = tiny_reward_model().body.network.config
    config.num_labels = 3
    LlamaForSequenceClassification(config).save_pretrained(tmp_path / "three")
    with pytest.raises(ModelError, match="gives 3 scores"):
        load_reward_model(str(tmp_path / "three"), dtype=torch.float32)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="does not name the adapter's base"):
        load_reward_model(str(tmp_path / "adapter"), dtype=torch.float32)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ModelError, match="cannot load a language model"):
        load_reward_model(str(tmp_path / "nothing"), dtype=torch.float32)


def steps_of(*ids: int, ends: tuple[int, ...] = ()) -> Example:
    """A sequence whose steps end behind these numbers of tokens."""
    return Example((5, 9), ids, tuple(place in ends for place in range(len(ids))))


def test_the_logit_of_a_step_is_what_the_classifier_says_of_the_tokens_up_to_its_end():
    model = tiny_reward_model()
    stepwise = StepModel(model.body, (0.25,))
    examples = [steps_of(4, 8, 3, 7, 1, ends=(2, 4)), steps_of(6, 1, ends=(1,)), steps_of(11, 12, 1, ends=(0, 1, 2))]
    for most in (12, 40):
        found: dict[int, list[float]] = {}
        for row in pack(examples, most):
            scores = stepwise.scores(row).tolist()
            found |= dict(zip(row.examples, scores, strict=True))
        for number, example in enumerate(examples):
            ends = [place for place, learned in enumerate(example.learned) if learned]
            said = [[*example.prefix, *example.continuation[:end]] for end in ends]
            expected = [plain_scores(model, ids)[0] - 0.25 for ids in said]
            own = [score for score in found[number] if not math.isnan(score)]
            assert own == pytest.approx(expected, abs=1e-4)


def test_a_process_reward_model_is_read_again_and_by_transformers(tmp_path):
    folder = model_folder(tmp_path / "model")
    made = load_step_model(str(folder), dtype=torch.float32)
    assert not made.head.any()  # each step is right with odds of 1
    made.head.data.normal_()
    made.save(tmp_path / "steps", padding=0, calibration=Calibration((0.0,), 2.0))
    again = load_step_model(str(tmp_path / "steps"), dtype=torch.float32)
    (row,) = pack([steps_of(4, 8, 3, ends=(2,))], 12)
    assert again.scores(row).item() == pytest.approx(made.scores(row).item() / 2, abs=1e-5)
    network = AutoModelForSequenceClassification.from_pretrained(str(tmp_path / "steps"))
    assert network.config.id2label == {0: "step_right"}
    with torch.no_grad():
        told = network(torch.tensor([[5, 9, 4, 8]])).logits.item()
    assert told == pytest.approx(again.scores(row).item(), abs=1e-4)
