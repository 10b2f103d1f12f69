"""Parsing and setup of --judge."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from posttrain.environments.judged import ParsedRewards, judged
from posttrain.errors import UserError
from posttrain.rollouts.batched import BatchedEngine
from posttrain.rollouts.budget import Budget
from posttrain.rollouts.chat_models import EngineChat, LateChat, PolicyChat
from posttrain.rollouts.openai_chat import OpenAIChat
from posttrain.rollouts.policy import load_policy
from posttrain.rollouts.reply_cache import CACHE, ReplyCache
from posttrain.types import ChatModel, Sampling

MAY_DIFFER = ("judge_budget", "judge_concurrency", "judge_cache")
"""Options of judges that change no score."""
POLICY = "policy"  # what is typed for the policy itself
_NAME = re.compile(r"[A-Za-z][\w-]*")


class JudgeOptions(Protocol):
    """The options of judges."""

    @property
    def judge(self) -> str: ...  # noqa: D102
    @property
    def judge_prompt(self) -> str: ...  # noqa: D102
    @property
    def judge_temperature(self) -> float: ...  # noqa: D102
    @property
    def judge_max_new_tokens(self) -> int: ...  # noqa: D102
    @property
    def judge_concurrency(self) -> int: ...  # noqa: D102
    @property
    def judge_budget(self) -> int: ...  # noqa: D102
    @property
    def judge_cache(self) -> str: ...  # noqa: D102
    @property
    def precision(self) -> str: ...  # noqa: D102
    @property
    def seed(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class JudgeModels:
    """Chat models by judge name, with their budget and reply cache."""

    models: Mapping[str, ChatModel] = field(default_factory=dict[str, ChatModel])
    folders: dict[str, str] = field(default_factory=dict[str, str])  # local models as typed, and where they are
    budget: Budget = field(default_factory=Budget)
    cache: ReplyCache = field(default_factory=ReplyCache)
    elsewhere: str = ""  # a file to cache replies in, if not where the caller says
    policy: PolicyChat = field(default_factory=PolicyChat)  # which is a judge where one is called so

    def load(self) -> None:
        """Load the local judge models."""
        for model in self.models.values():
            if isinstance(model, LateChat):
                model.load()

    def refuse_policy(self, command: str) -> None:
        """Raise `UserError` for NAME=policy, in commands that score no episodes of a policy of their own."""
        if self.policy in self.models.values():
            raise UserError(f"{command} has no policy to ask; a judge is NAME=MODEL or NAME=URL#MODEL there")

    @contextmanager
    def kept_in(self, folder: Path) -> Iterator[None]:
        """Cache replies in this folder, unless the user has named a file; cached replies count towards the budget."""
        with self._kept(folder / CACHE):
            yield

    @contextmanager
    def kept_beside(self, output: Path | None) -> Iterator[None]:
        """Cache replies next to a file until that is written; in memory, where there is none."""
        path = output.with_name(f"{output.name}.{CACHE}") if output else None
        with self._kept(path):
            yield
        if path and not self.elsewhere:
            path.unlink(missing_ok=True)

    @contextmanager
    def _kept(self, path: Path | None) -> Iterator[None]:
        path = Path(self.elsewhere).expanduser() if self.elsewhere else path
        if path is None:
            yield
            return
        with self.cache.kept_in(path):
            self.budget.begin(self.cache.replies)
            yield


def judges_in(options: JudgeOptions, where: Callable[[str], str] = lambda name: name) -> JudgeModels:
    """The judges that the options name; local models are not loaded yet. `where` says in which folder a model is.

    Raises:
        UserError: a judge that cannot be parsed, or the library for a URL is not installed.
    """
    check_judges(options)
    budget, cache = Budget(options.judge_budget), ReplyCache()
    models: dict[str, ChatModel] = {}
    policy = PolicyChat()
    folders: dict[str, str] = {}
    loaded: dict[str, LateChat] = {}
    for name, what in named_judges(options.judge).items():
        address, hash_, model = what.partition("#")
        if what == POLICY:
            models[name] = policy
        elif "://" not in what:
            folders[what] = where(what)
            models[name] = loaded.setdefault(what, LateChat(_local(folders[what], options.precision)))
        elif not hash_ or not model:
            raise UserError(f"judge '{name}' has a URL without a model; write {name}=URL#MODEL")
        else:
            models[name] = OpenAIChat(
                name, address, model, at_once=options.judge_concurrency, budget=budget, cache=cache
            )
    return JudgeModels(models, folders, budget, cache, options.judge_cache, policy)


def named_judges(typed: str) -> dict[str, str]:
    """The models and addresses of judges by name.

    Raises:
        UserError: a word is not NAME=MODEL or NAME=URL#MODEL, or a name is given twice.

    Example:
        >>> named_judges("kind=http://localhost:8000/v1#small brief=OWNER/NAME")
        {'kind': 'http://localhost:8000/v1#small', 'brief': 'OWNER/NAME'}
    """
    try:
        words = shlex.split(typed)
    except ValueError as error:
        raise UserError(f"cannot read --judge {typed!r}: {error}; put a path with spaces in quotes") from error
    found: dict[str, str] = {}
    for word in words:
        name, _, what = word.partition("=")
        if not _NAME.fullmatch(name) or not what:
            raise UserError(f"a judge is NAME=MODEL, NAME=URL#MODEL or NAME=policy; got '{word}'")
        if name in found:
            raise UserError(f"two judges are called '{name}'; give one of them another name")
        found[name] = what
    return found


def rewards_with(judging: JudgeModels, options: JudgeOptions, reward: str, gold: str = "") -> ParsedRewards:
    """Rewards and gold rewards as typed, and the judges; see `environments.judged`."""
    return judged(
        reward,
        gold,
        judges=judging.models,
        policy=judging.policy,
        prompts=options.judge_prompt,
        sampling=Sampling(options.judge_max_new_tokens, options.judge_temperature),
        seed=options.seed,
    )


_DEFAULTS = {
    **{"judge_prompt": "", "judge_temperature": 0.0, "judge_max_new_tokens": 1024, "judge_concurrency": 16},
    **{"judge_budget": 0, "judge_cache": ""},
}


def check_judges(options: JudgeOptions) -> None:
    """Validate the options of judges.

    Raises:
        UserError: names the option and its valid range.
    """
    for name, default in _DEFAULTS.items():
        if not options.judge and getattr(options, name) != default:
            raise UserError(f"--{name.replace('_', '-')} needs a judge: pass --judge NAME=MODEL")
    if options.judge_max_new_tokens < 1 or options.judge_concurrency < 1:
        raise UserError("--judge-max-new-tokens and --judge-concurrency must be 1 or more")
    if options.judge_budget < 0 or not 0 <= options.judge_temperature <= 2:
        raise UserError("--judge-budget must be 0 or more, and --judge-temperature from 0 to 2")


def _local(folder: str, precision: str) -> Callable[[], ChatModel]:
    def load() -> ChatModel:
        policy = load_policy(folder, precision=precision)
        return EngineChat(BatchedEngine(policy.engine), policy.chat, policy.model.context)

    return load
