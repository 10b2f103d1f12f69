"""The Ray cluster that this process is connected to, and the address of this machine in it."""

import contextlib
import functools
import importlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

from posttrain.errors import UserError, first_line

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


def connect(address: str = "", cpus: float = 0.0, begins: Callable[[], None] | None = None) -> bool:
    """Connect to a cluster, unless this process is connected to one that lives. Nothing is reported to Ray's makers.

    Args:
        address: `local` starts one that only this machine can reach, `auto` finds the one that runs here, or HOST:PORT
            or `ray://HOST:PORT`; "" is the one that this process is connected to, else `local`.
        cpus: logical CPUs of a cluster that is started, at least; Ray counts them, and binds nothing to them.
        begins: called before a cluster is connected to, which takes seconds.

    Returns:
        Whether a cluster was connected to; `disconnect` leaves it.

    Raises:
        UserError: Ray is not installed, there is no cluster at the address, or this process is connected to another.
    """
    if ray is None:
        raise UserError(INSTALL)
    if ray.is_initialized():
        known = _CONNECTED[-1] if _CONNECTED else address
        if address not in ("", known):
            raise UserError(f"this process is connected to the Ray cluster '{known}', and to one at a time")
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
            with _without_proxies(), _in_own_groups():
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
def _without_proxies() -> Iterator[None]:
    """Have processes that start in the block ask a closed port of this machine for pages by HTTP.

    Ray asks the metadata services of clouds where it runs, although it reports nothing.
    """
    before = {name: os.environ.get(name) for name in PROXIES}
    os.environ |= PROXIES
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _in_own_groups() -> Iterator[None]:
    """Have each of Ray's processes that start in the block in a process group of its own.

    A signal to the command's group, as `timeout` sends it, would otherwise end them before the run is saved.
    """
    services: Any = importlib.import_module("ray._private.services")
    before = getattr(services, "ConsolePopen", None)  # private: a version of Ray without it starts, too
    if before is None or os.name != "posix":
        yield
        return
    services.ConsolePopen = functools.partial(before, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = before


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
