"""Self-play of two seats by one policy: Nim, where who takes the last stick wins.

    posttrain sft --environment examples/nim.py:Nim
    posttrain rl --environment examples/nim.py:Nim --model runs/sft-2026-01-31-1 --max-new-tokens 4 --eval-every 10
    posttrain rl --environment examples/nim.py:Nim --model runs/sft-2026-01-31-1 --max-new-tokens 4 --algorithm rae

Both seats learn. A seat's rows are compared with those of the same seat in other episodes of the task alone or, with
rae, with a moving average of what that seat earns, so that the advantage of beginning is not taken for skill.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posttrain.environments import Environment, Seat
from posttrain.types import Message, Outcome, Task

SEATS = ("first", "second")


@dataclass(frozen=True)
class Nim(Environment):
    """In turn each seat takes 1, 2 or 3 sticks; a reply that is no such number loses."""

    seats: tuple[str, ...] = SEATS
    trained: tuple[str, ...] = SEATS
    max_turns: int = 12
    fewest: int = 5
    most: int = 21

    def tasks(self, split: str, seed: int) -> list[Task]:
        """One for each number of sticks; every fourth is held out."""
        every = range(self.fewest, self.most + 1)
        return [
            Task((Message("user", _rules(n)),), n, id=f"{n} sticks")
            for n in every
            if (n % 4 == 1) == (split == "heldout")
        ]

    def demonstrations(self, seed: int) -> list[Sequence[Message]]:
        """Moves by chance, which are allowed."""
        draw = random.Random(seed)
        return [self._game(task, draw) for task in self.tasks("train", seed) for _ in range(20)]

    def _game(self, task: Task, draw: random.Random) -> list[Message]:
        said, left = [*task.prompt], int(task.answer)
        while True:
            taken = draw.randint(1, min(3, left))
            said.append(Message("assistant", str(taken)))
            other = draw.randint(1, min(3, left - taken)) if left > taken else 0
            left -= taken + other
            if left < 1:
                return said
            said.append(Message("user", f"I take {other}. {left} are left."))

    async def play(self, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        """The winner earns 1, the other -1."""
        left, told = int(task.answer), ""
        for move in range(2 * self.max_turns):
            name, other = SEATS[move % 2], SEATS[1 - move % 2]
            news = f"I take {told}. {left} are left." if move > 1 else _rules(left)
            reply = (await seats[name].turn([Message("user", news)])).text.strip()
            if reply not in ("1", "2", "3") or int(reply) > left:
                return Outcome({name: -1.0, other: 1.0}, metrics={"broken": 1.0, "moves": move})
            left, told = left - int(reply), reply
            if not left:
                return Outcome({name: 1.0, other: -1.0}, metrics={"broken": 0.0, "moves": move + 1})
        return Outcome({"first": 0.0, "second": 0.0})


def _rules(sticks: int) -> str:
    return f"There are {sticks} sticks. We take 1, 2 or 3 in turn; who takes the last one wins. Answer with a number."
