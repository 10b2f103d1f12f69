"""The options of commands that a client may set: those that are marked so beside them (`options/option.py`).

None of these names a file, a module, a host or another model, and none lets a job write outside its folder.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from posttrain.errors import UserError, unknown
from posttrain.options.online import RL
from posttrain.options.option import Form, Job, Option, options_of
from posttrain.options.training import SFT, Preferences, Scoring

FORMS: Mapping[str, type[Form]] = MappingProxyType(
    {"rl": RL, "sft": SFT, "preference": Preferences, "reward-model": Scoring}
)
COMMANDS = tuple(FORMS)

_KNOB = re.compile(r"[a-z][a-z0-9_]{0,63}")


def allowed(command: str) -> dict[str, Option]:
    """The options of a command that a client may set."""
    return {name: option for name, option in options_of(FORMS[command]).items() if option.job is not None}


def check_options(command: str, options: Mapping[str, Any]) -> None:
    """Raise `UserError` for an option that a client may not set, or a value out of its range."""
    known = allowed(command)
    for name, value in options.items():
        if name not in known:
            raise unknown(f"option of {command} jobs:", name[:80], known)
        option = known[name]
        assert option.job is not None
        option.job.refuse(option, value)


def check_knobs(knobs: Mapping[str, Any]) -> None:
    """Raise `UserError` for hyperparameters of an algorithm that are no numbers, switches or plain words."""
    for name, value in knobs.items():
        if not _KNOB.fullmatch(name):
            raise UserError(f"a hyperparameter's name has small letters, digits and _; got '{name[:80]}'")
        if isinstance(value, str):
            if not _KNOB.fullmatch(value):
                raise UserError(f"'{name}' must be a number, true or false, or a word; got {value[:80]!r}")
        elif not isinstance(value, bool):
            Job(-1e12, 1e12).refuse(Option(name, float, 0.0, None, "", None), value)
