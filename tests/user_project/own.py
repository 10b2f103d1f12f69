"""What a user writes: a reward with state, an algorithm, an environment, a judge, a callback."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import posttrain as pt
from posttrain.environments.env import Seat
from posttrain.types import Outcome, Reply, Sampling, StopReason, Usage

if TYPE_CHECKING:
    from posttrain.runs.session import Session


@pt.reward_function(bounds=(0.0, 1.0))
def brief(completion: str, limit: int = 20) -> float:
    return float(len(completion) <= limit)


class Novelty:
    """Rewards a completion less each time that it comes again."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def __call__(self, completion: str) -> float:
        self.seen[completion] += 1
        return 1 / self.seen[completion]


@dataclass(frozen=True)
class Sharper(pt.GRPO):
    """GRPO with a narrower clip range."""

    clip_high: float = 0.1


class Guess(pt.Environment):
    """Guess a number in two turns."""

    max_turns = 2

    def tasks(self, split: str, seed: int) -> Sequence[pt.Task]:
        return [pt.Task((pt.Message("user", "Guess a digit."),), answer=digit) for digit in range(10)]

    async def play(self, task: pt.Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        said = list(task.prompt)
        for _ in range(self.max_turns):
            reply = await seats["policy"].turn(said)
            if str(task.answer) in reply.text:
                return Outcome({"policy": 1.0})
            said += [reply.message, pt.Message("user", "No. Guess again.")]
        return Outcome({"policy": 0.0})


class Kind:
    """A judge that likes all answers."""

    async def chat(
        self, messages: Sequence[pt.Message], *, sampling: Sampling, tools: Sequence[str] = (), seed: int = 0
    ) -> Reply:
        return Reply(pt.Message("assistant", "Score: 10"), StopReason.STOP, Usage(1, 1))


class Enough(pt.Callback):
    """Ends a run whose reward is high."""

    def on_step(self, session: "Session", step: int, metrics: Mapping[str, float]) -> None:
        if metrics["reward/mean"] > 0.9:
            session.stop("the reward is high enough")
