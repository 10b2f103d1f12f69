"""The files of a job, from what its client sent. Nothing of the client's becomes a path, a module or a flag."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from posttrain.errors import UserError, unknown
from posttrain.rewards import REWARDS
from posttrain.rewards.remote import PUBLIC, check_address
from posttrain.runs import config_file, jsonl
from posttrain.serving.jobs.bodies import Data, Named, Remote, Reward, Rows, Source, Submitted, Verifier
from posttrain.serving.jobs.options import check_knobs, check_options
from posttrain.serving.jobs.record import DATA, REWARD, TOML

NO_ENVIRONMENT = ("environment", "solved", "classifier")  # of environments and of models, which jobs do not have
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Offered:
    """What the operator offers to clients.

    Attributes:
        models: what base models are called, and where each is: a folder or a packaged model.
        datasets: the folder whose files and folders are data sets, by name; None for none.
        trusted: the names of the keys whose jobs may have Python source.
        private_rewards: whether rewards may be at private addresses, and by http.
        hidden: paths of the server's that results do not show, and what stands for each.
    """

    models: Mapping[str, str]
    datasets: Path | None = None
    trusted: frozenset[str] = frozenset()
    private_rewards: bool = False
    hidden: Mapping[str, str] = field(default_factory=dict[str, str])


def check(asked: Submitted, owner: str, offered: Offered) -> None:
    """Refuse what the owner may not have, before anything is written; raises `UserError`."""
    if asked.model not in offered.models:
        raise unknown("model", asked.model[:80], offered.models)
    check_options(asked.command, asked.options)
    check_knobs(asked.knobs)
    if asked.knobs and "algorithm" not in asked.options:
        raise UserError("'knobs' are an algorithm's hyperparameters: name it in options.algorithm")
    for data in (asked.dataset, asked.eval_dataset):
        if isinstance(data, Named):
            _dataset(data.name, offered)
    if asked.command == "rl":
        if not asked.rewards:
            raise UserError("an rl job needs a reward: a verifier, a url or a file")
        _rewards(asked.rewards, owner, offered)
    elif asked.rewards:
        raise UserError(f"a reward is for rl jobs; this is one of {asked.command}")


def write(asked: Submitted, owner: str, offered: Offered, folder: Path) -> None:
    """Write the job's files into its folder, which is its working directory.

    Raises:
        UserError: as `check`; or a text that TOML cannot hold.
    """
    check(asked, owner, offered)
    config: dict[str, Any] = {"model": offered.models[asked.model], **asked.options}
    config["dataset"] = _written(asked.dataset, "train", folder, offered)
    if asked.eval_dataset is not None:
        config["eval_dataset"] = _written(asked.eval_dataset, "heldout", folder, offered)
    if asked.rewards:
        config["reward"] = _rewards(asked.rewards, owner, offered)
        for reward in asked.rewards:
            if isinstance(reward, Source):
                (folder / REWARD).write_bytes(reward.file.encode(errors="surrogatepass"))
    if asked.knobs:
        config["knobs"] = asked.knobs
    try:
        text = config_file.dumps(config)
    except ValueError as error:
        raise UserError(str(error)) from error
    (folder / TOML).write_text(text, encoding="utf-8")


def _written(data: Data, name: str, folder: Path, offered: Offered) -> str:
    """How the command's configuration names a data set: rows as a path below the job's folder."""
    if isinstance(data, Named):
        return str(_dataset(data.name, offered))
    assert isinstance(data, Rows)
    (folder / DATA).mkdir(exist_ok=True)
    jsonl.write(folder / DATA / f"{name}.jsonl", data.rows)
    return f"{DATA}/{name}.jsonl"


def _dataset(name: str, offered: Offered) -> Path:
    """The operator's data set of a name."""
    folder = offered.datasets
    known = sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)) if folder else []
    if folder is None or name not in known:
        raise unknown("data set", name[:80], known)
    return folder / name


def _rewards(rewards: Sequence[Reward], owner: str, offered: Offered) -> str:
    """Rewards as the command reads them: words with weights."""
    for kind in (Remote, Source):
        if sum(isinstance(reward, kind) for reward in rewards) > 1:
            raise UserError(f"a job has one reward of a {'url' if kind is Remote else 'file'} at most")
    return shlex.join(f"{_reward(reward, owner, offered)}={reward.weight!r}" for reward in rewards)


def _reward(reward: Reward, owner: str, offered: Offered) -> str:
    match reward:
        case Verifier():
            known = [name for name in REWARDS if name not in NO_ENVIRONMENT]
            if reward.verifier not in known:
                raise unknown("verifier", reward.verifier[:80], known)
            return reward.verifier
        case Source():
            if owner not in offered.trusted:
                raise UserError("Python source as a reward is for keys that the operator trusts; this one is not among")
            return f"{REWARD}:{reward.function}"
        case Remote():
            check_address(reward.url)
            if not offered.private_rewards and urlsplit(reward.url).scheme != "https":
                raise UserError("the address of a reward must begin with https:// here")
            return reward.url if offered.private_rewards else PUBLIC + reward.url
