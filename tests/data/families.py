"""Tiny fast tokenizers with the special tokens of each family of models, built here so that no test downloads one."""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATES = Path(__file__).parent / "templates"

TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
CHATML = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
MISTRAL_TOOLS = ["[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
# family -> special tokens, bos, eos, added tokens that are plain text
FAMILIES: dict[str, tuple[list[str], str | None, str, list[str]]] = {
    "smollm2": (CHATML, "<|im_start|>", "<|im_end|>", []),
    "smollm3": (CHATML, None, "<|im_end|>", ["<think>", "</think>", "<tool_call>", "</tool_call>"]),
    "hermes": (CHATML, None, "<|im_end|>", []),
    "qwen2.5": (CHATML, None, "<|im_end|>", ["<tool_call>", "</tool_call>"]),
    "qwen3": (CHATML, None, "<|im_end|>", [*TAGS, "<think>", "</think>"]),
    "llama3": (
        ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "<|begin_of_text|>",
        "<|end_of_text|>",
        [],
    ),
    "gemma2": (["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], "<bos>", "<eos>", []),
    "gemma3": (["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], "<bos>", "<eos>", []),
    "mistral": (["<s>", "</s>"], "<s>", "</s>", []),
    "mistral-v3": (["<s>", "</s>", "[INST]", "[/INST]", *MISTRAL_TOOLS], "<s>", "</s>", []),
    "phi3": (
        ["<s>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"],
        "<s>",
        "<|endoftext|>",
        [],
    ),
}


def byte_level() -> Tokenizer:
    """Bytes as in GPT-2, with merges across which a boundary can be lost: two newlines, `20`, ` 2`."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ĊĊ", "20", "Ġ2"]
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ċ", "Ċ"), ("2", "0"), ("Ġ", "2")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentence_piece() -> Tokenizer:
    """Characters as in Llama 2: a space, written ▁, is put before the first word of whatever is encoded."""
    letters = ["<unk>", "▁", "\n", "\n\n", *(chr(i) for i in range(33, 127))]
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("\n", "\n")], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    return tokenizer


def of_family(name: str, tokenizer: Tokenizer | None = None, *, template: str | None = None) -> Any:
    """The tokenizer of a family, in small, with its chat template or another one."""
    special, bos, eos, plain = FAMILIES[name]
    tokenizer = tokenizer or byte_level()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    names = {"eos_token": eos} | ({"bos_token": bos} if bos else {})
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    text = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8") if template is None else template
    wrapped.chat_template = text
    return wrapped
