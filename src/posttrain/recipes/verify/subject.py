"""What is verified, the user's policy in its own number format and in float32; and what is found."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count

import torch

from posttrain.algorithms.grpo import GRPO
from posttrain.engine.engine import BatchEngine
from posttrain.engine.policy import Policy
from posttrain.environments.env import Environment, Seat
from posttrain.environments.scored import ScoredEnvironment
from posttrain.episodes.episodes import Players, sample_groups
from posttrain.models.language_model import LanguageModel
from posttrain.options.evaluation import Verify
from posttrain.rewards import Weighted
from posttrain.training.learner import Batch
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import policy_batch
from posttrain.types import Completion, Engine, EpisodeGroup, Group, Message, Outcome, Request, Sampling, Score, Task

QUESTIONS = ("What is 12 + 7?", "Name three colours.", "Why is the sky blue?", "Write a word that rhymes with cat.")
VOWELS = tuple("aeiou")
LONGEST = 8  # tokens of a turn in dialogues of several: all of it fits a small context
ALGORITHM = GRPO(kl_coefficient=0.0)


@dataclass(frozen=True)
class Dialogue(Environment):
    """The policy speaks `max_turns` times; in between it is told what a tool would say."""

    max_turns: int = 1

    async def play(self, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        """Alternate between the policy and the tool."""
        new: Sequence[Message] = task.prompt
        for number in range(self.max_turns):
            await seats["policy"].turn(new)
            new = [Message("user", f"{{'value': {number}}}\nGo on.")]
        return Outcome()


@dataclass(frozen=True)
class GoesOn(Environment):
    """One message that stops at a letter and goes on after inserted text; then turns at settings of their own."""

    max_turns: int = 4

    async def play(self, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        """Stop, insert, go on; ask at another temperature, and from a truncated distribution."""
        seat = seats["policy"]
        said = (await seat.turn(task.prompt, stop=VOWELS, max_new_tokens=LONGEST)).text
        if any(letter in said for letter in VOWELS):
            await seat.go_on(" [a tool: 7]\n", max_new_tokens=LONGEST)
        await seat.turn([Message("user", "Go on.")], temperature=0.6, max_new_tokens=LONGEST)
        await seat.turn([Message("user", "Go on.")], top_p=0.5, max_new_tokens=LONGEST)
        return Outcome()


@dataclass(frozen=True)
class Alternating:
    """Every second episode earns 1, so that every group has a signal."""

    name: str = "reward"

    async def score(self, groups: Sequence[EpisodeGroup]) -> list[list[Score]]:
        """0, 1, 0, 1 and so on."""
        place = count()
        return [[Score(float(next(place) % 2)) for _ in group.episodes] for group in groups]


ALTERNATING = Weighted(((Alternating(), 1.0),))


@dataclass
class Recording(BatchEngine):
    """An engine that remembers what it was asked and what it said."""

    engine: Engine
    said: list[tuple[Request, Completion]]

    def generate(self, requests: Sequence[Request], on_tokens: Callable[[int], None] | None = None) -> list[Completion]:
        """What the engine says."""
        completions = self.engine.generate(requests, on_tokens)
        self.said += zip(requests, completions, strict=True)
        return completions


@dataclass(frozen=True)
class Subject:
    """A policy to verify, and how much of it."""

    config: Verify
    policy: Policy  # in the format that is computed in
    exact: Policy  # in float32; the same object where that is the format

    @property
    def tasks(self) -> list[Task]:
        """Short questions."""
        return [Task((Message("user", text),), id=text) for text in QUESTIONS[: self.config.prompts]]

    @property
    def format(self) -> str:
        """The number format that is computed in."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def policies(self) -> dict[str, Policy]:
        """By every format that is in use, the one that is computed in last."""
        return {"float32": self.exact, self.format: self.policy}

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in."""
        return self.policy.model.dtype

    @cached_property
    def batch(self) -> Batch:
        """A batch that the float32 policy sampled at temperature 1."""
        return batch_of(self.sample(self.exact))

    def requests(self, policy: Policy, most: int = sys.maxsize) -> list[Request]:
        """Each task as often as it has completions, with at most `most` tokens."""
        sampling = Sampling(min(self.config.max_new_tokens, most))
        return [
            Request(tuple(policy.chat.prompt_ids(task.prompt)), sampling, self.config.seed + number)
            for task in self.tasks
            for number in range(self.config.completions_per_prompt)
        ]

    def sample(
        self,
        policy: Policy,
        environment: Environment | None = None,
        *,
        temperature: float = 1.0,
        engine: Engine | None = None,
    ) -> list[Group]:
        """Groups of scored dialogues, or of another environment, through the driver that training uses."""
        sampling = Sampling(self.config.max_new_tokens, temperature)
        return sample_groups(
            ScoredEnvironment(ALTERNATING, environment or Dialogue()),
            self.tasks,
            Players(engine or policy.engine, policy.chat, sampling, max_tokens=policy.model.context),
            completions_per_prompt=self.config.completions_per_prompt,
            seed=self.config.seed,
        )

    def recorded(
        self, policy: Policy, environment: Environment, engine: Engine | None = None
    ) -> tuple[list[Group], list[tuple[Request, Completion]]]:
        """As `sample`, with what the engine was asked and what it said."""
        recording = Recording(engine or policy.engine, [])
        return self.sample(policy, environment, engine=recording), recording.said


def batch_of(groups: Sequence[Group]) -> Batch:
    """What an update learns from these groups."""
    return policy_batch(groups, ALGORITHM)[0]


def longest(batch: Batch) -> int:
    """The smallest micro-batch that holds every example: the finest cut."""
    return max(len(e.prefix) + len(e.continuation) for e in batch.examples)


class Gradients(MasterAdamW):
    """Keeps the gradient of an update instead of following it."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(model.trainable())
        self.found: dict[str, torch.Tensor] = {}

    def step(self, lr: float, *, norm: float | None = None) -> float:
        """Take the gradient away."""
        norm = self.grad_norm()
        self.found = {name: m.grad for name, m in self.named_masters().items() if m.grad is not None}
        self.discard()
        return norm


@dataclass(frozen=True, slots=True)
class Item:
    """What was measured, and how far it may be off; both are None where it could not be measured.

    Where `bound` is 0, `measured` counts violations.
    """

    name: str
    passed: bool
    measured: float | None
    bound: float | None
    detail: str

    def line(self) -> str:
        """The item in one line, for people."""
        found = "not measured" if self.measured is None else f"{self.measured:.3g} (bound {self.bound:g})"
        state = "FAILED" if not self.passed else "skipped" if self.measured is None else "passed"
        return f"{state}  {self.name}: {found}; {self.detail}"

    @classmethod
    def within(cls, name: str, measured: float, bound: float, detail: str, *, besides: bool = True) -> "Item":
        """An item that holds if `measured` is within `bound`, and whatever is checked `besides` holds too."""
        return cls(name, besides and measured <= bound, measured, bound, detail)

    @classmethod
    def unless(cls, name: str, found: list[str], detail: str) -> "Item":
        """An item that holds if nothing was found against it."""
        return cls.within(name, len(found), 0, "; ".join(found) or detail)

    @classmethod
    def skipped(cls, name: str, why: str) -> "Item":
        """An item that could not be measured, and does not fail."""
        return cls(name, True, None, None, why)
