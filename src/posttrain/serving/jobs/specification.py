"""The body of POST /v1/jobs, and the files of a job that it becomes.

Fields that it does not have are refused. Rows are cut out of the text and read one by one, so that memory does not grow
with the body: what is held is one row, of bounded length, depth and number of containers, whatever a client sends. A
body of 28 MB of empty lists, parsed as a whole, would be 1 GB of objects.

Nothing of the client's becomes a path, a module or a flag. It may set the options that are marked so beside them
(`options/option.py`). None of these names a file, a module, a host or another model, and none lets a job write outside
its folder.
"""

import contextlib
import json
import mmap
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, BinaryIO, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from posttrain.errors import UserError, unknown
from posttrain.options.online import RL
from posttrain.options.option import Form, Job, Option, options_of
from posttrain.options.training import SFT, Preferences, Scoring
from posttrain.rewards import REWARDS
from posttrain.rewards.remote import PUBLIC, check_address
from posttrain.runs import config_file, jsonl
from posttrain.serving.files import NAME, write_whole
from posttrain.serving.guard import first_mistake
from posttrain.serving.jobs.table import REWARD, TOML

Name = Annotated[str, Field(min_length=1, max_length=128)]
Weight = Annotated[float, Field(ge=-1e6, le=1e6, strict=True)]

TEXT_BYTES = 4 << 20  # of a row, and of all but the rows
CONTAINERS = 1 << 16  # lists and objects, likewise
DEPTH = 64  # of lists and objects within each other, likewise
MOST_ROWS = 1_000_000
DATA_SETS = ("dataset", "eval_dataset")
_MARK = re.compile(rb'[\[\]{}"]|\\.', re.DOTALL)
FORMS: Mapping[str, type[Form]] = MappingProxyType(
    {"rl": RL, "sft": SFT, "preference": Preferences, "reward-model": Scoring}
)
NO_ENVIRONMENT = ("environment", "solved", "classifier")  # of environments and of models, which jobs do not have
FILES = {"dataset": "data/train.jsonl", "eval_dataset": "data/heldout.jsonl"}
_KNOB = re.compile(r"[a-z][a-z0-9_]{0,63}")


class Body(BaseModel):
    """Nothing is ignored: a misspelt field would be a job with another meaning."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Rows(Body):
    """Data that is sent with the job: rows as of a JSONL file. They have been cut out when this is read."""

    rows: Annotated[list[Any], Field(max_length=0)]


class Named(Body):
    """Data of the operator's, by name."""

    name: Name


class Verifier(Body):
    """A reward that posttrain has, by name."""

    verifier: Name
    weight: Weight = 1.0


class Remote(Body):
    """A reward behind an HTTP address."""

    url: Annotated[str, Field(max_length=2000)]
    weight: Weight = 1.0


class Source(Body):
    """A reward as Python source; for keys that are trusted."""

    file: Annotated[str, Field(min_length=1, max_length=1_000_000)]
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")] = "reward"
    weight: Weight = 1.0


Reward = Verifier | Remote | Source
Data = Rows | Named


class Submitted(Body):
    """A job as its client asks for it."""

    command: Literal["rl", "sft", "preference", "reward-model"]
    model: Name
    dataset: Data
    eval_dataset: Data | None = None
    reward: Reward | Annotated[list[Reward], Field(min_length=1, max_length=8)] | None = None
    options: Annotated[dict[str, Any], Field(max_length=64)] = {}
    knobs: Annotated[dict[str, Any], Field(max_length=64)] = {}

    @property
    def rewards(self) -> list[Reward]:
        """The rewards; none where there is none."""
        if self.reward is None:
            return []
        return self.reward if isinstance(self.reward, list) else [self.reward]


def submitted(body: bytes | mmap.mmap, take: Callable[[str, dict[str, Any]], None]) -> Submitted:
    """What a client asks for in JSON; `take` gets each row with its field. A mistake's `UserError` names its place."""
    counts: dict[str, int] = {}

    def row(field: str, text: bytes) -> None:
        counts[field] = counts.get(field, 0) + 1
        if counts[field] > MOST_ROWS:
            raise UserError(f"{field}.rows may have {MOST_ROWS} rows")
        try:
            take(field, json.loads(text.decode()))
        except ValueError as error:
            raise UserError(f"{field}.rows, row {counts[field]} is not JSON: {error}"[:500]) from error

    try:
        asked = Submitted.model_validate_json(_without_rows(body, row))
    except ValidationError as error:
        raise UserError(first_mistake(error)[:500]) from error
    for name in DATA_SETS:
        if isinstance(getattr(asked, name), Rows) and name not in counts:
            raise UserError(f"{name}.rows must have a row at least")
    return asked


def _marks(body: bytes | mmap.mmap) -> Iterator[tuple[bytes, int, tuple[int, int]]]:
    """Each bracket and brace outside of strings, its place, and that of the last string before it."""
    quote, string = -1, (0, 0)
    for found in _MARK.finditer(body):
        if found[0] == b'"':
            quote, string = (found.end(), string) if quote < 0 else (-1, (quote, found.start()))
        elif quote < 0 and found[0] in b"[]{}":
            yield found[0], found.start(), string


def _without_rows(body: bytes | mmap.mmap, take: Callable[[str, bytes], None]) -> bytes:
    """A body with empty lists in place of the rows; `take` gets the field and the text of each row."""
    rest, part, depth, containers = b"", 0, 0, 0  # `part`: where a row begins, or what is beside rows
    field, outer, row, seen = "", "", False, dict[str, int]()

    def keep(end: int, most: int = TEXT_BYTES) -> bytes:
        """The part that ends at a byte."""
        what = f"a row of {field}" if field else "a body without its rows"
        if end - part > most:
            raise UserError(f"{what} may have {TEXT_BYTES} bytes")
        if depth - 3 * row > DEPTH or containers > CONTAINERS:
            raise UserError(f"{what} may have {CONTAINERS} lists and objects, {DEPTH} of them within each other")
        return body[part:end]

    for mark, at, (start, end) in _marks(body):
        opens = mark in b"[{"
        depth, containers = depth + (1 if opens else -1), containers + opens
        key = body[start:end] if opens and at - start < 200 and body[end + 1 : at].strip() == b":" else b""
        if field and not row and (depth == 4 if opens else depth == 2):  # between rows
            if mark != (b"{" if opens else b"]") or keep(at).strip() != (b"," if opens and seen[field] else b""):
                raise UserError(f"{field}.rows must be a list of objects")
            part, containers, row, field = at, 1, opens, field if opens else ""
        elif row and depth == 3:
            take(field, keep(at + 1))
            seen[field], part, containers, row = seen[field] + 1, at + 1, 0, False
        elif opens and depth == 2:
            outer = key.decode(errors="replace")
        elif mark == b"[" and depth == 3 and outer in DATA_SETS and key == b"rows":
            if outer in seen:
                raise UserError(f"{outer}.rows is given twice")
            rest += keep(at + 1, TEXT_BYTES - len(rest))
            field, part, seen[outer] = outer, at + 1, 0
        elif opens:
            keep(at)
    if field:
        raise UserError(f"the body ends within {field}.rows")
    return rest + keep(len(body), TEXT_BYTES - len(rest))


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
    folder = offered.datasets
    known = sorted(path.name for path in folder.iterdir() if NAME.fullmatch(path.name)) if folder else []
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
