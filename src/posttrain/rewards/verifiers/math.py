r"""Mathematical equivalence of answers, such as `\frac{1}{2}` and `0.5`.

Equivalence is math-verify's (https://github.com/huggingface/Math-Verify). Its own time limit needs the main thread and
cannot stop compiled code, so it is switched off and the work is done in a worker process that can be killed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

from posttrain.errors import RewardError
from posttrain.rewards.verifiers.boxes import doubt_around_box
from posttrain.rewards.verifiers.extraction import NOT_FOUND, AnswerIn, extract, plain_characters, question_of
from posttrain.rewards.verifiers.formula import unexplained
from posttrain.rewards.verifiers.number_grammar import parse_number
from posttrain.rewards.verifiers.numbers import same_number
from posttrain.rewards.verifiers.prose import final_formula
from posttrain.rewards.verifiers.size import too_large
from posttrain.rewards.verifiers.workers import TIMED_OUT, InWorkers, WorkerError, WorkerTimeout, together, workers_for
from posttrain.types import Episode, Score, Task

ROUNDING = 30  # digits behind the point in which two numbers must agree where algebra cannot tell
LITTLE = 1e-20  # what is within it of the right answer, and not it, is none: `\pi + e^{-100}`, which algebra calls pi
_DIGITS = 5000  # behind which a difference is none; the largest power that is read, `\pi^{-9999}`, has 4,972
_MOST_PAIRS = 200
_VALUES = (2, 3, 5, 7, 11, 13)  # of the variables; small, since one may be the exponent of another


@dataclass(frozen=True)
class MathVerifier(InWorkers):
    r"""1 if the answer equals `task.answer` as mathematics, else 0.

    `task.answer` is a number or LaTeX, with or without `$`; several right answers are a list. An answer that cannot
    be read, that cannot be compared, that is too large to be compared (such as `9^{9^{9^9}}`), or on which the
    comparison takes longer than `timeout_s` seconds is `unparsed`, value 0, and its explanation says which; the last
    begins with "verifier timed out". So is one that has the right value, but says more than the right answer explains:
    `41 = 42`, `\neq 42`, `42 \text{ million}` or `41, 42` for 42. Decimals are exact: 3.14159 is not pi. That the
    task's own answer cannot be read is an error.
    """

    answer_in: AnswerIn = "boxed"
    timeout_s: float = 5.0
    name: str = "math"

    async def unreadable(self, tasks: Sequence[Task]) -> list[str]:
        """Of each task, why its own answer cannot be read; "" where it can."""
        golds = list(dict.fromkeys(gold for task in tasks for gold in _golds(task)))  # many tasks share an answer
        reasons = dict(zip(golds, await together(self._unreadable, golds), strict=True))
        none = f"reward '{self.name}' needs task.answer; there is none"
        return [
            next((reasons[gold] for gold in _golds(task) if reasons[gold]), "" if _golds(task) else none)
            for task in tasks
        ]

    def _unreadable(self, gold: str) -> str:
        if _as_numbers(gold, [gold]):
            return ""
        if large := too_large(gold):
            return f"reward '{self.name}' finds {gold!r} too large to be compared: {large}"
        try:
            workers_for(f"{__name__}:compare").ask(([gold], gold, ""), self.timeout_s)
        except WorkerError as error:
            return f"reward '{self.name}' failed: {error}"
        except WorkerTimeout:  # it can be read, and another form of it may be compared sooner
            pass
        return ""

    def _score_one(self, episode: Episode) -> Score:
        got = self._score_found(episode)
        if self.answer_in != "boxed" or got.value <= 0:
            return got
        doubt = doubt_around_box(episode.completion, question_of(episode.task))
        return Score(0.0, got.parsed, doubt, unparsed=True) if doubt else got

    def _score_found(self, episode: Episode) -> Score:
        found = extract(episode.completion, self.answer_in)
        if found is None:
            return Score(0.0, explanation=NOT_FOUND[self.answer_in], unparsed=True)
        question = question_of(episode.task)
        answer = self._formula(found, question)
        golds = _golds(episode.task)
        if not golds:
            raise RewardError(f"reward '{self.name}' needs task.answer; task {episode.task.id!r} has none")
        if answer is None:
            return Score(0.0, found, "not one formula that it ends on, without doubt", unparsed=True)
        verdict = _as_numbers(answer, golds, question)
        if not verdict and (large := too_large(answer)):
            verdict = f"too large to be compared: {large}"
        try:
            verdict = verdict or str(workers_for(f"{__name__}:compare").ask((golds, answer, question), self.timeout_s))
        except WorkerTimeout:
            verdict = f"{TIMED_OUT} after {self.timeout_s:g} s"
        except WorkerError as error:
            raise RewardError(f"reward '{self.name}' failed on task {episode.task.id!r}: {error}") from error
        told = {"equal": "", "different": f"expected {' or '.join(golds)}"}
        return Score(float(verdict == "equal"), answer, told.get(verdict, verdict), unparsed=verdict not in told)

    def alike(self, one: str, other: str) -> bool:
        r"""Whether two answers, as `Score.parsed` has them, are votes for one: `\frac{1}{2}` and `0.5` are."""
        if verdict := _as_numbers(one, [other]):
            return verdict == "equal"
        if too_large(one) or too_large(other):
            return False
        try:
            return workers_for(f"{__name__}:compare").ask(([other], one, ""), self.timeout_s) == "equal"
        except (WorkerTimeout, WorkerError):  # one that cannot be read is alone
            return False

    def _formula(self, text: str, question: str) -> str | None:
        """The answer in `text`: all of it or, where a text in prose is looked at, the formula that it ends on."""
        plain = plain_characters(text)
        if plain is None:
            return None
        plain = _LOOK_ALIKES.sub(lambda match: _LOOKS_LIKE[match[0]], plain)
        plain = re.sub(r"\u221a\s*(\([^()]*\)|[0-9]+|[a-z])", r"\\sqrt{\1}", plain)
        in_prose = self.answer_in in ("text", "outside_think", "after_think")
        if not in_prose or (len(plain) < 200 and (parse_number(plain) or _is_formula(plain))):
            return plain
        return final_formula(plain, question)


_LOOKS_LIKE = {"\u2212": "-", r"\mathrm{i}": "i", r"\mathrm{e}": "e", "pi": r"\pi"}
_LOOK_ALIKES = re.compile(r"\u2212|\\mathrm\{[ie]\}|(?<![\\A-Za-z])pi(?![A-Za-z])")


def _golds(task: Task) -> list[str]:
    right = task.answer
    if right is None:
        return []
    return [str(one) for one in cast("Sequence[object]", right if isinstance(right, list | tuple) else [right])]


def _as_numbers(answer: str, golds: Sequence[str], question: str = "") -> str:
    """Where the answer and all of the right ones are plain numbers, "equal" or "different"; else nothing."""
    # 0,5 with a point; 1,234 has groups of three, and 1, 2 is a list
    plain = re.sub(r"^([\s$*-]*(?:0|[1-9][0-9]*)),([0-9]{1,2}|[0-9]{4,})(?=[\s$*%.]*$)", r"\1.\2", answer)
    given = parse_number(plain, " ".join([question, *golds]))
    rights = [parse_number(gold) for gold in golds]
    if given is None or None in rights:
        return ""
    return "equal" if any(right and same_number(given, right) for right in rights) else "different"


def compare(question: tuple[list[str], str, str] | None) -> str:
    """In the worker process: "equal", "different", or why the answer could not be compared. None only imports.

    Raises `ValueError` where a right answer cannot be read as mathematics.
    """
    import math_verify  # pyright: ignore[reportMissingTypeStubs]

    if question is None:
        return "ready"
    golds, answer, asked = question
    verify = cast("Any", math_verify.verify)
    rights = {gold: _parse(gold) for gold in golds}
    if unread := [gold for gold, values in rights.items() if not values]:
        raise ValueError(f"the task's answer {unread[0]!r} cannot be read as mathematics")
    read = _parse(answer)
    doubts = [] if read else ["not readable as mathematics"]
    for gold, values in rights.items():
        for pair in product(map(_rational, values), map(_rational, read)):
            try:
                exact = {"float_rounding": ROUNDING, "numeric_precision": ROUNDING + 10}
                if verify(*pair, timeout_seconds=None, raise_on_error=True, **exact):
                    doubt = unexplained(answer, gold, asked)
                    if doubt is None and not _differs_by_little(*pair):
                        return "equal"
                    doubts.append(f"it says more than its value, {doubt}" if doubt else "it differs by little")
            except MemoryError:
                return "verifier ran out of memory"
            except Exception as error:  # one reading of the answer; another may still be equal
                doubts.append(f"could not be compared: {type(error).__name__}")
    return doubts[0] if doubts else "different"


def _rational(value: Any) -> Any:
    """With each decimal as the fraction that it is: otherwise it equals whatever is near."""
    from sympy import Basic, Float, Rational  # pyright: ignore[reportMissingTypeStubs]

    if not isinstance(value, Basic):
        return value
    return cast("Any", value).xreplace({number: Rational(str(number)) for number in value.atoms(Float)})


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


def _differs_by_little(right: Any, given: Any) -> bool:
    """Whether a part of one value differs from a part of the other, but by less than `LITTLE`."""
    pairs = list(product(_parts(right), _parts(given)))
    return len(pairs) <= _MOST_PAIRS and any(_is_little(one, other) for one, other in pairs)


def _parts(value: Any) -> list[Any]:
    """The expressions of a list, an interval, a matrix or a relation, of which it is the difference of the sides."""
    from sympy import Expr, MatrixBase  # pyright: ignore[reportMissingTypeStubs]
    from sympy.core.relational import Relational  # pyright: ignore[reportMissingTypeStubs]

    if isinstance(value, Expr):
        return [value]
    if isinstance(value, Relational):
        sides = cast("Any", value)
        if not (isinstance(sides.lhs, Expr) and isinstance(sides.rhs, Expr)):
            return _parts(sides.rhs)
        return [sides.lhs - sides.rhs, sides.rhs - sides.lhs]
    inner = list(cast("Any", value)) if isinstance(value, MatrixBase) else getattr(value, "args", ())
    return [part for one in inner for part in _parts(one)]


def _is_little(one: Any, other: Any) -> bool:
    from sympy.core.evalf import PrecisionExhausted  # pyright: ignore[reportMissingTypeStubs]

    difference = (one - other).doit()
    names = sorted(difference.free_symbols, key=str)
    difference = difference.subs(list(zip(names, _VALUES, strict=False)))
    if difference.is_number is False or difference.is_zero:
        return False
    try:
        size = abs(difference.evalf(2, maxn=_DIGITS, strict=True))
        return bool(0 < size < LITTLE)
    except PrecisionExhausted:  # as good as nothing
        return False
