"""Reward models, local chat models and reward functions in processes of a Ray cluster.

    with ScorerGroup(2, load, functions=[function]) as group:
        group.scores(0)(conversations)           # by the first of the reward models that `load` returns
        group.engine(0).generate(requests)       # by the first of its chat models
        group.reward(function, timeout_s)(groups)

Each process has all of them, and scores its share of every batch. One that dies or hangs is replaced, and its share is
scored again. A process scores one share at a time, so that the time that a share waits for one is not its own.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from posttrain.background import finish, started
from posttrain.distributed.cluster import Lost, ray
from posttrain.distributed.pool import LOSSES, START_S, Pool
from posttrain.distributed.samplers import Exchanged, Facts, Samples, facts_of
from posttrain.engine.engine import BatchEngine, refuse_unanswerable
from posttrain.engine.policy import Policy
from posttrain.engine.scorer import Scorer, ScorerFacts
from posttrain.errors import ProcessLost, RewardError, UserError, described
from posttrain.rewards import TIME_LIMITS, Ask, CustomReward, Source, apart, load_again, score_all
from posttrain.types import Completion, EpisodeGroup, Message, Request, ScoreFn, SeatScores


class Models(NamedTuple):
    """What scorers load."""

    rewards: Sequence[Scorer] = ()
    chats: Sequence[Policy] = ()  # judges, and players of seats


class ModelFacts(NamedTuple):
    """What is known of them."""

    rewards: Sequence[ScorerFacts] = ()
    chats: Sequence[Facts] = ()


Load = Callable[[str], Models]
"""From the name of a number format to the models."""

T = TypeVar("T")


class ScoringProcess(Samples):
    """Has reward models, chat models and reward functions, in the process of an actor."""

    kind = "scorer"

    def build(self, load: Load, precision: str, functions: Sequence[Source]) -> ModelFacts:
        """Load the models and the functions."""
        try:
            self._functions = [load_again(source) for source in functions]
        except UserError as error:
            raise UserError(f"a scorer on {socket.gethostname()} cannot load a reward function: {error}") from error
        self._models = load(precision)
        rewards = [scorer.facts for scorer in self._models.rewards]
        return ModelFacts(rewards, [facts_of(policy.model) for policy in self._models.chats])

    def scores(self, model: int, conversations: Sequence[Sequence[Message]]) -> tuple[list[tuple[float, ...]], float]:
        """The scores of conversations by one of the reward models, and the seconds that took."""
        began = time.monotonic()
        return self._models.rewards[model](conversations), time.monotonic() - began

    def begin(self, model: int, requests: Sequence[Request]) -> None:
        """Give requests to one of the chat models. Raises as its engine."""
        policy = self._models.chats[model]
        for number, request in enumerate(requests):
            refuse_unanswerable(number, request, policy.model.context, policy.model.name)
        self._open(policy.engine)
        for number, request in enumerate(requests):
            self._decoding.add(number, request)
        self._left = len(requests)

    def sample(self) -> Exchanged:
        """What is done of them after a slice of time."""
        found = self._slice(self._left)
        self._left -= len(found.done)
        return found

    def rewards(
        self, function: int, timeout_s: float, sent: bytes, timed_out: frozenset[str]
    ) -> tuple[list[tuple[list[SeatScores], frozenset[str]]], float]:
        """The scores of groups by a function, with questions that timed out besides `timed_out`; and the seconds."""
        began, called = time.monotonic(), self._functions[function]
        TIME_LIMITS.add(*timed_out)
        try:
            groups: list[EpisodeGroup] = ray.cloudpickle.loads(sent)
        except Exception as error:
            raise RewardError(_unsent(called.name, error)) from error
        scores = finish(score_all(called, groups, timeout_s=timeout_s))
        found = TIME_LIMITS.known - timed_out
        return [(of_group, found) for of_group in scores], time.monotonic() - began


class ScorerGroup(Pool):
    """Processes that have models and reward functions.

    A process may take `timeout_s` to score its share before it counts as lost. A chat model may sample for longer, as
    long as the process says what it has done. Raises `UserError` as `Pool`, and if a model or a function cannot be
    loaded or pickled.
    """

    def __init__(
        self,
        size: int,  # how many
        load: Load,  # loads the models in each; it is pickled
        *,
        # of files, which each loads from the same paths, and objects, which are sent pickled
        functions: Sequence[CustomReward] = (),
        # number format of the models; `auto` is what the first process finds fastest, for all of them
        precision: str = "auto",
        **settings: Any,  # as those of `Pool`
    ) -> None:
        self._functions = list(functions)
        self._sources = [function.sent() for function in functions]
        super().__init__(ScoringProcess, size, **settings)
        self._idle = set(range(size))
        self._unbuilt: set[int] = set()  # processes that have started and failed to load
        self._changed = threading.Condition()  # of these two; threads may score at the same time
        with self.ready():
            precision, _ = self.ask(0, "precision", precision, timeout_s=START_S)
            self.given = [(load, precision, self._sources)] * size
            self.facts: ModelFacts = self.build(range(size))[0]

    def scores(self, model: int) -> ScoreFn:
        """The scores of one of the models. Raises as `Scorer`, and `ProcessLost` if processes are lost in a row."""

        def scores(conversations: Sequence[Sequence[Message]]) -> list[tuple[float, ...]]:
            return self._by_shares(conversations, lambda share: partial(self._asked, ("scores", model, share)), "")

        return scores

    def engine(self, model: int) -> "ScorerEngine":
        """One of the chat models."""
        return ScorerEngine(self, model)

    def reward(self, function: CustomReward, timeout_s: float) -> Ask:
        """The scores of one of the functions, which may take `timeout_s` for a share. Raises as `score_all`, `scores`.

        Groups are split, unless the function compares the completions of a group.
        """
        number = self._functions.index(function)
        doing = f"; each was running the reward '{self._sources[number].path}'"

        def sent(share: Sequence[EpisodeGroup]) -> Callable[[int], list[Any]]:
            try:
                pickled = ray.cloudpickle.dumps(share)
            except Exception as error:  # whatever an object says of itself
                raise RewardError(_unsent(function.name, error)) from error
            return partial(self._asked, ("rewards", number, timeout_s, pickled, TIME_LIMITS.known))

        def scores(groups: Sequence[EpisodeGroup]) -> list[list[SeatScores]]:
            split = apart([episode for group in groups for episode in group.episodes])
            found = self._by_shares(groups if function.mode == "group" else split, sent, doing)
            TIME_LIMITS.add(*(digest for _, timed_out in found for digest in timed_out))
            flat = iter([each for of_group, _ in found for each in of_group])
            return [[next(flat) for _ in group.episodes] for group in groups]

        return scores

    def _by_shares(
        self, items: Sequence[T], asked: Callable[[Sequence[T]], Callable[[int], list[Any]]], doing: str
    ) -> list[Any]:
        """What processes answer of shares of the items, in order; the error is that of the first share that has one."""
        size = -(-len(items) // self.running)
        # daemon threads: those that are under way after an error keep no program from ending
        answers = [
            started(self._answered, at // size, asked(items[at : at + size]), doing)
            for at in range(0, len(items), max(size, 1))
        ]
        return [each for answer in answers for each in answer.result()]

    def _answered(self, preferred: int, asked: Callable[[int], list[Any]], doing: str) -> list[Any]:
        """What a process answers: the preferred one, or if that is busy whichever is idle first."""
        why: Lost | None = None
        for _ in range(1 + LOSSES):
            with self._idle_place(preferred) as place:
                try:
                    if place in self._unbuilt:
                        self.build([place])
                    return asked(place)
                except Lost as lost:
                    why = lost
                with contextlib.suppress(Lost):  # one that is lost while it starts is replaced by the next try
                    self.replace(place)
        raise ProcessLost(f"{LOSSES + 1} scorers were lost in a row; the last: {why}{doing}") from why

    def _asked(self, asked: tuple[Any, ...], place: int) -> list[Any]:
        """What a process answers, of which the seconds are noted that it took."""
        found, seconds = self.ask(place, *asked)
        self.ledger.note("scoring", [place], seconds)
        return found

    def _sampled(
        self, model: int, requests: Sequence[Request], on_tokens: Callable[[int], None] | None, place: int
    ) -> list[Completion]:
        """The completions that a process samples, slice by slice."""
        told = on_tokens or (lambda _: None)
        told(0)  # who waits may have left while the share waited for a process
        done: dict[int, Completion] = {}
        try:
            self.ask(place, "begin", model, requests)
            while len(done) < len(requests):
                found: Exchanged = self.ask(place, "sample")
                self.ledger.note("scoring", [place], found.seconds)
                done |= found.done
                told(found.tokens)
        finally:
            self.call(place, "end")
        return [done[number] for number in range(len(requests))]

    @contextlib.contextmanager
    def _idle_place(self, preferred: int) -> Generator[int]:
        """A process that nothing else uses while the block runs."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle or not self.running)
            if not self.running:
                raise ProcessLost("the scorers have been stopped")
            place = preferred if preferred in self._idle else min(self._idle)
            self._idle.remove(place)
        try:
            yield place
        finally:
            with self._changed:
                self._idle.add(place)
                self._changed.notify()

    def build(self, places: Iterable[int]) -> list[Any]:
        """See `Pool`."""
        self._unbuilt |= set(places)
        found = super().build(places)
        self._unbuilt -= set(places)
        return found

    def stop(self) -> None:
        """Stop all processes; who waits for one gets an error."""
        with self._changed:
            super().stop()
            self._changed.notify_all()

    def metrics(self) -> Mapping[str, float]:
        """The share of time in which each has scored since the last call. Losses so far."""
        return {"cluster/scorers_replaced": float(self.replaced), **self.ledger.rates()[0]}


@dataclass(frozen=True)
class ScorerEngine(BatchEngine):
    """A chat model of a group, which samples batches."""

    group: ScorerGroup
    model: int

    def generate(self, requests: Sequence[Request], on_tokens: Callable[[int], None] | None = None) -> list[Completion]:
        """As an engine's, or `ProcessLost`; `on_tokens` is called by several threads, and ends a share if it raises."""
        sampled = self.group._sampled
        return self.group._by_shares(requests, lambda share: partial(sampled, self.model, share, on_tokens), "")


def _unsent(name: str, error: Exception) -> str:
    return (
        f"reward '{name}': episodes cannot be sent to a scorer, with the tasks' metadata ({described(error)}); keep "
        "plain data there, or leave out `scorers`"
    )
