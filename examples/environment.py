"""An environment of one's own: the policy may try again after a wrong answer, and earns less the later it is right.

    python examples/environment.py

An environment speaks in messages and awaits its seats; tokens are the engine's business. This one is checked by the
conformance kit, then played with the packaged model; `sample_groups` returns what a training step takes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from posttrain.data import load_tasks
from posttrain.environments import Seat, check_environment, need_seats
from posttrain.rollouts.drive import sample_groups
from posttrain.rollouts.policy import load_policy
from posttrain.types import Episode, EpisodeGroup, Message, Sampling, Score, Task


@dataclass(frozen=True)
class Retry:
    """A question, and up to `tries` answers; the last word of a reply is its answer."""

    tries: int = 2
    seats: ClassVar[tuple[str, ...]] = ("policy",)
    outcome: ClassVar[str] = "solved"

    async def play(self, task: Task, seats: Mapping[str, Seat]) -> Episode:
        """Ask, and ask again while the answer is wrong."""
        need_seats(self, seats)
        said = [*task.prompt]
        new: Sequence[Message] = task.prompt
        for number in range(self.tries):
            reply = await seats["policy"].turn(new)
            said.append(reply)
            if _right(task, reply) or number == self.tries - 1:
                break
            new = (Message("user", "That is not right. Try again."),)
            said += new
        return Episode(task, tuple(said))

    async def score(self, groups: Sequence[EpisodeGroup]) -> list[list[Mapping[str, Score]]]:
        """Whether the last answer is right, and how many were needed."""
        return [[self._score_one(episode) for episode in group.episodes] for group in groups]

    def _score_one(self, episode: Episode) -> dict[str, Score]:
        solved = Score(float(_right(episode.task, episode.messages[-1])))
        return {"solved": solved, "answers": Score(float(len(_answers(episode))))}

    def total(self, scores: Mapping[str, Score]) -> float:
        """1 for the first answer, half of it for the second, and so on."""
        return scores["solved"].value / scores["answers"].value


def _right(task: Task, reply: Message) -> bool:
    words = reply.content.split()
    return bool(words) and words[-1].strip(".") == str(task.answer)


def _answers(episode: Episode) -> list[Message]:
    return [m for m in episode.messages[len(episode.task.prompt) :] if m.role == "assistant"]


def main(model: str = "smollm2-135m-instruct", prompts: int = 4, max_new_tokens: int = 24) -> float:
    """Check the environment, play it, print the episodes, and return the mean reward."""
    tasks = load_tasks("gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1", limit=prompts)
    tasks = [Task(t.prompt, t.answer, gold=str(t.answer), id=t.id) for t in tasks]
    failures = asyncio.run(check_environment(Retry(), tasks))
    print("\n".join(failures) or "the environment conforms")
    policy = load_policy(model)
    sampling = Sampling(max_new_tokens)
    groups = sample_groups(Retry(), tasks, policy.engine, policy.chat, sampling, completions_per_prompt=2, seed=0)
    for group in groups:
        print(group.task.prompt[-1].content, "earned", *group.rewards)
    return sum(reward for group in groups for reward in group.rewards) / (2 * len(groups))


if __name__ == "__main__":
    main()
