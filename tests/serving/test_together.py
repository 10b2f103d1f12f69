"""Gradients of several clients in one pass, against those that each client's `Trainer` computes alone.

Agreement is the Euclidean norm of the difference over that of what the client gets alone: of its whole gradient, of the
logprobs of each datum, and of the loss. In float64 every matrix agrees far closer, which no mistake would.
"""

import math
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.errors import TrainingError
from posttrain.models.fused import checkpoint_layers
from posttrain.models.mixed_adapters import LowRank
from posttrain.serving import together
from posttrain.serving.losses import Datum, loss_of
from posttrain.serving.together import Member, forward_backward_together
from posttrain.serving.trainer import Output, Trainer
from tests.clients import KINDS, mixed, own_network
from tests.tiny import tiny_llama

AGREE = 1e-5
PROMPT = [4 + i % 30 for i in range(17)]
SEQUENCES = [[*PROMPT, 5, 6], [*PROMPT, 7, 8, 9], [*PROMPT], [9, 8, 7], [2], [9, 8, 7, 11, 2, 30]]
LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo")


def datum(tokens, loss, seed=0, targets=1):
    """Columns of small random numbers, and targets that need not follow the tokens."""
    g = np.random.default_rng([seed, len(tokens)])
    shape = (len(tokens), targets) if targets > 1 else (len(tokens),)
    columns = {"weights": g.normal(size=shape)}
    if loss != "cross_entropy":
        columns |= {"logprobs": -3.5 + g.normal(size=shape) / 4, "advantages": g.normal(size=shape)}
    if loss == "gspo":
        columns["sequence_ratio_mask"] = np.ones(shape)
    found = {name: np.asarray(column, dtype=np.float32) for name, column in columns.items()}
    return Datum(tuple(tokens), g.integers(0, 40, size=shape), found)


def batch_of(numbers, loss, seed=0, targets=1):
    """Datums and their loss."""
    data = [datum(SEQUENCES[number], loss, seed + place, targets) for place, number in enumerate(numbers)]
    return data, loss_of(loss, {}, set(data[0].columns), data[0].targets.ndim)


class Clients:
    """Trainers of one base: of each kind of adapter, in each place of a batch, one for a joint pass and one alone."""

    def __init__(self, model):
        self.mixed = mixed(model)
        self.model, self._made = model, {}

    def of(self, kind, place, alone, microbatch_tokens=64):
        key = kind, place, alone
        if key not in self._made:
            network = own_network(self.model, KINDS[kind], seed=10 * place + kind + 1)
            self._made[key] = Trainer(network, microbatch_tokens=64)
        found = self._made[key]
        found.optimizer.discard()
        found._microbatch_tokens = microbatch_tokens
        return found

    def member(self, kind, place, batch, *, backward=True, microbatch_tokens=64):
        lora = KINDS[kind]
        return Member(self.of(kind, place, False, microbatch_tokens), lora.scaled / lora.rank, *batch, backward)


@cache
def clients(dtype=torch.float32):
    return Clients(tiny_llama(dtype=dtype))


def gradients(trainer):
    return {name: None if m.grad is None else m.grad.clone() for name, m in trainer.optimizer.named_masters().items()}


def gap(found, expected):
    """The norm of a difference over that of what is expected."""
    one, other = (torch.as_tensor(x).double() for x in (found, expected))
    norm = other.norm().item()
    return (one - other).norm().item() / (norm or 1.0)


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in other)


def assert_agrees(output, trainer, expected, alone, within=AGREE, of_matrix=10 * AGREE):
    assert gap(output.loss, expected.loss) <= within
    for found, each in zip(output.logprobs, expected.logprobs, strict=True):  # in float32 in any case
        assert found.shape == each.shape and gap(found, each) <= max(within, 1e-6)
    ours, theirs = gradients(trainer), gradients(alone)
    assert ours.keys() == theirs.keys()
    assert all((ours[name] is None) == (grad is None) for name, grad in theirs.items())
    if all(grad is None for grad in theirs.values()):
        return
    assert gap(*(torch.cat([grad.flatten() for grad in each.values()]) for each in (ours, theirs))) <= within
    for name, grad in theirs.items():
        assert gap(ours[name], grad) <= of_matrix, name


