"""GSM8K: grade-school word problems with a whole number as answer (Cobbe et al. 2021, arXiv 2110.14168)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from posttrain.evaluation.suite import Suite


class GSM8K(Suite):
    """Zero-shot; the answer is the number behind `####`, or else the last number that is said."""

    hub = "openai/gsm8k:main"
    options: ClassVar[Mapping[str, Any]] = {
        "prompt_template": "{prompt}\n\nThink step by step, and end with a line of #### and the number.",
        "reward": "last_number",
        "greedy": True,
        "max_new_tokens": 512,
    }

    def row(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The question and its number."""
        return {"prompt": row["question"], "answer": str(row["answer"]).rpartition("####")[2].strip()}
