"""Playing many episodes at once: each in its own coroutine, their turns answered together by one engine.

An environment awaits its seats in words. Here the words become tokens, once: a seat remembers the exact tokens it was
shown and sampled, and a later turn only appends to them. Nothing sampled is ever decoded and encoded again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from posttrain.data.chat import ChatFormat
from posttrain.data.order import seed_for
from posttrain.environments.env import Environment, need_group
from posttrain.errors import RewardError
from posttrain.types import (
    Completion,
    Engine,
    Episode,
    EpisodeGroup,
    Group,
    Message,
    Request,
    Sampling,
    Task,
    Trajectory,
    Turn,
)

AWAKE_S = 0.2  # how late a signal can be

OnTokens = Callable[[int], None]
T = TypeVar("T")


@dataclass
class _Batcher:
    """Collects the requests of all live episodes and answers them in one call when every one of them is waiting."""

    engine: Engine
    live: int
    on_tokens: OnTokens | None
    _waiting: list[tuple[Request, asyncio.Future[Completion]]] = field(default_factory=list)

    async def ask(self, request: Request) -> Completion:
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        self._answer_if_all_wait()
        return await future

    def leave(self) -> None:
        """One episode has ended."""
        self.live -= 1
        self._answer_if_all_wait()

    def _answer_if_all_wait(self) -> None:
        if not self._waiting or len(self._waiting) < self.live:
            return
        waiting, self._waiting = self._waiting, []
        try:
            completions = self.engine.generate([request for request, _ in waiting], self.on_tokens)
        except Exception as error:
            for _, future in waiting:  # all, or an environment that swallows its own would leave the rest waiting
                future.set_exception(error)
            return
        for (_, future), completion in zip(waiting, completions, strict=True):
            future.set_result(completion)


class PolicySeat:
    """The policy's side of one episode; keeps its tokens. Conforms to `environments.env.Seat`."""

    def __init__(
        self,
        ask: Callable[[Request], Awaitable[Completion]],
        chat: ChatFormat,
        sampling: Sampling,
        seed: int,
        opening: tuple[int, ...] = (),
    ) -> None:
        self._ask, self._chat, self._sampling, self._seed, self._opening = ask, chat, sampling, seed, opening
        self._history: list[Message] = []
        self.turns: list[Turn] = []

    async def turn(self, messages: Sequence[Message]) -> Message:
        """Answer what has been said since this seat's last turn."""
        if self.turns:
            stopped = self.turns[-1].token_ids[-1] in self._chat.stop_ids
            context_ids = self._chat.followup_ids(self._history, messages, stopped=stopped)
        else:
            context_ids = self._chat.prompt_ids(messages)
        opening = () if self.turns else self._opening  # what the first turn has said already
        context_ids = (*context_ids, *opening)
        so_far = Trajectory(tuple(self.turns)).token_ids
        seed = seed_for(self._seed, "turn", len(self.turns))
        sampling = replace(self._sampling, max_new_tokens=self._sampling.max_new_tokens - len(opening))
        done = await self._ask(Request(so_far + context_ids, sampling, seed))
        text = self._chat.decode((*opening, *done.token_ids))
        self.turns.append(Turn(tuple(context_ids), done.token_ids, done.logprobs, done.stop_reason, text))
        reply = Message("assistant", text)
        self._history += [*messages, reply]
        return reply


@dataclass(frozen=True)
class Played:
    """One episode in words and in tokens."""

    episode: Episode
    trajectory: Trajectory


def play(
    environment: Environment,
    tasks: Sequence[Task],
    engine: Engine,
    chat: ChatFormat,
    sampling: Sampling,
    seeds: Sequence[int],
    on_tokens: OnTokens | None = None,
    openings: Sequence[tuple[int, ...]] | None = None,
) -> list[Played]:
    """Play one episode per task, all at once; `seeds[i]` decides every draw of episode i.

    `openings[i]` is how the first answer of episode i begins: these tokens are given, and it is continued from there.
    The first thing that an environment, a seat or the engine raises is raised here as it is, and ends all episodes.
    """
    openings = [()] * len(tasks) if openings is None else openings
    batcher = _Batcher(engine, len(tasks), on_tokens)
    return finish(_play_all(environment, tasks, batcher, chat, sampling, seeds, openings))


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine; from a thread of its own where this one runs an event loop, as notebooks do."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_awake(coroutine))
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(copy_context().run, asyncio.run, coroutine).result()


