"""Learners of several processes keep to the kit, and compute what one process does."""

import functools
import gc
import os
import signal
import threading
import time
from dataclasses import dataclass

import pytest
import torch
from safetensors import SafetensorError

from posttrain.algorithms.algorithm import Counts
from posttrain.algorithms.ppo import PPO
from posttrain.errors import ProcessLost, TrainingError, UserError
from posttrain.models.lora import Lora
from posttrain.testing.learners import COUNTS, EXAMPLES, Infinite, Interrupted, check_learner, policy_columns
from posttrain.training.learner import CRITIC, POLICY, Batch
from posttrain.training.policy import PolicyLoss
from posttrain.training.ranks import ALONE
from posttrain.training.supervised import NLL, supervised_batch
from tests.distributed.fakes import of_each, pids
from tests.training.test_learner import made

pytest.importorskip("ray")

from posttrain.distributed import trainers
from posttrain.distributed.trainers import LearnerGroup, RankActors

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def built(ranks, *, tokens, **more):
    """The learner of one rank."""
    return made(tokens, ranks=ranks, **more)


@pytest.fixture(params=[1, 2, 3])
def actors(shared, request) -> RankActors:
    return shared.ranks(request.param)


@pytest.mark.parametrize("size", [1, 2])
def test_a_single_rank_runs_no_collectives(size):
    """Those of gloo run in its own threads, whose OpenMP teams slow the rank's own."""
    rank = trainers.Rank(0, size, torch.get_num_threads())
    rank._group = "a process group"
    rank.build(0, lambda ranks: ranks, shards=1)
    assert rank._learners[0] == (ALONE if size == 1 else "a process group")


def test_the_group_keeps_to_the_kit(actors, tmp_path):
    check_learner(lambda tokens: LearnerGroup(actors, functools.partial(built, tokens=tokens)), tmp_path)


APART = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 1e-3}
"""How far apart numbers of several ranks and of one process may be, relative to those above 1; measured, with room."""


