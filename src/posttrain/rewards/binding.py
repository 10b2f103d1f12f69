"""What can be given as rewards, bound to objects: texts, tables of arguments, functions of files, objects."""

import hashlib
import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from posttrain import user_code
from posttrain.errors import UserError, described, unknown
from posttrain.rewards import rules
from posttrain.rewards.code import CodeVerifier
from posttrain.rewards.combine import DEFAULT_TIMEOUT_S, Weighted
from posttrain.rewards.custom import NO_ARGUMENTS, CustomReward, Source, from_function
from posttrain.rewards.inputs import OURS
from posttrain.rewards.judges.consensus import consensus_of
from posttrain.rewards.learned import Classifier, rlpr
from posttrain.rewards.majority import Majority
from posttrain.rewards.remote import PUBLIC, Remote, is_remote
from posttrain.rewards.reward import Earned, EpisodeReward, Reward, Solved, role_of
from posttrain.rewards.verifiers.choice import ChoiceVerifier
from posttrain.rewards.verifiers.constraints import ConstraintsVerifier, FormatVerifier
from posttrain.rewards.verifiers.equations import AllSteps
from posttrain.rewards.verifiers.gym import GymVerifier
from posttrain.rewards.verifiers.math import MathVerifier
from posttrain.rewards.verifiers.numbers import ExactVerifier, NumberVerifier
from posttrain.user_code import fitted, made


def _all_steps(verifier: str = "numbers", name: str = AllSteps.name) -> AllSteps:
    found = made("the reward 'all-steps'", REWARDS[verifier], {}) if verifier in REWARDS else None
    if not isinstance(found, EpisodeReward) or role_of(found) != "verifier":
        raise UserError(
            f"the reward 'all-steps' asks a verifier; got '{verifier}', expected such as all-steps?verifier=gym"
        )
    return AllSteps(found, name)


REWARDS: dict[str, Callable[..., Reward]] = {
    "environment": Earned,
    "solved": Solved,
    "math": MathVerifier,
    "numbers": NumberVerifier,
    "last_number": partial(NumberVerifier, last_number=True, name="last_number"),
    "choice": ChoiceVerifier,
    "exact": ExactVerifier,
    "constraints": ConstraintsVerifier,
    "pattern": partial(FormatVerifier, "pattern"),
    "json_schema": partial(FormatVerifier, "json_schema"),
    "code": CodeVerifier,
    "all-steps": _all_steps,
    "gym": GymVerifier,
    "gym_bare": partial(GymVerifier, answer_in="outside_think", name="gym_bare"),
    "tags": rules.Tags,
    "language": rules.LanguageConsistency,
    "length": rules.SoftOverlong,
    "length_target": rules.LengthTarget,
    "repetition": rules.Repetition,
    "majority": Majority,
    "rlpr": rlpr,
    "steps": rules.StepDiversity,
    "verification": rules.VerificationPhrases,
    "classifier": Classifier,
    "consensus": partial(consensus_of, {}),
}
"""Every reward that has a name. One line registers another."""

Part = tuple[Reward, float]  # a reward and its weight
_FILE = re.compile(r".+\.py:[^:=?]*", re.DOTALL)
_KINDS = (
    "a text such as 'numbers=1.0', a function such as (completion, answer), an object with a name and a method score, "
    "or one that can be called"
)


def parse_rewards(
    spec: object, *, timeout_s: float = DEFAULT_TIMEOUT_S, judges: Mapping[str, Reward] = NO_ARGUMENTS
) -> Weighted:
    """Rewards from a text, a table or objects.

    A text is words such as `gym=1.0 tags=0.1 my/rewards.py:brief=0.2`: each a name of `REWARDS` or of `judges`,
    `path/to/file.py:function`, or an address (`rewards/remote.py`), then arguments of the verifier or function, as in
    `numbers?answer_in=boxed&name=strict`, and its weight after `=` (after a function also `:`). A weight that is left
    out is 1; of a monitor, 0. A value that has `=` in it needs a weight behind it. A path with spaces is put in quotes.

    Objects are a function, an object with a name and a method `score`, or one that can be called; a pair of such a
    thing and its weight; or a sequence of all these. A table is a mapping, from a word to its weight or to a table of
    its weight and arguments, and from a name to an object or such a pair. `judges` are rewards by further names; each
    reward may take `timeout_s` seconds for a batch. Raises `UserError` for what does not fit.

    Example:
        >>> parse_rewards("numbers tags=0.1").weights
        {'numbers': 1.0, 'tags': 0.1}
        >>> def brief(completion, limit=20): return len(completion) <= limit
        >>> parse_rewards({"numbers": {"weight": 2, "answer_in": "boxed"}, "short": (brief, 0.5)}).weights
        {'numbers': 2.0, 'short': 0.5}
    """
    if isinstance(spec, Mapping):
        entries = cast("Mapping[str, object]", spec)
        return Weighted(tuple(_of_entry(key, value, judges) for key, value in entries.items()), timeout_s)
    several = isinstance(spec, list | tuple) and not _is_pair(cast(object, spec))
    parts: list[Part] = []
    for given in cast("Sequence[object]", spec if several else [spec]):
        if not isinstance(given, str):
            parts.append(_of_object(given, judges))
            continue
        try:
            words = shlex.split(given)
        except ValueError as error:
            raise UserError(
                f"cannot read the rewards {given!r}: {error}; expected words such as gym=1.0 tags=0.1"
            ) from error
        parts += [_of_text(word, None, judges) for word in words]
    return Weighted(tuple(parts), timeout_s)


