"""AdamW on float32 masters: against torch, by hand, and where bfloat16 alone would stand still."""

import contextlib
import math
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from posttrain.engine.vllm import weight_versions
from posttrain.errors import TrainingError
from posttrain.models.rounding import narrow_
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.ranks import REPLICATED
from tests.tiny import tiny_llama


def parameters(dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    shapes = {"matrix": (4, 3), "vector": (5,), "table": (2, 6)}
    return [(name, nn.Parameter(torch.randn(shape, generator=g).to(dtype))) for name, shape in shapes.items()]


def give(named, seed, scale=1.0, optimizer=None):
    """Random gradients by a backward pass, which an optimiser collects if there is one; returns them by name."""
    g = torch.Generator().manual_seed(seed)
    grads = {name: scale * torch.randn(p.shape, generator=g).to(p.dtype) for name, p in named}
    back(sum((p * grads[name]).sum() for name, p in named), optimizer)
    return grads


def back(loss, optimizer=None):
    with optimizer.collecting() if optimizer else contextlib.nullcontext():
        loss.backward()


def test_equals_torch_bit_for_bit_in_float32():
    ours, theirs = parameters(), parameters()
    optimizer = MasterAdamW(ours, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, max_grad_norm=math.inf)
    matrices = [p for _, p in theirs if p.dim() > 1]
    vectors = [p for _, p in theirs if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=0.02, betas=(0.8, 0.95), eps=1e-6, fused=True)
    for step in range(5):
        give(ours, step, optimizer=optimizer)
        give(theirs, step)
        optimizer.step(0.02)
        adam.step()
        adam.zero_grad()
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(ours, theirs, strict=True))


def test_one_step_by_hand():
    p = nn.Parameter(torch.tensor([[2.0, -1.0]]))
    optimizer = MasterAdamW([("p", p)], weight_decay=0.5)
    back((p * torch.tensor([[0.3, -0.4]])).sum(), optimizer)  # length 0.5, below the clip
    assert optimizer.step(0.1) == pytest.approx(0.5)
    # decay by lr * 0.5, then one step of Adam from 0, which is lr times the gradient's sign
    assert p.tolist() == [pytest.approx([2.0 * 0.95 - 0.1, -1.0 * 0.95 + 0.1])]


def test_only_matrices_decay():
    named = parameters()
    before = {name: p.detach().clone() for name, p in named}
    optimizer = MasterAdamW(named, weight_decay=0.5)
    for _, p in named:
        p.grad = torch.zeros_like(p)
    optimizer.step(0.1)
    for name, p in named:
        torch.testing.assert_close(p.detach(), before[name] * (1.0 if name == "vector" else 0.95), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("scale", "factor"), [(3.0, 1 / 15), (0.1, 1.0)])
def test_gradients_longer_than_the_limit_are_scaled_to_it(scale, factor, monkeypatch):
    a, b = nn.Parameter(torch.zeros(1, 1)), nn.Parameter(torch.zeros(1))
    optimizer = MasterAdamW([("a", a), ("b", b)], max_grad_norm=1.0)
    a.grad, b.grad = torch.full((1, 1), 3.0 * scale), torch.full((1,), 4.0 * scale)  # length 5 * scale
    used = []
    monkeypatch.setattr(optimizer.adam, "step", lambda: used.extend([a.grad.item(), b.grad.item()]))
    assert optimizer.step(0.1) == pytest.approx(5 * scale)
    assert used == pytest.approx([3.0 * scale * factor, 4.0 * scale * factor])


def test_micro_batches_add_up_in_float32():
    named = parameters(torch.bfloat16)
    optimizer = MasterAdamW(named)
    parts = []
    for seed in range(8):
        parts.append(give(named, seed, scale=10.0 ** -(seed % 4), optimizer=optimizer))
        assert all(p.grad is None for _, p in named)
    for name, master in optimizer.named_masters().items():
        assert master.grad.dtype == torch.float32
        torch.testing.assert_close(master.grad, sum(part[name].float() for part in parts), rtol=1e-6, atol=1e-6)


