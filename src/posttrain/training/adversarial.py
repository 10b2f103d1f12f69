"""What fools a reward: found by sampling many answers and looking at the one that it likes best.

Rows to learn from where somebody else knows better, and items to put before people where nobody does. A reward model
that learns from them beside what it had learned from is trained against what optimising it finds.
"""

import random
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from posttrain.data.messages import tools_column, written
from posttrain.data.order import seed_for
from posttrain.types import Group, StopReason


def fooled(group: Group, golds: Sequence[float]) -> list[dict[str, Any]]:
    """The pair of the answer of most gold and the one of most reward, where reward and gold do not agree on the two."""
    whole = _whole(group)
    if not whole:
        return []
    liked = max(whole, key=lambda place: group.rewards[place])
    better = max(whole, key=lambda place: golds[place])
    if not (golds[better] > golds[liked] and group.rewards[better] < group.rewards[liked]):
        return []
    row = {
        "prompt": written(group.task.prompt),
        **tools_column(group.task.prompt),
        "chosen": group.trajectories[better].text,
        "rejected": group.trajectories[liked].text,
        "reward": {"chosen": group.rewards[better], "rejected": group.rewards[liked]},
        "gold": {"chosen": golds[better], "rejected": golds[liked]},
        "id": group.task.id,
    }
    return [row]


def for_people(group: Group, seed: int) -> list[dict[str, Any]]:
    """An item of two: the answer of most reward, and one by chance that says something else; none if all say the same.

    The more the reward likes the first one better, the sooner it is asked.
    """
    whole = _whole(group)
    liked = max(whole, key=lambda place: group.rewards[place], default=-1)
    others = [place for place in whole if group.trajectories[place].text != group.trajectories[liked].text]
    if not others:
        return []
    other = random.Random(seed_for(seed, "to people", group.task.id)).choice(others)
    said = [(liked, "best of n"), (other, "by chance")]
    digest = sha256("\0".join(group.trajectories[place].text for place, _ in said).encode()).hexdigest()[:8]
    row = {
        "item": f"{group.task.id} {digest}",  # the same prompt may come in a later round, with other answers
        "prompt": written(group.task.prompt),
        "completions": [
            {"text": group.trajectories[place].text, "model": name, "reward": group.rewards[place]}
            for place, name in said
        ],
        "priority": group.rewards[liked] - group.rewards[other],
    }
    return [row]


def _whole(group: Group) -> list[int]:
    """The places of the answers that were not cut off."""
    return [place for place, found in enumerate(group.trajectories) if found.stop_reason is StopReason.STOP]
