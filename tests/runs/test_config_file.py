import doctest
import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import UserError
from posttrain.runs import config_file

TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\n\r\x7f\x85\0"\\.#='), max_size=6)
ATOMS = st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
TABLES = st.dictionaries(TEXT, ATOMS, max_size=3)
LISTS = st.lists(ATOMS | st.lists(ATOMS, max_size=2) | TABLES, max_size=3)
VALUES = ATOMS | LISTS | st.dictionaries(TEXT, ATOMS | LISTS | TABLES, max_size=3)
CONFIGS = st.dictionaries(TEXT, VALUES, max_size=4)


@given(CONFIGS)
def test_a_configuration_is_read_back_equal(config: dict) -> None:
    assert tomllib.loads(config_file.dumps(config)) == config


@given(CONFIGS)
def test_a_configuration_does_not_differ_from_itself_read_back(config: dict) -> None:
    assert config_file.differences(tomllib.loads(config_file.dumps(config)), config) == []


def test_nan_infinity_tuples_paths_and_none() -> None:
    config = {"a": math.nan, "b": -math.inf, "c": (1, 2), "d": Path("x/y"), "e": None, "f": {"g": None}}
    back = tomllib.loads(config_file.dumps(config))
    assert math.isnan(back.pop("a"))
    assert back == {"b": -math.inf, "c": [1, 2], "d": "x/y", "f": {}}
    assert config_file.differences(back | {"a": math.nan}, config) == []


def test_a_value_after_a_table_stays_outside_of_it() -> None:
    config = {"table": {"inner": {"x": 1}, "y": 2}, "after": 3}
    assert tomllib.loads(config_file.dumps(config)) == config


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", "\ud800", [None]])
def test_what_toml_cannot_hold_is_refused_by_its_key(value: object) -> None:
    with pytest.raises(ValueError, match=r"^a\.b"):
        config_file.dumps({"a": {"b": value}})


def test_differences_say_was_and_now_key_by_key() -> None:
    was = {"steps": 40, "lr": 1e-5, "same": 1, "lora": {"rank": 8, "on": True, "deep": {"x": 1}}, "gone": "x"}
    now = {"steps": 50, "lr": 2e-5, "same": 1.0, "lora": {"rank": 16, "on": 1, "deep": {"x": 2}}, "new": [1]}
    assert config_file.differences(was, now, ignore={"steps"}) == [
        "lr was 1e-05, now 2e-05",
        "lora.rank was 8, now 16",
        "lora.on was true, now 1",
        "lora.deep.x was 1, now 2",
        'gone was "x", now not set',
        "new was not set, now [1]",
    ]


def test_a_missing_file_and_one_that_is_not_toml_are_the_users_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is a folder; expected a TOML file, such as .*/config\.toml of a run$"):
        config_file.read(tmp_path)
    with pytest.raises(UserError, match="no configuration at"):
        config_file.read(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("steps = = 4\n")
    with pytest.raises(UserError, match=r"broken\.toml is not TOML: .*line 1"):
        config_file.read(broken)


def test_docstring_examples_run() -> None:
    results = doctest.testmod(config_file)
    assert results.failed == 0 and results.attempted >= 2
