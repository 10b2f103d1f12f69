"""Chat models of a run: judges (`judge`) and players of other seats (`seats`)."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from posttrain.data.chat import ChatFormat
from posttrain.engine.budget import CACHE, Budget, ReplyCache
from posttrain.engine.chat_models import EngineChat, LateChat, PastPolicy, PolicyChat
from posttrain.engine.client import Client
from posttrain.engine.openai_chat import OpenAIChat
from posttrain.engine.policy import load_policy
from posttrain.engine.scheduler import Scheduler
from posttrain.environments.env import Environment, Seat, trained_seats
from posttrain.environments.scored import ParsedRewards, judged
from posttrain.episodes.seats import ChatSeat
from posttrain.errors import ModelError, UserError, described, unknown, words_of
from posttrain.models.language_model import LanguageModel
from posttrain.models.load import locate
from posttrain.models.text_classifier import TextClassifier, text_classifier
from posttrain.options.evaluation import Evaluate
from posttrain.options.judging import JudgeAnswers, Revise, Scores
from posttrain.options.online import RL, SampledOptions
from posttrain.training.resolve_model import saved_model
from posttrain.types import ChatModel, Sampling
from posttrain.user_code import load

MAY_DIFFER = ("judge_budget", "judge_concurrency", "judge_cache")
"""Options of judges that change no score."""
JudgeOptions = SampledOptions | Evaluate | Scores | JudgeAnswers | Revise
"""The forms that have options of judges."""
POLICY = "policy"  # what is typed for the policy itself
PAST = "policy?"  # how the policy of earlier updates begins, as the player of a seat
COPIES = 5  # of its weights, unless said otherwise
HUMAN = "human"  # and for a person at the terminal
Named = str | Mapping[str, str | ChatModel]
"""What names chat models: words NAME=MODEL, NAME=URL#MODEL and NAME=FILE.py:CLASS, or models and objects by name."""
_NAME = re.compile(r"[A-Za-z][\w-]*")


@dataclass
class JudgeModels:
    """Chat models by the name of their judge or seat, with their budget and reply cache; each model is made once."""

    precision: str = "auto"
    at_once: int = 16
    budget: Budget = field(default_factory=Budget)
    elsewhere: str = ""  # a file to cache replies in, if not where the caller says
    trained: bool = False  # whether the policy is, so that an earlier one may play
    cache: ReplyCache = field(default_factory=ReplyCache)
    policy: PolicyChat = field(default_factory=PolicyChat)  # which is a judge where one is called so
    models: dict[str, ChatModel] = field(default_factory=dict[str, ChatModel])
    seats: dict[str, ChatModel] = field(default_factory=dict[str, ChatModel])
    folders: dict[str, str] = field(default_factory=dict[str, str])  # local models as typed, and where they are
    local: dict[str, LateChat] = field(default_factory=dict[str, LateChat])  # the same models, which `load` loads
    past: dict[str, PastPolicy] = field(default_factory=dict[str, PastPolicy])  # the policy of earlier updates
    classifiers: list[TextClassifier] = field(default_factory=list[TextClassifier])  # of rewards

    def named(self, kind: str, name: str, what: str | ChatModel) -> ChatModel:
        """The model of a judge or seat, as `named_models` has it. Raises `UserError` for what names none."""
        if not isinstance(what, str):
            return what
        if what.startswith(PAST):
            if kind != "seat" or not self.trained:
                raise UserError(f"{kind} '{name}' is an earlier policy, '{what}', which only plays seats in rl")
            return self.past.setdefault(what, _past(name, what))
        if what.endswith(".py") or ".py:" in what:
            return _made(kind, name, what)
        address, hash_, model = what.partition("#")
        if hash_ and ":" in address and "://" not in address:
            raise UserError(f"the address of {kind} '{name}' has no http:// or https://; write {name}=http://{what}")
        if "://" not in what:
            try:
                self.folders[what] = saved_model(what).where
                locate(self.folders[what])
            except ModelError as error:
                raise ModelError(f"{kind} '{name}': {error}") from error
            return self.local.setdefault(what, LateChat(partial(_local, self.folders[what], self.precision)))
        if not model:
            raise UserError(f"{kind} '{name}' has a URL without a model; write {name}=URL#MODEL")
        return OpenAIChat(name, address, model, at_once=self.at_once, budget=self.budget, cache=self.cache)

    def seat(self, players: Mapping[str, str | ChatModel]) -> None:
        """Have these play seats; see `named_models`."""
        self.seats |= {name: self.named("seat", name, what) for name, what in players.items()}

    def load(self) -> None:
        """Load the local models."""
        for model in (*self.local.values(), *self.classifiers):
            model.load()

    def bind(self, chat: ChatFormat, context: int, model: LanguageModel | None, cache_gb: float) -> None:
        """Answer for the policy, which is `model` where it is trained in this process and from it."""
        self.policy.bind(chat, context)
        for past in self.past.values():
            if model is None:
                raise UserError(
                    "'learner' has weights of its own, which an earlier policy cannot follow; give a function that "
                    "makes a learner from the policy, or give the seat to a run"
                )
            past.bind(model, chat, cache_gb)

    def refuse_policy(self, command: str) -> None:
        """Raise `UserError` for NAME=policy, in commands that score no episodes of a policy of their own."""
        if self.policy in self.models.values():
            raise UserError(f"{command} has no policy to ask; a judge is NAME=MODEL or NAME=URL#MODEL there")

    def kept_in(self, folder: Path) -> AbstractContextManager[None]:
        """Cache replies in this folder, unless the user has named a file; cached replies count towards the budget."""
        return self._kept(folder / CACHE)

    @contextmanager
    def kept_beside(self, output: Path) -> Iterator[None]:
        """Cache replies next to a file until that is written, or under a name in the working directory."""
        path = output.with_name(f"{output.name}.{CACHE}")
        with self._kept(path):
            yield
        if not self.elsewhere:
            path.unlink(missing_ok=True)

    @contextmanager
    def _kept(self, path: Path) -> Iterator[None]:
        with self.cache.kept_in(Path(self.elsewhere).expanduser() if self.elsewhere else path):
            self.budget.begin(self.cache.replies)
            yield