def _of_entry(key: str, value: object, judges: Mapping[str, Reward]) -> Part:
    """The reward of a table's entry: a text with its weight or its table of arguments, or a name and an object."""
    if isinstance(value, Mapping | int | float):
        return _of_text(key, cast("Mapping[str, object] | float", value), judges)
    return _of_object(value, judges, key)


def _of_text(word: str, value: Mapping[str, object] | float | None, judges: Mapping[str, Reward]) -> Part:
    """The reward of `NAME?argument=value&argument=value=WEIGHT`; a table has the weight, or it and arguments."""
    name, arguments, weight = _read(word)
    if value is not None and weight is not None:
        raise UserError(
            f"the reward '{word}' has its weight twice; write '{word.removesuffix('=' + weight)}' = {value}"
        )
    table = dict(value) if isinstance(value, Mapping) else {"weight": value}
    given = table.pop("weight", None) if weight is None else weight
    number = None if given is None else _number(word, given)
    own = {**arguments, **table} if isinstance(value, Mapping) else arguments
    if own and (is_remote(name) or name in judges):
        raise UserError(f"the reward '{name}' takes no arguments; got {', '.join(own)}")
    if is_remote(name):
        return _weighted(from_function(Remote(name.removeprefix(PUBLIC), name.startswith(PUBLIC)), "remote"), number)
    if _FILE.fullmatch(name):
        return _weighted(load_reward(name, own), number)
    if name.endswith(".py"):
        raise UserError(f"the reward '{word}' names a file; say which function: {name}:FUNCTION")
    if name in judges:
        return _weighted(judges[name], number)
    if name in REWARDS:
        make = partial(consensus_of, judges) if name == "consensus" else REWARDS[name]
        return _weighted(made(f"the reward '{name}'", make, own), number)
    raise unknown("reward", name, [*REWARDS, *judges, "path/to/file.py:function"])


def _of_object(given: object, judges: Mapping[str, Reward], name: str = "") -> Part:
    """The reward of a function or an object, or of a pair of such and its weight; `name` is another one for it."""
    if _is_pair(given):
        inner, weight = cast("tuple[object, float]", given)
        found = _of_entry(inner, weight, judges) if isinstance(inner, str) else _of_object(inner, judges, name)
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


def _is_pair(given: object) -> bool:
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


def load_reward(path: str, arguments: Mapping[str, Any] = NO_ARGUMENTS) -> Reward:
    """The reward `path/to/file.py:function`; of a class, an object that is made with the arguments.

    Arguments are of parameters that are not the run's to give, as texts or values; `name` is that of the reward unless
    it is such a parameter. Raises `UserError` where something does not exist or does not fit.
    """
    file, _, name = path.rpartition(":")
    found: Any = user_code.load("reward", path, "function")
    own, title = dict(arguments), name
    what, is_class = f"the reward '{path}'", inspect.isclass(found)
    if not is_class and isinstance(found, Reward):
        if own:
            raise UserError(f"{what} is an object, which takes no arguments; got {', '.join(own)}")
        return found
    if not callable(found):
        raise UserError(f"'{name}' in '{file}' is a {type(found).__name__}, not a function")
    if "name" in own and not hasattr(found, "score") and "name" not in inspect.signature(found).parameters:
        title = str(own.pop("name"))
    if is_class:
        found = made(what, found, own)
        if isinstance(found, Reward):
            return found
    elif own:
        found = partial(found, **fitted(what, found, own, ours=OURS))
    where = Path(file).expanduser().absolute()
    source = Source(f"{where}:{name}", hashlib.sha256(where.read_bytes()).hexdigest(), arguments)
    return replace(from_function(found, title), source=source)


def load_again(source: Source) -> CustomReward:
    """The function in this process, as another has loaded it; raises `UserError` where the file is another by now."""
    if source.pickled:
        import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

        try:
            return from_function(cloudpickle.loads(source.pickled), source.path)
        except Exception as error:
            raise UserError(f"the reward '{source.path}' cannot be read here: {described(error)}") from error
    found = load_reward(source.path, source.arguments)
    if not isinstance(found, CustomReward) or found.source is None or found.source.digest != source.digest:
        raise UserError(f"the file of the reward '{source.path}' is not what the run began with; restore it")
    return found
