"""Items 8 and 9: what fails is an error with one cause and never a score of 0; a failed episode costs itself alone."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from posttrain.engine.engine import BatchEngine
from posttrain.engine.scripted import ScriptedEngine
from posttrain.environments.env import Seat
from posttrain.environments.scored import ScoredEnvironment
from posttrain.episodes.episodes import Players, sample_groups
from posttrain.errors import PosttrainError, RewardError
from posttrain.recipes.verify.item import Item, violations
from posttrain.recipes.verify.subject import ALTERNATING, Dialogue, Subject, batch_of
from posttrain.rewards import Weighted, from_function
from posttrain.types import Completion, Engine, Group, Outcome, Request, Sampling, Task

HANG_S = 5.0
LIMIT_S = 0.3


class _Failing(BatchEngine):
    def generate(self, requests: Sequence[Request], on_tokens: Callable[[int], None] | None = None) -> list[Completion]:
        raise PosttrainError("the engine is unplugged")


def _raises(completion: str) -> float:
    raise OSError("the judge cannot be reached")


def _hangs(completion: str) -> float:
    time.sleep(HANG_S)
    return 1.0


def _nan(completion: str) -> float:
    return math.nan


def _too_few(completions: list[str]) -> list[float]:
    return [1.0] * (len(completions) - 1)


def failures(subject: Subject) -> Item:
    """Rewards that raise, hang, return NaN or lose a value, and an engine that fails, through training's driver."""
    chat = subject.policy.chat
    fine = ScriptedEngine(lambda request: (min(chat.stop_ids),), chat.stop_ids)
    cases: list[tuple[Callable[..., object], Engine, type[PosttrainError], str]] = [
        (_raises, fine, RewardError, "the judge cannot be reached"),
        (_hangs, fine, RewardError, "did not finish within"),
        (_nan, fine, RewardError, "nan"),
        (_too_few, fine, RewardError, "_too_few"),
        (_raises, _Failing(), PosttrainError, "the engine is unplugged"),
    ]
    found: list[str] = []
    for reward, engine, kind, cause in cases:
        what = "an engine that fails" if engine is not fine else f"a reward like {reward.__name__}"
        rewards = Weighted(((from_function(reward), 1.0),), timeout_s=LIMIT_S if reward is _hangs else 60.0)
        players = Players(engine, chat, Sampling(subject.config.max_new_tokens))
        words = {"completions_per_prompt": 2, "seed": subject.config.seed}
        try:
            sample_groups(ScoredEnvironment(rewards), subject.tasks, players, **words)
        except kind as error:
            if cause not in str(error) or "\n" in str(error):
                found.append(f"{what}: the error does not say in one line what failed: {error}")
        except Exception as error:
            found.append(f"{what}: came out as {type(error).__name__}: {error}")
        else:
            found.append(f"{what}: was given a score")
    kinds = "rewards that raise, hang, return NaN or lose a value, and an engine that fails"
    return violations("failures", found, f"{len(cases)} ways to fail are errors with one cause: {kinds}")


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
    policy, size = subject.exact, subject.config.completions_per_prompt
    players = Players(policy.engine, policy.chat, Sampling(subject.config.max_new_tokens), max_lost=1.0)
    words = {"completions_per_prompt": size, "seed": subject.config.seed, "min_group": 2}
    sampled = partial(sample_groups, tasks=subject.tasks, players=players, **words)
    whole = _Fails(max_turns=2)
    groups = sampled(ScoredEnvironment(ALTERNATING, whole))
    found: list[str] = []
    for broken, left in ((whole.seeds[:1], [size - 1] + [size] * (len(groups) - 1)),
                         (whole.seeds[: size - 1], [size] * (len(groups) - 1))):  # fmt: skip
        kept = sampled(ScoredEnvironment(ALTERNATING, _Fails(max_turns=2, broken=frozenset(broken))))
        if (sizes := [len(group.rows) for group in kept]) != left:
            found.append(f"with {len(broken)} of {size} episodes of a task broken, groups of {sizes} are left")
            continue
        parts = (
            replace(group, rows=tuple(row for row in group.rows if whole.seeds[n * size + row.episode] not in broken))
            for n, group in enumerate(groups)
        )
        expected = _tokens([group for group in parts if len(group.rows) >= 2])
        if _tokens(kept) != expected:
            found.append("the episodes that are left say other things than without the broken ones")
        counts, tokens = batch_of(kept).counts, sum(map(len, chain(*expected)))
        if (counts.sequences, counts.tokens) != (sum(left), tokens):
            found.append(f"denominators are {counts.sequences} and {counts.tokens}; left are {sum(left)} and {tokens}")
    return violations(
        "lost episodes",
        found,
        f"with one of {size} episodes of a task broken the others are as they were, and denominators count them alone; "
        "a task of which one is left is left out",
    )


def _tokens(groups: Sequence[Group]) -> list[list[tuple[int, ...]]]:
    return [[turn.token_ids for turn in row.trajectory.turns] for group in groups for row in group.rows]