async def _awake(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine in a loop that wakes up now and then.

    Python runs signal handlers between two instructions: a signal that arrives just before the loop begins to wait for
    something would be handled when that something happens, such as a reward that hangs.
    """
    loop = asyncio.get_running_loop()

    def tick() -> None:
        loop.call_later(AWAKE_S, tick)

    tick()
    return await coroutine


async def _play_all(
    environment: Environment,
    tasks: Sequence[Task],
    batcher: _Batcher,
    chat: ChatFormat,
    sampling: Sampling,
    seeds: Sequence[int],
    openings: Sequence[tuple[int, ...]],
) -> list[Played]:
    async def play_one(task: Task, seed: int, opening: tuple[int, ...]) -> Played:
        seats = {
            name: PolicySeat(batcher.ask, chat, sampling, seed_for(seed, name), opening if place == 0 else ())
            for place, name in enumerate(environment.seats)
        }
        episode = await environment.play(task, seats)
        batcher.leave()  # one that fails does not: nothing more is sampled for a batch that is lost
        turns = tuple(seats[environment.seats[0]].turns)
        if not turns:
            raise ValueError(
                f"{type(environment).__name__} ended an episode without asking its seat '{environment.seats[0]}'"
            )
        trajectory = Trajectory(turns)
        completion_ids = (*opening, *trajectory.token_ids[len(turns[0].context_ids) :])
        done = replace(episode, stop_reason=turns[-1].stop_reason, completion_ids=completion_ids)
        return Played(done, trajectory)

    running = [asyncio.ensure_future(play_one(*each)) for each in zip(tasks, seeds, openings, strict=True)]
    try:  # not a TaskGroup: it would wrap the one cause in a group of exceptions
        return await asyncio.gather(*running)
    except BaseException:
        for other in running:
            other.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise


def score(environment: Environment, tasks: Sequence[Task], played: Sequence[Sequence[Played]]) -> list[Group]:
    """Score all episodes of a batch together; `played[p]` are the episodes of `tasks[p]`."""
    episodes = [EpisodeGroup(task, tuple(p.episode for p in of)) for task, of in zip(tasks, played, strict=True)]
    scores = finish(environment.score(episodes))
    if list(map(len, scores)) != [len(of) for of in played]:
        raise RewardError(
            f"{type(environment).__name__} scored {sum(map(len, scores))} of {sum(map(len, played))} episodes"
        )
    groups: list[Group] = []
    for task, of, parts in zip(tasks, played, scores, strict=True):
        rewards = tuple(environment.total(part) for part in parts)
        groups.append(Group(task, tuple(p.trajectory for p in of), rewards, tuple(parts)))
    return groups


def sample_groups(
    environment: Environment,
    tasks: Sequence[Task],
    engine: Engine,
    chat: ChatFormat,
    sampling: Sampling,
    *,
    completions_per_prompt: int,
    seed: int,
    on_tokens: OnTokens | None = None,
) -> list[Group]:
    """G scored trajectories of each task. Every draw depends on `seed`, the task's place and the completion's alone.

    Raises:
        UserError: the environment's rewards compare more than G completions of a task.
    """
    need_group(environment, completions_per_prompt, "the number of completions of a prompt")
    places = [(p, g) for p in range(len(tasks)) for g in range(completions_per_prompt)]
    seeds = [seed_for(seed, "completion", p, g) for p, g in places]
    played = play(environment, [tasks[p] for p, _ in places], engine, chat, sampling, seeds, on_tokens)
    by_task = [played[p * completions_per_prompt : (p + 1) * completions_per_prompt] for p in range(len(tasks))]
    return score(environment, tasks, by_task)
