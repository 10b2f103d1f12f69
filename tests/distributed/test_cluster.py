"""Actors of a cluster: what is said of one that is lost, where its output is, and which processes are ended."""

import contextlib
import importlib
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import psutil
import pytest
import torch

from posttrain.errors import ProcessLost, UserError
from tests.distributed.fakes import pids

pytest.importorskip("ray")

import ray

from posttrain.distributed import cluster
from posttrain.distributed import pool as module
from posttrain.distributed.cluster import LOOPBACK, Lost, Process, connect, interface_of
from posttrain.distributed.pool import Pool, Share

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def without_processes(**known):
    """What is left of actors where nothing is started."""
    found = object.__new__(Pool)
    vars(found).update({"kind": "trainer", "_logs": None, "_handles": [SimpleNamespace()], **known})
    return found


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory.\nIt had"),
            "low on mem",
        ),
        (ray.exceptions.ActorDiedError(), "died"),
        (ray.exceptions.NodeDiedError("node 1 is gone"), "node 1 is gone"),
        (ray.exceptions.RayError(), "RayError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_one_that_ray_has_ended_is_lost(error, says, monkeypatch):
    def get(call):
        raise error

    monkeypatch.setattr(module.ray, "get", get)
    found = without_processes()._answer(0, "call", True, 1.0).error
    assert isinstance(found, Lost) and "\n" not in str(found)
    assert str(found).startswith("trainer 0 died: ") and says in str(found)


def test_what_fails_in_rays_part_of_an_actor_is_raised_as_it_is(monkeypatch):
    def get(call):
        raise ray.exceptions.RayTaskError("call", "of a fault that we made", ValueError("a"))

    monkeypatch.setattr(module.ray, "get", get)
    with pytest.raises(ray.exceptions.RayTaskError):
        without_processes()._answer(0, "call", True, 1.0)


class Two(Exception):
    """Is pickled without its second argument, so that it cannot be read."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


class Fails(Process):
    def two(self):
        raise Two("out of", "memory")

    def locked(self):
        error = ValueError("out of memory")
        error.lock = threading.Lock()
        raise error

    def usual(self):
        raise KeyError("a")


@pytest.mark.parametrize(
    ("method", "kind", "says"),
    [
        ("two", RuntimeError, "Two: out of memory"),
        ("locked", RuntimeError, "ValueError: out of memory"),
        ("usual", KeyError, "'a'"),
    ],
)
def test_an_error_that_cannot_be_sent_is_said_and_is_no_loss_of_the_process(method, kind, says):
    answer = pickle.loads(pickle.dumps(Fails(0, 1, torch.get_num_threads()).call(method, ())))  # as Ray sends it
    with pytest.raises(kind) as raised:
        answer.result()
    assert type(raised.value) is kind and str(raised.value) == says
    assert "Traceback" in raised.value.__notes__[0] and method in raised.value.__notes__[0]


def test_a_cluster_that_has_died_is_not_waited_for(monkeypatch):
    """`auto` finds the address of one that was killed, too; Ray would ask there for minutes."""
    monkeypatch.setattr(cluster, "_CONNECTED", [])
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **settings: pytest.fail("Ray looks for it"))
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray._private.services.canonicalize_bootstrap_address", lambda addr: f"127.0.0.1:{port}")
    for address in ("auto", f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(UserError, match=f"there is no Ray cluster at address '{address}'; start one"):
            connect(address)


@pytest.mark.parametrize("known", ["", "ray://nosuch.invalid:10001"])
def test_a_machine_that_does_not_exist_is_named(known, monkeypatch):
    """`auto` is what RAY_ADDRESS says, where it says something."""
    monkeypatch.setattr(cluster, "_CONNECTED", [])
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **settings: pytest.fail("Ray looks for it"))
    monkeypatch.setenv("RAY_ADDRESS", known)
    address = "auto" if known else "nosuch.invalid:6379"
    with pytest.raises(UserError, match=f"there is no Ray cluster at address '{address}'"):
        connect(address)


def test_a_cluster_that_cannot_start_is_one_line(monkeypatch):
    def init(**settings):
        raise Exception("The current node timed out during startup.\nThis could happen")  # as Ray raises it

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)
    with pytest.raises(UserError, match=r"^Ray could not start on this machine: The current .*startup$"):
        connect()


@pytest.mark.parametrize(
    ("bundle", "gpus", "says"),
    [
        ({"CPU": 1.0, "GPU": 1.0}, 0.0, "1 talker of 1 CPU, 1 GPU does not fit; .* in all; pass `talker_gpus` 0$"),
        ({"CPU": 1.0, "GPU": 1.0}, 1.0, "in all. Two processes share a GPU with `sampler_gpus=0.5`$"),
        ({"CPU": 9.0}, 1.0, "does not fit; the cluster has 4 CPU in all$"),
    ],
)
def test_what_has_no_room_says_what_to_change(bundle, gpus, says, monkeypatch):
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 4.0, "GPU": gpus})
    assert re.search(says, without_processes(kind="talker", size=1, _bundle=bundle)._no_room())


def test_a_process_has_one_cluster_at_a_time(cluster):
    assert not connect()  # the one that it has
    with pytest.raises(UserError, match="already connected to the Ray cluster 'local'"):
        connect("127.0.0.1:6379")


def test_the_interface_of_an_address_is_that_which_the_system_names():
    assert interface_of(LOOPBACK) == socket.if_indextoname(1)
    assert interface_of("203.0.113.7") == ""  # of documentation
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family == socket.AF_INET and not each.address.startswith("127."):
                assert interface_of(each.address) == name


class Talker(Process):
    """Says something, as a library or the interpreter does."""

    kind = "talker"

    def say(self, line):
        print(line)
        os.write(2, f"{line} as an error\n".encode())

    def fail(self):
        raise ValueError("of a talker")

    def folder(self):
        return os.getcwd()


@pytest.fixture(scope="module")
def talkers(cluster):
    found = Pool(Talker, 2)
    yield found
    found.stop()


def asked(talkers, place, method, *args):
    return talkers.collect({place: talkers.call(place, method, *args)}, 60)[place]


def test_the_output_of_a_process_and_of_its_replacement_is_in_the_run(talkers, tmp_path):
    asked(talkers, 0, "say", "before")
    talkers.log_in(tmp_path / "logs")
    asked(talkers, 0, "say", "within")
    first = pids(talkers)[0]
    os.kill(first, signal.SIGKILL)
    error = asked(talkers, 0, "say", "never").error
    assert str(error).endswith(f"; its output is in {tmp_path / 'logs/talker-0.log'}")
    talkers.restart(0)
    asked(talkers, 0, "say", "after")
    lines = (tmp_path / "logs/talker-0.log").read_text().splitlines()
    words = [line.partition(",")[0].partition(" on ")[0] for line in lines]
    second = pids(talkers)[0]
    told = [f"process {first}", "before", "before as an error", "within", "within as an error"]
    assert words == [*told, f"process {second}", "after", "after as an error"]
    assert f"process {first}" not in (tmp_path / "logs/talker-1.log").read_text()


def test_processes_and_what_replaces_them_work_in_the_folder_of_the_command(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = Pool(Talker, 1, share=Share(0.25))
    monkeypatch.undo()
    assert asked(found, 0, "folder").result() == str(tmp_path)
    found.restart(0)
    assert asked(found, 0, "folder").result() == str(tmp_path)
    here = asked(found, 0, "work_in", f"{tmp_path}/missing")  # of a machine that does not have it
    assert here.error is None and asked(found, 0, "folder").result() == str(tmp_path)
    found.stop()


def test_a_process_that_hears_nothing_is_ended_when_it_is_replaced(cluster):
    found = Pool(Talker, 1, share=Share(0.25))
    (first,) = pids(found)
    os.kill(first, signal.SIGSTOP)
    found.restart(0)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(first).wait(30)
    assert pids(found) != [first]
    found.stop()


def test_processes_of_one_node_are_neighbours(cluster, monkeypatch):
    """So that the shards of one replica are on one node."""
    strategies, bundles = importlib.import_module("ray.util.scheduling_strategies"), []
    placed = strategies.PlacementGroupSchedulingStrategy

    def noted(group, placement_group_bundle_index):
        bundles.append(placement_group_bundle_index)
        return placed(group, placement_group_bundle_index=placement_group_bundle_index)

    table = {"bundles_to_node_id": {0: "b", 1: "a", 2: "b", 3: "a"}}
    monkeypatch.setattr("ray.util.placement_group_table", lambda group: table)
    monkeypatch.setattr(strategies, "PlacementGroupSchedulingStrategy", noted)
    Pool(Talker, 4, share=Share(0.1)).stop()
    assert bundles == [0, 2, 1, 3]


def test_processes_have_the_priority_of_the_command(talkers):
    assert {psutil.Process(pid).nice() for pid in pids(talkers)} == {os.nice(0)}


def test_a_folder_that_a_machine_does_not_see_is_not_written_to(talkers, tmp_path):
    asked(talkers, 1, "log_to", tmp_path / "missing/talker-1.log")
    assert asked(talkers, 1, "say", "something").error is None and not (tmp_path / "missing").exists()


def test_an_error_has_a_note_of_where_it_was_raised(talkers):
    error = asked(talkers, 1, "fail").error
    assert isinstance(error, ValueError) and "in fail" in error.__notes__[0] and "test_cluster.py" in error.__notes__[0]


def test_a_replacement_without_room_ends_all_processes(monkeypatch):
    actors = without_processes(_group=SimpleNamespace(wait=lambda seconds: False), _bundle={"CPU": 1.0})
    monkeypatch.setattr(module.ray, "kill", lambda handle: None)
    with pytest.raises(ProcessLost, match=r"trainer 0 lost its node, and no other has room for 1 CPU$"):
        actors.restart(0)


def test_actors_that_are_stopped_while_one_is_replaced_start_no_more(monkeypatch):
    ended = []
    actors = without_processes(_handles=["a"], _group=SimpleNamespace(wait=lambda seconds: actors.stop() or True))
    monkeypatch.setattr(module.ray, "kill", ended.append)
    monkeypatch.setattr(actors, "_start", lambda place: pytest.fail("started"))
    monkeypatch.setattr(module.ray.util, "remove_placement_group", lambda group: None)
    with pytest.raises(ProcessLost, match="trainer 0 has been stopped"):
        actors.restart(0)
    with pytest.raises(ProcessLost, match="trainer 0 has been stopped"):
        actors.restart(0)
    assert ended == ["a", "a"]


def test_two_threads_that_find_a_loss_end_each_process_once(monkeypatch):
    ended, other = [], []

    def kill(handle):
        ended.append(handle)
        if handle == "a":  # meanwhile
            actors.stop()
            with pytest.raises(ProcessLost, match="trainer 1 has been stopped"):
                actors.call(1, "verb")
            other.append(actors.running)

    actors = without_processes(_handles=["a", "b"], _group="group")
    monkeypatch.setattr(module.ray, "kill", kill)
    monkeypatch.setattr(module.ray.util, "remove_placement_group", lambda group: ended.append(group))
    actors.stop()
    assert ended == ["a", "b", "group"] and other == [0]


GPUS = """
import json, os, ray
from posttrain.distributed.cluster import Process
from posttrain.distributed.pool import Pool, Share

class Seer(Process):
    kind = "seer"

    def sees(self):
        return os.environ["CUDA_VISIBLE_DEVICES"]

ray.init(address="local", num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False, logging_level=40)
found = []
for size, gpus in ((2, None), (2, 0.0), (2, 0.5)):
    actors = Pool(Seer, size, share=Share(0.5, gpus))
    found.append([actors.ask(place, "sees") for place in range(size)])
    actors.stop()
print(json.dumps(found))
ray.shutdown()
"""


def test_a_process_sees_the_gpus_that_are_reserved_for_it_and_no_others():
    """Ray counts GPUs that are not there, and names them to each process."""
    environment = os.environ | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"CUDA_VISIBLE_DEVICES": "0,1"}
    done = subprocess.run([sys.executable, "-c", GPUS], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    whole, none, halves = json.loads(done.stdout.splitlines()[-1])
    assert sorted(whole) == ["0", "1"] and none == ["", ""] and halves[0] == halves[1] in ("0", "1")


@pytest.mark.parametrize(("has", "asked", "reserved"), [(8.0, None, 1.0), (8.0, 0.5, 0.5), (0.0, None, 0.0)])
def test_a_gpu_is_reserved_where_there_are_any(has, asked, reserved, monkeypatch):
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 4.0, "GPU": has})
    assert Share(2.0, asked).bundle() == {"CPU": 2.0} | ({"GPU": reserved} if reserved else {})


def test_a_node_has_the_memory_that_is_reserved(cluster, monkeypatch):
    monkeypatch.setattr(module, "PLACED_S", 2.0)
    has = ray.cluster_resources()["memory"] / 1e9
    with pytest.raises(UserError, match=rf"1 CPU, {2 * has:.1f} GB of memory does not fit; .* {has:.1f} GB of mem"):
        Pool(Talker, 1, share=Share(memory_gb=2 * has))
    actors = Pool(Talker, 1, share=Share(memory_gb=has / 2))
    try:
        assert pids(actors)
        assert ray.available_resources()["memory"] / 1e9 <= has / 2 + 0.1
    finally:
        actors.stop()
