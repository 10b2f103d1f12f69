import subprocess
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from posttrain.runs.run_directory import EventFile


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    shown = EventAccumulator(str(folder), purge_orphaned_data=True)
    shown.Reload()
    return [(event.step, event.value) for event in shown.Scalars(name)]


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    events = EventFile(tmp_path)
    events.scalars(1, {"reward/mean": 0.25, "tokens": 100})
    events.scalars(2, {"reward/mean": 0.5})
    assert curve(tmp_path, "reward/mean") == [(1, 0.25), (2, 0.5)]  # before it is closed
    events.close()
    assert curve(tmp_path, "tokens") == [(1, 100.0)]


def test_tensorboard_forgets_what_is_done_again(tmp_path: Path) -> None:
    events = EventFile(tmp_path)
    for step in (1, 2, 3, 4):
        events.scalars(step, {"loss": float(step)})
    events.restart(3)
    events.scalars(3, {"loss": 30.0})
    events.close()
    assert curve(tmp_path, "loss") == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_run_directories_and_reports_are_imported_without_torch() -> None:
    code = (
        "import sys, posttrain.runs, posttrain.report; sys.exit('torch' in sys.modules or 'tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
