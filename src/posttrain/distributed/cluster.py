"""The Ray cluster that this process is connected to, what runs there as an actor, and how that answers."""

import contextlib
import functools
import importlib
import os
import socket
import stat
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from posttrain.errors import EngineError, PosttrainError, UserError, described, first_line
from posttrain.models.precision import default_device, fastest

try:
    ray: Any = importlib.import_module("ray")
except ImportError:  # an extra: one process needs none
    ray = None

INSTALL = "runs on several processes need Ray; type: pip install 'posttrain[cluster]'"
ERROR = 40  # as in `logging`
PROXIES = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
PROXIES |= {"no_proxy": "127.0.0.1,localhost", "NO_PROXY": "127.0.0.1,localhost"}
_CONNECTED: list[str] = []  # the address of the cluster that `connect` has connected to
REACH_S = 10.0  # that a cluster may take to accept a connection
SIOCGIFADDR = 0x8915  # of Linux: the address of a network interface
LOCAL, AUTO, LOOPBACK = "local", "auto", "127.0.0.1"
LONGER = " (`cluster_timeout`, if its work takes longer)"


def connect(address: str = "", cpus: float = 0.0, begins: Callable[[], None] | None = None) -> bool:
    """Connect to a cluster, unless this process is connected to one that lives; whether it did.

    `address` is `local`, which starts one that only this machine can reach with these `cpus` at least (Ray counts them,
    and binds nothing to them), `auto` for the one that runs here, HOST:PORT or `ray://HOST:PORT`; "" for the one that
    this process is connected to, else `local`. `begins` is called before that, since it takes seconds. Raises
    `UserError` if there is none. Nothing is reported to Ray's makers.
    """
    if ray is None:
        raise UserError(INSTALL)
    if ray.is_initialized():
        known = _CONNECTED[-1] if _CONNECTED else address
        if address not in ("", known):
            raise UserError(f"this process is already connected to the Ray cluster '{known}'; leave out `address`")
        if known != LOCAL or any(node["Alive"] for node in ray.nodes()):
            return False
        disconnect()  # a local cluster whose only node is gone
    if begins is not None:
        begins()
    address = address or LOCAL
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    quiet = {"log_to_driver": False, "logging_level": ERROR}  # it warns of its own defaults
    if address == LOCAL:
        count = max(os.cpu_count() or 1, -int(-cpus // 1))
        # Ray listens on all addresses, except where firewalls ask about that (Windows, macOS): there on the loopback's
        constants: Any = importlib.import_module("ray._private.ray_constants")
        constants.ENABLE_RAY_CLUSTER = False
        os.environ.setdefault("RAY_worker_niceness", "0")  # it is 15 else, and any other job of the machine goes first
        try:
            with _processes():
                ray.init(address=LOCAL, num_cpus=count, include_dashboard=False, **quiet)
        except Exception as error:  # of no type of its own, such as where a busy machine lets Ray wait too long
            raise UserError(f"Ray could not start on this machine: {first_line(error)}") from error
        _CONNECTED.append(address)
        return True
    try:
        _reach(address)
        ray.init(address=address, **quiet)
    except OSError as error:  # nobody listens, or there is no such machine
        raise UserError(
            f"there is no Ray cluster at address '{address}'; start one with ray start, or set RAY_AUTH_MODE=token for "
            "one that asks for a token"
        ) from error
    _CONNECTED.append(address)
    return True


def _reach(address: str) -> None:
    """Raise `OSError` if nobody listens at an address, for which Ray would look for minutes."""
    if address == AUTO:
        # as `ray.init` finds it; one that has died is found, too
        services: Any = importlib.import_module("ray._private.services")
        address = os.environ.get("RAY_ADDRESS") or services.canonicalize_bootstrap_address(AUTO) or ""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()


@contextlib.contextmanager
def _processes() -> Iterator[None]:
    """Have Ray's processes that start in the block ask a closed port for pages by HTTP, and in groups of their own.

    Ray asks the metadata services of clouds where it runs, although it reports nothing. A signal to the command's group
    of processes, as `timeout` sends it, would end them before the run is saved.
    """
    services: Any = importlib.import_module("ray._private.services")
    start = getattr(services, "ConsolePopen", None)  # private: a version of Ray without it starts, too
    before = {name: os.environ[name] for name in PROXIES if name in os.environ}
    os.environ |= PROXIES
    if start is not None and os.name == "posix":
        services.ConsolePopen = functools.partial(start, process_group=0)
    try:
        yield
    finally:
        for name in PROXIES:
            del os.environ[name]
        os.environ |= before
        if start is not None:
            services.ConsolePopen = start


def disconnect() -> None:
    """Leave the cluster; one that was started ends."""
    _CONNECTED.clear()
    ray.shutdown()


def own_address() -> str:
    """The address of this node, as the cluster knows it."""
    mine = ray.get_runtime_context().get_node_id()
    return next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == mine)


def use_own_interface() -> None:
    """Have gloo and NCCL use the network that the cluster does; by itself gloo takes that of the host's name."""
    if name := interface_of(own_address()):
        os.environ |= {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}


def interface_of(address: str) -> str:
    """The network interface of this machine with that IPv4 address; "" where the system does not say."""
    if address == LOOPBACK:
        return socket.if_indextoname(1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(ImportError, OSError):
                fcntl = importlib.import_module("fcntl")
                found = fcntl.ioctl(asked.fileno(), SIOCGIFADDR, name.encode().ljust(256, b"\0"))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return ""


class Lost(EngineError):
    """A process that is gone, or that does not answer."""


class Answer(NamedTuple):
    """What a method of an actor returned, or raised, which Ray would wrap in an error of its own."""

    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        """The value; raises the error, where there is one."""
        if self.error is not None:
            raise self.error
        return self.value


class Process:
    """The base of what runs as an actor, number `place` of `size` of its kind; torch uses so many threads."""

    kind: ClassVar[str]  # what it is called
    _logged = False  # in a file of a run

    def __init__(self, place: int, size: int, threads: int) -> None:
        torch.set_num_threads(threads)
        self.place, self.size = place, size

    def work_in(self, folder: str) -> None:
        """Have relative paths mean here what they mean to the command; unless this machine has no such folder."""
        with contextlib.suppress(OSError):
            os.chdir(folder)

    def precision(self, asked: str) -> tuple[str, str]:
        """The number format that `auto` stands for in this process, and why it was chosen."""
        if asked != "auto":
            return asked, "`precision`"
        found = fastest(default_device())
        return str(found.dtype).removeprefix("torch."), found.reason

    def log_to(self, file: Path) -> None:
        """Append what this process writes, and has written, to a file; Ray's logs have it where there is no folder."""
        if not file.parent.is_dir():
            return
        streams, self._logged, first = (sys.stdout, sys.stderr), True, not self._logged
        with open(file, "ab") as log:
            log.write(
                f"process {os.getpid()} on {socket.gethostname()}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode()
            )
            for stream in streams:
                stream.flush()
                log.writelines(_written(stream.fileno()) if first else ())
            log.flush()
            for stream in streams:
                os.dup2(log.fileno(), stream.fileno())

    def call(self, method: str, args: Sequence[Any]) -> Answer:
        """Call a method."""
        try:
            return Answer(getattr(self, method)(*args))
        except (Exception, KeyboardInterrupt) as error:  # SystemExit, of a signal, ends the process
            if not isinstance(error, PosttrainError):
                error.add_note(traceback.format_exc())  # which is not sent with it
            return Answer(error=_sendable(error))


def _sendable(error: BaseException) -> BaseException:
    """The error, or a `RuntimeError` that says the same if pickling fails: to Ray that is the loss of the process."""
    try:
        ray.cloudpickle.loads(ray.cloudpickle.dumps(error))
        return error
    except Exception:
        told = RuntimeError(described(error))
        for note in getattr(error, "__notes__", ()):
            told.add_note(note)
        return told


def _written(stream: int) -> list[bytes]:
    """The lines that this process has written to a file; without those that Ray writes for itself."""
    with contextlib.suppress(OSError), open(f"/proc/self/fd/{stream}", "rb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return [line for line in file if not line.startswith(b":")]
    return []
