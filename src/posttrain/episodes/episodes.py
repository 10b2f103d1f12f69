"""Concurrent episodes: a coroutine each, with turns sampled by one engine.

An environment exchanges text with its seats; `PolicySeat` converts it to tokens. A failed episode does not affect
others: it is retried with the same seed if the error may be transient, and its error is the result otherwise.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar, Unpack

from posttrain.background import all_of, loop_of
from posttrain.data.chat import ChatFormat
from posttrain.data.order import seed_for
from posttrain.engine.chat_models import PolicyChat
from posttrain.engine.client import LOOP, Client, Schedule
from posttrain.engine.scheduler import Scheduler
from posttrain.environments.env import Environment, Seat, TurnSampling, trained_seats
from posttrain.environments.scored import ScoredEnvironment, need_group, of_seat
from posttrain.environments.user_methods import calling, outcome_of
from posttrain.episodes.seats import PolicySeat
from posttrain.episodes.step_rewards import step_rewards
from posttrain.errors import EpisodeError, PosttrainError, RewardError, described, place_in_user_code
from posttrain.types import (
    Completion,
    Engine,
    Episode,
    EpisodeGroup,
    Group,
    Message,
    Reply,
    Request,
    Row,
    Sampling,
    StopReason,
    Task,
    Trajectory,
    Turn,
)

T = TypeVar("T")
OnTokens = Callable[[int], None]
CLOSING_S = 30.0  # that an environment may take to close
RETRIES = 2  # of an episode whose failure may pass
_PASSES = {"TransportError", "APIConnectionError", "RateLimitError", "InternalServerError"}  # of HTTP libraries
_UNBOUNDED = 2**31
COMPLETIONS = "the number of completions of a prompt"


@dataclass(frozen=True)
class Players:
    """The players of an environment's seats, and their sampling settings.

    With `pipelined`, `sample_groups` plays continuously, and scores each group while others are sampled; rewards cannot
    ask the policy then.
    """

    engine: Engine | Scheduler  # samples for the policy's seats; a scheduler, where others sample at the same time
    chat: ChatFormat
    sampling: Sampling  # of each turn
    # other players, who are not trained: called for each episode with its seed
    others: Mapping[str, Callable[[int], Seat]] = field(default_factory=dict[str, Callable[[int], Seat]])
    max_tokens: int | None = None  # of a seat in one episode, shown and sampled; None: what the model's context has
    schedule: Schedule | None = None  # as in `Client`; None: what the environment asks for
    pipelined: bool = False
    max_lost: float = 0.1  # the share of episodes that may fail; above it all fail with `EpisodeError`
    on_tokens: OnTokens | None = None  # called with the number of newly sampled tokens
    least: int | None = None  # as in `Client`
    on_lost: Callable[[Exception], None] | None = None  # called with each error that ended an episode for good
    policy_chat: PolicyChat | None = None  # the policy as a chat model, for rewards that use it as a judge


@dataclass(frozen=True)
class Played:
    """One episode in words, and the tokens of each trained seat that said something."""

    episode: Episode
    trajectories: Mapping[str, Trajectory]


@contextlib.contextmanager
def opened(environment: Environment) -> Iterator[None]:
    """Have an environment open while the block runs, in the event loop in which it plays."""
    loop = loop_of(LOOP)
    with calling(environment, "open"):
        asyncio.run_coroutine_threadsafe(environment.open(), loop).result()
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(environment.close(), loop_of(LOOP)).result(CLOSING_S)


def play(
    environment: ScoredEnvironment,
    tasks: Sequence[Task],
    players: Players,
    seeds: Sequence[int],
    openings: Sequence[tuple[int, ...]] | None = None,
) -> list[Played | Exception]:
    """Play one episode per task, all at once; of one that failed, its error. `seeds[i]` decides all draws of episode i.

    `openings[i]` is how the first answer of episode i begins: these tokens are given, and it is continued from there.
    A `PosttrainError` ends all episodes; anything else that an environment raises ends its own.
    """
    asks = asks_of(environment, players)
    found = asks.scheduler.run(asks, _play_all(environment, tasks, asks, players, seeds, openings))
    _count_losses(_lost(found), len(found), players)
    return found


def _count_losses(lost: Sequence[Exception], episodes: int, players: Players) -> None:
    refuse_losses(lost, episodes, players.max_lost)
    if players.on_lost is not None:
        for error in lost:
            players.on_lost(error)


def refuse_losses(lost: Sequence[Exception], episodes: int, share: float) -> None:
    """Raise `EpisodeError` if more than this share of the episodes failed."""
    if len(lost) > share * episodes:
        causes = ", ".join(f"{n} {cause}" for cause, n in Counter(type(error).__name__ for error in lost).most_common())
        raise EpisodeError(
            f"{len(lost)} of {episodes} episodes failed ({causes}), more than `max_lost` {share:g}; the first: "
            f"{described(lost[0])}{place_in_user_code(lost[0])}"
        ) from lost[0]


def asks_of(environment: ScoredEnvironment, players: Players) -> Client:
    """Where the episodes of an environment ask for their turns."""
    played = environment.environment
    schedule = players.schedule or ("continuous" if played.schedule == "continuous" else "lockstep")
    if players.pipelined:  # in lockstep, episodes that have ended would wait for all others
        schedule = "continuous"
    scheduler = players.engine if isinstance(players.engine, Scheduler) else Scheduler(players.engine)
    turns = played.max_turns > 1
    return Client(scheduler, schedule, least=players.least, turns=turns, on_tokens=players.on_tokens)


def none_left(lost: Mapping[str, int]) -> str:
    """The error message if no episode is left; `lost` counts them by the error's type."""
    causes = ", ".join(f"{n} {cause}" for cause, n in sorted(lost.items()))
    return f"{sum(lost.values())} episodes failed ({causes}), so that no task has enough of them left to be compared"


