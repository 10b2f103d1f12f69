"""The single-turn environment."""

from collections.abc import Mapping

from posttrain.environments.env import Environment, Seat, need_seats
from posttrain.types import Outcome, Task


class SingleTurn(Environment):
    """The policy is shown the task's prompt and answers once. What that is worth is for rewards to say."""

    async def play(self, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        """Ask the policy once.

        Raises:
            UserError: there is no seat "policy".
        """
        need_seats(self, seats)
        await seats["policy"].turn(task.prompt)
        return Outcome()
