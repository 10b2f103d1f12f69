"""Replicas of a sharded learner (HSDP): four ranks, two of which hold the shards of each replica."""

import filecmp
import functools
import hashlib

import pytest
import torch

from posttrain.models.lora import Lora
from posttrain.testing.learners import EXAMPLES, check_learner
from posttrain.training.learner import POLICY, REFERENCE
from posttrain.training.ranks import ALONE
from posttrain.training.supervised import NLL, supervised_batch
from tests.distributed.test_learner_group import APART, distance, trained
from tests.distributed.test_sharding import TWO_ROWS, Shown, built, group, updated

pytest.importorskip("ray")

from posttrain.distributed.trainers import RankActors

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SHARDS = 2
LORA = Lora(2, dropout=0.5)
divided = functools.partial(group, shards=SHARDS)


@pytest.fixture(scope="module")
def actors(cluster):
    """They end with this file: the cluster has no CPUs for four more beside what other files keep."""
    with RankActors(4, timeout_s=60) as found:
        yield found


def test_replicas_keep_to_the_kit(actors, tmp_path):
    check_learner(lambda tokens: divided(actors, tokens=tokens, critic="own"), tmp_path)


@pytest.mark.parametrize(
    ("dtype", "critic", "adapter"),
    [(torch.float64, "own", None), (torch.float32, "trunk", LORA), (torch.bfloat16, "own", None)],
)
def test_replicas_compute_what_one_process_does(actors, dtype, critic, adapter):
    if adapter:
        pytest.importorskip("peft")
    more = {"dtype": dtype, "critic": critic, "adapter": adapter}
    assert distance(trained(built(ALONE, **more)), trained(divided(actors, **more))) <= APART[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_ranks_without_a_row_change_no_bit(actors, dtype):
    """Two rows: the second replica adds zeros."""
    alone, learner = built(ALONE, tokens=TWO_ROWS, dtype=dtype), divided(actors, tokens=TWO_ROWS, dtype=dtype)
    assert updated(learner) == updated(alone)


class Digested(Shown):
    """A learner that tells shards apart."""

    def digest(self) -> str:
        """Of weights, masters and moments in this process."""
        found = hashlib.sha256()
        optimizer = self._optimizers[POLICY]
        state = [value for state in optimizer.adam.state.values() for value in state.values()]
        for tensor in (*self.body.network.parameters(), *optimizer.masters, *state):
            found.update(self._shards.local(tensor.detach()).contiguous().view(-1).view(torch.uint8).numpy())
        return found.hexdigest()


def digested(ranks, **more):
    return built(ranks, kind=Digested, **more)


def test_replicas_hold_the_same_bits_after_updates(actors):
    learner = divided(actors, make=digested)
    trained(learner)
    first, second, *others = actors.all("verb", learner._number, "digest", (), {})
    assert others == [first, second] and first != second


def test_a_rank_holds_its_shard_of_a_replica(actors):
    held = []
    for learner in (group(actors, shards=1), divided(actors)):
        trained(learner, updates=1)
        learner.forward_backward(supervised_batch(EXAMPLES), NLL())  # gradients
        held.append(actors.all("verb", learner._number, "held", (), {}))
    (whole, *_), shards = held
    assert all(0.9 * whole < sum(shards[at:][:SHARDS]) < 1.1 * whole for at in (0, 2))


def test_a_checkpoint_of_replicas_is_that_of_one_process(actors, tmp_path):
    """Saved by replicas, read by one process and saved again, read by shards over all ranks and saved again."""
    folders = [tmp_path / name for name in ("replicas", "one", "shards", "again")]
    for folder in folders:
        folder.mkdir()
    more = {"dtype": torch.bfloat16, "critic": "own"}
    learners = [divided(actors, **more), built(ALONE, **more), group(actors, **more), divided(actors, **more)]
    trained(learners[0])
    learners[0].copy(POLICY, REFERENCE)
    learners[0].save(folders[0])
    for before, folder, learner in zip(folders, folders[1:], learners[1:], strict=False):
        learner.restore(before)
        learner.save(folder)
    names = sorted(path.name for path in folders[0].iterdir())
    assert {"reference.safetensors", "critic-masters.safetensors", "optimizer.json"} < set(names)
    for folder in folders[1:]:
        assert filecmp.cmpfiles(folders[0], folder, names, shallow=False) == (names, [], [])
    assert trained(learners[0]) == trained(learners[-1])