async def _play_all(
    environment: ScoredEnvironment,
    tasks: Sequence[Task],
    asks: Client,
    players: Players,
    seeds: Sequence[int],
    openings: Sequence[tuple[int, ...]] | None = None,
) -> list[Played | Exception]:
    async def play_one(number: int) -> Played | Exception:
        opening = openings[number] if openings else ()
        tries = RETRIES
        try:
            while True:
                try:
                    return await _play_once(
                        environment.environment, tasks[number], players, asks, number, seeds[number], opening
                    )
                except PosttrainError:
                    raise
                except Exception as error:
                    # another try may not meet what is of the kind of a connection, or a time limit
                    passes = isinstance(error, ConnectionError | TimeoutError) or not _PASSES.isdisjoint(
                        kind.__name__ for kind in type(error).__mro__
                    )
                    if not (passes and tries):
                        return error
                    tries -= 1
        finally:
            asks.leave()

    asks.enter(len(tasks))
    return await all_of(play_one(number) for number in range(len(tasks)))


async def _play_once(
    environment: Environment,
    task: Task,
    players: Players,
    asks: Client,
    number: int,
    seed: int,
    opening: tuple[int, ...],
) -> Played:
    """One attempt at an episode; its trained seats have said something."""

    def policy(place: int, seed: int) -> Seat:
        async def ask(request: Request, turn: int) -> Completion:
            return await asks.submit(request, (number, place, turn))

        room, begun = players.max_tokens or _UNBOUNDED, opening if place == 0 else ()
        turns = environment.max_turns
        return PolicySeat(ask, players.chat, players.sampling, seed, room=room, max_turns=turns, opening=begun)

    transcript: list[tuple[str, Message]] = []
    seats: dict[str, _Heard] = {}
    for place, name in enumerate(environment.seats):
        other, own = players.others.get(name), seed_for(seed, name)
        seats[name] = _Heard(name, other(own) if other else policy(place, own), transcript)
    outcome = await outcome_of(environment, task, seats, seed_for(seed, "environment"))
    playing, every = type(environment).__name__, trained_seats(environment)
    missing = [name for name in every if seats[name].sampled and name not in outcome.rewards]
    if outcome.rewards and missing:
        raise ValueError(
            f"{playing}.play says what {', '.join(outcome.rewards)} earned, and not what {missing[0]} did, which "
            "is trained"
        )
    trained = [seats[name] for name in every if name not in players.others]
    turns = {heard.name: heard.sampled for heard in trained if heard.sampled}
    if not turns:
        names = ", ".join(heard.name for heard in trained)
        raise ValueError(f"{playing} ended an episode in which {names} said nothing")
    first = trained[0]
    episode = Episode(
        task,
        tuple(first.view),
        first.stop_reason,
        (*opening, *_after_prompt(first.sampled)),
        outcome,
        {name: tuple(heard.view) for name, heard in seats.items()},
        tuple(transcript),
        {name: tuple(turn.text for turn in sampled) for name, sampled in turns.items()},
    )
    return Played(episode, {name: Trajectory(sampled) for name, sampled in turns.items()})


