"""A chat format with a tiny tokenizer, and environments that talk for more than one turn."""

import asyncio
from dataclasses import dataclass, field
from typing import ClassVar

from posttrain.data.chat import ChatFormat
from posttrain.types import Episode, Message, Score, Task
from tests.data.families import of_family


def chat_format() -> ChatFormat:
    """SmolLM2's template over bytes, where `20` and a pair of newlines are one token each."""
    return ChatFormat(of_family("smollm2"))


def question(text: str = "2+2?", turns: int = 1) -> Task:
    return Task((Message("user", text),), id=text, metadata={"turns": turns})


@dataclass
class Quiz:
    """Asks the policy as often as the task says, with `again` between its turns. Scores how long it talked."""

    again: str = "And now?"
    seats: ClassVar[tuple[str, ...]] = ("policy",)
    outcome: ClassVar[str] = "turns"
    pauses: dict[str, int] = field(default_factory=dict)  # by task: rounds of the event loop before each turn

    async def play(self, task, seats):
        messages, new = list(task.prompt), list(task.prompt)
        for number in range(task.metadata["turns"]):
            for _ in range(self.pauses.get(task.id, 0)):
                await asyncio.sleep(0)
            reply = await seats["policy"].turn(new)
            new = [Message("user", f"{self.again} {number}")]
            messages += [reply, *new]
        return Episode(task, tuple(messages[:-1]))

    async def score(self, groups):
        return [[self.score_one(episode) for episode in group.episodes] for group in groups]

    def score_one(self, episode):
        return {"turns": Score(float(sum(m.role == "assistant" for m in episode.messages)))}

    def total(self, scores):
        return 10 * scores["turns"].value
