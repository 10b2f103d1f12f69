"""Preference pairs mined by best-of-n sampling, and adversarial examples for a reward model.

Adversarial ones are pairs where a gold reward is available, annotation items where it is not. A reward model trained on
them in addition to its own pairs is trained against the completions that optimising it finds.
"""

import random
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from posttrain.data.messages import tools_column, written
from posttrain.data.order import seed_for
from posttrain.types import Group, Row, StopReason


def pair_rows(group: Group, golds: Sequence[float]) -> list[dict[str, Any]]:
    """The pair (chosen: highest gold, rejected: highest reward), where the two rewards rank them differently."""
    whole = _whole(group)
    if not whole:
        return []
    liked = max(whole, key=lambda place: group.rows[place].reward)
    better = max(whole, key=lambda place: golds[place])
    chosen, rejected = group.rows[better], group.rows[liked]
    if not (golds[better] > golds[liked] and chosen.reward < rejected.reward):
        return []
    return [_pair(group, chosen, rejected, gold={"chosen": golds[better], "rejected": golds[liked]})]


def best_worst_rows(group: Group, least: float | None = None) -> list[dict[str, Any]]:
    """The pair (chosen: highest reward, rejected: lowest); none if all are equal, or the best is below `least`."""
    whole = [group.rows[place] for place in _whole(group)]
    chosen, rejected = (choose(whole, key=lambda row: row.reward, default=None) for choose in (max, min))
    if not chosen or not rejected or chosen.reward == rejected.reward or (least is not None and chosen.reward < least):
        return []
    return [_pair(group, chosen, rejected)]


def _pair(group: Group, chosen: Row, rejected: Row, **more: Any) -> dict[str, Any]:
    return {
        "prompt": written(group.task.prompt),
        **tools_column(group.task.prompt),
        "chosen": chosen.trajectory.text,
        "rejected": rejected.trajectory.text,
        "reward": {"chosen": chosen.reward, "rejected": rejected.reward},
        **more,
        "id": group.task.id,
    }


def item_rows(group: Group, seed: int) -> list[dict[str, Any]]:
    """An item of two completions: highest reward, and a random one with another text; none if all texts are equal.

    Its priority is the difference of their rewards.
    """
    whole = [group.rows[place] for place in _whole(group)]
    if not whole:
        return []
    liked = max(whole, key=lambda row: row.reward)
    others = [row for row in whole if row.trajectory.text != liked.trajectory.text]
    if not others:
        return []
    other = random.Random(seed_for(seed, "to people", group.task.id)).choice(others)
    said = [(liked, "best of n"), (other, "by chance")]
    digest = sha256("\0".join(row.trajectory.text for row, _ in said).encode()).hexdigest()[:8]
    row = {
        "item": f"{group.task.id} {digest}",  # the same prompt may come in a later round, with other answers
        "prompt": written(group.task.prompt),
        "completions": [{"text": row.trajectory.text, "model": name, "reward": row.reward} for row, name in said],
        "priority": liked.reward - other.reward,
    }
    return [row]


def _whole(group: Group) -> list[int]:
    return [place for place, row in enumerate(group.rows) if row.trajectory.stop_reason is StopReason.STOP]