@dataclass
class _Heard:
    """A seat, with its conversation."""

    name: str
    seat: Seat
    transcript: list[tuple[str, Message]]
    view: list[Message] = field(default_factory=list[Message])
    stop_reason: StopReason = StopReason.STOP

    @property
    def sampled(self) -> tuple[Turn, ...]:
        """The turns that the policy sampled here."""
        return tuple(self.seat.turns) if isinstance(self.seat, PolicySeat) else ()

    async def turn(self, messages: Sequence[Message], tools: Sequence[str] = (), **own: Unpack[TurnSampling]) -> Reply:
        if wrong := [each for each in messages if not isinstance(each, Message)]:
            raise TypeError(f"turn of seat '{self.name}' got {wrong[0]!r}; expected a list of posttrain.types.Message")
        reply = await self.seat.turn(messages, tools, **own)
        self.view += [*messages, reply.message]
        self.transcript.append((self.name, reply.message))
        self.stop_reason = reply.stop_reason
        return reply

    async def go_on(self, text: str, **own: Unpack[TurnSampling]) -> Reply:
        reply = await self.seat.go_on(text, **own)
        last, new = self.view[-1], reply.message
        whole = replace(new, content=last.content + text + new.content, tool_calls=last.tool_calls + new.tool_calls)
        place = max(number for number, said in enumerate(self.transcript) if said == (self.name, last))
        self.view[-1], self.transcript[place] = whole, (self.name, whole)
        self.stop_reason = reply.stop_reason
        return reply


def _after_prompt(turns: Sequence[Turn]) -> Iterator[int]:
    """All tokens after the prompt, shown and sampled; where a branch begins, what was sampled alone."""
    for number, turn in enumerate(turns):
        if number and not turn.restarts:
            yield from turn.context_ids
        yield from turn.token_ids


def score(
    environment: ScoredEnvironment, tasks: Sequence[Task], played: Sequence[Sequence[Played]], players: Players
) -> list[Group]:
    """Score all episodes of a batch together; `played[p]` are the episodes of `tasks[p]`."""
    return run_with(asks_of(environment, players), players, _scored(environment, tasks, played, players))


