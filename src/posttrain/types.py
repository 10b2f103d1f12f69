"""Core data types. Standard library only; every package may import them.

A policy answers a `Task` in one or several `Turn`s, which make a `Trajectory`. A `Row` is a trajectory with its
rewards, a `Group` the rows of one task. A reward takes an `EpisodeGroup` (text, no tokens) and returns a `Score` for
each `Episode`. Token ids are kept exactly as sampled: posttrain never decodes and re-encodes them.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

Role = Literal["system", "user", "assistant", "tool"]


class StopReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"  # the policy emitted a stop token, the last of its token ids, or completed a stop string
    LENGTH = "length"  # `max_new_tokens` were sampled without a stop token
    CONTEXT = "context"  # the model's context was full before either happened


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call requested by the assistant."""

    id: str  # empty where the data has none
    name: str
    arguments: str  # a JSON object, as the policy wrote it


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    `tools` are the JSON schemas of the functions that may be called, each as JSON text. They are a field of one message
    of a conversation, the first of the system or a user, so that they are passed on with the prompt. What the assistant
    says is `learned` in sft unless the data say that it is given.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  # of the assistant
    tool_call_id: str = ""  # of a tool's result: which call it answers
    name: str = ""  # of the tool, or the speaker
    reasoning: str = ""  # of the assistant, if separate from the content
    tools: tuple[str, ...] = ()
    learned: bool = True

    @property
    def text(self) -> str:
        """Human-readable text: reasoning, content, and calls as `name(arguments)`."""
        calls = [f"{call.name}({call.arguments})" for call in self.tool_calls]
        return "\n".join(part for part in (self.reasoning, self.content, *calls) if part)


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, with the reference answer that a verifier needs.

    `gold`, if given, is a full completion that every correct verifier must score 1; `answer` is only the final
    answer. `id` identifies the task within its dataset and is stable across runs.
    """

    prompt: tuple[Message, ...]
    answer: Any = None
    gold: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    id: str = ""
    conversational: bool = False  # whether the data's prompt is a list of messages, as TRL's reward functions expect it


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the policy: the tokens it was shown since its last turn, and the tokens it sampled.

    If it `restarts`, the chat template has changed the tokens of earlier turns: `context_ids` is the whole new context,
    and a new branch of the trajectory begins with this turn. One that was sampled from a truncated
    distribution is not `learned`: its tokens are context without a loss.
    """

    context_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # of `token_ids`, in nats, under the sampling temperature
    stop_reason: StopReason
    text: str  # decoded text without the stop token, with the stop string; for display and rewards, never re-encoded
    restarts: bool = False
    versions: tuple[tuple[int, str], ...] = ()  # (first token, version of the weights); empty if the engine has one
    temperature: float = 0.0  # of its sampling, where it has one of its own; 0: that of the run
    learned: bool = True

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(
                f"a turn needs one logprob per sampled token; got {len(self.logprobs)} for {len(self.token_ids)}"
            )


@dataclass(frozen=True, slots=True)
class Trajectory:
    """All turns of one seat in one episode: one branch, or several where turns restart.

    Every sampled token is trained exactly once, in the branch it was sampled in. Earlier replies repeated in a later
    branch are context without a loss.
    """

    turns: tuple[Turn, ...]

    @property
    def branches(self) -> tuple["Trajectory", ...]:
        """The trajectory cut at the turns that restart: in each part, tokens only ever append."""
        starts = [i for i, turn in enumerate(self.turns) if turn.restarts or i == 0]
        ends = [*starts[1:], len(self.turns)]
        return tuple(Trajectory(self.turns[start:end]) for start, end in zip(starts, ends, strict=False))

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Every token in order, shown and sampled: T of them. Raises `ValueError` for several branches."""
        return tuple(t for turn in self._one_branch() for ids in (turn.context_ids, turn.token_ids) for t in ids)

    @property
    def sampled(self) -> tuple[bool, ...]:
        """True where the policy itself sampled the token and learns from it, its stop token included: T of them.

        Raises `ValueError` for several branches.
        """
        return tuple(
            mine
            for turn in self._one_branch()
            for n, mine in ((len(turn.context_ids), False), (len(turn.token_ids), turn.learned))
            for _ in range(n)
        )

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Logprobs of the sampled tokens that are learned, in order, of all branches."""
        return tuple(value for turn in self.turns if turn.learned for value in turn.logprobs)

    @property
    def stop_reason(self) -> StopReason:
        """Why the last turn ended."""
        return self.turns[-1].stop_reason

    @property
    def text(self) -> str:
        """The text of the last turn."""
        return self.turns[-1].text

    def _one_branch(self) -> tuple[Turn, ...]:
        if any(turn.restarts for turn in self.turns[1:]):
            raise ValueError(
                f"a trajectory of {len(self.branches)} branches is not one sequence; read each of its 'branches'"
            )
        return self.turns


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a finished episode, as reported by the environment."""

    rewards: Mapping[str, float] = field(default_factory=dict[str, float])  # reward by seat
    solved: bool | None = None  # whether the task was solved; None if undefined
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])  # logged, never optimised


@dataclass(frozen=True, slots=True)
class Episode:
    """The input of a reward: the task and the conversation, as text."""

    task: Task
    messages: tuple[Message, ...]  # conversation of the first trained seat, from the task's prompt on
    stop_reason: StopReason = StopReason.STOP
    # All tokens after the prompt, stop token included; None where the completion was not sampled here.
    completion_ids: tuple[int, ...] | None = None
    outcome: Outcome = field(default_factory=Outcome)
    views: Mapping[str, tuple[Message, ...]] = field(default_factory=dict[str, tuple[Message, ...]])  # of each seat
    transcript: tuple[tuple[str, Message], ...] = ()  # (seat name, message), in order
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])  # see `turn_texts`

    @property
    def completion(self) -> str:
        """The last assistant message; empty if there is none."""
        return next((m.content for m in reversed(self.messages) if m.role == "assistant"), "")

    def turn_texts(self, seat: str = "") -> tuple[str, ...]:
        """The raw text of each turn that a trained seat sampled; character offsets of a `Span` refer to it.

        It includes tool calls as they were written. "" is the first trained seat. For an episode that was not sampled
        here: the assistant messages after the prompt.
        """
        if self.texts:
            return self.texts[seat] if seat else next(iter(self.texts.values()))
        said = self.messages[len(self.task.prompt) :]
        return tuple(message.content for message in said if message.role == "assistant")


@dataclass(frozen=True, slots=True)
class EpisodeGroup:
    """The episodes of one task: the input of rewards."""

    task: Task
    episodes: tuple[Episode, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A process reward: `value` for part of a turn, such as one step of reasoning.

    It is given at the last token that it overlaps.
    """

    turn: int  # of the turns that the seat sampled, from 0
    start: int  # characters of the turn's raw text (`Episode.turn_texts`), from 0
    end: int  # the first character after it
    value: float


