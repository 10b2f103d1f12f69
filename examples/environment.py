"""An environment of one's own: the policy may try again after a wrong answer, and earns less the later it is right.

    python examples/environment.py

An environment speaks in messages and awaits its seats; tokens are the engine's business. This one is checked by the
conformance kit, then played with the packaged model; `sample_groups` returns what a training step takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posttrain.data import load_tasks
from posttrain.engine.policy import load_policy
from posttrain.environments import Environment, ScoredEnvironment, Seat
from posttrain.episodes.episodes import Players, sample_groups
from posttrain.rewards import parse_rewards
from posttrain.testing import check_environment
from posttrain.types import Message, Outcome, Sampling, Task


@dataclass(frozen=True)
class Retry(Environment):
    """A question, and up to `max_turns` answers; the last word of a reply is its answer."""

    max_turns: int = 2

    async def play(self, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        """Ask until the answer is right: 1 for the first answer, half of it for the second, and so on."""
        new: Sequence[Message] = task.prompt
        for number in range(1, self.max_turns + 1):
            reply = await seats["policy"].turn(new)
            if reply.text.split()[-1:] and reply.text.split()[-1].strip(".") == str(task.answer):
                return Outcome({"policy": 1 / number}, solved=True)
            new = [Message("user", "That is not right. Try again.")]
        return Outcome({"policy": 0.0}, solved=False)


def main(model: str = "smollm2-135m-instruct", prompts: int = 4, max_new_tokens: int = 24) -> float:
    """Check the environment, play it, print what the episodes earned, and return the mean reward."""
    tasks = load_tasks("gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1", limit=prompts)
    tasks = [Task(t.prompt, t.answer, gold=str(t.answer), id=t.id) for t in tasks]
    check_environment(Retry(), tasks)
    print("the environment conforms")
    policy = load_policy(model)
    environment = ScoredEnvironment(parse_rewards("environment"), Retry())
    players = Players(policy.engine, policy.chat, Sampling(max_new_tokens))
    groups = sample_groups(environment, tasks, players, completions_per_prompt=2, seed=0)
    for group in groups:
        print(group.task.prompt[-1].content, "earned", *group.rewards)
    return sum(reward for group in groups for reward in group.rewards) / (2 * len(groups))


if __name__ == "__main__":
    main()
