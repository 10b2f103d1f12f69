"""Reward functions of files, here and in other processes."""

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from posttrain import user_code
from posttrain.arguments import fitted, made
from posttrain.errors import UserError, described
from posttrain.rewards.custom import NO_ARGUMENTS, CustomReward, Source, from_function
from posttrain.rewards.inputs import OURS
from posttrain.rewards.reward import Reward


def load_reward(path: str, arguments: Mapping[str, Any] = NO_ARGUMENTS) -> Reward:
    """The reward `path/to/file.py:function`; of a class, an object that is made with the arguments.

    Args:
        path: of a function, or of a class whose objects are called or are rewards.
        arguments: of parameters that are not the run's to give, as texts or values; `name` is that of the reward
            unless it is such a parameter.

    Raises:
        UserError: the file or the function does not exist (nearest name given), the file cannot be imported, the
            function's parameters are not understood, or an argument does not fit.
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
    return replace(from_function(found, title), source=Source(f"{where}:{name}", _digest(where), arguments))


def load_again(source: Source) -> CustomReward:
    """The function in this process, as another has loaded it.

    Raises:
        UserError: as `load_reward`; the file is another one by now; or an object cannot be unpickled here.
    """
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


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
