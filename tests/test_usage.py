"""`--help` fits a screen and says what is used most; `--help-all` says everything."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import pytest

from posttrain.algorithms import ALGORITHMS
from posttrain.algorithms import COMMANDS as FAMILY_COMMANDS
from posttrain.cli import main
from posttrain.commands import COMMANDS
from posttrain.options.hyperparameters import field_docstrings
from posttrain.options.option import POSITIONAL, Form, Range
from posttrain.parsing import Section, flag
from posttrain.usage import MOST_LINES, TOPICS, WIDTH, brief, page, shown

MANY = 12
"""Options from which on a form says which of them `--help` shows."""


@dataclasses.dataclass(frozen=True)
class Base:
    """What several recipes have."""

    HELP: ClassVar[Mapping[str, str]] = {"run": "seed", "data": "rows"}
    rows: int = 3
    """Rows of a batch; more take
    longer."""
    seed: int = 0
    """Seed."""
    hidden: float = 0.5
    """What few need."""


@dataclasses.dataclass(frozen=True)
class Recipe(Base):
    """What it does."""

    HELP: ClassVar[Mapping[str, str]] = {"model": "lr", "data": "limit rows"}
    limit: int | None = None
    """The most rows. All unless given."""
    seed: int = 1
    lr: float = 1e-5
    """Peak [1/step]."""


@dataclasses.dataclass(frozen=True)
class Knobs:
    """Those of an algorithm."""

    clip: float = 0.2
    clip_high: float = 0.3


def helped(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The lines of what a command prints."""
    capsys.readouterr()
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out.splitlines()


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


ASKED = [name.split() for name in COMMANDS] + [
    [command, "--algorithm", name]
    for name in ALGORITHMS
    for family in [FAMILY_COMMANDS[ALGORITHMS[name]().family]]
    for command in (family, *(["online-preference"] if family == "preference" else []))
]


@pytest.mark.parametrize("words", ASKED, ids=" ".join)
def test_help_of_every_command_fits_a_screen_and_no_text_is_cut(words, capsys):
    lines = helped(capsys, *words, "--help")
    assert len(lines) <= MOST_LINES and max(map(len, lines)) <= WIDTH
    assert not [line for line in lines if "..." in line], "begin the text under the field with a shorter sentence"
    name = words[0] if "--algorithm" in words else " ".join(words)
    assert lines[0].startswith(f"usage: posttrain {name}")
    assert lines[-1].startswith(f"posttrain {name} --help-all shows ")
    for line in lines[lines.index("") + 1 : -1]:
        assert line.startswith("  ") or line.endswith(":"), line


@pytest.mark.parametrize("name", COMMANDS)
def test_options_that_help_shows_are_named_beside_their_form_by_topic(name):
    form = COMMANDS[name].form
    fields = [field.name for field in dataclasses.fields(form)]
    named = [field for names in shown(form).values() for field in names]
    assert set(named) <= set(fields) and len(named) == len(set(named))
    assert shown(form).keys() <= set(TOPICS)
    assert named or len(fields) <= MANY


@pytest.mark.parametrize("name", COMMANDS)
def test_help_all_has_every_option_and_help_those_that_are_named(name, capsys):
    form = COMMANDS[name].form
    fields = [field.name for field in dataclasses.fields(form) if field.name not in ("runs", "name", "file")]
    everything = "\n".join(helped(capsys, *name.split(), "--help-all"))
    options = [flag(field) for field in (*fields, *COMMANDS[name].shared, "debug")]
    assert [option for option in options if option not in everything] == []
    listed = "\n".join(helped(capsys, *name.split(), "--help"))
    named = [field for names in shown(form).values() for field in names] or fields
    assert all(f"  {flag(field)} " in listed for field in named)


def test_h_is_help(capsys):
    assert helped(capsys, "rl", "-h") == helped(capsys, "rl", "--steps", "3", "--help")
    assert helped(capsys, "--help-all") == helped(capsys, "--help")
    assert helped(capsys, "models", "--help-all") == helped(capsys, "models", "-h")


