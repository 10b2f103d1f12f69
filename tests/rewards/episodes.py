"""Episodes for tests, and rewards asked from tests that are not coroutines."""

import asyncio
from collections.abc import Sequence
from typing import Any

from posttrain.rewards import Reward, Weighted, apart, score_all
from posttrain.types import Episode, Message, Score, Task


def episode(
    completion: str, answer: Any = None, /, *, question: str = "What is it?", id: str = "t", **metadata: Any
) -> Episode:
    prompt = (Message("system", "Be brief."), Message("user", question))
    task = Task(prompt, answer=answer, metadata=metadata, id=id)
    return Episode(task, (*prompt, Message("assistant", completion)))


def flat(scores: Sequence[Sequence[Any]]) -> list[Any]:
    """One after the other, whatever the group."""
    return [score for of_group in scores for score in of_group]


def scores(reward: Reward, episodes: Sequence[Episode], timeout_s: float = 60.0) -> list[Score]:
    return flat(asyncio.run(score_all(reward, apart(episodes), timeout_s=timeout_s)))


def unguarded(reward: Reward, episodes: Sequence[Episode]) -> list[Score]:
    """Without the guard."""
    return flat(asyncio.run(reward.score(apart(episodes))))


def parts(reward: Weighted, episodes: Sequence[Episode]) -> list[dict[str, Score]]:
    """Of every episode the scores by name."""
    return flat(asyncio.run(reward.score_parts(apart(episodes))))


def score(reward: Reward, completion: str, answer: Any = None, **metadata: Any) -> Score:
    return scores(reward, [episode(completion, answer, **metadata)])[0]


def value(reward: Reward, completion: str, answer: Any = None, **metadata: Any) -> float:
    return score(reward, completion, answer, **metadata).value
