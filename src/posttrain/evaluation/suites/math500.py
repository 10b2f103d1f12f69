r"""MATH-500: 500 problems of MATH (Hendrycks et al. 2021, arXiv 2103.03874; chosen by arXiv 2305.20050)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from posttrain.evaluation.suite import Suite


class Math500(Suite):
    r"""Zero-shot; the answer is in the last \boxed{}, and compared as mathematics."""

    hub = "HuggingFaceH4/MATH-500"
    options: ClassVar[Mapping[str, Any]] = {
        "prompt_template": "{prompt}\n\nThink step by step, and put the final answer into \\boxed{}.",
        "reward": "math",
        "greedy": True,
        "max_new_tokens": 1024,
    }

    def row(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The problem and its answer."""
        return {"prompt": row["problem"], "answer": row["answer"]}
