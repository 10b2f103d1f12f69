"""The switches: what they are called, where they are set, and that each takes the other way."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from posttrain import fast_paths
from posttrain.algorithms.grpo import GRPO
from posttrain.background import finish
from posttrain.data.packing import Example, pack
from posttrain.engine import transformers
from posttrain.engine.transformers import TransformersEngine
from posttrain.errors import UserError
from posttrain.fast_paths import FAST_PATHS, for_children, off, on, parse, without
from posttrain.models import attention
from posttrain.models.attention import FamilyAttention
from posttrain.models.logprobs import token_logprobs
from posttrain.models.scoring import Scoring
from posttrain.training.policy import policy_batch
from posttrain.types import Request, Sampling
from tests.tiny import tiny_llama
from tests.training.test_policy import SPOKEN, group


def test_all_are_on_unless_named():
    assert off() == frozenset()
    with without("lean head", " packed weights,lean forms"):
        assert off() == {"lean head", "packed weights", "lean forms"}
        with without("lean head", "shared prefix"):
            assert not on("shared prefix") and not on("packed weights")
        assert on("shared prefix")
    assert all(on(name) for name in FAST_PATHS)


def test_all_means_all_and_nothing_means_none():
    assert parse("all") == parse("lean head,all") == set(FAST_PATHS)
    assert parse("") == parse(" , ") == set()


def test_a_name_that_does_not_exist_is_refused():
    with pytest.raises(UserError, match="unknown fast path 'lean heads'; did you mean 'lean head'"):
        parse("lean heads")


def test_the_environment_switches_off_and_is_handed_on(monkeypatch):
    monkeypatch.setenv("POSTTRAIN_WITHOUT", "lean head")
    assert off() == {"lean head"}
    with without("lean forms"):
        assert off() == {"lean head", "lean forms"}
        code = "from posttrain import fast_paths; print(sorted(fast_paths.off()))"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **for_children()},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.strip() == "['lean forms', 'lean head']"


def test_a_mistyped_environment_is_one_line():
    done = subprocess.run(
        [sys.executable, "-m", "posttrain", "rl", "--dataset", "gym:chain_sum", "--steps", "1"],
        env={**os.environ, "POSTTRAIN_WITHOUT": "sharedprefix"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode and "unknown fast path 'sharedprefix'; did you mean 'shared prefix'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_switch_holds_where_a_notebook_s_rollout_runs():
    async def seen():
        return off()

    async def notebook():
        with without("packed weights"):
            return finish(seen())

    assert asyncio.run(notebook()) == {"packed weights"}


def test_without_shared_prefixes_every_sequence_has_its_own():
    prompt = (5, 6, 7)
    examples = [
        Example(prompt, (8, 9), (True, True)),
        Example(prompt, (1,), (True,)),
        Example((), (2, 3), (False, True)),
    ]
    with without("shared prefix"):
        rows, pairs = pack(examples, 9), pack(examples[:2] * 2, 6, together=2)
    assert [row.families for row in rows] == [[(3, [2]), (3, [1])], [(0, [2])]]
    assert rows[0].token_ids == [5, 6, 7, 8, 9, 5, 6, 7, 1] and rows[0].positions == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert (rows[0].sources, rows[0].targets, rows[0].rows) == ([2, 3, 7], [8, 9, 1], [0, 0, 1])
    assert (rows[1].examples, rows[1].sources, rows[1].targets) == ([2], [0], [3])
    assert [row.examples for row in pairs] == [[0, 1], [2, 3]]  # a pair stays together, although it is too long


def test_without_skipping_groups_that_teach_nothing_are_kept():
    groups = [group(SPOKEN[0][:2], [1.0, 1.0]), group(SPOKEN[1][:2], [0.0, 1.0])]
    algorithm = GRPO(kl_coefficient=0.0)
    assert len(policy_batch(groups, algorithm)[0].examples) == 2
    with without("skipped groups"):
        assert len(policy_batch(groups, algorithm)[0].examples) == 4


def test_without_lean_forms_modules_are_left_as_they_are():
    with without("lean forms", "sparse embedding"):
        plain = tiny_llama().network
    lean = tiny_llama().network
    assert not any("forward" in m.__dict__ for m in plain.modules())
    assert any("forward" in m.__dict__ for m in lean.modules())
    assert (plain.get_input_embeddings().sparse, lean.get_input_embeddings().sparse) == (False, True)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_head_by_logits_and_without_them(temperature):
    g = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 6, generator=g, dtype=torch.float64).requires_grad_() for n in (5, 11))
    targets = torch.tensor([0, 3, 10, 3, 7])
    found = []
    for names in ([], ["lean head"]):
        with without(*names):
            logprobs, entropy = token_logprobs(hidden, weight, targets, temperature)
        assert not entropy.requires_grad
        grads = torch.autograd.grad((logprobs * torch.arange(5)).sum(), (hidden, weight))
        found.append(("_ChunkedHead" in type(logprobs.grad_fn).__name__, logprobs, entropy, *grads))
    (lean, *ours), (plain, *theirs) = found
    assert lean and not plain
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_without_recomputing_attention_autograd_keeps_its_own():
    row = [torch.randn(1, h, 5, 8, requires_grad=True) for h in (4, 2, 2)]
    names = []
    for switched in ([], ["recomputed attention"]):
        with without(*switched):
            names.append(
                type(FamilyAttention([(5, [])]).attend(0, *row, Scoring(0.3)).grad_fn.next_functions[0][0]).__name__
            )
    assert names[0] == "_RecomputedBackward" and names[1] != "_RecomputedBackward"


def test_whole_rows_are_taken_on_a_gpu_and_can_be_switched_off(monkeypatch):
    taken = [attention._at_once(torch.device(name)) for name in ("cpu", "cuda")]
    assert taken == [False, True]
    monkeypatch.setattr(attention, "_at_once", lambda device: True)
    row = [torch.randn(1, h, 5, 8) for h in (4, 2, 2)]
    monkeypatch.setattr(attention.WholeRow, "attend", lambda *_: "whole")
    assert FamilyAttention([(5, [])]).attend(0, *row, Scoring(0.3)) == "whole"
    with without("whole rows"):
        assert FamilyAttention([(5, [])]).attend(0, *row, Scoring(0.3)) != "whole"


def test_without_packed_weights_none_are_packed(monkeypatch):
    def refuse(network):
        raise AssertionError("packed")

    monkeypatch.setattr(transformers, "packed_weights", refuse)
    engine = TransformersEngine(tiny_llama(dtype=torch.bfloat16), frozenset())
    requests = [Request((5, 6), Sampling(transformers.PACK_FROM + 1))]
    with without("packed weights"):
        engine.generate(requests)
    with pytest.raises(AssertionError, match="packed"):
        engine.generate(requests)


def test_every_fast_path_has_a_switch_that_is_read_somewhere():
    files = [p for p in Path(fast_paths.__file__).parent.rglob("*.py") if p.name != "fast_paths.py"]
    read = "".join(p.read_text() for p in files)
    assert all(f'fast_paths.on("{name}")' in read for name in FAST_PATHS)
