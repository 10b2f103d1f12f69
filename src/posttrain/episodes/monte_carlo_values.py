"""Monte Carlo state values: mean reward of continuations from each state (VinePPO)."""

import math
from collections.abc import Sequence

from posttrain.data.chat import ChatFormat
from posttrain.data.order import seed_for
from posttrain.environments.scored import ScoredEnvironment, need_group
from posttrain.episodes.episodes import Played, Players, play, score
from posttrain.errors import RewardError
from posttrain.types import Group, States, StateValues, Trajectory

SCORED_TOGETHER = 128  # episodes: a reward's time limit is per batch


def state_values(
    groups: Sequence[Group],
    states: States,
    environment: ScoredEnvironment,
    players: Players,
    *,
    seed: int,
    by: Players | None = None,
    solved_at: float | None = None,
) -> list[StateValues]:
    """For each trajectory, group by group: the steps of its first turn, and the values of their initial states.

        V(s) = 1/K sum_j r(continuation j of s)

    K are the continuations to which a reward applies, sampled `by` others than the `players` if given. States of one
    task with the same tokens are continued once. With `solved_at` r is 1 for a reward of so much or more, else 0.
    """
    need_group(environment, states.samples, "the number of continuations of a state")
    rows = [(p, row.trajectory) for p, group in enumerate(groups) for row in group.rows]
    begun = [step_starts(trajectory, states, players.chat) for _, trajectory in rows]
    wanted = {
        (p, trajectory.turns[0].token_ids[:start]): 0.0
        for (p, trajectory), begins in zip(rows, begun, strict=True)
        for start in begins
    }
    tasks = [groups[p].task for p, _ in wanted]
    played = play(
        environment,
        [task for task in tasks for _ in range(states.samples)],
        by or players,
        [seed_for(seed, "continuation", n, k) for n in range(len(tasks)) for k in range(states.samples)],
        [opening for _, opening in wanted for _ in range(states.samples)],
    )
    by_state = [
        [each for each in played[i : i + states.samples] if isinstance(each, Played)]
        for i in range(0, len(played), states.samples)
    ]
    most = max(1, SCORED_TOGETHER // states.samples)
    scored = [
        group
        for i in range(0, len(tasks), most)
        for group in score(environment, tasks[i : i + most], by_state[i : i + most], players)
    ]
    for state, group in zip(wanted, scored, strict=True):
        earned = [r if solved_at is None else float(r >= solved_at) for r in group.rewards if not math.isnan(r)]
        if not earned:
            raise RewardError(
                f"no reward applies to any continuation of task {group.task.id!r}, so that its states have no value; "
                "leave such tasks out, or use another `algorithm`"
            )
        wanted[state] = sum(earned) / len(earned)
    found: list[StateValues] = []
    for (p, trajectory), begins in zip(rows, begun, strict=True):
        tokens = trajectory.turns[0].token_ids
        steps = [sum(start <= n for start in begins) - 1 for n in range(len(tokens))]
        steps += [steps[-1]] * (len(trajectory.logprobs) - len(tokens))
        values = [wanted[p, tokens[:start]] for start in begins]
        found.append(StateValues(tuple(values[step] for step in steps), tuple(steps)))
    return found


def step_starts(trajectory: Trajectory, states: States, chat: ChatFormat) -> list[int]:
    """Indices of the first token of each step in the first turn: 0, and after each line (or N tokens)."""
    tokens = trajectory.turns[0].token_ids
    if states.step_tokens:
        starts = list(range(0, len(tokens), states.step_tokens))
    else:
        starts = [0, *(n for n in range(1, len(tokens)) if "\n" in chat.decode(tokens[n - 1 : n]))]
    return starts[: states.most]
