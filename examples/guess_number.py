"""A guessing game over several turns: find a number, told higher or lower.

    posttrain sft --environment examples/guess_number.py:GuessNumber --epochs 1
    posttrain rl --environment examples/guess_number.py:GuessNumber --model runs/sft-2026-01-31-1 --eval-every 10

Tasks and demonstrations come with the class, so that no data set is needed. The demonstrations guess at random among
the numbers that are still possible; that halving them is better is for the policy to find out.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posttrain.environments import Environment, Seat
from posttrain.types import Message, Outcome, Task


@dataclass(frozen=True)
class GuessNumber(Environment):
    """The secret is one of the numbers from 1 to `highest`; the policy has `max_turns` guesses."""

    highest: int = 60
    max_turns: int = 6

    def tasks(self, split: str, seed: int) -> list[Task]:
        """One for each secret, of which half are held out."""
        secrets = random.Random(seed).sample(range(1, self.highest + 1), self.highest)
        half = self.highest // 2
        question = (
            f"I think of a number from 1 to {self.highest}. You have {self.max_turns} guesses, and I say whether it is "
            "higher or lower. Answer with a number alone."
        )
        prompt = (Message("user", question),)
        return [
            Task(prompt, secret, id=f"secret {secret}")
            for secret in (secrets[:half] if split == "train" else secrets[half:])
        ]

    def demonstrations(self, seed: int) -> list[Sequence[Message]]:
        """Games in which each guess is one of the numbers that are still possible."""
        draw = random.Random(seed)
        return [self._game(task, draw) for task in self.tasks("train", seed) for _ in range(10)]

    def _game(self, task: Task, draw: random.Random) -> list[Message]:
        said, low, high = [*task.prompt], 1, self.highest
        for turn in range(self.max_turns):
            guess = draw.randint(low, high)
            said.append(Message("assistant", str(guess)))
            if guess == task.answer or turn == self.max_turns - 1:
                break
            low, high = (guess + 1, high) if guess < task.answer else (low, guess - 1)
            said.append(Message("user", _answer(guess, task.answer)))
        return said

    async def play(self, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        """1 for the policy if it finds the number."""
        new: Sequence[Message] = task.prompt
        for turn in range(1, self.max_turns + 1):
            reply = (await seats["policy"].turn(new)).text.strip()
            if reply == str(task.answer):
                return Outcome({"policy": 1.0}, solved=True, metrics={"guesses": turn})
            number = reply.isdecimal() and len(reply) <= 9 and 1 <= int(reply) <= self.highest
            new = [Message("user", _answer(int(reply), task.answer) if number else "That is no such number.")]
        return Outcome({"policy": 0.0}, solved=False, metrics={"guesses": self.max_turns})


def _answer(guess: int, secret: int) -> str:
    return "Higher." if guess < secret else "Lower."
