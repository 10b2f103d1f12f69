"""A seat that a chat model takes: a frozen policy, or a model behind an API."""

from collections.abc import Sequence
from typing import Unpack

from posttrain.data.order import seed_for
from posttrain.environments.env import Seat, TurnSampling, own_sampling
from posttrain.types import ChatModel, Message, Reply, Sampling, StopReason, Usage


class ChatSeat(Seat):
    """One seat in one episode; nothing that it says is trained, and it cannot go on in a message.

    Args:
        model: answers the conversation so far.
        sampling: of each turn.
        seed: decides the draws of all turns.
    """

    def __init__(self, model: ChatModel, sampling: Sampling, seed: int) -> None:
        self._model, self._sampling, self._seed = model, sampling, seed
        self._view: list[Message] = []
        self._tools: tuple[str, ...] = ()
        self._asked, self._full = 0, False

    async def turn(self, messages: Sequence[Message], tools: Sequence[str] = (), **own: Unpack[TurnSampling]) -> Reply:
        """Answer what has been said since this seat's last turn; empty once the model's context is full.

        Raises:
            PosttrainError: what the chat model raises, or a setting out of its range.
        """
        sampling = own_sampling(self._sampling, own)
        self._view += messages
        self._tools = self._tools or tuple(tools)
        if self._full:
            return Reply(Message("assistant", ""), StopReason.CONTEXT, Usage(0, 0))
        seed = seed_for(self._seed, "turn", self._asked)
        reply = await self._model.chat(self._view, sampling=sampling, tools=self._tools, seed=seed)
        self._asked += 1
        self._full = reply.stop_reason is StopReason.CONTEXT
        self._view.append(reply.message)
        return reply
