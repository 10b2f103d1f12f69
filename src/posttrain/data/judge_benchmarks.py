"""Rows of data sets on which judges are measured, in posttrain's columns; `category` says what its labels are of.

Prometheus' evaluation sets have an instruction, a response and a rubric in one text (Kim et al. 2024,
https://arxiv.org/abs/2405.01535).
"""

import re
from statistics import fmean

from posttrain.data.annotation_tools import Fields, pair
from posttrain.data.records import Record

PEOPLE, OBJECTIVE = "people", "objective"
"""What labels are of: what people prefer, and what is right."""
_ASKED = re.compile(
    r"###The instruction to evaluate:\n(.*)\n\n###Response to evaluate:\n(.*?)\n\n"
    r"(?:###Reference Answer \(Score 5\):\n.*\n\n)?###Score Rubrics:\n",
    re.DOTALL,
)


def category(row: Record, truth: str, subset: str) -> Fields:
    """The kind of truth, and the part of the benchmark."""
    return {"category": f"{truth}: {row.text(subset)}"}


def plain(prompt: str) -> list[Fields]:
    """A prompt that is one message, whatever it looks like: a transcript, a template of another model."""
    return [{"role": "user", "content": prompt}]


def hhh_alignment(row: Record) -> list[Fields]:
    """HHH alignment as Prometheus has it: people's choice between two responses."""
    (prompt, chosen), (other, rejected) = (_asked(row, f"{side}_instruction") for side in ("chosen", "rejected"))
    if prompt != other:
        raise row.fail("'chosen_instruction' and 'rejected_instruction' have different instructions to evaluate")
    talk = f"\n\nHuman: {prompt}" if "\n\nAssistant:" in prompt else plain(prompt)
    return pair(talk, chosen, rejected, 1, **category(row, PEOPLE, "source"))


def gpt4_rated(row: Record) -> list[Fields]:
    """MT-bench and Vicuna as Prometheus has them: a response with GPT-4's scores, of which the mean counts."""
    prompt, response = _asked(row, "instruction")
    scores = [row.as_number("gpt4_score", score) for score in row.as_list("gpt4_score")]
    if not scores:
        raise row.fail("field 'gpt4_score' has no score")
    return [{"prompt": plain(prompt), "completion": response, "ratings": {"gpt-4": fmean(scores)}}]


def _asked(row: Record, field: str) -> tuple[str, str]:
    """The instruction and the response of a judge's prompt."""
    if (found := _ASKED.search(row.text(field))) is None:
        raise row.fail(f"field '{field}' is not a prompt of Prometheus: an instruction, a response and score rubrics")
    return found[1], found[2]
