"""IFEval: instructions that a program can check (Zhou et al. 2023, arXiv 2311.07911)."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar

from posttrain.evaluation.suite import Measure, Suite, ratio
from posttrain.types import Group

_REWARDS = {  # the paper's four, in its order; the first one is the accuracy
    "constraints": "prompt-level strict",
    "instruction_strict": "instruction-level strict",
    "prompt_loose": "prompt-level loose",
    "instruction_loose": "instruction-level loose",
}


class IFEval(Suite):
    """Of all prompts, and of all instructions, the share that is followed; loose forgives what frames a response."""

    hub = "google/IFEval"
    splits = ("train",)
    options: ClassVar[Mapping[str, Any]] = {
        "reward": "constraints constraints?partial_credit=true&name=instruction_strict=0 "
        "constraints?loose=true&name=prompt_loose=0 "
        "constraints?loose=true&partial_credit=true&name=instruction_loose=0",
        "greedy": True,
        "max_new_tokens": 1280,
    }
    accuracy = _REWARDS["constraints"]

    def row(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The prompt and its instructions."""
        return {name: row[name] for name in ("prompt", "instruction_id_list", "kwargs")}

    def measures(self, groups: Sequence[Group], outcome: str) -> list[Measure]:
        """The other three."""
        scored = groups[0].rows[0].scores
        sizes = [len(group.task.metadata["instruction_id_list"]) for group in groups]

        def measure(reward: str) -> Measure:
            rates = [fmean(row.scores[reward].total for row in group.rows) for group in groups]
            return ratio(_REWARDS[reward], rates, sizes if reward.startswith("instruction") else [1] * len(rates))

        return [measure(reward) for reward in _REWARDS if reward in scored and reward != outcome]
