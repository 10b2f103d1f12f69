"""Labels of the steps of sampled completions, for process reward models: by Monte Carlo, and by arithmetic.

From the end of each step K continuations are sampled. The soft label of the step is the share of them that ends right,
the hard one whether any does; that of the last step is whether the completion itself is right.

    y_soft = 1/K sum_j [continuation j is right]        y_hard = [some continuation is right]

Math-Shepherd, Wang et al. 2023, section 3.3 (https://arxiv.org/abs/2312.08935). The states and their continuations are
those of VinePPO (`monte_carlo_values`); a step is a line.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from posttrain.data.chat import ChatFormat
from posttrain.data.messages import tools_column, written
from posttrain.data.order import seed_for
from posttrain.environments.scored import ScoredEnvironment
from posttrain.episodes.episodes import Players
from posttrain.episodes.metrics import SOLVED
from posttrain.episodes.monte_carlo_values import state_values
from posttrain.errors import UserError
from posttrain.rewards import Weighted
from posttrain.rewards.verifiers.equations import labels_of
from posttrain.types import Group, Row, States, StateValues, StopReason, steps_in

MOST = 64  # lines of a completion that are continued from


def step_rows(
    groups: Sequence[Group],
    environment: ScoredEnvironment,
    players: Players,
    *,
    by: str,  # soft, hard or rule
    continuations: int,
    per_prompt: int = 0,  # 0: all
    seed: int,
) -> list[dict[str, Any]]:
    """A row of `prompt`, `steps` and `labels` for each completion that is labelled, of those that ended.

    With `per_prompt` as many of each prompt, by `most_convincing` where a reward model has scored them; else at random.
    What is right is said by the environment's outcome.
    """
    outcome = environment.outcome
    if not outcome:  # a function has shown it by a score outside [0, 1]
        raise UserError("`step_labels` needs a `reward` that says what is right, such as numbers, math or gym")
    (verifier,) = (reward for reward, _ in environment.reward.parts if reward.name == outcome)
    chosen = [replace(group, rows=_to_label(group, outcome, per_prompt, seed)) for group in groups]
    chosen = [group for group in chosen if group.rows]
    rows = [(group, row, row.scores[outcome].total >= SOLVED) for group in chosen for row in group.rows]
    if by == "rule":
        labels = [labels_of(group.task, row.trajectory.text, solved) for group, row, solved in rows]
    else:
        alone = replace(environment, reward=Weighted(((verifier, 1.0),)))
        # part of a reward, as for an answer that contains the right one, is not right in part
        values = state_values(chosen, States(continuations, 0, MOST), alone, players, seed=seed, solved_at=SOLVED)
        found = zip(rows, values, strict=True)
        labels = [_by_values(row, valued, solved, by, players.chat) for (_, row, solved), valued in found]
    return [
        {
            "prompt": written(group.task.prompt),
            **tools_column(group.task.prompt),
            "steps": [row.trajectory.text[start:end] for start, end in steps_in(row.trajectory.text)],
            "labels": told,
            "solved": solved,
            "id": group.task.id,
        }
        for (group, row, solved), told in zip(rows, labels, strict=True)
        if told
    ]


def most_convincing(solved: Sequence[bool], scores: Sequence[float]) -> list[int]:
    """The places of completions, those first from which a process reward model learns most: wrong ones it rates high.

    Wrong ones by falling score, and then right ones by falling score. Lightman et al. 2023, section 4.2
    (https://arxiv.org/abs/2305.20050), who draw 80% of what they label from the first.

    Example:
        >>> most_convincing([True, False, False], [0.9, 0.2, 0.7])
        [2, 1, 0]
    """
    return sorted(range(len(solved)), key=lambda place: (solved[place], -scores[place]))


def _to_label(group: Group, outcome: str, most: int, seed: int) -> tuple[Row, ...]:
    ended = [row for row in group.rows if row.trajectory.stop_reason is StopReason.STOP]
    if not most or len(ended) <= most:
        return tuple(ended)
    judged = [row.scores["reward_model"].total for row in ended if "reward_model" in row.scores]
    if judged:
        order = most_convincing([row.scores[outcome].total >= SOLVED for row in ended], judged)
    else:
        order = random.Random(seed_for(seed, "to label", group.task.id)).sample(range(len(ended)), len(ended))
    return tuple(ended[place] for place in order[:most])


def _by_values(row: Row, valued: StateValues, solved: bool, by: str, chat: ChatFormat) -> list[float | None]:
    """Of each line the value of the state that begins behind it; None where no state does."""
    text, tokens = row.trajectory.text, row.trajectory.turns[0].token_ids
    ends = chat.ends_of(tokens)
    starts = [n for n in range(1, len(tokens)) if valued.steps[n] != valued.steps[n - 1]]
    behind = {ends[n - 1]: valued.values[n] for n in starts}
    found: list[float | None] = []
    for _, end in (lines := steps_in(text)):
        value = next((value for at, value in behind.items() if at >= end), None)
        if len(found) == len(lines) - 1:
            value = float(solved)
        found.append(float(value > 0) if value is not None and by == "hard" else value)
    return found
