"""The conformance kit of rewards."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from posttrain.background import finish
from posttrain.errors import RewardError, UserError, described
from posttrain.rewards.custom import from_function
from posttrain.rewards.reward import ROLES, Reward, apart, bounds_of, role_of, score_all
from posttrain.testing.conformance import require
from posttrain.types import Episode, EpisodeGroup, Message, Score, SeatScores, Task

NOWHERE = Score(math.nan, explanation="there is no score")


def check_reward(
    reward: Reward | Callable[..., Any],
    episodes: Sequence[Episode] | Sequence[EpisodeGroup],
    *,
    timeout_s: float = 60.0,
    deterministic: bool = True,
) -> None:
    """Check that a reward, or a plain function as `reward=` takes it, conforms on these episodes or groups of them.

    Episodes are groups of their own. Scored are an empty batch, the full batch, the reversed batch,
    with the episodes of each group reversed, and one group at a time. Checked: one score per episode, finite where
    it applies; the same score for an episode whatever its place in its group and the group's company (left out where
    `deterministic` is off, for judges), spans included; spans within the text of a turn; a known role; totals within
    its `bounds`, if it states them; an unparsed answer never earns; and tasks are left as they were.

    Args:
        reward: an object, or a function.
        episodes: what it is asked to score; the more they differ, the more is seen.
        timeout_s: of each call.
        deterministic: whether an episode has one score, wherever it stands.

    Raises:
        ConformanceError: it does not conform.
        UserError: the parameters of a plain function are not understood.
    """
    given = cast(Reward, reward) if hasattr(reward, "score") else from_function(cast(Callable[..., Any], reward))
    require(finish(_check(given, episodes, timeout_s=timeout_s, deterministic=deterministic)))


async def _check(
    reward: Reward,
    given: Sequence[Episode] | Sequence[EpisodeGroup],
    *,
    timeout_s: float,
    deterministic: bool,
) -> list[str]:
    groups = [one if isinstance(one, EpisodeGroup) else EpisodeGroup(one.task, (one,)) for one in given]
    episodes = [episode for group in groups for episode in group.episodes]
    if not episodes:
        return ["check_reward needs at least one episode"]
    if not cast(object, reward.name) or not isinstance(cast(object, reward.name), str):
        return [f"its name is {reward.name!r}; expected a non-empty string"]
    before = [repr(episode) for episode in episodes]

    async def asked(groups: Sequence[EpisodeGroup]) -> list[list[SeatScores]]:
        return await score_all(reward, groups, timeout_s=timeout_s)

    turned = [EpisodeGroup(group.task, group.episodes[::-1]) for group in groups]
    try:
        empty = await reward.score([])
        together = _flat(await asked(groups))
        reverse = _flat((await asked(groups[::-1]))[::-1])
        within = _flat([list(scores)[::-1] for scores in await asked(turned)])
        alone = _flat([(await asked([group]))[0] for group in groups])
    except Exception as error:
        known = isinstance(error, RewardError | UserError)
        return [str(error) if known else f"it raised {described(error)}"]
    failures = [f"it returned {empty!r} for an empty batch; expected []"] if empty != [] else []
    if role_of(reward) not in ROLES:
        failures.append(f"its role is {role_of(reward)!r}; expected one of {', '.join(ROLES)}")
    if [repr(episode) for episode in episodes] != before:
        failures.append("it changed the episodes that it was given")
    bounds = bounds_of(reward)
    for i, seat, score in ((i, seat, score) for i, scores in enumerate(together) for seat, score in scores.items()):
        where = f"on task {episodes[i].task.id!r}" + (f" for seat '{seat}'" if seat else "")
        if score.applicable and bounds and not bounds[0] <= score.total <= bounds[1]:
            failures.append(f"it gave {score.total} {where}; it states {bounds[0]} to {bounds[1]}")
        if score.unparsed and score.total > 0:
            failures.append(f"it gave {score.total} {where} for an unparsed answer; expected 0 or less")
        ways = {"in a reversed batch": reverse[i], "in a reversed group": within[i], "alone": alone[i]}
        others = {how: scores.get(seat, NOWHERE) for how, scores in ways.items()} if deterministic else {}
        failures.extend(
            f"it gave {_shown(score)} {where}, but {_shown(other)} {how}"
            for how, other in others.items()
            if not _same(score, other)
        )
    return failures


def check_gold(reward: Reward, tasks: Sequence[Task], *, timeout_s: float = 300.0) -> None:
    """Check that the gold completion of every task scores 1 under `reward`, as a verifier's must.

    Tasks without a gold completion are passed over; if none has one, that is a violation, since nothing was shown.

    Raises:
        ConformanceError: one does not score 1; a line for each, with the task and what was parsed.
        RewardError: the reward itself failed.
    """
    answers = [(task, Message("assistant", task.gold)) for task in tasks if task.gold is not None]
    episodes = [Episode(task, (*task.prompt, answer)) for task, answer in answers]
    if not episodes:
        require(["no task has a gold completion, so nothing was checked"])
    scores = _flat(finish(score_all(reward, apart(episodes), timeout_s=timeout_s)))
    require(
        f"task {episode.task.id!r}: gold completion scores {score.total:g} under '{reward.name}' "
        f"(answer {episode.task.answer!r}, parsed {score.parsed!r}; {score.explanation or 'no explanation'})"
        for episode, by_seat in zip(episodes, scores, strict=True)
        for score in by_seat.values()
        if score.total != 1.0
    )


def _flat(scores: Sequence[Sequence[SeatScores]]) -> list[Mapping[str, Score]]:
    """By seat; "" if one score holds for all."""
    return [{"": score} if isinstance(score, Score) else score for of_group in scores for score in of_group]


def _same(a: Score, b: Score) -> bool:
    if not (a.applicable and b.applicable):
        return a.applicable == b.applicable
    places = [[(span.turn, span.start, span.end) for span in score.spans] for score in (a, b)]
    pairs = [(a.value, b.value), *((x.value, y.value) for x, y in zip(a.spans, b.spans, strict=False))]
    alike = all(math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-9) for x, y in pairs)
    return alike and places[0] == places[1] and a.unparsed == b.unparsed


def _shown(score: Score) -> str:
    return f"{score.value} with {list(score.spans)}" if score.spans else str(score.value)