def judges_in(options: JudgeOptions, seats: Named = "") -> JudgeModels:
    """The judges that the options name, and the players of `seats` (`named_models`); local models are loaded later."""
    players = named_models("seats", seats)
    if people := [name for name, what in players.items() if what == HUMAN]:
        raise UserError(f"a person plays with posttrain generate alone; give the seat '{people[0]}' to a model")
    found = JudgeModels(
        options.precision,
        options.judge_concurrency,
        Budget(options.judge_budget),
        options.judge_cache,
        trained=isinstance(options, RL),
    )
    for name, what in named_models("judge", options.judge).items():
        found.models[name] = found.policy if what == POLICY else found.named("judge", name, what)
    found.seat(players)
    return found


def named_models(option: str, given: Named) -> dict[str, str | ChatModel]:
    """The models and addresses of an option by name, as words NAME=MODEL and NAME=URL#MODEL, or as a mapping.

    In a mapping any object with a method `chat` is a model (`posttrain.types.ChatModel`).

    Example:
        >>> named_models("judge", "kind=http://localhost:8000/v1#small brief=OWNER/NAME")
        {'kind': 'http://localhost:8000/v1#small', 'brief': 'OWNER/NAME'}
    """
    judge = option == "judge"
    if isinstance(given, str):
        pairs = [word.partition("=")[::2] for word in words_of(option, given)]
    else:
        pairs = list(given.items())
    found: dict[str, str | ChatModel] = {}
    for name, what in pairs:
        if not _NAME.fullmatch(name) or not what:
            last = ", NAME=URL#MODEL or NAME=policy" if judge else " or NAME=URL#MODEL (with generate NAME=human)"
            raise UserError(
                f"a {'judge' if judge else 'seat'} is NAME=MODEL{last}; got '{name}{'=' * bool(what)}{what}'"
            )
        if not isinstance(what, str) and not inspect.iscoroutinefunction(getattr(what, "chat", None)):
            raise UserError(
                f"{option} '{name}' is {repr(what)[:60]}; expected a model's name, URL#MODEL, or an object with a "
                "method async chat(messages, *, sampling, tools, seed)"
            )
        if name in found:
            twice = f"two judges are called '{name}'; give one of them another name"
            raise UserError(twice if judge else f"the seat '{name}' is given twice; leave one out")
        found[name] = what
    return found


def players_of(
    judging: JudgeModels, environment: Environment, sampling: Sampling, people: Sequence[str] = ()
) -> dict[str, Callable[[int], Seat]]:
    """The models that play the seats that the policy does not take, by seat name; `people` take further ones."""
    taken = {*judging.seats, *people}
    for name in taken:
        if name not in environment.seats:
            raise unknown(f"seat of {type(environment).__name__}:", name, environment.seats)
    if {*trained_seats(environment)} <= taken:
        raise UserError(
            f"the policy must take a trained seat ({', '.join(trained_seats(environment))}), and `seats` gives all of "
            "them to others; leave one out"
        )
    return {name: partial(ChatSeat, model, sampling) for name, model in judging.seats.items()}


def rewards_with(judging: JudgeModels, options: JudgeOptions, reward: object, gold: object = "") -> ParsedRewards:
    """Rewards and gold rewards as `parse_rewards` takes them, and the judges; see `environments.scored`."""
    found = judged(
        reward,
        gold,
        judges=judging.models,
        policy=judging.policy,
        prompts=options.judge_prompt,
        sampling=Sampling(options.judge_max_new_tokens, options.judge_temperature),
        seed=options.seed,
    )
    for classifier in (one for each in (found.rewards, found.gold) if each for one in each.classifiers):
        model = text_classifier(classifier.model, classifier.label)
        classifier.ask[:] = [model]
        judging.classifiers.append(model)
    return found


def _past(name: str, typed: str) -> PastPolicy:
    """An earlier policy, as `policy?behind=4` and `policy?behind=4&copies=3` name it."""
    given = {"copies": str(COPIES), **dict(parse_qsl(typed[len(PAST) :], keep_blank_values=True))}
    least = {"behind": 1, "copies": 2}
    if given.keys() != least.keys() or any(not v.isdecimal() or int(v) < least[k] for k, v in given.items()):
        raise UserError(
            f"the seat '{name}' is '{typed}'; an earlier policy is {PAST}behind=N, N updates ago (1 or more), and "
            "&copies=N, as many copies of its weights at most (2 or more)"
        )
    return PastPolicy(int(given["behind"]), int(given["copies"]))


def _made(kind: str, name: str, typed: str) -> ChatModel:
    made: Any = load(f"{kind} '{name}'", typed, "class")
    try:
        made = made()
    except Exception as error:
        raise UserError(f"{kind} '{name}': {typed} cannot be made without arguments: {described(error)}") from error
    if not inspect.iscoroutinefunction(getattr(made, "chat", None)):
        raise UserError(f"{kind} '{name}': {typed} has no method async chat(messages, *, sampling, tools, seed)")
    return made


def _local(folder: str, precision: str) -> EngineChat:
    policy = load_policy(folder, precision=precision)
    return EngineChat(Client(Scheduler(policy.engine, own_thread=True)), policy.chat, policy.model.context)
