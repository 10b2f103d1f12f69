"""Checks that reference answers can be parsed."""

from collections.abc import Awaitable, Callable, Sequence

from posttrain.errors import RewardError
from posttrain.rewards.reward import Reward, apart, min_group_of, role_of
from posttrain.types import Episode, Message, Task


async def unreadable_answers(reward: Reward, tasks: Sequence[Task]) -> list[str]:
    """For each task, why `reward` cannot parse its reference answer; "" if it can.

    A reward for which this is slow, such as one with a worker process, has a method
    `unreadable(tasks)`. Any other verifier scores an empty completion: it parses the reference answer
    first, and raises if it cannot. A reward that is no verifier needs no answer.
    """
    unreadable: Callable[[Sequence[Task]], Awaitable[list[str]]] | None = getattr(reward, "unreadable", None)
    if unreadable is not None:
        return await unreadable(tasks)
    if role_of(reward) != "verifier" or min_group_of(reward) > 1:
        return [""] * len(tasks)
    silent = [Episode(task, (*task.prompt, Message("assistant", ""))) for task in tasks]
    try:
        await reward.score(apart(silent))
    except RewardError:
        return [await _failure(reward, episode) for episode in silent]
    return [""] * len(tasks)


async def _failure(reward: Reward, episode: Episode) -> str:
    try:
        await reward.score(apart([episode]))
    except RewardError as error:
        return str(error)
    return ""
