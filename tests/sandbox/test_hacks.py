"""No program passes a test without solving its task, as root and as nobody, and the explanation says what happened."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from posttrain.sandbox import refuse_without_isolation
from tests.sandbox.hacks import HACKS, verdicts

SOLVED = "def double(x): return x + x"


def wrong(found: dict[str, list[object]]) -> list[str]:
    """Hacks that passed a test, or whose explanation does not say what happened."""
    told = {name: (passed, str(why)) for name, (passed, why) in found.items()}
    return [
        f"{name}: {told[name]}"
        for name, hack in HACKS.items()
        if told[name][0] or hack.told not in told[name][1] or not told[name][1].strip(" |")
    ]


def test_there_are_at_least_40_and_none_succeeds() -> None:
    assert len(HACKS) >= 40
    assert wrong(verdicts(HACKS)) == []


@pytest.mark.skipif(os.getuid() != 0 or not Path("/usr/bin/python3").exists(), reason="only root can become nobody")
def test_none_succeeds_as_nobody(tmp_path: Path) -> None:
    """By the system's Python: that of a virtual environment may be in a home folder."""
    root = tmp_path if str(tmp_path).startswith("/root") else Path(__file__).parents[2]
    wrapper = refuse_without_isolation()
    command = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "/usr/bin/python3"]
    places = {"PATH": f"{Path(wrapper).parent}:/usr/bin:/bin", "PYTHONPATH": f"{root}/src:{root}"}
    able = subprocess.run([*command, "-c", "import posttrain.sandbox"], env=places, capture_output=True, cwd="/")
    if able.returncode or not shutil.which("setpriv"):
        pytest.skip("nobody cannot read this folder, or the system's Python is older than 3.11")
    places["PYTHONDONTWRITEBYTECODE"] = "1"
    ran = subprocess.run([*command, f"{root}/tests/sandbox/hacks.py"], env=places, capture_output=True, cwd="/")
    assert ran.returncode == 0, ran.stderr.decode()
    assert wrong(json.loads(ran.stdout)) == []
