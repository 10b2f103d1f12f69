import resource
import sys

import pytest

from posttrain.monitoring.memory import peak_gb


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
