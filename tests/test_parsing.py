from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from posttrain.errors import UserError
from posttrain.options.option import POSITIONAL
from posttrain.parsing import Section, given, parse


@dataclass(frozen=True)
class Recipe:
    """What a recipe does."""

    steps: int = 3
    """How many updates."""
    lr: float = 0.5
    """The rate [1/step]."""
    model: str = "small"
    """Which one."""
    limit: int | None = None
    """The most rows."""
    out: Path | None = None
    """Where to."""
    mode: Literal["fast", "slow"] = "fast"
    """How."""
    measure: bool = True
    """Whether to measure. The source breaks this line
    after a word."""


@dataclass(frozen=True)
class Knobs:
    """The knobs of something."""

    clip: float = 0.2
    """The clip."""
    clip_high: float = 0.2
    """The other one."""

    def __post_init__(self) -> None:
        if self.clip > self.clip_high:
            raise UserError(f"clip must be at most clip_high; got {self.clip}")


@dataclass(frozen=True)
class Words:
    names: Annotated[tuple[str, ...], POSITIONAL] = ()
    loud: bool = False


def read(*argv: str, file: dict[str, Any] | None = None, forms: tuple[type, ...] = (Recipe, Knobs)) -> list[Any]:
    places = zip(forms, ("", "knobs"), strict=False)
    sections = [Section(form.__name__, form, table) for form, table in places]
    return parse(argv, sections, program="prog do", file=file or {}, origin="my.toml")


def test_defaults_then_file_then_flags():
    file = {"steps": 5, "lr": 1, "out": "there", "mode": "slow", "knobs": {"clip": 0.1}}
    recipe, knobs = read("--steps", "7", "--clip-high", "0.3", file=file)
    assert recipe == Recipe(steps=7, lr=1.0, out=Path("there"), mode="slow")
    assert knobs == Knobs(clip=0.1, clip_high=0.3)
    assert isinstance(recipe.lr, float)  # TOML's 1 is a whole number
    assert type(recipe) is Recipe and type(knobs) is Knobs


def test_all_kinds_of_flags():
    flags = "--steps=-1 --lr 1e-5 --model x/y --limit 4 --out a/b --mode slow --no-measure"
    (recipe, _) = read(*flags.split())
    assert recipe == Recipe(-1, 1e-5, "x/y", 4, Path("a/b"), "slow", False)
    assert read("--steps", "-2", "--model=--odd", "--measure")[0] == Recipe(-2, model="--odd")
    assert read("--clip_high", "0.9")[1].clip_high == 0.9  # as the field is written


def test_a_dataclass_judges_what_file_and_flags_say_together():
    assert read("--clip-high", "0.9", file={"knobs": {"clip": 0.5}})[1] == Knobs(0.5, 0.9)
    with pytest.raises(UserError, match=r"^clip must be at most clip_high; got 0\.5$"):
        read("--clip", "0.5")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--stps 3", "unknown option '--stps'; did you mean '--steps'? prog do --help-all lists all"),
        ("--zzzzzzzz 3", "unknown option '--zzzzzzzz'; prog do --help-all lists all"),
        ("--steps", "--steps needs a value: a whole number"),
        ("--steps --lr 1", "--steps needs a value: a whole number"),
        ("--steps abc", "--steps must be a whole number; got 'abc'"),
        ("--steps=1.5", "--steps must be a whole number; got '1.5'"),
        ("--steps=", "--steps must be a whole number; got ''"),
        ("--lr fast", "--lr must be a number; got 'fast'"),
        ("--limit None", "--limit must be a whole number; got 'None'"),
        ("--mode fst", "--mode must be one of fast, slow; got 'fst'"),
        ("--measure=yes", "--measure takes no value; type --measure or --no-measure"),
        ("--measure yes", "'yes' was found where an option was expected; options begin with --, see prog do --help"),
        ("--no-steps", "unknown option '--no-steps'; did you mean '--steps'? prog do --help-all lists all"),
        ("-s 3", "'-s' was found where an option was expected; options begin with --, see prog do --help"),
    ],
)
def test_a_wrong_flag_is_one_line(argv, message, capsys):
    with pytest.raises(UserError) as error:
        read(*argv.split())
    assert str(error.value) == message
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ({"stps": 3}, "unknown key in my.toml: 'stps'; did you mean 'steps'? There are: limit,"),
        ({"clip": 0.1}, "my.toml: 'clip' belongs in table [knobs]"),
        ({"knobs": {"steps": 1}}, "my.toml, table [knobs]: 'steps' belongs at the file's top, before all tables"),
        ({"grpo": {"clip": 0.1}}, "unknown table in my.toml: 'grpo'; there are [knobs]; other options are at the"),
        ({"knob": {"clip": 0.1}}, "unknown table in my.toml: 'knob'; did you mean 'knobs'? there are [knobs]; other"),
        ({"knobs": {"steps": {}}}, "my.toml, table [knobs]: 'steps' belongs at the file's top"),
        ({"knobs": {"clop": 1}}, "unknown key in my.toml, table [knobs]: 'clop'; did you mean 'clip'?"),
        ({"knobs": 3}, "my.toml: 'knobs' must be a table, [knobs]; got 3"),
        ({"steps": "3"}, "my.toml: 'steps' must be a whole number; got '3'"),
        ({"steps": True}, "my.toml: 'steps' must be a whole number; got True"),
        ({"steps": 1.0}, "my.toml: 'steps' must be a whole number; got 1.0"),
        ({"lr": True}, "my.toml: 'lr' must be a number; got True"),
        ({"measure": 1}, "my.toml: 'measure' must be true or false; got 1"),
        ({"mode": "fst"}, "my.toml: 'mode' must be one of fast, slow; got 'fst'"),
        ({"out": 1}, "my.toml: 'out' must be a path; got 1"),
    ],
)
def test_a_wrong_key_of_a_file_is_one_line(file, message):
    with pytest.raises(UserError) as error:
        read(file=file)
    assert str(error.value).startswith(message)


def test_words_without_dashes_where_a_command_takes_them():
    assert read("a", "b", "--loud", forms=(Words,)) == [Words(("a", "b"), True)]
    with pytest.raises(UserError, match="did you mean '--loud'"):
        read("a", "--lod", forms=(Words,))


def test_a_section_without_a_table_is_not_in_files():
    sections = [Section("part", Recipe, ""), Section("more", Knobs)]
    with pytest.raises(UserError, match=r"unknown key in my\.toml: 'clip'"):
        parse([], sections, program="", file={"clip": 0.1}, origin="my.toml")


def test_a_file_is_for_the_sections_that_have_a_place_in_it():
    sections = [Section("more", Knobs), Section("part", Recipe, "")]
    assert parse([], sections, program="", file={"steps": 4}, origin="") == [Knobs(), Recipe(steps=4)]


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        ("--a 1", "1"),
        ("--a=1", "1"),
        ("--a 1 --a 2", "2"),
        ("--b 1", None),
        ("--a", None),
        ("--ab 1", None),
        ("", None),
    ],
)
def test_an_option_that_is_looked_for_before_the_others(argv, found):
    assert given(argv.split(), "a") == found
