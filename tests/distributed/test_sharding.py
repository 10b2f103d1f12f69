"""Learners on sharded ranks keep to the kit, compute what one process does, and hold less."""

import errno
import filecmp
import functools
import gc
import os
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from posttrain.algorithms.algorithm import Counts
from posttrain.algorithms.ppo import PPO
from posttrain.data.packing import pack
from posttrain.errors import CheckpointError, TrainingError, UserError
from posttrain.models.lora import Lora
from posttrain.testing.learners import COUNTS, EXAMPLES, Infinite, check_learner, policy_columns
from posttrain.training import sharded_files
from posttrain.training.learner import CRITIC, POLICY, REFERENCE, Batch
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import PolicyLoss
from posttrain.training.ranks import ALONE, REPLICATED
from posttrain.training.reward import reward_gradient
from posttrain.training.supervised import NLL, supervised_batch
from tests.distributed.test_learner_group import APART, distance, trained
from tests.training.test_learner import made
from tests.training.test_reward import ODIN, PAIRS, apart_from_length

pytest.importorskip("ray")

from posttrain.distributed import sharding
from posttrain.distributed.broadcast import received
from posttrain.distributed.pool import Share
from posttrain.distributed.trainers import LearnerGroup, RankActors

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LORA = Lora(2, dropout=0.5)
TWO_ROWS = 20  # tokens of a micro-batch, of which the examples fill two


class Shown(LocalLearner):
    """A learner that says how much it holds."""

    def held(self) -> int:
        """Numbers of weights, masters, gradients and moments in this process."""
        bodies = [self.body, *(each.body for each in (*self._beside.values(), *self._references.values()))]
        tensors: list[Any] = [p for body in bodies for p in body.network.parameters()]
        for optimizer in self._optimizers.values():
            tensors += [*optimizer.masters, *(m.grad for m in optimizer.masters)]
            tensors += [value for state in optimizer.adam.state.values() for value in state.values()]
        local = [self._shards.local(tensor) for tensor in tensors if tensor is not None]
        return sum({each.data_ptr(): each.numel() for each in local}.values())


def built(ranks, *, tokens=12, kind=Shown, **more):
    """The learner of one rank."""
    learner = made(tokens, ranks=ranks, kind=kind, **more)
    learner._save_model = learner.body.save
    return learner


@pytest.fixture(params=[2, 3])
def actors(shared, request) -> RankActors:
    return shared.ranks(request.param)


def on(*sizes):
    """With so many ranks only: each costs seconds."""
    return pytest.mark.parametrize("actors", sizes, indirect=True)


def group(actors, *, shards=0, make=built, offload=False, **more):
    """A learner in so many shards for each replica; 0: over all ranks. The shards of a single rank are offloaded."""
    offload = offload or actors.size == 1
    return LearnerGroup(actors, functools.partial(make, **more), shards=shards or actors.size, offload=offload)


KIT = [(1, "trunk", LORA), (2, "trunk", None), (2, "trunk", LORA), (3, "own", None)]
COMPARED = [
    (1, torch.float32, "trunk", LORA),
    (1, torch.bfloat16, "own", None),
    (2, torch.float64, "own", None),
    (2, torch.float32, "trunk", None),
    (2, torch.bfloat16, "own", None),
    (2, torch.bfloat16, "trunk", LORA),
    (3, torch.float64, "trunk", LORA),
    (3, torch.float32, "own", None),
    (3, torch.bfloat16, "trunk", None),
]
SAVED = [(2, torch.float32, None), (2, torch.bfloat16, LORA), (3, torch.bfloat16, None)]


@pytest.mark.parametrize(("actors", "critic", "adapter"), KIT, indirect=["actors"])
def test_shards_keep_to_the_kit(actors, critic, adapter, tmp_path):
    if adapter:
        pytest.importorskip("peft")
    check_learner(lambda tokens: group(actors, tokens=tokens, critic=critic, adapter=adapter), tmp_path)


@pytest.mark.parametrize(("actors", "dtype", "critic", "adapter"), COMPARED, indirect=["actors"])
def test_shards_compute_what_one_process_does(actors, dtype, critic, adapter):
    if adapter:
        pytest.importorskip("peft")
    more = {"dtype": dtype, "critic": critic, "adapter": adapter}
    assert distance(trained(built(ALONE, **more)), trained(group(actors, **more))) <= APART[dtype]