def test_a_client_in_a_batch_of_its_own_gets_the_same_bits():
    everyone, batch = clients(), batch_of([0, 1, 3], "ppo")
    member, alone = everyone.member(0, 0, batch), everyone.of(0, 0, True)
    no_network: Any = None  # it is computed by its own
    (output,) = forward_backward_together(no_network, [member], microbatch_tokens=64)
    expected = alone.forward_backward(*batch)
    assert output.loss == expected.loss and same(gradients(member.trainer), gradients(alone))


def test_tokens_may_have_several_targets_and_those_of_another_client_one():
    everyone = clients()
    batches = batch_of([3, 0, 1], "cross_entropy", targets=3), batch_of([0, 3], "dro"), batch_of([0], "cross_entropy")
    members = [everyone.member(place, place, batch) for place, batch in enumerate(batches)]
    outputs = forward_backward_together(everyone.mixed, members, microbatch_tokens=200)
    for place, (member, output) in enumerate(zip(members, outputs, strict=True)):
        alone = everyone.of(place, place, True)
        assert_agrees(output, member.trainer, alone.forward_backward(*batches[place]), alone)


def test_one_row_has_sequences_of_several_clients_that_share_no_prefix(monkeypatch):
    """Their keys differ where their tokens are equal; those of one client are shared."""
    everyone, rows, place_targets = clients(), [], together.place_targets
    monkeypatch.setattr(together, "place_targets", lambda row, data: rows.append(row) or place_targets(row, data))
    batches = [batch_of(numbers, "cross_entropy") for numbers in ([0, 1], [1, 2], [3, 3])]
    members = [everyone.member(0, place, batch) for place, batch in enumerate([*batches, batches[2]])]
    forward_backward_together(everyone.mixed, members, microbatch_tokens=200)
    (row,) = rows
    # a sequence without a prefix that is worth sharing still shares its opening with the next one of the same client
    assert [(prefix, len(branches)) for prefix, branches in row.families] == [(17, 2), (16, 2), (2, 2), (2, 2)]
    assert row.examples == list(range(8))


def test_under_gradient_checkpointing_gradients_have_the_same_bits():
    """Layers are computed again in the backward pass, by the adapters of the same row."""
    everyone, found = clients(), []
    for lean in (False, True):
        model = mixed(everyone.model)
        if lean:
            assert checkpoint_layers(model.network) == 2
        members = [everyone.member(place, place, batch_of([0, 1, 5], "ppo", seed=place)) for place in range(3)]
        forward_backward_together(model, members, microbatch_tokens=40)
        found.append([gradients(member.trainer) for member in members])
    assert all(same(one, other) for one, other in zip(*found, strict=True))


def test_in_bfloat16_the_sum_of_base_and_adapter_is_rounded_once_as_alone():
    """A part of the adapter that was rounded before the sum would differ in every layer."""
    everyone = clients(torch.bfloat16)
    batches = [batch_of([0, 1, 5], "cross_entropy", seed=place) for place in range(3)]
    members = [everyone.member(place, place, batch) for place, batch in enumerate(batches)]
    outputs = forward_backward_together(everyone.mixed, members, microbatch_tokens=200)
    for place, (member, output) in enumerate(zip(members, outputs, strict=True)):
        alone = everyone.of(place, place, True)
        assert_agrees(output, member.trainer, alone.forward_backward(*batches[place]), alone, within=2e-3)


def infinite(logprobs_N, columns, row_N):
    return logprobs_N.sum() * math.inf


def infinite_gradient(logprobs_N, columns, row_N):
    return (logprobs_N - logprobs_N.detach()).sum() * 3e38 * 10.0


def error(logprobs_N, columns, row_N):
    raise RuntimeError("out of memory")


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    ("fault", "raises"),
    [(infinite, TrainingError), (infinite_gradient, TrainingError), (error, RuntimeError)],
)
def test_if_one_client_fails_no_gradient_changes(fault, raises, place, before):
    """Rows have few tokens, so that those of others were added before, or would be later."""
    everyone = clients()
    batches = [batch_of([0, 1, 5], "cross_entropy", seed=number) for number in range(3)]
    batches[place] = batches[place][0], SimpleNamespace(of_row=fault)
    members = [everyone.member(number, number, batch) for number, batch in enumerate(batches)]
    if before:
        for member in members:
            member.trainer.forward_backward(*batch_of([3, 5], "cross_entropy", seed=7))
    expected = [gradients(member.trainer) for member in members]
    with pytest.raises(raises):
        forward_backward_together(everyone.mixed, members, microbatch_tokens=20)
    for member, each in zip(members, expected, strict=True):
        found = gradients(member.trainer)
        assert same(found, each) if before else all(grad is None for grad in found.values())


