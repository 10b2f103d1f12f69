"""A run's configuration as TOML: written from a plain dict, read back equal, compared key by key.

Python reads TOML and does not write it. The little that a configuration needs is written here.
"""

import json
import math
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from posttrain.errors import UserError

RENAMED: Mapping[str, str] = {
    "apart": "decorrelate",
    "centring": "center_rewards",
    "disagreement_penalty": "uncertainty_penalty",
    "fooled": "adversarial_pairs",
    "importance_cap": "tis_cap",
    "moved_from": "kl_from",
    "renew_reference": "ref_sync_every",
    "reward_model_use": "ensemble_aggregation",
    "to_people": "annotation_items",
}
"""Renamed options, old name to new. Typed or in a file of --config, an old one is an error that names the new one."""

ADDED: Mapping[str, Mapping[str, Any]] = {
    "ratings": {"heads": "attributes"},  # of reward-model-attributes
    "ensemble": {"heads": "preference", "reward_control": ""},
    "prompt_template": {"template_args": ""},
    "ensemble_aggregation": {"step_aggregation": "min"},
    "max_refills": {"min_reward_std": 0.0, "curriculum": "", "reward_control": ""},
    "train_on": {"algorithm": "sft", "reward_control": ""},
    "teacher": {"teacher_prompt": "", "prover": ""},
}
"""Options that runs of earlier versions do not have, and what they were, by an option that such a run has."""

_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def dumps(config: Mapping[str, Any]) -> str:
    r"""Write a configuration as TOML.

    TOML has no null: a key whose value is None is left out. Tuples become lists, paths become strings. Raises
    `ValueError`, with the key, for a value that TOML cannot hold.
    """
    return "\n".join(_table(plain(config), ())) + "\n"


def read(path: Path) -> dict[str, Any]:
    """A configuration from a TOML file; raises `UserError`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no configuration at {path}; expected a TOML file, such as the config.toml of a run") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; expected a TOML file, such as {path / 'config.toml'} of a run") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {error}; text needs quotes in TOML") from error


def renamed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of an earlier version with the options' present names.

    Example:
        >>> renamed({"steps": 40, "centring": 0.01})
        {'steps': 40, 'center_rewards': 0.01}
        >>> renamed({"ratings": "ratings.jsonl"})
        {'heads': 'attributes', 'ratings': 'ratings.jsonl'}
    """
    found = {RENAMED.get(key, key): value for key, value in config.items()}
    for told, added in ADDED.items():
        if told in found:
            found = {**added, **found}
    return found


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as TOML gives it back."""
    return {str(key): _plain(value, str(key)) for key, value in config.items() if value is not None}


def differences(was: Mapping[str, Any], now: Mapping[str, Any], ignore: Collection[str] = ()) -> list[str]:
    """Differences, one phrase per key, tables by dotted keys; keys and tables of `ignore`, dotted too, may differ.

    Example:
        >>> differences({"steps": 40, "lora": {"rank": 8}}, {"steps": 40, "lora": {"rank": 16}, "seed": 1})
        ['lora.rank was 8, now 16', 'seed was not set, now 1']
    """
    old, new = flatten(plain(was)), flatten(plain(now))
    keys = [key for key in dict.fromkeys([*old, *new]) if not any(f"{key}.".startswith(f"{one}.") for one in ignore)]
    return [f"{key} was {_said(old, key)}, now {_said(new, key)}" for key in keys if not _same(old, new, key)]


def typed(config: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Values of a configuration as parameters, those that are numbers, texts and booleans.

    Example:
        >>> typed({"lr": 1e-05, "knobs": {"beta": 0.1}, "names": []}, ["lr", "knobs.beta", "names"])
        '`lr=1e-05` `beta=0.1`'
    """
    flat = flatten(plain(config))
    known = [key for key in keys if isinstance(flat.get(key), int | float | str)]
    return " ".join(f"`{key.rpartition('.')[2]}={flat[key]!r}`" for key in known)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _table(config: Mapping[str, Any], at: tuple[str, ...]) -> list[str]:
    """The lines of a table: its values first, then its tables, since a header ends what came before."""
    values = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in values.items()]
    for key, value in config.items():
        if isinstance(value, Mapping):
            where = (*at, key)
            lines += [*([""] if lines or at else []), f"[{'.'.join(map(_key, where))}]", *_table(value, where)]
    return lines


def _key(key: str) -> str:
    return key if key and _BARE.issuperset(key) else _string(key)


def _value(value: Any) -> str:
    match value:
        case bool() | int():
            return str(value).lower()
        case float():
            return repr(value) if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
        case str():
            return _string(value)
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            return f"{{{', '.join(f'{_key(key)} = {_value(item)}' for key, item in value.items())}}}"


def _string(text: str) -> str:
    """A basic string. JSON's escapes are among TOML's; beyond them TOML wants DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _plain(value: Any, where: str) -> Any:
    match value:
        case bool() | int() | float():
            return value
        case str():
            if any("\ud800" <= character <= "\udfff" for character in value):
                raise ValueError(f"{where}: TOML holds whole characters only; got {value!r}")
            return str(value)
        case PurePath():
            return str(value)
        case Mapping():
            return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items() if item is not None}
        case Sequence() if not isinstance(value, bytes | bytearray):
            return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
        case _:
            raise ValueError(
                f"{where}: a configuration holds numbers, texts, paths, booleans, lists and tables; got {value!r}"
            )


def _same(old: Mapping[str, Any], new: Mapping[str, Any], key: str) -> bool:
    if key not in old or key not in new:
        return False
    # As text, so that nan equals nan and 1 is not true.
    numbers = all(isinstance(one[key], int | float) and not isinstance(one[key], bool) for one in (old, new))
    return _value(old[key]) == _value(new[key]) or (numbers and old[key] == new[key])


def _said(config: Mapping[str, Any], key: str) -> str:
    return _value(config[key]) if key in config else "not set"
