import resource
import sys
from pathlib import Path

import pytest

from posttrain.runs.environment import available_bytes, peak_gb


def test_the_peak_is_in_gigabytes_and_stays_when_memory_is_given_back() -> None:
    before = peak_gb()
    held = bytearray(200_000_000)
    held[::4096] = b"x" * len(held[::4096])  # so that every page is really taken
    during = peak_gb()
    del held
    assert 0.02 < before <= during == pytest.approx(peak_gb(), abs=0.05)
    assert during >= 0.2


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")
def test_the_peak_is_what_the_system_says() -> None:
    with open("/proc/self/status", encoding="ascii") as file:
        kilobytes = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    assert peak_gb() == pytest.approx(kilobytes * 1024 / 1e9, rel=0.01)


@pytest.mark.parametrize("platform, bytes_each", [("linux", 1024), ("darwin", 1)])
def test_what_systems_count_in(monkeypatch: pytest.MonkeyPatch, platform: str, bytes_each: int) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert peak_gb() == pytest.approx(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * bytes_each / 1e9, rel=0.01)


def system(monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    """A machine whose files hold just this; every other one is missing."""

    def read(path: Path) -> str:
        if path.name.replace(".", "_") not in files:
            raise FileNotFoundError(path)
        return files[path.name.replace(".", "_")]

    monkeypatch.setattr(Path, "read_text", read)


def test_what_the_kernel_calls_available(monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = "MemTotal: 24000 kB\nMemFree: 100 kB\nMemAvailable:   19000 kB\n"
    system(monkeypatch, meminfo=meminfo)
    assert available_bytes() == 19000 * 1024
    system(monkeypatch, meminfo=meminfo, memory_max="max\n", memory_current="5")
    assert available_bytes() == 19000 * 1024


def test_a_container_may_have_less(monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = "MemAvailable: 19000 kB\n"
    system(monkeypatch, meminfo=meminfo, memory_max="9000000\n", memory_current="2000000\n")
    assert available_bytes() == 7_000_000
    system(monkeypatch, meminfo=meminfo, memory_max="1000", memory_current="2000")
    assert available_bytes() == 0


def test_without_such_files_it_is_what_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    system(monkeypatch)
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    assert available_bytes() == 4_096_000
