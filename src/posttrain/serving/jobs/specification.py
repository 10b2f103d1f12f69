"""The files of a job, from what its client sent. Nothing of the client's becomes a path, a module or a flag.

A client may set the options that are marked so beside them (`options/option.py`). None of these names a file, a module,
a host or another model, and none lets a job write outside its folder.
"""

import contextlib
import mmap
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from posttrain.errors import UserError, unknown
from posttrain.options.online import RL
from posttrain.options.option import Form, Job, Option, options_of
from posttrain.options.training import SFT, Preferences, Scoring
from posttrain.rewards import REWARDS
from posttrain.rewards.remote import PUBLIC, check_address
from posttrain.runs import config_file, jsonl
from posttrain.serving.files import write_whole
from posttrain.serving.jobs.bodies import DATA_SETS, Named, Remote, Reward, Source, Submitted, Verifier, submitted
from posttrain.serving.jobs.table import REWARD, TOML

FORMS: Mapping[str, type[Form]] = MappingProxyType(
    {"rl": RL, "sft": SFT, "preference": Preferences, "reward-model": Scoring}
)
NO_ENVIRONMENT = ("environment", "solved", "classifier")  # of environments and of models, which jobs do not have
FILES = {"dataset": "data/train.jsonl", "eval_dataset": "data/heldout.jsonl"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_KNOB = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True)
class Offered:
    """What the operator offers to clients."""

    models: Mapping[str, str]  # what base models are called, and where each is: a folder or a packaged model
    datasets: Path | None = None  # the folder whose files and folders are data sets, by name
    trusted: frozenset[str] = frozenset()  # the names of the keys whose jobs may have Python source
    private_rewards: bool = False  # whether rewards may be at private addresses, and by http
    # paths of the server's that results do not show, and what stands for each
    hidden: Mapping[str, str] = field(default_factory=dict[str, str])


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


def _check(asked: Submitted, offered: Offered) -> None:
    """Refuse what nobody may have; raises `UserError`."""
    if asked.model not in offered.models:
        raise unknown("model", asked.model[:80], offered.models)
    check_options(asked.command, asked.options)
    for name, value in asked.knobs.items():  # numbers, switches and plain words
        if not _KNOB.fullmatch(name):
            raise UserError(f"a hyperparameter's name has small letters, digits and _; got '{name[:80]}'")
        if isinstance(value, str):
            if not _KNOB.fullmatch(value):
                raise UserError(f"'{name}' must be a number, true or false, or a word; got {value[:80]!r}")
        elif not isinstance(value, bool):
            Job(-1e12, 1e12).refuse(Option(name, float, 0.0, None, "", None), value)
    if asked.knobs and "algorithm" not in asked.options:
        raise UserError("'knobs' are an algorithm's hyperparameters: name it in options.algorithm")
    if asked.command == "rl" and not asked.rewards:
        raise UserError("an rl job needs a reward: a verifier, a url or a file")
    if asked.command != "rl" and asked.rewards:
        raise UserError(f"a reward is for rl jobs; this is one of {asked.command}")
    for kind in (Remote, Source):
        if sum(isinstance(reward, kind) for reward in asked.rewards) > 1:
            raise UserError(f"a job has one reward of a {'url' if kind is Remote else 'file'} at most")


def write(body: bytes | mmap.mmap, owner: str, offered: Offered, folder: Path) -> dict[str, Any]:
    """Write the files into its folder; what `Job` says of it. Raises `UserError` for what its owner may not have."""
    files: dict[str, BinaryIO] = {}
    with contextlib.ExitStack() as stack:

        def take(name: str, row: dict[str, Any]) -> None:
            if name not in files:
                path = folder / FILES[name]
                path.parent.mkdir(exist_ok=True)
                files[name] = stack.enter_context(path.open("wb"))
            jsonl.append(files[name], row)

        asked = submitted(body, take)
        for file in files.values():
            os.fsync(file.fileno())
    _check(asked, offered)
    config: dict[str, Any] = {"model": offered.models[asked.model], **asked.options}
    for name in DATA_SETS:
        if (data := getattr(asked, name)) is not None:
            config[name] = _dataset(data.name, offered) if isinstance(data, Named) else FILES[name]
    if asked.rewards:  # as the command reads them: words with weights
        words = (f"{_reward(reward, owner, offered, folder)}={reward.weight!r}" for reward in asked.rewards)
        config["reward"] = shlex.join(words)
    if asked.knobs:
        config["knobs"] = asked.knobs
    try:
        text = config_file.dumps(config)
    except ValueError as error:
        raise UserError(str(error)) from error
    write_whole(folder / TOML, text.encode())
    return {"command": asked.command, "model": asked.model, "steps": int(asked.options.get("steps", 0))}


def _dataset(name: str, offered: Offered) -> str:
    """Where the operator's data set of a name is."""
    folder = offered.datasets
    known = sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)) if folder else []
    if folder is None or name not in known:
        raise unknown("data set", name[:80], known)
    return str(folder / name)


def _reward(reward: Reward, owner: str, offered: Offered, folder: Path) -> str:
    """How the command names a reward; source is written into the job's folder."""
    match reward:
        case Verifier():
            known = [name for name in REWARDS if name not in NO_ENVIRONMENT]
            if reward.verifier not in known:
                raise unknown("verifier", reward.verifier[:80], known)
            return reward.verifier
        case Source():
            if owner not in offered.trusted:
                raise UserError("Python source as a reward is for keys that the operator trusts; this one is not among")
            write_whole(folder / REWARD, reward.file.encode(errors="surrogatepass"))
            return f"{REWARD}:{reward.function}"
        case Remote():
            check_address(reward.url)
            if not offered.private_rewards and urlsplit(reward.url).scheme != "https":
                raise UserError("the address of a reward must begin with https:// here")
            return reward.url if offered.private_rewards else PUBLIC + reward.url