def test_a_loss_that_is_not_finite_without_a_backward_pass_ends_the_joint_pass_too():
    everyone, data = clients(), batch_of([0, 1], "cross_entropy")[0]
    wrong = SimpleNamespace(of_row=infinite)
    members = [everyone.member(0, 0, batch_of([0], "ppo")), everyone.member(1, 1, (data, wrong), backward=False)]
    with pytest.raises(TrainingError, match="not finite"):
        forward_backward_together(everyone.mixed, members, microbatch_tokens=64)
    assert all(grad is None for grad in gradients(members[0].trainer).values())


def test_an_adapter_that_fails_in_a_backward_pass_leaves_nothing_behind(monkeypatch):
    everyone, calls, of_layer = clients(), [], LowRank.of_layer

    def failing(adapter, path, x_MD):
        calls.append(path)
        if len(calls) > 40:
            raise RuntimeError("out of memory")
        return of_layer(adapter, path, x_MD)

    monkeypatch.setattr(LowRank, "of_layer", failing)
    members = [everyone.member(0, place, batch_of([0, 1, 5], "ppo", seed=place)) for place in range(3)]
    with pytest.raises(RuntimeError, match="memory"):
        forward_backward_together(everyone.mixed, members, microbatch_tokens=20)
    assert all(grad is None for member in members for grad in gradients(member.trainer).values())
    monkeypatch.undo()
    outputs = forward_backward_together(everyone.mixed, members, microbatch_tokens=20)  # nothing is placed any more
    assert all(math.isfinite(output.loss) for output in outputs)


asked = st.lists(
    st.tuples(
        st.integers(0, len(KINDS) - 1),
        st.sampled_from(LOSSES),
        st.lists(st.integers(0, len(SEQUENCES) - 1), min_size=1, max_size=5),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize(
    # in float64 the gradient of a shared prefix is summed in float32, in an order that depends on how rows are cut
    ("dtype", "within"),
    [(torch.float32, (AGREE, 10 * AGREE)), (torch.float64, (1e-6, 1e-6))],
    ids=["32", "64"],
)
@settings(deadline=None, max_examples=30)
@given(asked=asked, microbatch_tokens=st.sampled_from([20, 40, 200]))
def test_each_client_gets_what_it_gets_alone(dtype, within, asked, microbatch_tokens):
    """Whatever ranks, scales, layers and losses, and however rows are cut; some had a gradient before."""
    everyone, members, expected = clients(dtype), [], []
    for place, (kind, loss, numbers, backward, before) in enumerate(asked):
        batch = batch_of(numbers, loss, seed=place)
        members.append(everyone.member(kind, place, batch, backward=backward, microbatch_tokens=microbatch_tokens))
        alone = everyone.of(kind, place, True, microbatch_tokens)
        if before:
            for trainer in (members[-1].trainer, alone):
                trainer.forward_backward(*batch_of([3, 5], "cross_entropy", seed=7))
        untouched = gradients(alone)
        expected.append((alone, alone.forward_backward(*batch, backward=backward), untouched))
    outputs = forward_backward_together(everyone.mixed, members, microbatch_tokens=microbatch_tokens)
    for member, output, (alone, each, untouched) in zip(members, outputs, expected, strict=True):
        assert_agrees(output, member.trainer, each, alone, *within)
        if not member.backward:
            ours = gradients(member.trainer)
            assert all(ours[name] is g or torch.equal(ours[name], g) for name, g in untouched.items())


def test_logprobs_that_are_no_numbers_are_refused_though_no_loss_reads_them():
    finite, other = (Output(0.0, [np.array([number, -1.0])]) for number in (-2.0, np.nan))
    together._refuse_infinite([], [finite])
    with pytest.raises(TrainingError, match="not finite"):
        together._refuse_infinite([], [finite, other])
