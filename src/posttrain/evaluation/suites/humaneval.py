"""HumanEval: functions of Python to complete, judged by unit tests (Chen et al. 2021, arXiv 2107.03374)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from posttrain.evaluation.suite import Suite


class HumanEval(Suite):
    """The prompt is the beginning of the program alone, so that a completion may also go on with it."""

    hub = "openai/openai_humaneval"
    options: ClassVar[Mapping[str, Any]] = {
        "system": "Complete the function. Answer with the whole function in one ```python block.",
        "reward": "code",
        "greedy": True,
        "max_new_tokens": 512,
    }
    accuracy = "pass@1"

    def row(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The beginning of the program, and `check` of its tests."""
        return {"id": row["task_id"]} | {name: row[name] for name in ("prompt", "test", "entry_point")}
