"""Classifiers of any architecture: the probability of a label, and what is refused before weights are read."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from posttrain.errors import ModelError, UserError
from posttrain.models.text_classifier import text_classifier
from tests.recipes.folders import model_folder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "day"]


def classifier_folder(path: Path, labels: tuple[str, ...] = ("negative", "positive"), **changes) -> Path:
    """A random encoder with a label for each word of `labels`, of which it takes at most 6 tokens."""
    path.mkdir(parents=True)
    (path / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizerFast(str(path / "vocab.txt")).save_pretrained(str(path))
    names = dict(enumerate(labels))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    about = {"id2label": names, "label2id": {name: i for i, name in names.items()}, "initializer_range": 1.0, **changes}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = BertForSequenceClassification(
            BertConfig(vocab_size=len(WORDS), max_position_embeddings=6, **sizes, **about)
        )
    network.save_pretrained(str(path))
    return path


def plain(folder: Path, text: str) -> torch.Tensor:
    """The logits of a text that is not cut, as anybody reads them."""
    tokenizer = BertTokenizerFast.from_pretrained(str(folder))
    network = BertForSequenceClassification.from_pretrained(str(folder)).eval()
    with torch.no_grad():
        return network(**tokenizer(text, return_tensors="pt")).logits[0]


def test_the_probability_is_that_of_the_label(tmp_path):
    folder = classifier_folder(tmp_path / "sentiment", ("negative", "neutral", "positive"))
    texts = ["good day", "bad", "bad day", ""]
    for place, label in enumerate(("negative", "neutral", "positive")):
        found = text_classifier(str(folder), label)
        found.load()
        expected = [torch.softmax(plain(folder, text), -1)[place].item() for text in texts]
        assert found(texts) == pytest.approx(expected, abs=1e-6) and len({round(one, 3) for one in expected}) > 1
        assert found(["good"] * 40)[39] == pytest.approx(found(["good"])[0], abs=1e-6)
        assert found(["good day bad bad good day"]) == found(["good day bad bad"])  # cut at 6 tokens


def test_of_labels_that_a_text_may_have_together_each_is_by_itself(tmp_path):
    folder = classifier_folder(tmp_path / "toxic", ("toxic", "threat"), problem_type="multi_label_classification")
    found = text_classifier(str(folder), "threat")
    found.load()
    assert found(["bad"]) == pytest.approx([torch.sigmoid(plain(folder, "bad"))[1].item()], abs=1e-6)


def test_a_decoder_without_a_padding_token_is_read_one_text_at_a_time(tmp_path):
    from transformers import AutoTokenizer, LlamaForSequenceClassification

    folder = model_folder(tmp_path / "decoder")
    LlamaForSequenceClassification.from_pretrained(str(folder), num_labels=2).save_pretrained(str(folder))
    network = LlamaForSequenceClassification.from_pretrained(str(folder)).eval()
    ids = AutoTokenizer.from_pretrained(str(folder))("good", return_tensors="pt")["input_ids"]
    found = text_classifier(str(folder), "LABEL_1")
    found.load()
    with torch.no_grad():
        expected = torch.softmax(network(ids).logits[0], -1)[1].item()
    assert found(["good", "good", ""])[:2] == pytest.approx([expected] * 2, abs=1e-6)


def test_what_cannot_be_a_classifier_is_a_line_that_names_what_it_has(tmp_path):
    folder = classifier_folder(tmp_path / "sentiment")
    with pytest.raises(UserError, match=r"label of the classifier '.*': 'positiv'.*did you mean 'positive'"):
        text_classifier(str(folder), "positiv")
    score = classifier_folder(tmp_path / "score", ("LABEL_0",))
    with pytest.raises(ModelError, match=r"has 1 label \(LABEL_0\), whose score is no probability; one with 2 or more"):
        text_classifier(str(score), "LABEL_0")
    with pytest.raises(ModelError, match="is no sequence classifier"):
        text_classifier(str(model_folder(tmp_path / "policy")), "positive")
    with pytest.raises(ModelError, match=r"no model '.*nowhere'"):
        text_classifier(str(tmp_path / "nowhere"), "positive")


def test_weights_that_are_missing_are_an_error_and_not_random_numbers(tmp_path):
    folder = classifier_folder(tmp_path / "sentiment")
    weights = load_file(folder / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    found = text_classifier(str(folder), "positive")
    with pytest.raises(ModelError, match=r"classifier\.weight"):
        found.load()
    assert json.loads((folder / "config.json").read_text())["id2label"]["1"] == "positive"
