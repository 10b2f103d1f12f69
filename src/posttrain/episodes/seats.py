"""Who takes a seat in an episode: the policy, whose messages are tokenised once, here; or a chat model."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Unpack

from posttrain.data.chat import ChatFormat
from posttrain.data.order import seed_for
from posttrain.engine.engine import cut_at_stop
from posttrain.environments.env import Seat, TurnSampling, own_sampling
from posttrain.errors import TemplateError, UserError
from posttrain.types import (
    ChatModel,
    Completion,
    Message,
    Reply,
    Request,
    Sampling,
    StopReason,
    Trajectory,
    Turn,
    Usage,
)

Ask = Callable[[Request, int], Awaitable[Completion]]
"""A request, and the number of the turn that it is for."""


class PolicySeat:
    """Keeps the tokens of one seat in one episode. Conforms to `environments.env.Seat`.

    A turn appends to the tokens before it. If the chat template renders earlier replies differently than they
    were sampled (it drops their reasoning, say), a new branch begins: its context is the re-rendered conversation,
    which is not trained. A message may be sampled in several turns (`go_on`).
    """

    def __init__(
        self,
        ask: Ask,  # answers a request
        chat: ChatFormat,  # renders messages
        sampling: Sampling,  # of each turn
        seed: int,  # decides the draws of all turns
        *,
        room: int,  # tokens that a branch may have, shown and sampled
        max_turns: int = 1,  # maximum turns of the seat
        opening: tuple[int, ...] = (),  # prefix of the first turn: given tokens
    ) -> None:
        self._ask, self._chat, self._sampling, self._seed, self._opening = ask, chat, sampling, seed, opening
        self._room, self._max_turns, self._asked, self._full = room, max_turns, 0, False
        self._branch: list[Turn] = []  # the turns whose tokens a further one appends to
        self._view: list[Message] = []  # the seat's conversation
        self._message = ""  # the text of its last message so far, as it was sampled and inserted
        self.turns: list[Turn] = []

    async def turn(self, messages: Sequence[Message], tools: Sequence[str] = (), **own: Unpack[TurnSampling]) -> Reply:
        """As in `Seat`; raises `UserError` also for more than `max_turns` turns, and for other tools later."""
        sampling = self._begin(own)
        messages = self._with_tools(messages, tools)
        if self._full:
            return Reply(Message("assistant", ""), StopReason.CONTEXT, Usage(0, 0))
        context_ids, restarts = self._context(messages)
        opening = () if self.turns else self._opening  # what the first turn has said already
        self._view += [*messages, Message("assistant", "")]
        self._message = ""
        return await self._sample((*context_ids, *opening), sampling, restarts, opening)

    async def go_on(self, text: str, **own: Unpack[TurnSampling]) -> Reply:
        """As in `Seat`; it counts as a turn."""
        sampling = self._begin(own)
        if self._full:
            return Reply(Message("assistant", ""), StopReason.CONTEXT, Usage(0, 0))
        if not self.turns or self._branch[-1].token_ids[-1] in self._chat.stop_ids:
            why = "the message has ended with a stop token" if self.turns else "nothing has been said yet"
            raise UserError(
                f"go_on is for a message that a stop string or the length has ended, and {why}; look for the string in "
                "reply.text before it, or use turn"
            )
        self._message += text
        self._view[-1] = replace(self._view[-1], content=self._view[-1].content + text)
        return await self._sample(tuple(self._chat.inserted_ids(text)), sampling)

    def _begin(self, own: TurnSampling) -> Sampling:
        """Count a turn; its settings."""
        if self._asked == self._max_turns:
            raise UserError(
                f"a seat is asked more than {self._max_turns} times in an episode (turn and go_on); bound the loop of "
                "play, or raise max_turns of the environment"
            )
        self._asked += 1
        sampling = own_sampling(self._sampling, own)
        if never := [stop for stop in sampling.stop if not self._chat.may_say(stop)]:
            raise UserError(
                f"the stop string {never[0]!r} cannot occur: the text of a reply has no special tokens, and no "
                "characters that the tokenizer does not write; use another"
            )
        return sampling

    async def _sample(
        self, context_ids: tuple[int, ...], sampling: Sampling, restarts: bool = False, opening: tuple[int, ...] = ()
    ) -> Reply:
        """Sample a turn behind its context; what it says belongs to the last message."""
        so_far = () if restarts else Trajectory(tuple(self._branch)).token_ids
        room = self._room - len(so_far) - len(context_ids)
        if room < 1:
            self._full = True
            usage = Usage(len(so_far) + len(context_ids), 0)
            return self._said("", Message("assistant", ""), StopReason.CONTEXT, usage)
        wanted = sampling.max_new_tokens - len(opening)
        fitting = replace(sampling, max_new_tokens=min(room, wanted))
        seed = seed_for(self._seed, "turn", len(self.turns))
        done = await self._ask(Request((*so_far, *context_ids), fitting, seed), len(self.turns))
        done = cut_at_stop(done, sampling.stop, self._chat.decode)
        reason = done.stop_reason
        if reason is StopReason.LENGTH and len(done.token_ids) < wanted:
            reason = StopReason.CONTEXT  # the room was shorter than a turn may be
        text = self._chat.decode((*opening, *done.token_ids))
        drawn, usual = (replace(each, stop=(), max_new_tokens=1) for each in (sampling, self._sampling))
        whole = sampling.temperature > 0 and not sampling.top_k and sampling.top_p == 1
        turn = Turn(
            context_ids,
            done.token_ids,
            done.logprobs,
            reason,
            text,
            restarts,
            done.versions,
            temperature=0.0 if sampling.temperature == self._sampling.temperature else sampling.temperature,
            learned=whole or drawn == usual,
        )
        self._branch = [*([] if restarts else self._branch), turn]
        self.turns.append(turn)
        usage = Usage(len(so_far) + len(context_ids), len(done.token_ids))
        prefix = f"call{len(self.turns):02d}"
        said = self._chat.parse(text, prefix, self._tools) if self._tools else Message("assistant", text)
        return self._said(text, said, reason, usage)

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
        said = [*self._view[:-1], Message("assistant", self._message)]  # as it was sampled, calls in its text
        try:
            return self._chat.followup_ids(said, messages, stopped=stopped, unchanged=True), False
        except TemplateError:
            return self._chat.prompt_ids([*self._view, *messages]), True

    def _said(self, text: str, message: Message, reason: StopReason, usage: Usage) -> Reply:
        """The reply; `text` is what was sampled of it, with its calls."""
        last = self._view[-1]
        calls = last.tool_calls + message.tool_calls
        self._view[-1] = replace(message, content=last.content + message.content, tool_calls=calls)
        self._message += text
        return Reply(message, reason, usage)


class ChatSeat(Seat):
    """One seat in one episode, of a model that answers the conversation so far; `seed` decides all draws."""

    def __init__(self, model: ChatModel, sampling: Sampling, seed: int) -> None:
        self._model, self._sampling, self._seed = model, sampling, seed
        self._view: list[Message] = []
        self._tools: tuple[str, ...] = ()
        self._asked, self._full = 0, False

    async def turn(self, messages: Sequence[Message], tools: Sequence[str] = (), **own: Unpack[TurnSampling]) -> Reply:
        """As in `Seat`; errors of the chat model pass."""
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
