"""Episodes for tests, and rewards asked from tests that are not coroutines."""

import asyncio
from collections.abc import Sequence
from typing import Any

from posttrain.rewards import Reward, score_all
from posttrain.types import Episode, Message, Score, Task


def episode(
    completion: str, answer: Any = None, /, *, question: str = "What is it?", id: str = "t", **metadata: Any
) -> Episode:
    prompt = (Message("system", "Be brief."), Message("user", question))
    task = Task(prompt, answer=answer, metadata=metadata, id=id)
    return Episode(task, (*prompt, Message("assistant", completion)))


def scores(reward: Reward, episodes: Sequence[Episode], timeout_s: float = 60.0) -> list[Score]:
    return asyncio.run(score_all(reward, episodes, timeout_s=timeout_s))


def score(reward: Reward, completion: str, answer: Any = None, **metadata: Any) -> Score:
    return scores(reward, [episode(completion, answer, **metadata)])[0]


def value(reward: Reward, completion: str, answer: Any = None, **metadata: Any) -> float:
    return score(reward, completion, answer, **metadata).value
