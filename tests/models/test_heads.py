import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, LlamaConfig, LlamaForSequenceClassification

from posttrain.data.packing import Example, pack
from posttrain.errors import ModelError
from posttrain.models.heads import RewardModel, load_reward_model
from posttrain.models.language_model import LanguageModel, ready
from tests.recipes.folders import model_folder
from tests.tiny import CONTEXT, VOCABULARY


def tiny_reward_model(seed: int = 0, dtype: torch.dtype = torch.float32) -> RewardModel:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        num_labels=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = LlamaForSequenceClassification(config)
    return RewardModel(LanguageModel(ready(network.to(dtype)), CONTEXT, "tiny"))


def plain_score(model: RewardModel, token_ids: list[int]) -> float:
    """By transformers' own classifier, with eager attention, in float64, one sequence at a time."""
    config = LlamaConfig.from_dict(model.body.network.config.to_dict() | {"num_labels": 1})
    config._attn_implementation = "eager"
    other = LlamaForSequenceClassification(config).double().eval()
    other.load_state_dict(model.body.network.state_dict())
    with torch.no_grad():
        return other(input_ids=torch.tensor([token_ids])).logits.item()


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
    expected = [plain_score(model, [*e.prefix, *e.continuation]) for e in examples]
    assert found.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_last_product_is_wide_where_the_model_computes_in_bfloat16():
    model = tiny_reward_model(dtype=torch.bfloat16)
    (row,) = pack([Example((5, 9), (4, 8), (True, True)), Example((5, 9), (7,), (True,))], 100)
    found = model.scores(row)
    last = model.body.states(row)[torch.tensor(row.ends)]
    exact = last.double() @ model.head.double()[0]
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


def test_weights_that_are_not_there_are_named_the_head_of_a_language_model_aside(tmp_path: Path):
    load_reward_model(str(model_folder(tmp_path / "model")), dtype=torch.float32).save(tmp_path / "saved", padding=0)
    for folder, lost in (("model", "model.norm.weight"), ("saved", "score.weight"), ("saved", "model.norm.weight")):
        path = tmp_path / folder / "model.safetensors"
        kept = load_file(path)
        save_file({name: t for name, t in kept.items() if name != lost}, path, {"format": "pt"})
        with pytest.raises(ModelError, match=f"lacks 1 of the model's weights: {lost}"):
            load_reward_model(str(tmp_path / folder), dtype=torch.float32)
        save_file(kept, path, {"format": "pt"})


def test_a_classifier_with_several_scores_and_an_adapter_are_refused(tmp_path: Path):
    config = tiny_reward_model().body.network.config
    config.num_labels = 3
    LlamaForSequenceClassification(config).save_pretrained(tmp_path / "three")
    with pytest.raises(ModelError, match="gives 3 scores"):
        load_reward_model(str(tmp_path / "three"), dtype=torch.float32)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="merge it"):
        load_reward_model(str(tmp_path / "adapter"), dtype=torch.float32)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ModelError, match="cannot load a reward model"):
        load_reward_model(str(tmp_path / "nothing"), dtype=torch.float32)
