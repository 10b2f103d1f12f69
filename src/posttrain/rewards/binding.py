"""What can be given as a reward, bound to an object: a text, a table of arguments, a function, an object."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, cast

from posttrain.arguments import made
from posttrain.errors import UserError, unknown
from posttrain.rewards.custom import from_function
from posttrain.rewards.learned import Classifier
from posttrain.rewards.likelihood import rlpr
from posttrain.rewards.loading import load_reward
from posttrain.rewards.outcomes import Earned, Solved
from posttrain.rewards.remote import PUBLIC, Remote, is_remote
from posttrain.rewards.reward import Reward, role_of
from posttrain.rewards.rules.language import LanguageConsistency
from posttrain.rewards.rules.length import LengthTarget, SoftOverlong
from posttrain.rewards.rules.repetition import Repetition
from posttrain.rewards.rules.steps import StepDiversity
from posttrain.rewards.rules.tags import Tags
from posttrain.rewards.rules.verification import VerificationPhrases
from posttrain.rewards.verifiers.choice import ChoiceVerifier
from posttrain.rewards.verifiers.exact import ExactVerifier
from posttrain.rewards.verifiers.gym import GymVerifier
from posttrain.rewards.verifiers.math import MathVerifier
from posttrain.rewards.verifiers.numbers import NumberVerifier

REWARDS: dict[str, Callable[..., Reward]] = {
    "environment": Earned,
    "solved": Solved,
    "math": MathVerifier,
    "numbers": NumberVerifier,
    "last_number": partial(NumberVerifier, last_number=True, name="last_number"),
    "choice": ChoiceVerifier,
    "exact": ExactVerifier,
    "gym": GymVerifier,
    "gym_bare": partial(GymVerifier, answer_in="outside_think", name="gym_bare"),
    "tags": Tags,
    "language": LanguageConsistency,
    "length": SoftOverlong,
    "length_target": LengthTarget,
    "repetition": Repetition,
    "rlpr": rlpr,
    "steps": StepDiversity,
    "verification": VerificationPhrases,
    "classifier": Classifier,
}
"""Every reward that has a name. One line registers another."""

Part = tuple[Reward, float]
"""A reward and its weight."""

_FILE = re.compile(r".+\.py:[^:=?]*", re.DOTALL)
_KINDS = (
    "a text such as 'numbers=1.0', a function such as (completion, answer), an object with a name and a method score, "
    "or one that can be called"
)


def of_word(word: str, judges: Mapping[str, Reward]) -> Part:
    """The reward of `NAME?argument=value&argument=value=WEIGHT`; raises `UserError`."""
    name, arguments, weight = _read(word)
    return _named(word, name, arguments, None if weight is None else _number(word, weight), judges)


def of_entry(key: str, value: object, judges: Mapping[str, Reward]) -> Part:
    """The reward of a table's entry: a text with its weight or its table of arguments, or a name and an object.

    Raises:
        UserError: the value is none of these, or the text or the object is refused.
    """
    if not isinstance(value, Mapping | int | float):
        return of_object(value, judges, key)
    name, arguments, weight = _read(key)
    if weight is not None:
        raise UserError(f"the reward '{key}' has its weight twice; write '{key.removesuffix('=' + weight)}' = {value}")
    table = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {"weight": value}
    others = {name: one for name, one in table.items() if name != "weight"}
    given = table.get("weight")
    return _named(key, name, {**arguments, **others}, None if given is None else _number(key, given), judges)


def of_object(given: object, judges: Mapping[str, Reward], name: str = "") -> Part:
    """The reward of a function or an object, or of a pair of such and its weight; `name` is another one for it.

    Raises:
        UserError: it is no reward, its parameters are not understood, or it has no name.
    """
    if is_pair(given):
        inner, weight = cast("tuple[object, float]", given)
        found = of_entry(inner, weight, judges) if isinstance(inner, str) else of_object(inner, judges, name)
        return _renamed(found[0], name), float(weight)
    if inspect.isclass(given):
        raise UserError(f"the reward {given.__name__} is a class; give an object of it: {given.__name__}()")
    if isinstance(given, Reward):
        return _weighted(_renamed(given, name))
    if not callable(given):
        raise UserError(f"cannot use {repr(given)[:80]} as a reward; expected {_KINDS}")
    if not name and getattr(given, "__name__", "") == "<lambda>":
        raise UserError('a lambda has no name; give it one: {"NAME": lambda completion: ...}')
    return _weighted(replace(from_function(given, name), given=True))


def is_pair(given: object) -> bool:
    """Whether something is a pair of a reward and its weight."""
    pair = cast("tuple[object, ...]", given) if isinstance(given, tuple) else ()
    return len(pair) == 2 and isinstance(pair[1], int | float)


def _read(word: str) -> tuple[str, dict[str, str], str | None]:
    """Name, arguments and weight of a word, as texts. The weight follows `=`; after a function also `:`."""
    if is_remote(word):
        name, equals, weight = word.partition("=")
        return name, {}, weight if equals else None
    file = _FILE.match(word)
    name = file[0] if file else re.split(r"[=?]", word, maxsplit=1)[0]
    rest = word[len(name) :]
    if not rest.startswith("?"):
        return name, {}, rest[1:] if rest else None
    pairs, weight = rest[1:].split("&"), None
    argument, _, last = pairs[-1].rpartition("=")
    if "=" in argument:  # argument=value=WEIGHT
        pairs[-1], weight = argument, last
    arguments: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals) or key in arguments:
            why = "is given twice" if key in arguments else "is not ARGUMENT=VALUE"
            raise UserError(f"'{pair}' in the reward '{word}' {why}; write {name}?argument=value&argument=value=WEIGHT")
        arguments[key] = value
    return name, arguments, weight


def _named(
    word: str, name: str, arguments: Mapping[str, Any], weight: float | None, judges: Mapping[str, Reward]
) -> Part:
    """The reward of a text, with its arguments."""
    if arguments and (is_remote(name) or name in judges):
        raise UserError(f"the reward '{name}' takes no arguments; got {', '.join(arguments)}")
    if is_remote(name):
        reward: Reward = from_function(Remote(name.removeprefix(PUBLIC), name.startswith(PUBLIC)), "remote")
    elif _FILE.fullmatch(name):
        reward = load_reward(name, arguments)
    elif name.endswith(".py"):
        raise UserError(f"the reward '{word}' names a file; say which function: {name}:FUNCTION")
    elif name in judges:
        reward = judges[name]
    elif name in REWARDS:
        reward = made(f"the reward '{name}'", REWARDS[name], arguments)
    else:
        raise unknown("reward", name, [*REWARDS, *judges, "path/to/file.py:function"])
    return _weighted(reward, weight)


def _weighted(reward: Reward, weight: float | None = None) -> Part:
    """A reward with its weight, by default 1; of a monitor, 0."""
    return reward, (0.0 if role_of(reward) == "monitor" else 1.0) if weight is None else weight


def _number(word: str, weight: object) -> float:
    try:
        if isinstance(weight, str | int | float) and not isinstance(weight, bool):
            return float(weight)
    except ValueError:
        pass
    raise UserError(f"'{word}' has the weight '{weight}', which is not a number; expected for example gym=1.0")


def _renamed(reward: Reward, name: str) -> Reward:
    if not name or name == reward.name:
        return reward
    if not isinstance(reward, type) and is_dataclass(reward) and "name" in [f.name for f in fields(reward) if f.init]:
        return replace(cast("Any", reward), name=name)
    raise UserError(f"the reward object called '{reward.name}' cannot be called '{name}'; write '{reward.name}' for it")
