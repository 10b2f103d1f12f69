"""The single-turn environment."""

from collections.abc import Mapping

from posttrain.environments.env import Environment, Seat, need_seats
from posttrain.types import Outcome, Task


class SingleTurn(Environment):
    """The policy answers the task's prompt once; rewards score the answer."""

    async def play(self, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        """One turn of the policy.

        Raises:
            UserError: there is no seat "policy".
        """
        need_seats(self, seats)
        await seats["policy"].turn(task.prompt)
        return Outcome()
