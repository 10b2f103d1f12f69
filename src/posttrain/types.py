"""The nouns of posttrain. Standard library only; every room may import them.

A policy answers a `Task` in one or several `Turn`s, which make a `Trajectory`. The trajectories of one task are a
`Group`. A reward sees an `EpisodeGroup` (words, no tokens) and answers each `Episode` with a `Score`. Token ids are
kept exactly as they were sampled: nothing in posttrain decodes them and encodes them again.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

Role = Literal["system", "user", "assistant", "tool"]


class StopReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"  # the policy emitted a stop token, which is the last of its token ids
    LENGTH = "length"  # `max_new_tokens` were sampled without a stop token
    CONTEXT = "context"  # the model's context was full before either happened


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the assistant asks to have called."""

    id: str  # empty where the data has none
    name: str
    arguments: str  # a JSON object, as the policy wrote it


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    `tools` are the JSON schemas of the functions that may be called, each as JSON text. They stand on one message of a
    conversation, its first from the system or a user, so that whatever hands a prompt on hands them on, too.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  # of the assistant
    tool_call_id: str = ""  # of a tool's result: which call it answers
    name: str = ""  # of the tool, or the speaker
    reasoning: str = ""  # of the assistant, where it is kept apart from the content
    tools: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What it says, for people: reasoning, content, and calls as `name(arguments)`."""
        calls = [f"{call.name}({call.arguments})" for call in self.tool_calls]
        return "\n".join(part for part in (self.reasoning, self.content, *calls) if part)


@dataclass(frozen=True, slots=True)
class Task:
    """Something to answer: the conversation so far, and what a verifier needs to judge the answer.

    `gold`, where there is one, is a full completion that every correct verifier must score 1; `answer` is the bare
    answer. `id` names the task within its dataset and does not change from run to run.
    """

    prompt: tuple[Message, ...]
    answer: Any = None
    gold: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    id: str = ""
    conversational: bool = False  # whether the data's prompt is a list of messages: what TRL's functions go by


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the policy: the tokens it was shown since its last turn, and the tokens it sampled.

    Where it `restarts`, the chat template has rewritten what came before: `context_ids` is the whole new context, and a
    new branch of the trajectory begins with this turn.
    """

    context_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # of `token_ids`, in nats, under the sampling temperature
    stop_reason: StopReason
    text: str  # what the turn says, without its stop token; for people and rewards, never encoded again
    restarts: bool = False

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(
                f"a turn needs one logprob per sampled token; got {len(self.logprobs)} for {len(self.token_ids)}"
            )


@dataclass(frozen=True, slots=True)
class Trajectory:
    """All turns of one seat in one episode: one branch, or several where turns restart.

    Every sampled token is trained exactly once, in the branch it was sampled in. What a later branch repeats of earlier
    replies is untrained context there.
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
        """True where the policy itself sampled the token, its stop token included: T of them.

        Raises `ValueError` for several branches.
        """
        return tuple(
            mine
            for turn in self._one_branch()
            for n, mine in ((len(turn.context_ids), False), (len(turn.token_ids), True))
            for _ in range(n)
        )

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Logprobs of the sampled tokens alone, in order, of all branches."""
        return tuple(value for turn in self.turns for value in turn.logprobs)

    @property
    def stop_reason(self) -> StopReason:
        """Why the last turn ended."""
        return self.turns[-1].stop_reason

    @property
    def text(self) -> str:
        """What the last turn says."""
        return self.turns[-1].text

    def _one_branch(self) -> tuple[Turn, ...]:
        if any(turn.restarts for turn in self.turns[1:]):
            raise ValueError(
                f"a trajectory of {len(self.branches)} branches is not one sequence; read each of `branches`"
            )
        return self.turns


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an environment says of an episode that has ended."""

    rewards: Mapping[str, float] = field(default_factory=dict[str, float])  # by seat: what each earned
    solved: bool | None = None  # whether the task was solved; None where that cannot be said
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])  # logged, never optimised


@dataclass(frozen=True, slots=True)
class Episode:
    """What a reward sees: the task and what was said, in words."""

    task: Task
    messages: tuple[Message, ...]  # what the first trained seat was told and said, the task's prompt first
    stop_reason: StopReason = StopReason.STOP
    # All tokens after the prompt, stop token included; None where the completion was not sampled here.
    completion_ids: tuple[int, ...] | None = None
    outcome: Outcome = field(default_factory=Outcome)
    views: Mapping[str, tuple[Message, ...]] = field(default_factory=dict[str, tuple[Message, ...]])  # of each seat
    transcript: tuple[tuple[str, Message], ...] = ()  # what each seat said, by its name, in order
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])  # see `turn_texts`

    @property
    def completion(self) -> str:
        """The last thing that the assistant said; empty if it said nothing."""
        return next((m.content for m in reversed(self.messages) if m.role == "assistant"), "")

    def turn_texts(self, seat: str = "") -> tuple[str, ...]:
        """The raw text of each turn that a trained seat sampled: what the characters of a `Span` are counted in.

        Raw: calls of tools are in it, as they were written. "" is the first trained seat. Of an episode that was not
        sampled here, what the assistant said after the prompt.
        """
        if self.texts:
            return self.texts[seat] if seat else next(iter(self.texts.values()))
        said = self.messages[len(self.task.prompt) :]
        return tuple(message.content for message in said if message.role == "assistant")


@dataclass(frozen=True, slots=True)
class EpisodeGroup:
    """The episodes of one task: what rewards see."""

    task: Task
    episodes: tuple[Episode, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A process reward: `value` for part of a turn, such as one step of reasoning.

    It is paid at the last token that it overlaps.
    """

    turn: int  # of the turns that the seat sampled, from 0
    start: int  # characters of the turn's raw text (`Episode.turn_texts`), from 0
    end: int  # the first character after it
    value: float


