"""A tokenizer with tokens that have no row in the model's embedding is refused by every command, before training."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.cli import main
from posttrain.data import load_tokenizer
from posttrain.errors import ModelError
from posttrain.models.load import load_model
from posttrain.models.lora import add_lora
from tests.recipes.folders import model_folder


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("made")
    add_tokens(model_folder(where / "model"), "<|new1|>", "<|new2|>")
    rows = [{"prompt": f"{i}?", "completion": "1", "chosen": "1", "rejected": "2", "answer": "1"} for i in range(4)]
    (where / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return where


def add_tokens(folder: Path, *tokens: str) -> Path:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [*tokens]})
    tokenizer.save_pretrained(folder)
    return folder


STEP, SAMPLED = "--steps 1", "--max-new-tokens 2"
ONLINE = f"--reward exact {SAMPLED} --prompts-per-step 1 --completions-per-prompt 2 {STEP}"
RUNS = [f"sft --examples-per-step 1 {STEP}", f"rl {ONLINE}"]
RUNS += [f"{command} --pairs-per-step 1 {STEP}" for command in ("preference", "reward-model")]
DATA = ["data show", f"evaluate --reward exact --limit 1 {SAMPLED}", *RUNS, *(f"{run} --dry-run" for run in RUNS)]


@pytest.mark.parametrize(
    "words", [f"generate --prompt a {SAMPLED}", *(f"{words} --dataset rows.jsonl" for words in DATA)]
)
def test_a_command_names_both_sizes_and_what_to_do(made, capsys, monkeypatch, words):
    monkeypatch.chdir(made)
    assert main([*words.split(), "--model", "model"]) == 2
    out, err = capsys.readouterr()
    sizes = "has 264 tokens, up to '<|new2|>', and the embedding of its model 262 rows (vocab_size in config.json)"
    assert sizes in err and "resize_token_embeddings(264)" in err and "from tokenizer.json" in err
    assert not out and err.count("\n") == 1 and not (made / "runs").exists()


def test_an_embedding_that_is_longer_is_padded(made, tmp_path):
    folder = model_folder(tmp_path / "model")
    network = AutoModelForCausalLM.from_pretrained(folder)
    network.resize_token_embeddings(264)
    network.save_pretrained(folder)
    add_tokens(folder, "<|new1|>")
    assert len(load_tokenizer(folder).get_vocab()) == 263
    add_tokens(folder, "<|new1|>", "<|new2|>", "<|new3|>")
    with pytest.raises(
        ModelError, match=r"has 265 tokens, up to '<\|new3\|>', and the embedding of its model 264 rows"
    ):
        load_tokenizer(folder)


def test_the_tokenizer_of_an_adapter_is_compared_with_its_base(made, tmp_path):
    pytest.importorskip("peft")
    base = str(model_folder(tmp_path / "base"))
    add_lora(load_model(base, dtype=torch.float32), rank=2).save(tmp_path / "adapter")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "adapter")
    load_tokenizer(tmp_path / "adapter")
    add_tokens(tmp_path / "adapter", "<|new1|>")
    with pytest.raises(ModelError, match=r"adapter' has 263 tokens.* 262 rows"):
        load_tokenizer(tmp_path / "adapter")


@pytest.mark.parametrize("config", ["", "{}", '{"vocab_size": 1}'])
def test_a_tokenizer_beside_no_model_of_a_known_size_is_taken(made, tmp_path, config):
    folder = shutil.copytree(made / "model", tmp_path / "tokenizer")
    (folder / "config.json").write_text(config)
    if not config:
        (folder / "config.json").unlink()
    assert len(load_tokenizer(folder).get_vocab()) == 264
