import json

import pytest
import torch
from torch import nn

from posttrain.errors import CheckpointError
from posttrain.training.adam import optimizer_state, restore_optimizer
from posttrain.training.checkpoint import load_tensors, save_tensors


def network(seed: int = 0, width: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))


def adamw(model: nn.Module, **options) -> torch.optim.AdamW:
    """Two groups whose order is not that of the names: matrices decay, vectors do not."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.03, betas=(0.8, 0.95), eps=1e-7, **options)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    model(inputs).square().sum().backward()
    optimizer.step()


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"amsgrad": True}])
def test_restored_run_continues_bit_for_bit(tmp_path, options):
    model = network()
    optimizer = adamw(model, **options)
    for seed in range(4):
        update(model, optimizer, seed)
    tensors, numbers = optimizer_state(optimizer, named(model))
    save_tensors(tmp_path / "optimizer.safetensors", tensors)
    text = json.dumps(numbers)
    save_tensors(tmp_path / "model.safetensors", model.state_dict())

    again = network(seed=1)
    again.load_state_dict(load_tensors(tmp_path / "model.safetensors"))
    other = torch.optim.AdamW(adamw(again).param_groups, lr=1.0)  # other settings, to be replaced
    for group in other.param_groups:
        group.update(lr=9.0, betas=(0.1, 0.2), eps=1.0, weight_decay=5.0)
    restore_optimizer(other, named(again), load_tensors(tmp_path / "optimizer.safetensors"), json.loads(text))
    for seed in range(4, 7):
        update(model, optimizer, seed)
        update(again, other, seed)
        for (name, ours), theirs in zip(model.named_parameters(), again.parameters(), strict=True):
            assert torch.equal(ours, theirs), name
    for ours, theirs in zip(optimizer.param_groups, other.param_groups, strict=True):
        assert {k: v for k, v in ours.items() if k != "params"} == {k: v for k, v in theirs.items() if k != "params"}


def test_before_the_first_step_there_is_no_state_and_that_comes_back_too():
    model = network()
    tensors, numbers = optimizer_state(adamw(model), named(model))
    assert tensors == {}
    used = adamw(model)
    update(model, used, 0)
    restore_optimizer(used, named(model), tensors, numbers)
    assert not used.state


def test_restored_state_does_not_share_memory_with_what_was_read():
    model = network()
    optimizer = adamw(model)
    update(model, optimizer, 0)
    tensors, numbers = optimizer_state(optimizer, named(model))
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    again = network()
    other = adamw(again)
    restore_optimizer(other, named(again), kept, numbers)
    update(again, other, 1)
    for name, tensor in tensors.items():
        assert torch.equal(kept[name], tensor), name


def saved() -> tuple[dict[str, torch.Tensor], dict]:
    model = network()
    optimizer = adamw(model)
    update(model, optimizer, 0)
    return optimizer_state(optimizer, named(model))


def test_tensor_names_say_parameter_and_kind():
    tensors, _ = saved()
    kinds = ("exp_avg", "exp_avg_sq", "step")
    assert set(tensors) == {f"{name}/{kind}" for name in ("0.weight", "0.bias", "2.weight", "2.bias") for kind in kinds}


def test_other_parameters_are_refused_and_nothing_is_changed():
    tensors, numbers = saved()
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Tanh(), nn.Linear(3, 2))
    optimizer = adamw(model)
    with pytest.raises(CheckpointError, match="has the parameters in other groups"):
        restore_optimizer(optimizer, named(model), tensors, numbers)
    assert not optimizer.state


def test_other_grouping_is_refused():
    tensors, numbers = saved()
    model = network()
    with pytest.raises(CheckpointError, match="in other groups or another order"):
        restore_optimizer(torch.optim.AdamW(model.parameters()), named(model), tensors, numbers)


@pytest.mark.parametrize("change", [lambda n: n.popitem(), lambda n: n.update(more=nn.Parameter(torch.zeros(1)))])
def test_names_must_cover_exactly_what_the_optimiser_holds(change):
    model = network()
    names = named(model)
    change(names)
    with pytest.raises(ValueError, match="the same objects"):
        optimizer_state(adamw(model), names)
