r"""ProcessBench: find the first wrong step of a solution (Zheng et al. 2024, arXiv 2412.06559)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import hypot
from statistics import fmean
from typing import Any, ClassVar

from posttrain.episodes.metrics import SOLVED
from posttrain.evaluation.process_bench import ALL_RIGHT, process_bench
from posttrain.evaluation.suite import Measure, Suite
from posttrain.evaluation.voting import winner
from posttrain.types import Group


class ProcessBenchCritic(Suite):
    r"""A language model as critic: it reads the steps, numbered from 0, and puts a number, or -1, into \boxed{}.

    With several samples the answer is their majority. The mean of the subsets' F1 is the benchmark's number.
    """

    hub = "Qwen/ProcessBench"
    splits = ("gsm8k", "math", "olympiadbench", "omnimath")
    # not `numbers`, to which "this step is wrong" before a box takes it back
    options: ClassVar[Mapping[str, Any]] = {"reward": "exact?answer_in=boxed", "greedy": True, "max_new_tokens": 1024}

    def row(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The problem with its solution in numbered paragraphs, and the first wrong one."""
        steps = "\n\n".join(f"<paragraph_{n}>\n{step}\n</paragraph_{n}>" for n, step in enumerate(row["steps"]))
        prompt = (
            "Below are a problem and a solution of it, in paragraphs that are numbered from 0. Check the solution "
            "paragraph by paragraph. As soon as one has an error, answer with its number; if none has, answer with -1. "
            f"Put the number into \\boxed{{}}.\n\n[Problem]\n\n{row['problem']}\n\n[Solution]\n\n{steps}"
        )
        return {"id": row["id"], "prompt": prompt, "answer": int(row["label"])}

    def kind(self, row: Mapping[str, Any]) -> bool:
        """Whether all steps are right: its files have those with a wrong step first."""
        return row.get("label") == ALL_RIGHT

    def refusal(self, rows: Sequence[Mapping[str, Any]]) -> str:
        """Its F1 is of two accuracies."""
        kinds = {row["answer"] == ALL_RIGHT for row in rows}
        what = "solutions with a wrong step and solutions without one"
        return "" if len(kinds) == 2 else f"it needs {what}, and {len(rows)} rows have one kind alone; raise `limit`"

    def measures(self, groups: Sequence[Group], outcome: str) -> list[Measure]:
        """The F1 of each subset, which ids name as in `math-17`, and their mean; of one subset, or none, the F1."""
        subsets: dict[str, list[Group]] = {}
        for group in groups:
            subsets.setdefault(group.task.id.rpartition("/")[2].rpartition("-")[0], []).append(group)
        kept = {name: some for name, some in subsets.items() if len({g.task.answer == ALL_RIGHT for g in some}) == 2}
        if not kept and len({g.task.answer == ALL_RIGHT for g in groups}) < 2:
            return []  # episodes of the other kind failed
        found = [_f1(name, some, outcome) for name, some in (kept or {"": [*groups]}).items()]
        return [replace(found[0], name="F1")] if len(found) == 1 else [_mean(found), *found]


def _f1(subset: str, groups: Sequence[Group], outcome: str) -> Measure:
    """The F1, with values that are it plus what each task's answer changes of it (linearised)."""
    labels = [int(group.task.answer) for group in groups]
    hits = [_majority_is_right(group, outcome) for group in groups]
    found = process_bench(labels, [label if hit else None for label, hit in zip(labels, hits, strict=True)])
    a, b = found.wrong, found.right
    slope = 2 * len(groups) / (a + b) ** 2 if a + b else 0.0
    wrong, right = slope * b**2 / found.n_wrong, slope * a**2 / found.n_right
    values = [
        found.f1 + (right * (hit - b) if label == ALL_RIGHT else wrong * (hit - a))
        for label, hit in zip(labels, hits, strict=True)
    ]
    return Measure(f"F1 {subset}", found.ci95, tuple(values))


def _mean(found: Sequence[Measure]) -> Measure:
    """The mean of measures of different tasks, each counting the same."""
    mean, tasks = fmean(one.value for one in found), sum(len(one.values) for one in found)
    shares = [tasks / len(found) / len(one.values) for one in found]
    values = [mean + share * (v - one.value) for one, share in zip(found, shares, strict=True) for v in one.values]
    low, high = (hypot(*(one.value - one.ci95[end] for one in found)) / len(found) for end in (0, 1))
    return Measure("F1", (mean - low, mean + high), tuple(values))


def _majority_is_right(group: Group, outcome: str) -> bool:
    scores = [row.scores[outcome] for row in group.rows]
    return scores[winner([None if score.unparsed else score.parsed for score in scores])].total >= SOLVED
