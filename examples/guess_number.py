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
    """The secret is one of `size` consecutive numbers; the policy has `max_turns` guesses.

    The first number differs between tasks, so that a number that is held out in one range is a secret in another: what
    pays is to follow the answers, not to remember the secrets of training.
    """

    size: int = 60
    ranges: int = 10
    max_turns: int = 6

    def tasks(self, split: str, seed: int) -> list[Task]:
        """One for each range and secret in it, of which half are held out."""
        first = range(1, 4 * self.ranges, 4)
        every = [(low, secret) for low in first for secret in range(low, low + self.size)]
        random.Random(seed).shuffle(every)
        half = len(every) // 2
        return [self._task(*chosen) for chosen in (every[:half] if split == "train" else every[half:])]

    def _task(self, low: int, secret: int) -> Task:
        high = low + self.size - 1
        question = (
            f"I think of a number from {low} to {high}. You have {self.max_turns} guesses, and I say whether it is "
            "higher or lower. Answer with a number alone."
        )
        return Task((Message("user", question),), secret, metadata={"low": low}, id=f"{secret} from {low} to {high}")

    def demonstrations(self, seed: int) -> list[Sequence[Message]]:
        """Games in which each guess is one of the numbers that are still possible."""
        draw = random.Random(seed)
        return [self._game(task, draw) for task in self.tasks("train", seed)]

    def _game(self, task: Task, draw: random.Random) -> list[Message]:
        low = task.metadata["low"]
        said, high = [*task.prompt], low + self.size - 1
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
        low = task.metadata["low"]
        for turn in range(1, self.max_turns + 1):
            reply = (await seats["policy"].turn(new)).text.strip()
            if reply == str(task.answer):
                return Outcome({"policy": 1.0}, solved=True, metrics={"guesses": turn})
            number = reply.isdecimal() and len(reply) <= 9 and low <= int(reply) < low + self.size
            new = [Message("user", _answer(int(reply), task.answer) if number else "That is no such number.")]
        return Outcome({"policy": 0.0}, solved=False, metrics={"guesses": self.max_turns})


def _answer(guess: int, secret: int) -> str:
    return "Higher." if guess < secret else "Lower."
