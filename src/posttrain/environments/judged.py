"""Parsing of --reward specs that include LLM judges."""

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from posttrain.environments.scored import rewards_in
from posttrain.errors import UserError, unknown, words_of
from posttrain.rewards import (
    REWARDS,
    TIME_LIMITS,
    VERDICTS,
    Ask,
    CustomReward,
    Judge,
    JudgePrompt,
    RewardContext,
    Weighted,
    read_prompt,
)
from posttrain.types import ChatModel, Sampling

AT_ONCE = 16  # default number of concurrent requests to a chat model


class ParsedRewards(NamedTuple):
    """Training rewards and gold rewards; None if there are none."""

    rewards: Weighted | None
    gold: Weighted | None
    notes: tuple[str, ...] = ()  # what to tell the user

    @property
    def movable(self) -> list[CustomReward]:
        """See `Weighted.movable`."""
        return [function for each in (self.rewards, self.gold) if each for function in each.movable]

    def moved(self, ask: Callable[[CustomReward, float], Ask]) -> "ParsedRewards":
        """See `Weighted.moved`."""
        rewards, gold = (each.moved(ask) if each else None for each in (self.rewards, self.gold))
        return self._replace(rewards=rewards, gold=gold)


def judged(
    reward: object,
    gold: object = "",
    *,
    judges: Mapping[str, ChatModel],
    policy: ChatModel | None = None,
    prompts: str = "",
    sampling: Sampling = Judge.sampling,
    seed: int = 0,
) -> ParsedRewards:
    """The rewards of two options, and the judges, each of weight 1 unless one of the options names it.

    Where a function takes `reward_context`, judges that are not named are left to it.

    Args:
        reward: rewards and weights, as `parse_rewards` takes them; none where it is empty.
        gold: gold rewards, alike.
        judges: models by the name of the judge.
        policy: for functions that ask it.
        prompts: a prompt for all judges, or NAME=PROMPT for some of them; the others have the default.
        sampling: of verdicts.
        seed: of the run.

    Raises:
        UserError: a judge has the name of another reward; a prompt that is none, or of no judge.
    """
    asked = _prompts(prompts, judges)
    found = {
        name: Judge(model, name, asked[name], sampling, seed, at_once=getattr(model, "at_once", AT_ONCE))
        for name, model in judges.items()
    }
    rewards, read = rewards_in(reward, found), rewards_in(gold, found)
    both = [each for each in (rewards, read) if each]
    parts = [part for each in both for part, _ in each.parts]
    taken = {*REWARDS, *(part.name for part in parts if part is not found.get(part.name))}
    if taken := [name for name in found if name in taken]:
        raise UserError(f"a judge cannot be called '{taken[0]}', which is the name of a reward; rename it")
    asking = [name for each in both for name in each.asks]
    named = {name for each in both for name in each.weights}
    unnamed = [judge for name, judge in found.items() if name not in named]
    notes: list[str] = []
    if asking:
        notes = [f"judge '{judge.name}' is no reward of its own: '{asking[0]}' may ask it" for judge in unnamed]
    elif unnamed:
        rewards = Weighted((*(rewards.parts if rewards else ()), *((judge, 1.0) for judge in unnamed)))
    for each in both:
        each.give(RewardContext(seed, judges, policy))
    return ParsedRewards(rewards, read, tuple(notes))


@contextmanager
def verdicts_kept_in(run: Path, replies: AbstractContextManager[None]) -> Generator[None]:
    """Save in a run what a resumed one must reuse: verdicts by a time limit, and replies of judges."""
    with TIME_LIMITS.kept_in(run / VERDICTS), replies:
        yield


def _prompts(typed: str, judges: Mapping[str, ChatModel]) -> dict[str, JudgePrompt]:
    """The prompt of each judge."""
    by_name: dict[str, JudgePrompt] = {}
    default = read_prompt("quality")
    for word in words_of("judge_prompt", typed):
        named = re.fullmatch(r"([\w-]+)=(.+)", word)
        if named is None:
            default = read_prompt(word)
        elif named[1] not in judges:
            raise unknown("judge in `judge_prompt`:", named[1], judges)
        else:
            by_name[named[1]] = read_prompt(named[2])
    return {name: by_name.get(name, default) for name in judges}