@on(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_where_shards_are_kept_changes_nothing(actors, dtype):
    assert trained(group(actors, dtype=dtype, offload=True)) == trained(group(actors, dtype=dtype))


def updated(learner, updates=3):
    """Losses and logprobs of some updates on two rows, whose gradients are added in one order everywhere."""
    assert len(pack(EXAMPLES, TWO_ROWS)) == 2
    said = []
    for _ in range(updates):
        said.append(learner.forward_backward(supervised_batch(EXAMPLES), NLL())["loss"])
        learner.optim_step({POLICY: 1e-3})
        said.append(learner.logprobs(EXAMPLES))
    return said


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_or_none_on_each_rank_is_one_process_to_the_last_bit(actors, dtype):
    alone, learner = built(ALONE, tokens=TWO_ROWS, dtype=dtype), group(actors, tokens=TWO_ROWS, dtype=dtype)
    assert updated(learner) == updated(alone)
    with learner.offered() as offer:
        weights = dict(received(offer))
    expected = dict(alone.weights())
    assert weights.keys() == expected.keys() and all(torch.equal(weights[name], expected[name]) for name in weights)
    assert weights["model.norm.weight"].dtype == dtype


@on(3)
def test_shards_are_reproducible_to_the_last_bit(actors):
    assert trained(group(actors)) == trained(group(actors))


def dropped(learner):
    """Updates of one batch with dropout: the first computes what the later ones have kept, one more forward pass."""
    assert len(pack(EXAMPLES, 12)) == 4
    batch, said = Batch(EXAMPLES, COUNTS, tokens=policy_columns(learner), key="1", seed=1), []
    for _ in range(3):
        said += learner.forward_backward(batch, PolicyLoss(PPO(kl_coefficient=0.1), tis_cap=2.0)).values()
        said += learner.optim_step({POLICY: 1e-3, CRITIC: 1e-2}).values()
    return said


@on(3)
def test_a_dummy_pass_keeps_what_that_of_its_row_keeps(actors):
    pytest.importorskip("peft")
    more = {"dtype": torch.float64, "adapter": LORA}
    assert distance(dropped(built(ALONE, **more)), dropped(group(actors, **more))) <= APART[torch.float64]


@on(3)
def test_fewer_rows_than_ranks(actors):
    few = Batch(EXAMPLES[:1], Counts(1, 3))
    learner, alone = group(actors), built(ALONE)
    for each in (found := [], expected := []):
        which = learner if each is found else alone
        each += which.forward(few, NLL()).values()
        each += which.forward_backward(few, NLL()).values()
        each += which.optim_step({POLICY: 1e-2}).values()
        each += [value for said in which.logprobs(EXAMPLES) for value in said]
    assert distance(expected, found) <= APART[torch.float32]


def test_a_rank_holds_its_share(actors):
    held = []
    for learner in (group(actors, shards=1, critic="own"), group(actors, critic="own")):
        trained(learner, updates=1)
        learner.forward_backward(supervised_batch(EXAMPLES), NLL())  # gradients
        learner.logprobs(EXAMPLES, REFERENCE)
        held.append(actors.all("verb", learner._number, "held", (), {}))
    (whole, *_), shards = held
    assert sum(shards) < 1.01 * whole and max(shards) < 1.15 * whole / actors.size


class Loaded(Shown):
    """A learner that remembers the parameters that it was made of."""

    def __init__(self, model, *args, **more):
        self._loaded = [weakref.ref(p) for p in model.network.parameters()]
        super().__init__(model, *args, **more)

    def left(self) -> int:
        """How many of them are still in memory."""
        gc.collect()
        return sum(each() is not None for each in self._loaded)


@on(2)
def test_nothing_of_the_whole_model_is_left_beside_the_shards(actors):
    learner = group(actors, kind=Loaded)
    trained(learner, updates=1)
    assert actors.all("verb", learner._number, "left", (), {}) == [0, 0]


def test_masters_are_made_when_no_whole_weight_is_left(monkeypatch):
    """Of the last of several optimisers: a rank has no room for its model and masters."""
    seen = []
    allocate = MasterAdamW.allocate
    monkeypatch.setattr(MasterAdamW, "allocate", lambda self: (seen.append("masters"), allocate(self))[1])
    built(SimpleNamespace(shard=lambda bodies, optimizers: (seen.append("shards"), REPLICATED)[1]), critic="own")
    assert seen == ["shards", "masters", "masters"]


def test_a_loss_that_is_not_finite_is_told_of_its_examples_and_nothing_waits(actors):
    learner, other = (group(actors, tokens=9) for _ in range(2))
    with pytest.raises(TrainingError, match=r"the loss is inf for examples \[0"):
        learner.forward_backward(supervised_batch(EXAMPLES), Infinite())
    assert trained(learner) == trained(other)


@dataclass(frozen=True)
class FailsInBackward:
    """A loss whose backward pass fails in the row of the last example, below the final norm.

    By then weights outside the layers have gradients, which other ranks have not got.
    """

    reaches = (POLICY,)
    extremes = ()

    def of_row(self, row, batch, parts):
        last = len(EXAMPLES) - 1 in row.examples
        handle = parts.model.network.model.norm.register_forward_pre_hook(_failing if last else _as_ever)
        try:
            return NLL().of_row(row, batch, parts)
        finally:
            handle.remove()


def _failing(module, inputs):
    inputs[0].register_hook(_fail)


def _as_ever(module, inputs):
    pass


def _fail(gradient):
    raise KeyboardInterrupt


@on(2)
@pytest.mark.parametrize("tokens", [TWO_ROWS, 9])
def test_what_fails_in_a_backward_pass_leaves_nothing(actors, tokens):
    learner, other = (group(actors, tokens=tokens) for _ in range(2))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):  # of the rank that fails, not what the others say of it
            learner.forward_backward(supervised_batch(EXAMPLES), FailsInBackward())
    assert trained(learner) == trained(other)