def steps_in(text: str) -> list[tuple[int, int]]:
    r"""Where each step of a reasoning begins and ends, in characters: its lines, without white space around them.

    Example:
        >>> steps_in("1 + 1 = 2\n\n  2 + 1 = 3\n")
        [(0, 9), (13, 22)]
    """
    return [match.span() for match in re.finditer(r"[^\s]([^\n]*[^\s])?", text)]


@dataclass(frozen=True, slots=True)
class Score:
    """A reward's score. `unparsed`: no answer was found in the completion, as distinct from a wrong answer.

    Its `total` is the value plus the values of all spans. A score that is not `applicable` is excluded from the
    weighted sum; its value is NaN.
    """

    value: float
    parsed: str | None = None
    explanation: str = ""
    unparsed: bool = False
    applicable: bool = True
    spans: tuple[Span, ...] = ()  # process rewards, of one seat
    metrics: Mapping[str, float] = field(default_factory=dict[str, float], compare=False)  # logged, never optimised

    @property
    def total(self) -> float:
        """The value plus the sum of the spans.

        Example:
            >>> Score(1.0, spans=(Span(0, 0, 4, 0.5), Span(0, 5, 9, -0.25))).total
            1.25
        """
        return math.fsum((self.value, *(span.value for span in self.spans))) if self.spans else self.value

    @classmethod
    def not_applicable(cls, explanation: str = "") -> "Score":
        """The score of an episode that a reward cannot judge."""
        return cls(math.nan, explanation=explanation, applicable=False)


SeatScores = Score | Mapping[str, Score]
"""One score for every trained seat of an episode, or one per seat, by its name."""


@dataclass(frozen=True, slots=True)
class Preference:
    """A preference pair: a chosen and a rejected response to one prompt."""

    prompt: tuple[Message, ...]
    chosen: str
    rejected: str
    strength: float = 1.0  # preference strength, in the annotators' own unit
    annotator: str = ""
    source: str = ""  # where it was read: file and line
    time: str = ""  # when it was said, ISO 8601
    opening: str = ""  # shared prefix of both responses (correct steps), without a loss
    partial: bool = False  # the responses are incomplete (steps): no loss on a stop token
    category: str = ""  # the benchmark's category that it belongs to
    chosen_calls: tuple[ToolCall, ...] = ()
    rejected_calls: tuple[ToolCall, ...] = ()

    @property
    def responses(self) -> tuple[Message, Message]:
        """The chosen and the rejected response as messages, without their opening."""
        return (
            Message("assistant", self.chosen, self.chosen_calls),
            Message("assistant", self.rejected, self.rejected_calls),
        )


