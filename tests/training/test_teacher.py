"""A teacher is compared with the policy before anything is loaded: token by token, and by what it can read."""

import doctest
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from posttrain.errors import UserError
from posttrain.training import teacher
from posttrain.training.teacher import differing, find_teachers
from tests.recipes.folders import model_folder
from tests.tiny import tiny_llama


def one_teacher(name: str, policy: str, *, microbatch_tokens: int) -> teacher.Teacher:
    return find_teachers(name, "", policy, microbatch_tokens=microbatch_tokens).models["teacher"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("teacher") / "policy")


def with_rows(folder: Path, more: int) -> Path:
    """The same model with so many more rows of embeddings, as padded vocabularies have, or fewer."""
    network = AutoModelForCausalLM.from_pretrained(str(folder))
    network.resize_token_embeddings(network.config.vocab_size + more, mean_resizing=False)
    network.save_pretrained(str(folder))
    return folder


def test_without_a_name_there_is_none(policy):
    assert find_teachers("", "", str(policy), microbatch_tokens=64).parts == {}


def test_a_teacher_computes_as_the_policy_does_and_stays(policy, tmp_path):
    found = one_teacher(str(model_folder(tmp_path / "teacher", seed=1)), str(policy), microbatch_tokens=64)
    assert found is not None and found.shape.name == found.where == str(tmp_path / "teacher")
    for dtype in (torch.float32, torch.bfloat16):
        held = found.load(tiny_llama(dtype=dtype))
        assert held.body.dtype == dtype and held.body.trainable() == [] and held.kept() == {}


def test_every_token_must_have_the_same_number():
    assert differing({"a": 0, "b": 1}, {"b": 1, "a": 0}) == ""
    assert differing({"a": 0}, {"a": 0, "<new>": 1}) == (
        "1 of 2 tokens differ, such as '<new>' (none in the policy's, 1 in the teacher's)"
    )
    assert differing({"a": 0, "b": 1}, {"a": 0}).endswith("such as 'b' (1 in the policy's, none in the teacher's)")
    assert differing({"a": 0, "b": 1}, {"a": 1, "b": 0}).startswith("2 of 2 tokens differ, such as 'a' (0 in the")


def test_a_teacher_may_predict_more_tokens_than_the_policy_and_not_fewer(policy, tmp_path):
    wider = with_rows(model_folder(tmp_path / "wider"), 8)
    assert one_teacher(str(wider), str(policy), microbatch_tokens=64) is not None
    with pytest.raises(UserError, match=r"predicts [\d,]+ tokens and the policy [\d,]+"):
        one_teacher(str(policy), str(wider), microbatch_tokens=64)


def test_a_teacher_must_read_what_a_micro_batch_may_have(policy, tmp_path):
    shorter = str(model_folder(tmp_path / "shorter", context=64))
    assert one_teacher(shorter, str(policy), microbatch_tokens=64) is not None
    with pytest.raises(UserError, match="lower microbatch_tokens to 64, or"):
        one_teacher(shorter, str(policy), microbatch_tokens=65)
    assert one_teacher(str(policy), shorter, microbatch_tokens=4096) is not None  # the policy's sequences are short


def test_a_tokenizer_of_another_family_is_refused(policy, tmp_path):
    other = model_folder(tmp_path / "other")
    file = other / "tokenizer.json"
    words = json.loads(file.read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(words))
    with pytest.raises(UserError, match=r"another tokenizer than the policy: 2 of \d+ tokens differ, such as 'a'"):
        one_teacher(str(other), str(policy), microbatch_tokens=64)


def test_docstring_examples_run():
    results = doctest.testmod(teacher)
    assert results.failed == 0 and results.attempted > 0