@pytest.mark.parametrize(("actors", "dtype", "adapter"), SAVED, indirect=["actors"])
def test_a_checkpoint_is_that_of_one_process(actors, dtype, adapter, tmp_path):
    """Saved by shards, read by one process and saved again, read by shards and saved again: the same files."""
    if adapter:
        pytest.importorskip("peft")
    folders = [tmp_path / name for name in ("shards", "one", "again")]
    for folder in folders:
        folder.mkdir()
    learner, other = (group(actors, dtype=dtype, critic="own", adapter=adapter) for _ in range(2))
    trained(learner)
    learner.copy(POLICY, REFERENCE)
    learner.save(folders[0])
    alone = built(ALONE, dtype=dtype, critic="own", adapter=adapter)
    alone.restore(folders[0])
    alone.save(folders[1])
    other.restore(folders[1])
    other.save(folders[2])
    names = sorted(path.name for path in folders[0].iterdir())
    assert {"reference.safetensors", "critic-masters.safetensors", "optimizer.json"} < set(names)
    for folder in folders[1:]:
        assert filecmp.cmpfiles(folders[0], folder, names, shallow=False) == (names, [], [])
    assert trained(learner) == trained(other)


class Apart(Shown):
    """A learner whose ranks write their shards themselves, in many files."""

    def save(self, folder):
        """See `Learner`."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sharding, "APART_BYTES", 0)
            patch.setattr(sharded_files, "FILE_BYTES", 512)
            super().save(folder)


SHARDED = ("masters", "optimizer", "critic-masters", "critic-optimizer", "reference")


@pytest.fixture(scope="module")
def four(cluster):
    with RankActors(4, share=Share(cpus=0.25), timeout_s=60) as found:
        yield found


@pytest.mark.parametrize(("actors", "dtype"), [(2, torch.float32), (3, torch.bfloat16)], indirect=["actors"])
def test_shards_that_each_rank_writes_are_those_files(actors, shared, four, dtype, tmp_path):
    """Read by one process, by as many ranks, by another number and by replicas: all save what the ranks would."""
    more = {"dtype": dtype, "critic": "own"}
    for name in ("whole", "apart", "replicas", "by_all"):
        (tmp_path / name).mkdir()
    learner = group(actors, kind=Apart, **more)
    trained(learner)
    learner.copy(POLICY, REFERENCE)
    learner.save(tmp_path / "apart")
    whole = group(actors, **more)
    whole.restore(tmp_path / "apart")
    whole.save(tmp_path / "whole")
    assert trained(whole) == trained(learner)
    assert {path.name for path in (tmp_path / "apart").iterdir() if path.is_dir()} == set(SHARDED)
    files = sorted(path.name for path in (tmp_path / "apart").glob("critic-masters/shard-*"))
    assert len(files) > 2 * actors.size and len({name[:11] for name in files}) == actors.size
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    replicas = group(four, shards=2, kind=Apart, **more)
    replicas.restore(tmp_path / "apart")
    replicas.save(tmp_path / "replicas")
    others = group(actors, **more), group(shared.ranks(5 - actors.size), **more), built(ALONE, **more)
    for other, folder in zip(others, ("apart", "apart", "replicas"), strict=True):
        other.restore(tmp_path / folder)
        other.save(tmp_path / "by_all")
        assert filecmp.cmpfiles(tmp_path / "whole", tmp_path / "by_all", names, shallow=False) == (names, [], [])


@on(2)
def test_rows_that_are_missing_are_not_made_up(actors, tmp_path):
    learner, alone = group(actors, kind=Apart), built(ALONE)
    trained(learner)
    learner.save(tmp_path)
    middle, last = (sorted(tmp_path.glob(f"masters/shard-0000{n}-*"))[1] for n in (1, 2))
    for lost in (last, middle):  # without its last rows a tensor would only be shorter
        kept = lost.read_bytes()
        lost.unlink()
        for each in (alone, learner):
            with pytest.raises(CheckpointError, match=r"shards of 'model\..*' are missing"):
                each.restore(tmp_path)
        lost.write_bytes(kept)
    alone.restore(tmp_path)
    middle.write_bytes(b"torn")
    for each in (alone, learner):
        with pytest.raises(CheckpointError, match=r"cannot read shards from .*masters"):
            each.restore(tmp_path)


class SecondWritesElsewhere(Apart):
    """The second rank does not see the folder, and has one of its own in that place."""

    def save(self, folder):
        """See `Learner`."""
        super().save(folder if self._ranks.rank == 0 else folder.parent / "elsewhere")


@on(2)
def test_a_checkpoint_that_lacks_the_shards_of_a_rank_is_none(actors, tmp_path):
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    learner = group(actors, kind=SecondWritesElsewhere)
    with pytest.raises(CheckpointError, match="all machines must see the folder"):
        learner.save(tmp_path / "here")


class SecondIsFull(Apart):
    """The disk of the second rank is full."""

    def save(self, folder):
        """See `Learner`."""
        with pytest.MonkeyPatch.context() as patch:
            if self._ranks.rank == 1:
                patch.setattr(sharded_files.HuggingFaceStorageWriter, "write_data", _no_space)
            super().save(folder)


def _no_space(*given):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@on(2)
def test_a_full_disk_of_one_rank_is_an_error_of_no_later_call(actors, tmp_path):
    learner, other = group(actors, kind=SecondIsFull), group(actors)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left on device") as raised:
            learner.save(tmp_path)
        assert raised.value.errno == errno.ENOSPC
    assert trained(learner) == trained(other)


@on(2)
def test_a_checkpoint_that_cannot_be_written_is_an_error_of_no_later_call(actors, tmp_path):
    learner, other = (group(actors) for _ in range(2))
    with pytest.raises(FileNotFoundError):  # of the rank that writes
        learner.save(tmp_path / "missing")
    assert trained(learner) == trained(other)


def without_space(ranks, **more):
    """The disk of a rank is full, for the files in which it holds full tensors."""

    def full(fd, offset, length):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if ranks.rank == 0:  # the one that writes
        sharding.os = SimpleNamespace(posix_fallocate=full)
    return built(ranks, **more)


def with_space(ranks, **more):
    sharding.os = os
    return built(ranks, **more)


@on(2)
def test_a_full_disk_where_weights_are_gathered_is_an_error_of_no_later_call(actors, tmp_path):
    learner, other = LearnerGroup(actors, without_space, shards=2), group(actors)
    try:
        for _ in range(2):
            with pytest.raises(OSError, match="No space left on device"):
                learner.save(tmp_path)
            with pytest.raises(OSError, match="No space left on device"), learner.offered():
                raise AssertionError("nothing is offered")
    finally:
        LearnerGroup(actors, with_space, shards=2)
    assert trained(learner) == trained(other)
    with learner.offered():
        pass


def built_reward(ranks):
    """Of a model with one row for a head, and another for the length that is outside its network."""
    model = apart_from_length()
    return LocalLearner(model, MasterAdamW(model.trainable()), microbatch_tokens=12, body=model.body, ranks=ranks)


def test_a_reward_model_with_fewer_rows_than_ranks(actors):
    said = []
    for learner in (built_reward(ALONE), LearnerGroup(actors, built_reward, shards=actors.size)):
        found = []
        for _ in range(3):
            found += reward_gradient(learner, PAIRS, ODIN).values()
            found += learner.optim_step({POLICY: 1e-2}).values()
        said.append([*found, *(score for of in learner.scores(EXAMPLES) for score in of)])
    assert distance(*said) <= 1e-12


def in_two_formats(ranks):
    model = made(12).body
    model.network.model.norm.bfloat16()
    return LocalLearner(model, MasterAdamW(model.trainable()), microbatch_tokens=12, ranks=ranks)


@on(2)
def test_a_network_in_two_number_formats_is_refused(actors):
    with pytest.raises(UserError, match="the weights of 'tiny' are in 2 number formats and cannot be sharded"):
        LearnerGroup(actors, in_two_formats, shards=2)
