"""Environments by name: classes in files, entry points of packages, arguments by their types, and mistakes."""

import re
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from posttrain.environments import Environment, user_methods
from posttrain.environments.user_methods import load_environment
from posttrain.errors import UserError

FILE = """
from dataclasses import dataclass, field
from posttrain.environments import Environment
from posttrain.errors import UserError


@dataclass
class Game(Environment):
    name: str = "a"
    count: int = 3
    share: float = 0.5
    fast: bool = False
    given: "int" = None
    hidden: int = field(default=1, init=False)


class Plain(Environment):
    def __init__(self, count: int, text="x", many: float = 2, size=1, other: list = None):
        self.count, self.text, self.many, self.size, self.other = count, text, many, size, other
        if count < 0:
            raise ValueError("count is below 0")
        if count == 0:
            raise UserError("give a count above 0")


class Seated(Environment):
    seats = ("one", "two")
    trained = ("one", "tow")


def function():
    return Game()
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "game.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)


def made(name, arguments=""):
    found = load_environment(f"game.py:{name}", arguments)
    return {key: value for key, value in vars(found).items() if key != "hidden"}


def test_arguments_are_read_as_the_types_of_the_parameters():
    assert made("Game") == {"name": "a", "count": 3, "share": 0.5, "fast": False, "given": None}
    words = "name='two words' count=12 share=1e-3 fast=True given=7"
    assert made("Game", words) == {"name": "two words", "count": 12, "share": 1e-3, "fast": True, "given": 7}
    assert made("Game", "fast=false name=a=b")["name"] == "a=b"
    found = made("Plain", "count=4 text=5 many=2.5 size=7 other=[1]")
    assert found == {"count": 4, "text": "5", "many": 2.5, "size": 7, "other": "[1]"}


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("game.py:Gme", "", "did you mean 'Game'"),
        ("game.py:function", "", "is no subclass of posttrain.environments.Environment; write class function("),
        ("nowhere.py:Game", "", "nowhere.py"),
        ("game.py:Seated", "", "unknown trained seat of the environment 'game.py:Seated': 'tow'; did you mean 'two'?"),
        ("game.py:Game", "cuont=3", "'cuont'; did you mean 'count'? There are: count, fast, given, name, share"),
        ("game.py:Game", "hidden=3", "unknown argument of the environment 'game.py:Game': 'hidden'"),
        (
            "game.py:Game",
            "count=3.5",
            "argument count of the environment 'game.py:Game' is '3.5'; expected a whole num",
        ),
        ("game.py:Game", "share=x", "'x'; expected a number"),
        ("game.py:Game", "fast=1", "'1'; expected true or false"),
        (
            "game.py:Game",
            "count",
            "cannot read 'count' in the arguments of the environment 'game.py:Game'; expected KEY",
        ),
        ("game.py:Game", "name='a", "cannot read the arguments \"name='a\" of the environment 'game.py:Game'"),
        (
            "game.py:Plain",
            "",
            "the environment 'game.py:Plain' needs the argument count, a whole number; give count=VALUE",
        ),
        ("game.py:Plain", "count=-1", "cannot be created: ValueError: count is below 0"),
        ("game.py:Plain", "count=0", "give a count above 0"),
    ],
)
def test_mistakes_say_what_is_there(name, words, said):
    with pytest.raises(UserError, match=re.escape(said)):
        load_environment(name, words)


def test_what_the_class_itself_refuses_is_said_as_it_says_it():
    with pytest.raises(UserError) as refused:
        load_environment("game.py:Plain", "count=0")
    assert str(refused.value) == "give a count above 0"


@dataclass
class Offered(Environment):
    count: int = 1


def test_a_package_may_offer_environments_by_name(monkeypatch):
    there = EntryPoint("offered", f"{__name__}:Offered", user_methods.GROUP)
    broken = EntryPoint("broken", "no_such_module:X", user_methods.GROUP)
    asked = []
    monkeypatch.setattr(user_methods, "entry_points", lambda group: asked.append(group) or [there, broken])
    assert load_environment("offered", "count=4") == Offered(4) and asked == ["posttrain.environments"]
    with pytest.raises(UserError, match="unknown environment 'ofered'; did you mean 'offered'"):
        load_environment("ofered")
    with pytest.raises(UserError, match="the environment 'broken' cannot be imported: ModuleNotFoundError"):
        load_environment("broken")


def test_an_object_or_a_class_is_an_environment_and_arguments_may_be_a_mapping():
    given = Offered(7)
    assert load_environment(given) is given and load_environment(Offered, {"count": 4}) == Offered(4)
    assert made("Plain", {"count": 4, "many": 3}) == {"count": 4, "text": "x", "many": 3.0, "size": 1, "other": None}
    for wrong, said in [
        ((given, "count=2"), "the environment 'Offered' is an object, which takes no arguments; got count"),
        ((Offered, {"cuont": 2}), "unknown argument of the environment 'Offered': 'cuont'; did you mean 'count'"),
        ((Offered, {"count": 2.5}), "argument count of the environment 'Offered' is 2.5; expected a whole number"),
        ((3,), "the environment 'int' is no subclass of"),
    ]:
        with pytest.raises(UserError, match=re.escape(said)):
            load_environment(*wrong)