def test_masters_are_made_of_shards_alone():
    """A rank that keeps a part of each weight has no room for the masters of whole weights."""
    named = parameters(torch.bfloat16)
    optimizer = MasterAdamW(named, embedding=named[0][1])
    halves = {id(p): nn.Parameter(p.detach()[:1].clone()) for _, p in named}
    whole = [weakref.ref(p) for _, p in named]
    named.clear()
    optimizer.shard(SimpleNamespace(sharded=lambda weight: halves[id(weight)]))
    assert [p() for p in whole] == [None] * 3 and "masters" not in vars(optimizer)
    optimizer.allocate()
    assert [m.shape for m in optimizer.masters] == [half.shape for half in halves.values()]
    used = [m for group in optimizer.adam.param_groups for m in group["params"]]
    assert {id(m) for m in used} == {id(m) for m in optimizer.masters}
    with pytest.raises(AssertionError, match="the master weights exist already and are not sharded"):
        optimizer.shard(SimpleNamespace(sharded=lambda weight: nn.Parameter(weight.detach().clone())))


def test_a_float32_model_is_its_own_master():
    named = parameters()
    optimizer = MasterAdamW(named)
    assert all(master is p for master, (_, p) in zip(optimizer.masters, named, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_weight_counts_as_written_after_a_step_so_that_no_engine_samples_from_old_ones(dtype):
    model = tiny_llama(dtype=dtype)
    optimizer = MasterAdamW(model.trainable())
    before = weight_versions(model)
    with optimizer.collecting():
        sum(weight.float().sum() for _, weight in model.trainable()).backward()
    optimizer.step(1e-3)
    assert all(now > then for then, now in zip(before, weight_versions(model), strict=True))


def test_a_learning_rate_of_1e_6_moves_bfloat16_weights_in_the_end_where_plain_adamw_stands_still():
    ours, naive = (nn.Parameter(torch.full((8, 8), 0.5, dtype=torch.bfloat16)) for _ in range(2))
    optimizer = MasterAdamW([("p", ours)])
    plain = torch.optim.AdamW([naive], lr=1e-6, weight_decay=0.0)
    for step in range(1, 1301):
        naive.grad = torch.ones_like(naive)
        back(ours.sum(), optimizer)
        optimizer.step(1e-6)
        plain.step()
        if step == 1:
            (master,) = optimizer.masters
            assert (master < 0.5).all() and (ours == 0.5).all()  # held by the master, below what bfloat16 resolves
    assert (naive == 0.5).all()
    # 1300 steps of 1e-6: 0.4987 in the master, two thirds of the way from 0.5 to the next bfloat16, 0.498046875
    torch.testing.assert_close(optimizer.masters[0].detach(), torch.full((8, 8), 0.4987), rtol=0, atol=5e-5)
    assert (ours == 0.498046875).float().mean().item() == pytest.approx(2 / 3, abs=0.15)
    assert ((ours == 0.5) | (ours == 0.498046875)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_touches_nothing_and_is_forgotten(poison, dtype):
    named = parameters(dtype)
    optimizer = MasterAdamW(named, weight_decay=0.1)
    give(named, 0, optimizer=optimizer)
    optimizer.step(0.1)
    before = {name: p.detach().clone() for name, p in named}
    masters = [m.detach().clone() for m in optimizer.masters]
    worst = torch.zeros(5)
    worst[2] = poison
    back((named[1][1] * worst).sum(), optimizer)
    with pytest.raises(TrainingError, match=f"norm is {poison}; the weights are unchanged"):
        optimizer.step(0.1)
    assert all(torch.equal(before[name], p) for name, p in named)
    assert all(torch.equal(a, b) for a, b in zip(masters, optimizer.masters, strict=True))
    give(named, 2, optimizer=optimizer)
    assert math.isfinite(optimizer.step(0.1))


def test_masters_come_back_from_a_checkpoint_rounded_into_the_model():
    named = parameters(torch.bfloat16)
    optimizer = MasterAdamW(named)
    kept = {name: torch.randn_like(m) for name, m in optimizer.named_masters().items()}
    optimizer.load_masters(kept)
    for name, p in named:
        assert torch.equal(optimizer.named_masters()[name], kept[name])
        rounded = torch.empty_like(p)
        narrow_(rounded, kept[name])
        assert torch.equal(p, rounded)


def test_the_first_small_update_shows_in_bfloat16_weights_that_begin_on_the_grid():
    """By a step of 1e-5, which is a fiftieth of the way from 0.1 to its neighbour: in a fiftieth of them."""
    weight = nn.Parameter(torch.full((200, 300), 0.1).bfloat16())
    start = weight.detach().clone()
    optimizer = MasterAdamW([("w", weight)])
    with optimizer.collecting():
        weight.sum().backward()
    optimizer.step(1e-5)
    moved = (weight.detach().float() - start.float()).mean().item()
    assert moved == pytest.approx(-1e-5, rel=0.05)
    assert (weight.detach() != start).float().mean().item() == pytest.approx(1e-5 / 2**-11, rel=0.05)


def test_a_model_that_shares_its_embedding_has_one_master_for_it():
    model = tiny_llama(dtype=torch.bfloat16)
    optimizer = MasterAdamW(model.trainable())
    assert sum("embed" in name or "lm_head" in name for name in optimizer.names) == 1
    assert all(m.dtype == torch.float32 for m in optimizer.masters)


def test_nothing_to_train_is_an_error():
    with pytest.raises(ValueError, match="nothing would be trained"):
        MasterAdamW([("p", nn.Parameter(torch.zeros(2), requires_grad=False))])


def test_a_gradient_with_a_row_per_token_is_added_like_any_other():
    table = nn.Parameter(torch.randn(6, 3).bfloat16())
    ids = torch.tensor([4, 1, 4])
    optimizer = MasterAdamW([("table", table)])
    for _ in range(2):
        back(nn.functional.embedding(ids, table, sparse=True).sum(), optimizer)
    expected = torch.tensor([0.0, 1.0, 0.0, 0.0, 2.0, 0.0])[:, None].expand(6, 3)
    assert torch.equal(optimizer.masters[0].grad, 2 * expected)
    plain = nn.Parameter(torch.randn(6, 3))  # its own master
    optimizer = MasterAdamW([("plain", plain)])
    back(nn.functional.embedding(ids, plain, sparse=True).sum(), optimizer)
    assert torch.equal(plain.grad, expected)


def test_what_was_collected_before_is_gone_after_a_step():
    named = parameters(torch.bfloat16)
    optimizer = MasterAdamW(named)
    give(named, 0, optimizer=optimizer)
    optimizer.step(0.1)
    grads = give(named, 1, optimizer=optimizer)
    for name, master in optimizer.named_masters().items():
        assert torch.equal(master.grad, grads[name].float())


def test_gradients_are_collected_inside_the_block_and_nowhere_else():
    named = parameters(torch.bfloat16)
    optimizer = MasterAdamW(named)
    give(named, 0, optimizer=optimizer)
    kept = {name: m.grad.clone() for name, m in optimizer.named_masters().items()}
    give(named, 1)
    assert all(p.grad is not None for _, p in named)
    assert all(torch.equal(kept[name], m.grad) for name, m in optimizer.named_masters().items())


def test_masters_are_made_again_where_weights_that_are_not_sharded_are():
    """They are made first when an optimiser in 8 bits is checked, before its weights are moved to a GPU."""
    optimizer = MasterAdamW(parameters(torch.bfloat16))
    before = [*optimizer.masters, optimizer.adam]
    optimizer.shard(REPLICATED)
    assert not any(one is other for one, other in zip(before, [*optimizer.masters, optimizer.adam], strict=True))


def test_rows_of_an_update_are_not_added_to_those_of_the_one_before():
    table = nn.Embedding(3, 2, sparse=True, dtype=torch.bfloat16)
    optimizer = MasterAdamW([("table", table.weight)])
    for row in (0, 2):
        with optimizer.collecting():
            table(torch.tensor([row, row])).sum().backward()
        assert optimizer.masters[0].grad.tolist() == [[2.0 * (number == row)] * 2 for number in range(3)]
        optimizer.discard()