def run_with(asks: Client, players: Players, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that scores episodes; the policy may be a judge in it."""
    with players.policy_chat.answered_by(asks) if players.policy_chat else contextlib.nullcontext():
        return asks.scheduler.run(asks, coroutine)


async def _scored(
    environment: ScoredEnvironment, tasks: Sequence[Task], played: Sequence[Sequence[Played]], players: Players
) -> list[Group]:
    """One row for each trained seat of each episode."""
    groups = [EpisodeGroup(task, tuple(p.episode for p in of)) for task, of in zip(tasks, played, strict=True)]
    reward = environment.reward
    scores = await reward.score_parts(groups)
    if list(map(len, scores)) != [len(of) for of in played]:
        raise RewardError(f"rewards scored {sum(map(len, scores))} of {sum(map(len, played))} episodes")
    found: list[Group] = []
    for task, of, by_episode in zip(tasks, played, scores, strict=True):
        rows: list[Row] = []
        for number, (each, by_reward) in enumerate(zip(of, by_episode, strict=True)):
            for seat, trajectory in each.trajectories.items():
                own = of_seat(by_reward, seat)
                row = Row(
                    trajectory=trajectory,
                    episode=number,
                    seat=seat,
                    scores=own,
                    reward=reward.total(own),
                    metrics=each.episode.outcome.metrics,
                    conversation=each.episode.views[seat],
                    step_rewards=step_rewards(trajectory, reward.spans(own), players.chat),
                )
                rows.append(row)
        found.append(Group(task=task, rows=tuple(rows)))
    return found


def sample_groups(
    environment: ScoredEnvironment,
    tasks: Sequence[Task],
    players: Players,
    *,
    completions_per_prompt: int,
    seed: int,
    min_group: int = 1,
) -> list[Group]:
    """G scored episodes of each task, or fewer where some failed; without those of which fewer than `min_group` remain.

    Sampling depends only on `seed`, the task's index and the episode's.
    """
    need_group(environment, completions_per_prompt, COMPLETIONS)
    seeds = [[seed_for(seed, "completion", p, g) for g in range(completions_per_prompt)] for p in range(len(tasks))]
    least = max(min(min_group, completions_per_prompt), environment.reward.min_group)
    if players.pipelined:
        return _pipelined(environment, tasks, players, seeds, least)
    each = [task for task in tasks for _ in range(completions_per_prompt)]
    found = play(environment, each, players, [*chain(*seeds)])
    by_task = [_whole(found[i : i + completions_per_prompt]) for i in range(0, len(found), completions_per_prompt)]
    kept = [(task, of) for task, of in zip(tasks, by_task, strict=True) if len(of) >= least]
    return score(environment, [task for task, _ in kept], [of for _, of in kept], players)


def _whole(found: Iterable[Played | Exception]) -> list[Played]:
    return [each for each in found if isinstance(each, Played)]


def _lost(found: Iterable[Played | Exception]) -> list[Exception]:
    return [each for each in found if isinstance(each, Exception)]


def _pipelined(
    environment: ScoredEnvironment,
    tasks: Sequence[Task],
    players: Players,
    seeds: Sequence[Sequence[int]],
    least: int,
) -> list[Group]:
    """As `sample_groups`; each group is scored as soon as its episodes have ended, several at once."""
    asks, episodes = asks_of(environment, players), sum(map(len, seeds))
    lost: dict[int, list[Exception]] = {}

    def count(number: int, failed: list[Exception]) -> None:
        lost[number] = failed
        refuse_losses([*chain(*lost.values())], episodes, players.max_lost)

    one = (
        sample_group(environment, task, players, asks, mine, least, partial(count, number))
        for number, (task, mine) in enumerate(zip(tasks, seeds, strict=True))
    )
    groups = asks.scheduler.run(asks, all_of(one))
    _count_losses([error for _, failed in sorted(lost.items()) for error in failed], episodes, players)
    return [group for group in groups if group]


async def sample_group(
    environment: ScoredEnvironment,
    task: Task,
    players: Players,
    asks: Client,
    seeds: Sequence[int],
    least: int,
    on_lost: Callable[[list[Exception]], None],
) -> Group | None:
    """Scored episodes of one task, for a coroutine of `run_with`; None where fewer than `least` remain.

    `on_lost` gets the errors of those that failed, and may raise: verdicts on the others may be paid for.
    """
    found = await _play_all(environment, [task] * len(seeds), asks, players, seeds)
    on_lost(_lost(found))
    whole = _whole(found)
    if len(whole) < least:
        return None
    (group,) = await _scored(environment, [task], [whole], players)
    return group