def trained(learner, updates=3):
    """Everything that some updates of policy and critic on two batches say."""
    said = []
    for step in range(updates):
        batch = Batch(EXAMPLES, COUNTS, tokens=policy_columns(learner), key=str(step // 2))
        metrics = learner.forward_backward(batch, PolicyLoss(PPO(kl_coefficient=0.1), tis_cap=2.0))
        metrics |= learner.optim_step({POLICY: 1e-3, CRITIC: 1e-2})
        said += [value for name, value in sorted(metrics.items())]
    said += learner.forward(supervised_batch(EXAMPLES), NLL()).values()
    said += [value for tokens in learner.logprobs(EXAMPLES) for value in tokens]
    return said + [value for tokens in learner.values(EXAMPLES) for value in tokens]


def distance(one, other):
    return max(abs(a - b) / max(1.0, abs(a)) for a, b in zip(one, other, strict=True))


@functools.cache
def of_one_process(**more):
    return trained(built(ALONE, tokens=12, **more))


@pytest.mark.parametrize("dtype", APART, ids=str)
@pytest.mark.parametrize("adapter", [False, True], ids=["whole", "adapter"])
@pytest.mark.parametrize("critic", ["trunk", "own"])
def test_it_computes_what_one_process_does(actors, dtype, adapter, critic):
    if adapter:
        pytest.importorskip("peft")
    more = {"dtype": dtype, "critic": critic, "adapter": Lora(2, dropout=0.5) if adapter else None}
    alone = of_one_process(**more)
    group = trained(LearnerGroup(actors, functools.partial(built, tokens=12, **more)))
    if actors.size == 1:
        assert group == alone
    else:
        assert distance(alone, group) <= APART[dtype]


def test_it_is_reproducible_to_the_last_bit(actors):
    make = functools.partial(built, tokens=12)
    assert trained(LearnerGroup(actors, make)) == trained(LearnerGroup(actors, make))


@dataclass(frozen=True)
class Where:
    """A loss that says in which process each row was computed."""

    reaches = (POLICY,)
    extremes = ()

    def of_row(self, row, batch, parts):
        share = NLL().of_row(row, batch, parts)
        return share._replace(metrics={f"in {os.getpid()}": torch.ones(len(row.examples))})


def test_each_rank_computes_rows_of_its_own(actors):
    learner = LearnerGroup(actors, functools.partial(built, tokens=12))
    found = learner.forward_backward(supervised_batch(EXAMPLES), Where())
    assert len([name for name in found if name.startswith("in ")]) == actors.size
    few = learner.forward_backward(Batch(EXAMPLES[:1], Counts(1, 3)), Where())  # the others have none
    assert len([name for name in few if name.startswith("in ")]) == 1


@pytest.mark.parametrize("loss", [Infinite(), Interrupted()], ids=["infinite", "interrupted"])
def test_what_fails_on_one_rank_fails_the_call_and_no_later_one(actors, loss):
    make = functools.partial(built, tokens=9)
    learner, other = (LearnerGroup(actors, make) for _ in range(2))
    with pytest.raises((TrainingError, KeyboardInterrupt)):
        learner.forward_backward(supervised_batch(EXAMPLES), loss)
    assert trained(learner) == trained(other)


@pytest.mark.parametrize("sign", [signal.SIGKILL])
def test_a_rank_that_is_killed_ends_all_with_one_error(cluster, sign):
    with RankActors(2, timeout_s=20) as actors:
        learner = LearnerGroup(actors, functools.partial(built, tokens=12))
        pids = [int(name.split()[1]) for name in learner.forward(supervised_batch(EXAMPLES), Where()) if "in " in name]
        os.kill(pids[1], sign)
        for _ in range(2):
            with pytest.raises(TrainingError, match="trainer 1 died"):
                learner.forward_backward(supervised_batch(EXAMPLES), NLL())
    assert_gone(pids)


def assert_gone(pids):
    for _ in range(100):
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return
        time.sleep(0.1)
    raise AssertionError(f"some of the processes {pids} are still there")


def test_a_rank_that_wakes_after_the_others_gave_up_ends_with_them(cluster):
    """It is stopped for longer than they wait, and answers while the call may still take."""
    with RankActors(2, timeout_s=4) as actors:
        learner = LearnerGroup(actors, functools.partial(built, tokens=12))
        lost = pids(actors)
        os.kill(lost[1], signal.SIGSTOP)
        began = time.monotonic()
        waking = threading.Timer(6.0, os.kill, (lost[1], signal.SIGCONT))
        waking.start()
        with pytest.raises(ProcessLost, match="a trainer lost its connection to the others"):
            learner.forward_backward(supervised_batch(EXAMPLES), NLL())
        assert 5.9 < time.monotonic() - began < 4 + trainers.SLOWER_S
        with pytest.raises(ProcessLost, match="a trainer lost its connection to the others"):
            learner.optim_step({POLICY: 1e-3})
        waking.join()
    assert_gone(lost)


def test_a_checkpoint_that_cannot_be_written_is_an_error_at_once_and_of_no_later_call(actors, tmp_path):
    make = functools.partial(built, tokens=12)
    learner, other = (LearnerGroup(actors, make) for _ in range(2))
    began = time.monotonic()
    with pytest.raises(SafetensorError):  # of the rank that writes
        learner.save(tmp_path / "missing")
    assert time.monotonic() - began < 30 and trained(learner) == trained(other)


def test_a_learner_that_nobody_holds_is_freed_in_its_ranks(actors):
    learner = LearnerGroup(actors, functools.partial(built, tokens=12))
    gc.collect()  # those of other tests
    before = of_each(actors, lambda rank: len(rank._learners))
    del learner
    assert [number - 1 for number in before] == of_each(actors, lambda rank: len(rank._learners))


def test_more_ranks_than_a_cluster_has_room_for_are_an_error(cluster, monkeypatch):
    monkeypatch.setattr("posttrain.distributed.pool.PLACED_S", 2.0)
    with pytest.raises(UserError, match=r"100 trainers of .* do not fit; the cluster has 16 CPU"):
        RankActors(100)


def test_a_restored_learner_goes_on_on_another_number_of_ranks(shared, tmp_path):
    make = functools.partial(built, tokens=12, dtype=torch.float64)
    learner = LearnerGroup(shared.ranks(2), make)
    trained(learner)
    learner.save(tmp_path)
    expected, other = trained(learner), LearnerGroup(shared.ranks(1), make)
    other.restore(tmp_path)
    assert distance(expected, trained(other)) <= APART[torch.float64]