def test_help_shows_what_a_file_says(capsys, tmp_path):
    (tmp_path / "a.toml").write_text("steps = 7\n[knobs]\nclip_low = 0.1\n")
    lines = helped(capsys, "rl", "--config", str(tmp_path / "a.toml"), "--help")
    assert any("--steps INT" in line and line.endswith("(default: 7)") for line in lines)
    assert any("--clip-low 0.1" in line for line in lines)


def read(*sections: Section, width: int = WIDTH) -> list[str]:
    values: list[Mapping[str, Any]] = [{} for _ in sections]
    return page("prog do", "It does.", sections, values, width=width).splitlines()


def test_topics_come_in_order_with_those_of_the_form_itself_first():
    assert read(Section("do", Recipe, ""), Section("some", Knobs, "knobs", compact=True)) == [
        "usage: prog do [OPTIONS]",
        "It does.",
        "",
        "data:",
        "  --limit INT  The most rows",
        "  --rows INT   Rows of a batch (default: 3)",
        "model:",
        "  --lr FLOAT   Peak [1/step] (default: 1e-05)",
        "run:",
        "  --seed INT   Seed (default: 1)",
        "some (posttrain explain some):",
        "  --clip 0.2  --clip-high 0.3",
        "prog do --help-all shows 1 more option, and all texts in full.",
    ]


def test_a_form_that_names_none_shows_all():
    @dataclasses.dataclass(frozen=True)
    class Small:
        """Small."""

        file: Annotated[str, POSITIONAL] = ""
        """The file."""
        loud: bool = False
        """Whether to shout."""
        told: bool = True
        """Whether to tell."""

    assert read(Section("do", Small, ""), Section("general", Knobs)) == [
        "usage: prog do FILE [OPTIONS]",
        "It does.",
        "",
        "options:",
        "  FILE               The file",
        "  --loud             Whether to shout",
        "  --told             Whether to tell (default: on)",
        "  --clip FLOAT       (default: 0.2)",
        "  --clip-high FLOAT  (default: 0.3)",
        "prog do --help-all shows all texts in full.",
    ]


def test_all_options_in_full_by_group_with_their_range():
    @dataclasses.dataclass(frozen=True)
    class Group(Form):
        """A group."""

        lr: Annotated[float, Range(0)] = 0.5
        """Peak learning rate. The source breaks this line
        after a word."""

    @dataclasses.dataclass(frozen=True)
    class Form2(Group):
        """The form."""

        lr: Annotated[float, Range(0, 1)] = 0.1
        """Peak learning rate."""
        name: str = ""
        """A name."""

    values = [{"name": "a"}, {}]
    sections = [Section("do", Form2, ""), Section("some", Knobs, "")]
    lines = page("prog do", "It does.", sections, values, full=True, width=60)
    assert lines.splitlines() == [
        "usage: prog do [OPTIONS]",
        "It does.",
        "",
        "The form:",
        "  --name TEXT",
        "      A name. (default: a)",
        "",
        "A group:",
        "  --lr FLOAT",
        "      Peak learning rate. Range: 0 to 1. (default: 0.1)",
        "",
        "Those of an algorithm:",
        "  --clip FLOAT",
        "      (default: 0.2)",
        "  --clip-high FLOAT",
        "      (default: 0.3)",
    ]


def test_a_narrow_terminal_gets_more_lines_and_no_shorter_texts():
    wide, narrow = (read(Section("do", Recipe, ""), width=columns) for columns in (WIDTH, 30))
    assert max(map(len, narrow)) <= 30 and len(narrow) > len(wide)
    assert " ".join(" ".join(narrow).split()) == " ".join(" ".join(wide).split())


def test_knobs_are_wrapped():
    lines = read(Section("some", Knobs, "knobs", compact=True), width=20)
    assert lines[-5:-3] == ["  --clip 0.2", "  --clip-high 0.3"]


def test_a_text_that_is_too_long_is_cut_at_a_word():
    assert brief("One two three. Four.", 13) == "One two three" and brief("One two three. Four.", 12) == "One two..."


def test_texts_of_fields_are_those_of_the_class_that_declares_them_last():
    assert field_docstrings(Recipe) == {
        "rows": "Rows of a batch; more take longer.",
        "seed": "Seed.",
        "hidden": "What few need.",
        "limit": "The most rows. All unless given.",
        "lr": "Peak [1/step].",
    }