@dataclass(frozen=True, slots=True)
class Score:
    """A reward's answer. `unparsed` says that no answer was found, which is not the same as a wrong answer.

    What it amounts to is its `total`: the value and the values of all spans. A score that is not `applicable` says
    nothing of the episode and leaves the weighted sum; its value is NaN.
    """

    value: float
    parsed: str | None = None
    explanation: str = ""
    unparsed: bool = False
    applicable: bool = True
    spans: tuple[Span, ...] = ()  # process rewards, of one seat

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
"""A score that is meant for every trained seat of an episode, or one for each seat, by its name."""


@dataclass(frozen=True, slots=True)
class Preference:
    """Two responses to one prompt, of which somebody chose one."""

    prompt: tuple[Message, ...]
    chosen: str
    rejected: str
    strength: float = 1.0  # how much better the chosen one was found, in the annotators' own unit
    annotator: str = ""
    source: str = ""  # where it was read: file and line
    time: str = ""  # when it was said, ISO 8601
    opening: str = ""  # how both responses begin, which is given and not learned: steps that are right
    partial: bool = False  # the responses are steps, after which more follows: that they stop is not learned
    category: str = ""  # which part of a benchmark it belongs to
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
class Judgement:
    """One response to a prompt, and whether somebody found it good."""

    prompt: tuple[Message, ...]
    response: str
    good: bool
    annotator: str = ""
    source: str = ""  # where it was read: file and line
    time: str = ""  # when it was said, ISO 8601
    opening: str = ""  # how it begins, which is given and not learned
    partial: bool = False  # it is a step, after which more follows: that it stops is not learned
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Rated:
    """One response to a prompt, and what somebody found of several qualities of it, each in its own unit."""

    prompt: tuple[Message, ...]
    response: str
    ratings: Mapping[str, float]  # by the attribute's name; those that nobody rated are not there
    source: str = ""  # where it was read: file and line