@dataclass(frozen=True, slots=True)
class Ranking:
    """An annotator's ranking of the completions of an item, given by their numbers."""

    item: str | int
    annotator: str | int
    groups: tuple[tuple[int, ...], ...]  # groups of ties, best group first
    failed: tuple[int, ...] = ()  # completions that are no answer at all, ranked below all others
    source: str = ""  # where it was read: file and line
    time: str = ""  # when it was said, ISO 8601

    @property
    def tiers(self) -> tuple[tuple[int, ...], ...]:
        """All completions, best first: the groups, then the failed ones, which are not compared with each other."""
        return (*self.groups, self.failed) if self.failed else self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one trained seat did in one episode, and what that earned."""

    trajectory: Trajectory
    episode: int  # the number of its episode in the group
    seat: str = ""  # its name; may be empty where there is one seat
    scores: Mapping[str, Score]  # by the reward's name
    reward: float  # their total; NaN if no optimised reward applies to the episode, which is then lost
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])  # of the episode, by the environment
    conversation: tuple[Message, ...] = ()  # of the seat, from the prompt on
    # Process rewards: what the spans of its scores pay, by weight, at which of its sampled tokens.
    step_rewards: Mapping[int, float] = field(default_factory=dict[int, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rows of one task: one for each episode and trained seat."""

    task: Task
    rows: tuple[Row, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """The reward of each row."""
        return tuple(row.reward for row in self.rows)

    @property
    def lost(self) -> bool:
        """Whether one of its episodes is lost, so that the group has no baseline."""
        return any(math.isnan(row.reward) for row in self.rows)

    @property
    def by_seat(self) -> dict[str, list[Row]]:
        """The rows of each seat, which are compared with each other, in order."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.seat, []).append(row)
        return found


@dataclass(frozen=True, slots=True)
class States:
    """Monte Carlo value estimation: how completions are split into steps, and the number of continuations."""

    samples: int  # continuations of each state
    step_tokens: int  # tokens of a step; 0: a step is a line
    most: int  # maximum number of steps of a completion; the last one has the remaining tokens
    by: str = ""  # the option that names the model that continues; "": the policy does


@dataclass(frozen=True, slots=True)
class StateValues:
    """The values of the states of one completion; for each of its tokens, in order."""

    values: tuple[float, ...]  # of the state that the token's step began in
    steps: tuple[int, ...]  # which step the token belongs to, from 0


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. Temperature 0 is greedy; its logprobs are those of temperature 1.

    A completion also ends with the token that completes a string of `stop` in its decoded text; both stay.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    stop: tuple[str, ...] = field(default=(), repr=False)  # the digests of cached replies are older than it


@dataclass(frozen=True, slots=True)
class Request:
    """A request to an engine for one completion. Sampling depends only on `seed`, not on the rest of the batch.

    With `scored_from` nothing is sampled: it asks for the logprobs of its own tokens, from that one on.
    """

    token_ids: tuple[int, ...]
    sampling: Sampling
    seed: int = 0
    scored_from: int = 0  # 1 or more; 0: it is continued


@dataclass(frozen=True, slots=True)
class Completion:
    """An engine's answer to one request, stop token included."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # in nats, under the request's sampling settings
    stop_reason: StopReason
    versions: tuple[tuple[int, str], ...] = ()  # (first token, version of the weights); empty if the engine has one
    scored: tuple[float, ...] = ()  # logprobs of the request's own tokens, of the raw logits, where it asks for them


class Decoding(Protocol):
    """Continuous batching: requests join when they are added and leave when they are finished.

    It may also have `sampled()`: the tokens so far of each request that is not done, by its number, none of one that
    has no slot yet. Without it tokens are streamed when a request is done, and slots are not given fairly.
    """

    def add(self, number: int, request: Request) -> None:
        """Add a request; it is sampled from the next step on.

        Raises:
            UserError: its prompt is empty, or leaves no room in the model's context.
        """

    def cancel(self, number: int) -> None:
        """Cancel a request; a finished or unknown one is ignored."""

    def step(self) -> dict[int, Completion]:
        """Sample one or more tokens of each request; returns the completions that are finished."""
        ...


class Engine(Protocol):
    """An inference engine. Implementations must pass the checks of `engine/engine.py`."""

    def open(
        self, on_tokens: Callable[[int], None] | None = None, *, turns: bool = False
    ) -> AbstractContextManager[Decoding]:
        """Start sampling from the current weights, which must not change before the block ends.

        Args:
            on_tokens: called with the number of newly sampled tokens.
            turns: whether prompts will extend earlier prompts and their completions, as in a conversation, so that the
                keys and values of finished requests should be cached (prefix caching).
        """
        ...

    def generate(self, requests: Sequence[Request], on_tokens: Callable[[int], None] | None = None) -> list[Completion]:
        """One completion per request, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Usage:
    """Token usage of one reply."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of a seat or a chat model."""

    message: Message
    stop_reason: StopReason
    usage: Usage

    @property
    def text(self) -> str:
        """The content of the message."""
        return self.message.content


class ChatModel(Protocol):
    """A model with a chat interface: a judge, a critic, a simulated user, a frozen opponent."""

    async def chat(
        self, messages: Sequence[Message], *, sampling: Sampling, tools: Sequence[str] = (), seed: int = 0
    ) -> Reply:
        """The next assistant message. `tools` are JSON schemas as text; sampling depends only on `seed`."""
        ...


ScoreFn = Callable[[Sequence[Sequence[Message]]], Sequence[Sequence[float]]]
"""A reward-model scorer: maps conversations to one score per ensemble member for each."""


class Frame(Protocol):
    """A DataFrame, whose rows are mappings."""

    @property
    def columns(self) -> Any: ...  # noqa: D102
