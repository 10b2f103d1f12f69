"""A chat format with a tiny tokenizer, and environments that talk for more than one turn."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from posttrain.data.chat import ChatFormat
from posttrain.environments import Environment, ScoredEnvironment
from posttrain.episodes.episodes import Players
from posttrain.rewards import Weighted
from posttrain.rewards.reward import EpisodeReward
from posttrain.types import Episode, Message, Outcome, Sampling, Score, Task
from tests.data.families import of_family


def chat_format() -> ChatFormat:
    """SmolLM2's template over bytes, where `20` and a pair of newlines are one token each."""
    return ChatFormat(of_family("smollm2"))


CHAT = chat_format()


def question(text: str = "2+2?", turns: int = 1) -> Task:
    return Task((Message("user", text),), id=text, metadata={"turns": turns})


@dataclass
class Quiz(Environment):
    """Asks the policy as often as the task says, with `again` between its turns."""

    again: str = "And now?"
    max_turns: int = 8
    pauses: dict[str, int] = field(default_factory=dict)  # by task: rounds of the event loop before each turn

    async def play(self, task, seats, seed):
        new = list(task.prompt)
        for number in range(task.metadata["turns"]):
            for _ in range(self.pauses.get(task.id, 0)):
                await asyncio.sleep(0)
            await seats["policy"].turn(new)
            new = [Message("user", f"{self.again} {number}")]
        return Outcome()


def turns(episode):
    """How long it talked."""
    return float(sum(m.role == "assistant" for m in episode.messages))


@dataclass(frozen=True)
class Judge(EpisodeReward):
    """Scores each episode by a function."""

    of: Callable[[Episode], float] = turns
    name: str = "turns"

    async def score_episodes(self, episodes):
        return [Score(self.of(episode)) for episode in episodes]


def scored(environment=None, of=turns) -> ScoredEnvironment:
    """Ten points for each unit of what `of` says of an episode."""
    return ScoredEnvironment(Weighted(((Judge(of), 10.0),)), environment or Quiz())


def players(engine, sampling=None, **more) -> Players:
    """The policy in every seat, over `chat_format()`."""
    return Players(engine, CHAT, sampling or Sampling(8, temperature=0.7), **more)
