"""Items 9 and 10: an episode that fails costs itself alone, and every sampled token is trained exactly once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from posttrain.data.chat import ChatFormat
from posttrain.data.packing import pack
from posttrain.engine.policy import Policy
from posttrain.environments.env import Environment, Seat
from posttrain.environments.scored import ScoredEnvironment
from posttrain.episodes.episodes import Players, sample_groups
from posttrain.errors import TemplateError
from posttrain.recipes.verify.item import Item, violations
from posttrain.recipes.verify.masks import sequences
from posttrain.recipes.verify.subject import (
    ALTERNATING,
    LONGEST,
    Dialogue,
    GoesOn,
    Recording,
    Subject,
    batch_of,
    longest,
)
from posttrain.training.learner import Batch
from posttrain.types import Completion, Group, Message, Outcome, Request, Sampling, Task

TURNS = 3  # of a dialogue


@dataclass(frozen=True)
class _Fails(Dialogue):
    """A dialogue in which those episodes break whose seeds are in `broken`; it notes the seeds of all."""

    broken: frozenset[int] = frozenset()
    seeds: list[int] = field(default_factory=list[int])

    async def play(self, task: Task, seats: Mapping[str, Seat], seed: int) -> Outcome:
        self.seeds.append(seed)
        if seed not in self.broken:
            return await super().play(task, seats, seed)
        await seats["policy"].turn(task.prompt)
        raise RuntimeError("a tool has broken")


def lost_episodes(subject: Subject) -> Item:
    """The same dialogues, whole, with one episode broken, and with all but one of a task broken."""
    whole = _Fails(max_turns=2)
    groups = _sampled(subject, whole)
    size = subject.completions
    found: list[str] = []
    for broken, left in ((whole.seeds[:1], [size - 1] + [size] * (len(groups) - 1)),
                         (whole.seeds[: size - 1], [size] * (len(groups) - 1))):  # fmt: skip
        kept = _sampled(subject, _Fails(max_turns=2, broken=frozenset(broken)))
        if (sizes := [len(group.rows) for group in kept]) != left:
            found.append(f"with {len(broken)} of {size} episodes of a task broken, groups of {sizes} are left")
            continue
        parts = (_without(group, set(broken), whole.seeds[n * size :]) for n, group in enumerate(groups))
        expected = [group for group in parts if len(group.rows) >= 2]
        if _tokens(kept) != _tokens(expected):
            found.append("the episodes that are left say other things than without the broken ones")
        counts, tokens = batch_of(kept).counts, sum(map(len, chain(*_tokens(expected))))
        if (counts.sequences, counts.tokens) != (sum(left), tokens):
            found.append(f"denominators are {counts.sequences} and {counts.tokens}; left are {sum(left)} and {tokens}")
    return violations(
        "lost episodes",
        found,
        f"with one of {size} episodes of a task broken the others are as they were, and denominators count them alone; "
        "a task of which one is left is left out",
    )


def _sampled(subject: Subject, environment: Environment) -> list[Group]:
    policy = subject.exact
    players = Players(policy.engine, policy.chat, Sampling(subject.max_new_tokens), max_lost=1.0)
    scored = ScoredEnvironment(ALTERNATING, environment)
    return sample_groups(
        scored, subject.tasks, players, completions_per_prompt=subject.completions, seed=subject.seed, min_group=2
    )


def _without(group: Group, broken: set[int], seeds: Sequence[int]) -> Group:
    """A group without its broken episodes; `seeds` are those of its episodes, in order."""
    return replace(group, rows=tuple(row for row in group.rows if seeds[row.episode] not in broken))


def _tokens(groups: Sequence[Group]) -> list[list[tuple[int, ...]]]:
    return [[turn.token_ids for turn in row.trajectory.turns] for group in groups for row in group.rows]


class _Rewriting:
    """A chat format that, before the last turn, shows the conversation otherwise than it was: a branch begins."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat, self._calls = chat, Counter[int]()

    def __getattr__(self, name: str) -> object:
        return getattr(self._chat, name)

    def followup_ids(
        self, history: Sequence[Message], new_messages: Sequence[Message], *, stopped: bool, unchanged: bool = False
    ) -> list[int]:
        said = sum(message.role == "assistant" for message in history)
        if said == TURNS - 1:
            raise TemplateError("this template rewrites earlier turns")
        return self._chat.followup_ids(history, new_messages, stopped=stopped, unchanged=unchanged)


def trained_once(subject: Subject) -> Item:
    """Dialogues of three turns with what a tool said between them, in one branch and in two; messages that go on."""
    subject = replace(subject, max_new_tokens=min(subject.max_new_tokens, LONGEST))
    found: list[str] = []
    told: list[str] = []
    for branches in (1, 2):
        said: list[tuple[Request, Completion]] = []
        policy = subject.policy
        if branches == 2:
            policy = Policy(policy.model, _Rewriting(policy.chat), policy.engine)  # pyright: ignore[reportArgumentType]
        groups = subject.sample(policy, engine=Recording(policy.engine, said), turns=TURNS)
        if {len(row.trajectory.branches) for group in groups for row in group.rows} != {branches}:
            found.append(f"a trajectory has another number of branches than {branches}")
        found += _differences(batch_of(groups), said)
        told.append(f"{sum(len(done.token_ids) for _, done in said)} tokens of dialogues in {branches}")
    said = []
    groups = subject.sample(subject.policy, engine=Recording(subject.policy.engine, said), environment=GoesOn())
    whole = [(request, done) for request, done in said if request.sampling.top_p == 1]
    found += _differences(batch_of(groups), whole)
    inserted = sum(len(row.trajectory.turns) > TURNS for group in groups for row in group.rows)
    return violations(
        "trained once",
        found,
        f"each of {' and '.join(told)} branches is trained exactly once, behind what it was sampled after, and nothing "
        f"else is: in {inserted} messages that stop at a string and go on, no inserted text, and no truncated turn",
    )


def _differences(batch: Batch, said: Sequence[tuple[Request, Completion]]) -> list[str]:
    """Sampled tokens that are trained never or twice, and others that are: each with all that stood before it."""
    sampled = Counter(
        ((*request.token_ids, *done.token_ids[:i]), token)
        for request, done in said
        for i, token in enumerate(done.token_ids)
    )
    learned = Counter(
        each
        for row in pack(batch.examples, 2 * longest(batch))
        for of_example in sequences(row).values()
        for each in of_example
    )
    missing, more = sampled - learned, learned - sampled
    return [
        f"{sum(counted.values())} tokens {what}"
        for what, counted in (("that were sampled are not trained", missing), ("are trained besides, or twice", more))
        if counted
    ]
