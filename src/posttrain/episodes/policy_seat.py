"""The policy's seat in an episode: messages are tokenised once, here."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from posttrain.data.chat import ChatFormat
from posttrain.data.order import seed_for
from posttrain.errors import TemplateError, UserError
from posttrain.types import Completion, Message, Reply, Request, Sampling, StopReason, Trajectory, Turn, Usage

Ask = Callable[[Request, int], Awaitable[Completion]]
"""A request, and the number of the turn that it is for."""


class PolicySeat:
    """Keeps the tokens of one seat in one episode. Conforms to `environments.env.Seat`.

    A turn appends to the tokens before it. If the chat template renders earlier replies differently than they
    were sampled (it drops their reasoning, say), a new branch begins: its context is the re-rendered conversation,
    which is not trained.

    Args:
        ask: answers a request.
        chat: renders messages.
        sampling: of each turn.
        seed: decides the draws of all turns.
        room: tokens that a branch may have, shown and sampled.
        max_turns: maximum turns of the seat.
        opening: prefix of the first turn: given tokens.
    """

    def __init__(
        self,
        ask: Ask,
        chat: ChatFormat,
        sampling: Sampling,
        seed: int,
        *,
        room: int,
        max_turns: int = 1,
        opening: tuple[int, ...] = (),
    ) -> None:
        self._ask, self._chat, self._sampling, self._seed, self._opening = ask, chat, sampling, seed, opening
        self._room, self._max_turns, self._asked, self._full = room, max_turns, 0, False
        self._branch: list[Turn] = []  # the turns whose tokens a further one appends to
        self._view: list[Message] = []  # the seat's conversation
        self.turns: list[Turn] = []

    async def turn(self, messages: Sequence[Message], tools: Sequence[str] = ()) -> Reply:
        """Answer what has been said since this seat's last turn.

        Raises:
            UserError: more than `max_turns` turns, or other tools than in its first turn.
        """
        if self._asked == self._max_turns:
            raise UserError(f"a seat is asked more than {self._max_turns} times; raise max_turns of the environment")
        self._asked += 1
        messages = self._with_tools(messages, tools)
        if self._full:
            return Reply(Message("assistant", ""), StopReason.CONTEXT, Usage(0, 0))
        context_ids, restarts = self._context(messages)
        opening = () if self.turns else self._opening  # what the first turn has said already
        context_ids = (*context_ids, *opening)
        so_far = () if restarts else Trajectory(tuple(self._branch)).token_ids
        self._view += messages
        room = self._room - len(so_far) - len(context_ids)
        if room < 1:
            self._full = True
            return self._said(Message("assistant", ""), StopReason.CONTEXT, Usage(len(so_far) + len(context_ids), 0))
        wanted = self._sampling.max_new_tokens - len(opening)
        sampling = replace(self._sampling, max_new_tokens=min(room, wanted))
        seed = seed_for(self._seed, "turn", len(self.turns))
        done = await self._ask(Request((*so_far, *context_ids), sampling, seed), len(self.turns))
        reason = done.stop_reason
        if reason is StopReason.LENGTH and len(done.token_ids) < wanted:
            reason = StopReason.CONTEXT  # the room was shorter than a turn may be
        text = self._chat.decode((*opening, *done.token_ids))
        turn = Turn(tuple(context_ids), done.token_ids, done.logprobs, reason, text, restarts, done.versions)
        self._branch = [*([] if restarts else self._branch), turn]
        self.turns.append(turn)
        usage = Usage(len(so_far) + len(context_ids), len(done.token_ids))
        prefix = f"call{len(self.turns):02d}"
        said = self._chat.parse(text, prefix, self._tools) if self._tools else Message("assistant", text)
        return self._said(said, reason, usage)

    @property
    def _tools(self) -> tuple[str, ...]:
        return self._view[0].tools if self._view else ()

    def _with_tools(self, messages: Sequence[Message], tools: Sequence[str]) -> list[Message]:
        """The messages, with the tools on the first one of the episode."""
        if not self._view:
            if not messages:
                raise UserError("a seat is first asked with the messages of its prompt; got none")
            return [replace(messages[0], tools=tuple(tools)) if tools else messages[0], *messages[1:]]
        if tools and tuple(tools) != self._tools:
            raise UserError("a seat gets its tools with its first turn, and keeps them; got others later")
        return list(messages)

    def _context(self, messages: Sequence[Message]) -> tuple[Sequence[int], bool]:
        """The tokens to show, and whether they are the whole conversation, in a new branch."""
        if not self.turns:
            return self._chat.prompt_ids(messages), False
        last = self._branch[-1]
        stopped = last.token_ids[-1] in self._chat.stop_ids
        said = [*self._view[:-1], Message("assistant", last.text)]  # as it was sampled, calls in its text
        try:
            return self._chat.followup_ids(said, messages, stopped=stopped, unchanged=True), False
        except TemplateError:
            return self._chat.prompt_ids([*self._view, *messages]), True

    def _said(self, message: Message, reason: StopReason, usage: Usage) -> Reply:
        self._view.append(message)
        return Reply(message, reason, usage)
