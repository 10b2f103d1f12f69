import doctest
import io
import re
import sys

import pytest

from posttrain.runs import progress as module
from posttrain.runs.progress import Progress, announce


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


def run(clock: Clock, seconds: list[float], **options) -> list[str]:
    """The lines that steps taking so many seconds print."""
    file = io.StringIO()
    start = options.pop("start", 0)
    with Progress("rl", options.pop("total", len(seconds)), start=start, file=file, clock=clock, **options) as progress:
        for n, taken in enumerate(seconds, start=start + 1):
            clock.now += taken
            progress.step(n, reward=n / 10)
    return file.getvalue().splitlines()


def test_the_first_line_comes_with_the_first_step_and_the_last_with_the_last(clock: Clock) -> None:
    lines = run(clock, [4.0] * 10, every_seconds=15)
    assert lines == [
        "rl 1/10  elapsed 0:04  left 0:36  reward 0.1",
        "rl 5/10  elapsed 0:20  left 0:20  reward 0.5",
        "rl 9/10  elapsed 0:36  left 0:04  reward 0.9",
        "rl 10/10  elapsed 0:40  reward 1",
    ]


@pytest.mark.parametrize(
    ("typed", "option", "name"),
    [(True, "--lora-rank 16", "--precision"), (False, "`lora_rank=16`", "`precision`")],
)
def test_what_is_said_names_parameters_as_flags_where_a_command_was_typed(
    clock: Clock, capsys: pytest.CaptureFixture[str], typed: bool, option: str, name: str
) -> None:
    file, before = io.StringIO(), module.TYPED.set(typed)
    with Progress("rl", 1, quiet=True, file=file, clock=clock) as progress:
        progress.say("type `lora_rank=16`")
    module.announce("float32 (`precision`)")
    module.TYPED.reset(before)
    assert file.getvalue() == f"type {option}\n"
    assert capsys.readouterr().err == f"float32 ({name})\n"


def test_the_time_left_follows_the_recent_pace(clock: Clock) -> None:
    """After 40 quick steps and 20 slow ones, 10 more will be slow."""
    lines = run(clock, [1.0] * 40 + [60.0] * module.RECENT_STEPS, total=70, every_seconds=0)
    assert "elapsed 20:40  left 10:00" in lines[-1]


def test_a_resumed_run_counts_only_the_steps_it_made(clock: Clock) -> None:
    lines = run(clock, [10.0], start=30, total=40, every_seconds=0)
    assert lines == ["rl 31/40  elapsed 0:10  left 1:30  reward 3.1"]


def test_the_time_left_shrinks_within_a_step(clock: Clock) -> None:
    file = io.StringIO()
    with Progress("rl", 3, file=file, clock=clock, every_seconds=0) as progress:
        clock.now += 30
        progress.step(1)
        for taken in (10, 60):
            clock.now += taken
            progress.tokens(1)
    lefts = [line.partition("left ")[2] for line in file.getvalue().splitlines()]
    assert lefts == ["1:00", "0:50", "0:00"]  # never below 0


def test_tokens_are_counted_within_a_phase(clock: Clock) -> None:
    file = io.StringIO()
    with Progress("rl", 4, file=file, clock=clock, every_seconds=10) as progress:
        for _ in range(2):
            with progress.phase("rollout") as rollout:
                clock.now += 5
                progress.tokens(1000)
                clock.now += 5
                progress.tokens(2000)
            progress.tokens(7)
            assert rollout.tokens == 3000
    assert file.getvalue().splitlines() == [
        "rl 0/4  elapsed 0:05  rollout 1,000 tokens, 200/s",
        "rl 0/4  elapsed 0:15  rollout 1,000 tokens, 200/s",
    ]


def test_quiet_prints_nothing_but_what_must_be_known(clock: Clock) -> None:
    assert run(clock, [60.0] * 3, quiet=True) == []
    file = Terminal()
    with Progress("rl", 1, quiet=True, file=file, clock=clock) as progress:
        progress.say("skipped damaged checkpoint")
        progress.step(1)
    assert file.getvalue() == "skipped damaged checkpoint\n"


def test_a_terminal_gets_a_bar_and_keeps_the_last_line(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    file = Terminal()
    with Progress("rl", 2, file=file, clock=clock) as progress:
        clock.now += 7
        progress.step(1, reward=0.25)
        progress.say("checkpoint [saved]")
    text = file.getvalue()
    assert re.search(r"rl\S* \S*[━╸]", text)  # the bar has the run's name before it
    assert "━" in text and "checkpoint [saved]" in text  # a name in brackets is not markup
    assert text.splitlines()[-1].endswith("rl 1/2  elapsed 0:07  left 0:07  reward 0.25")


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    file = Terminal()
    with Progress("rl", 1, file=file, clock=clock) as progress:
        progress.step(1)
    assert file.getvalue() == "rl 1/1  elapsed 0:00\n"


def test_what_is_announced_is_said_unless_it_is_to_be_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    announce("on [a] CPU", quiet=True)
    assert capsys.readouterr() == ("", "")
    announce("on [a] CPU")
    assert capsys.readouterr() == ("", "on [a] CPU\n")


def test_everything_goes_to_standard_error(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("rl", 1, clock=clock) as progress:
        progress.step(1)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("rl 1/1")


def test_a_long_line_is_not_broken(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    file = io.StringIO()
    with Progress("rl", 1, file=file, clock=clock) as progress:
        progress.step(1, **{f"number_{i}": 0.123 for i in range(10)})
    assert len(file.getvalue().splitlines()) == 1


def test_docstring_examples_run() -> None:
    results = doctest.testmod(module, extraglobs={"sys": sys})
    assert results.failed == 0 and results.attempted >= 2
