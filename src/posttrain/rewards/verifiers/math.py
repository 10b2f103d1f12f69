r"""Mathematical answers: two expressions are equal if they mean the same, `\frac{1}{2}` and `0.5` included.

Equivalence is math-verify's (https://github.com/huggingface/Math-Verify). Its own time limit needs the main thread and
cannot stop compiled code, so it is switched off and the work is done in a worker process that can be killed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, cast

from posttrain.errors import RewardError
from posttrain.rewards.background import in_thread
from posttrain.rewards.reward import score_each
from posttrain.rewards.verifiers.extraction import AnswerIn, extract, not_found
from posttrain.rewards.verifiers.worker import TIMED_OUT, WorkerError, WorkerTimeout, worker_for
from posttrain.types import Episode, Score


@dataclass(frozen=True)
class MathVerifier:
    r"""1 if the answer equals `task.answer` as mathematics, else 0.

    `task.answer` is a number or LaTeX, with or without `$`; several right answers are a list. An answer that cannot
    be read, that cannot be compared, or on which the comparison takes longer than `timeout_s` seconds (such as
    `9^{9^{9^9}}`) is `unparsed`, value 0, and its explanation says which; the latter begins with "verifier timed out".

    Raises (while scoring):
        RewardError: the task's own answer cannot be read, or the verifier itself failed.
    """

    answer_in: AnswerIn = "boxed"
    timeout_s: float = 5.0
    name: str = "math"
    verifies: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    async def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One score per episode; the comparisons take turns in the worker process."""
        return await in_thread(score_each, self.name, episodes, self._score_one)

    def _score_one(self, episode: Episode) -> Score:
        answer = extract(episode.completion, self.answer_in)
        if answer is None:
            return Score(0.0, explanation=not_found(self.answer_in), unparsed=True)
        right = episode.task.answer
        golds = [str(one) for one in cast("Sequence[object]", right if isinstance(right, list | tuple) else [right])]
        if right is None or not golds:
            raise RewardError(f"reward '{self.name}' needs task.answer; task {episode.task.id!r} has none")
        try:
            verdict = worker_for(f"{__name__}:compare").ask((golds, answer), self.timeout_s)
        except WorkerTimeout:
            return Score(0.0, answer, f"{TIMED_OUT} after {self.timeout_s:g} s", unparsed=True)
        except WorkerError as error:
            raise RewardError(f"reward '{self.name}' failed on task {episode.task.id!r}: {error}") from error
        if verdict == "equal":
            return Score(1.0, answer)
        if verdict == "different":
            return Score(0.0, answer, f"expected {golds[0]}" + (f" or {', '.join(golds[1:])}" if golds[1:] else ""))
        return Score(0.0, answer, verdict, unparsed=True)


def compare(question: tuple[list[str], str] | None) -> str:
    """In the worker process: "equal", "different", or why the answer could not be compared. None only imports.

    Raises:
        ValueError: a right answer cannot be read as mathematics.
    """
    import math_verify  # pyright: ignore[reportMissingTypeStubs]

    if question is None:
        return "ready"
    golds, answer = question
    verify = cast("Any", math_verify.verify)
    read = _parse(answer)
    if not read:
        for gold in golds:
            _gold(gold)
        return "not readable as mathematics"
    failures: list[str] = []
    for gold in golds:
        for right, given in product(_gold(gold), read):
            try:
                if verify(right, given, timeout_seconds=None, raise_on_error=True):
                    return "equal"
            except MemoryError:
                return "verifier ran out of memory"
            except Exception as error:  # one reading of the answer; another may still be equal
                failures.append(type(error).__name__)
    return f"could not be compared: {failures[0]}" if failures else "different"


def _gold(gold: str) -> list[Any]:
    read = _parse(gold)
    if not read:
        raise ValueError(f"the task's answer {gold!r} cannot be read as mathematics")
    return read


def _parse(text: str) -> list[Any]:
    """math-verify's readings of `text`, which it expects to be prose with formulas marked as such."""
    import math_verify  # pyright: ignore[reportMissingTypeStubs]

    text = text.replace(r"\$", "")  # a currency sign, which would look like the start of a formula
    marked = f"${text}$" if _is_formula(text) else text
    return list(cast("Any", math_verify.parse)(marked, parsing_timeout=None))


_DELIMITERS = re.compile(r"\$|\\\(|\\\[|\\boxed")
_COMMANDS = re.compile(r"\\(?:text|mathrm|mathbf|operatorname|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+")
_FUNCTIONS = re.compile(r"\b(?:sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|log|ln|exp|sqrt|pi|mod|and|or)\b")


def _is_formula(text: str) -> bool:
    """Whether `text` is one unmarked formula rather than prose: no word of two letters that is not a command."""
    if _DELIMITERS.search(text):
        return False
    rest = _FUNCTIONS.sub(" ", _COMMANDS.sub(" ", text))
    return re.search(r"[^\W\d_]{2,}", rest) is None