@dataclass(frozen=True, slots=True)
class Ranking:
    """How somebody ranked completions of an item, which are known by their number."""

    item: str | int
    annotator: str | int
    groups: tuple[tuple[int, ...], ...]  # completions that were found equally good, best group first
    failed: tuple[int, ...] = ()  # those that are no answer at all, and below all others
    source: str = ""  # where it was read: file and line
    time: str = ""  # when it was said, ISO 8601

    @property
    def tiers(self) -> tuple[tuple[int, ...], ...]:
        """All completions, best first: the groups, and below them the failed ones, which nobody compares."""
        return (*self.groups, self.failed) if self.failed else self.groups


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one task, one for each episode and trained seat: what was said, and what it earned.

    `rewards[i]` is the total of `scores[i]`. It is NaN where no optimised reward applies to the episode: that one is
    lost.
    """

    task: Task
    trajectories: tuple[Trajectory, ...]
    rewards: tuple[float, ...]
    scores: tuple[Mapping[str, Score], ...]  # by the reward's name
    seats: tuple[str, ...] = ()  # of each row the seat's name; none: there is one seat
    episodes: tuple[int, ...] = ()  # of each row the number of its episode; none: row i is episode i
    metrics: tuple[Mapping[str, float], ...] = ()  # of each row what the environment measured
    conversations: tuple[tuple[Message, ...], ...] = ()  # of each row what its seat was told and said
    # Of each row what the spans of its scores pay, by weight, at which of its sampled tokens; none: there are no spans.
    step_rewards: tuple[Mapping[int, float], ...] = ()

    def __post_init__(self) -> None:
        columns = (("seats", self.seats), ("episodes", self.episodes), ("step rewards", self.step_rewards))
        for name, column in columns:
            if column and len(column) != len(self.trajectories):
                raise ValueError(f"a group of {len(self.trajectories)} rows needs as many {name}; got {len(column)}")

    def conversation(self, row: int) -> tuple[Message, ...]:
        """What the seat of a row was told and said; where that was not kept, the prompt and the last reply."""
        if self.conversations:
            return self.conversations[row]
        return (*self.task.prompt, Message("assistant", self.trajectories[row].text))

    @property
    def lost(self) -> bool:
        """Whether one of its episodes is lost, so that the others have nothing to be compared with."""
        return any(map(math.isnan, self.rewards))

    @property
    def seat_names(self) -> tuple[str, ...]:
        """The seat of each row; "" where there is one seat."""
        return self.seats or ("",) * len(self.trajectories)

    @property
    def rows_by_seat(self) -> tuple[tuple[int, ...], ...]:
        """The rows of each seat, which are compared with each other, in order."""
        names = self.seat_names
        return tuple(tuple(i for i, name in enumerate(names) if name == seat) for seat in dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class States:
    """Where the steps of a completion begin, and how often it is continued from there."""

    samples: int  # continuations of each state
    step_tokens: int  # tokens of a step; 0: a step is a line
    most: int  # steps of a completion; the last one is as long as it has to be


@dataclass(frozen=True, slots=True)
class StateValues:
    """What the states of one completion are worth; for each of its tokens, in order."""

    values: tuple[float, ...]  # of the state that the token's step began in
    steps: tuple[int, ...]  # which step the token belongs to, from 0


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy; its logprobs are those of temperature 1."""

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """One completion asked of an engine. The draws depend on `seed` alone, not on what else is in the batch."""

    token_ids: tuple[int, ...]
    sampling: Sampling
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """An engine's answer to one request, stop token included."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # in nats, under the request's sampling settings
    stop_reason: StopReason


class Decoding(Protocol):
    """Requests under way on an engine: they join when they are added and leave when they are done."""

    def add(self, number: int, request: Request) -> None:
        """Sample for a request, from the next step on.

        Raises:
            UserError: its prompt is empty, or leaves no room in the model's context.
        """
        ...

    def cancel(self, number: int) -> None:
        """Stop sampling for a request; one that is done, or unknown, is ignored."""
        ...

    def step(self) -> dict[int, Completion]:
        """Sample on, by one token of each request or more; the completions that are done by now."""
        ...


class Engine(Protocol):
    """Something that samples from the policy. `rollouts/engine.py` has the kit that every engine must pass."""

    def open(
        self, on_tokens: Callable[[int], None] | None = None, *, turns: bool = False
    ) -> AbstractContextManager[Decoding]:
        """Begin to sample from the weights as they are now; they must not change before the block ends.

        Args:
            on_tokens: is told how many tokens were just sampled.
            turns: whether prompts will begin with earlier prompts and their completions, as in a conversation, so that
                it pays to keep the keys and values of what is done.
        """
        ...

    def generate(self, requests: Sequence[Request], on_tokens: Callable[[int], None] | None = None) -> list[Completion]:
        """One completion per request, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that one reply took."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What a seat or a chat model said when it was asked."""

    message: Message
    stop_reason: StopReason
    usage: Usage

    @property
    def text(self) -> str:
        """The content of the message."""
        return self.message.content


class ChatModel(Protocol):
    """A model that is asked in messages: a judge, a critic, a simulated user, a frozen opponent."""

    async def chat(
        self, messages: Sequence[Message], *, sampling: Sampling, tools: Sequence[str] = (), seed: int = 0
    ) -> Reply:
        """The next message of the assistant. `tools` are JSON schemas as text; the draws depend on `seed` alone."""
        ...


ScoreFn = Callable[[Sequence[Sequence[Message]]], Sequence[Sequence[float]]]
"""Conversations in, for each one number of every member of an ensemble out: what a learned reward is handed."""
