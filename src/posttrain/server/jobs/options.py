"""Checks the options and hyperparameters that a client sets, by the table in allowed.toml."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.errors import UserError, unknown

TEXT_LETTERS = 20_000  # of a text, at most
_WORDS = re.compile(r"[\w. ]{1,500}", re.ASCII)
_KNOB = re.compile(r"[a-z][a-z0-9_]{0,63}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")

_TABLES: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("allowed.toml").read_text(encoding="utf-8")
)
ALLOWED: Mapping[str, Mapping[str, Any]] = {
    "rl": {**_TABLES["training"], **_TABLES["rl"]},
    **{
        command: {**_TABLES["training"], **_TABLES["rows"], **_TABLES[command]}
        for command in ("sft", "preference", "reward-model")
    },
}


def check_options(command: str, options: Mapping[str, Any]) -> None:
    """Raise `UserError` for an option that a client may not set, or a value out of its range."""
    allowed = ALLOWED[command]
    for name, value in options.items():
        if name not in allowed:
            raise unknown(f"option of {command} jobs:", name[:80], allowed)
        _check(name, allowed[name], value)


def check_knobs(knobs: Mapping[str, Any]) -> None:
    """Raise `UserError` for hyperparameters of an algorithm that are no numbers, switches or plain words."""
    for name, value in knobs.items():
        if not _KNOB.fullmatch(name):
            raise UserError(f"a hyperparameter's name has small letters, digits and _; got '{name[:80]}'")
        if isinstance(value, str):
            if not _KNOB.fullmatch(value):
                raise _wrong(name, "must be a number, true or false, or a word", value)
        elif not isinstance(value, bool):
            _check(name, {"number": [-1e12, 1e12]}, value)


def _check(name: str, allowed: Any, value: Any) -> None:
    """Raise `UserError` for a value that is not what the table says."""
    text = value if isinstance(value, str) else ""
    match allowed:
        case {"whole": [least, most]}:
            if type(value) is not int or not least <= value <= most:
                raise _wrong(name, f"must be a whole number from {least:g} to {most:g}", value)
        case {"number": [least, most]}:
            if type(value) not in (int, float) or not least <= value <= most:  # nan is not, either
                raise _wrong(name, f"must be a number from {least:g} to {most:g}", value)
        case "switch":
            if not isinstance(value, bool):
                raise _wrong(name, "must be true or false", value)
        case "words":
            if not _WORDS.fullmatch(text):
                raise _wrong(name, "has 1 to 500 letters, digits, _ . and spaces", value)
        case "text":
            if not isinstance(value, str) or len(text) > TEXT_LETTERS or _CONTROL.search(text):
                limit = f"at most {TEXT_LETTERS} characters, none of them control characters"
                raise UserError(f"'{name}' must be text of {limit}")
        case words:
            if not isinstance(value, str) or value not in words:
                raise _wrong(name, f"must be one of {', '.join(words)}", value)


def _wrong(name: str, what: str, value: Any) -> UserError:
    return UserError(f"'{name}' {what}; got {repr(value)[:80]}")
