"""MBPP: short programs by description, judged by asserts that are shown (Austin et al. 2021, arXiv 2108.07732)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from posttrain.evaluation.suite import Suite

TEST = range(11, 511)  # the numbers of its test split, in the file that has all 974 tasks


class MBPP(Suite):
    """Zero-shot, where the paper shows three solved tasks first."""

    hub = "google-research-datasets/mbpp"
    options: ClassVar[Mapping[str, Any]] = {"reward": "code", "greedy": True, "max_new_tokens": 512}
    accuracy = "pass@1"

    def row(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The description with its tests, which name the function."""
        tests = "\n".join(row["test_list"])
        prompt = f"{row['text']}\n\nAnswer with a program in one ```python block. It must pass these tests:\n\n{tests}"
        found = {"id": str(row["task_id"]), "prompt": prompt, "test_list": row["test_list"]}
        found["test_setup_code"] = row["test_setup_code"]
        return found if int(row["task_id"]) in TEST else None
