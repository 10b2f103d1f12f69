"""reasoning-gym's procedural tasks, judged by the scorer that belongs to each (https://github.com/open-thought/reasoning-gym).

Nine of those scorers evaluate the answer as Python, some through sympy. What a model wrote is never run here: the
scorers work in a worker process in which `eval` is a reader of literals (`literal`), and sympy's `parse_expr` takes
nothing but arithmetic over numbers, names of variables and elementary functions (`plain_expression`). Both refuse
powers of powers and exponents above 9999, or above that in all, before anything is evaluated; the worker's limits of
time and memory bound the rest.
"""

import ast
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from posttrain.errors import RewardError
from posttrain.rewards.verifiers.extraction import NOT_FOUND, AnswerIn, extract, plain_characters, words
from posttrain.rewards.verifiers.gym_forms import REFUSED, misread
from posttrain.rewards.verifiers.number_grammar import arithmetic, parse_number, unwrapped
from posttrain.rewards.verifiers.workers import TIMED_OUT, InWorkers, WorkerError, WorkerTimeout, workers_for
from posttrain.types import Episode, Score, Task

_NOT_FINITE = re.compile(r"(?<![a-z])(?:nan|inf|infinity)[ij]?(?![a-z])", re.IGNORECASE)
_ALGEBRA = ("intermediate_integration", "polynomial_multiplication", "simple_integration")
_EXPONENT = re.compile(r"(?<![\w.])[\d.]+e[+-]?\d{4,}", re.IGNORECASE)
NUMBERS = words(
    """
    aiw basic_arithmetic binary_alternation calendar_arithmetic chain_sum count_bits count_primes gcd lcm
    decimal_chain_sum gsm_symbolic largest_island leg_counting letter_counting maze products number_sequence
    rectangle_count rotten_oranges self_reference simple_equations simple_geometry
    """
)
"""Families whose answer is one number, or may be."""
WORDS = words(
    """
    acre calendar_arithmetic color_cube_rotation course_schedule family_relationships game_of_life_halting
    isomorphic_strings mahjong_puzzle needle_haystack ransom_note syllogism zebra_puzzles
    """
)
"""Families whose answer is a word or a name, or may be, for which case says nothing."""

_QUOTIENT = re.compile(r"[0-9]\s*[/\u2044\u00f7]\s*[0-9]|frac")  # 2 / 1 may be two answers, and 12/2 is not worked out


@dataclass(frozen=True)
class GymVerifier(InWorkers):
    """What reasoning-gym's own scorer says of the answer: 1 for a full score, else 0.

    The task's metadata has the name of its data set under "dataset" and reasoning-gym's dictionary (question, answer,
    metadata) under "entry"; and, since some scorers look at them, the options that it was made with under "options".

    Many of these scorers pay a part for an answer that merely contains the right one ("15" for "5" earns 0.5), which a
    policy soon learns to collect. So a part counts only with `partial_credit`; it is always in the explanation.

    An answer on which the scorer raises or takes longer than `timeout_s` seconds is `unparsed`, value 0. So is one that
    says nan or infinity where the task does not: every comparison with nan is false, which some scorers take for right.
    And so is a full score for more, less or other than one answer in the family's form, and an answer that would cost
    the scorer seconds (`unasked`). Where the answer is one number or one word, other ways to write it are read. Errors
    are a family that cannot be judged, and a scorer that fails on the task's own answer.
    """

    answer_in: AnswerIn = "answer"
    partial_credit: bool = False
    timeout_s: float = 5.0
    name: str = "gym"
    columns = ("dataset", "entry", "options")

    async def unreadable(self, tasks: Sequence[Task]) -> list[str]:
        """Of each task, why it cannot be judged; "" where it can."""
        return [self._refusal(task) for task in tasks]

    def _refusal(self, task: Task) -> str:
        if missing := [key for key in ("dataset", "entry") if key not in task.metadata]:
            return (
                f"reward '{self.name}' needs the keys 'dataset' and 'entry' in task.metadata; task {task.id!r} lacks "
                f"{' and '.join(map(repr, missing))}. It judges tasks of gym:NAME; for others take another verifier"
            )
        family = task.metadata["dataset"]
        if family in REFUSED:
            return f"reward '{self.name}' cannot judge {family}: {REFUSED[family]}"
        return ""

    def _score_one(self, episode: Episode) -> Score:
        task = episode.task
        if refusal := self._refusal(task):
            raise RewardError(refusal)
        answer = extract(episode.completion, self.answer_in)
        if answer is None:
            return Score(0.0, explanation=NOT_FOUND[self.answer_in], unparsed=True)
        family, entry = task.metadata["dataset"], task.metadata["entry"]
        try:
            if (raw := unasked(family, answer, entry)) is None:
                said = as_the_task_writes_it(family, answer, entry)
                question = (family, entry, task.metadata.get("options"), said)
                raw = workers_for(f"{__name__}:score_answer").ask(question, self.timeout_s)
        except WorkerTimeout:
            raw = f"{TIMED_OUT} after {self.timeout_s:g} s"
        except WorkerError as error:
            raise RewardError(f"reward '{self.name}' failed on task {task.id!r}: {error}") from error
        if isinstance(raw, str):
            return Score(0.0, answer, raw, unparsed=True)
        value = min(max(float(raw), 0.0), 1.0)
        paid = value if self.partial_credit else float(value == 1.0)
        return Score(paid, answer, "" if raw == 1.0 else f"reasoning-gym gives {raw:g}")


def as_the_task_writes_it(family: str, answer: str, entry: Mapping[str, Any]) -> str:
    """The task's own text, if the answer is the same number or word in another notation (**292** legs); else itself."""
    right = str(entry.get("answer"))
    if family in WORDS and ".." not in answer:
        plain = plain_characters(answer)
        if plain is not None and unwrapped(plain).casefold() == right.casefold():
            return right
    if family in NUMBERS:
        given, gold = parse_number(answer, str(entry.get("question"))), parse_number(right)
        quotient = _QUOTIENT.search(answer.rpartition("=")[2])
        if given is not None and given == gold:
            return answer if quotient and given.value.denominator == 1 else right
    return answer


def unasked(family: str, answer: str, entry: Mapping[str, Any]) -> str | None:
    """Why an answer is not put to the scorer, such as one that would take it seconds; None if it is."""
    right = entry.get("answer")
    if _NOT_FINITE.search(answer) and not _NOT_FINITE.search(f"{entry.get('question')} {right}"):
        return "not a finite number"
    longest = 4_000 if right is None else 400 + 4 * len(str(right))
    if len(answer) > longest:
        return f"longer than {longest} characters"
    if _EXPONENT.search(answer) and not _EXPONENT.search(str(right)):
        return "an exponent that is too large"
    if family in ("rubiks_cube", "rush_hour") and re.search(r"\d\d", answer):
        return "a number of moves that is too large"
    if family in _ALGEBRA and re.search(r"\*\*[\s(+-]*\d{3}", answer):
        return "an exponent that is too large"
    if family in ("countdown", "puzzle24") and arithmetic(answer) is None:
        return "not arithmetic"
    return None


Scorer = Callable[[str, dict[str, Any]], float]
Question = tuple[str, Mapping[str, Any], Mapping[str, Any] | None, str]
_scorers: dict[str, Scorer] = {}


def score_answer(question: Question | None) -> float | str:
    """In the worker process: the scorer's value, or why it could not read the answer. None only imports."""
    if question is None:
        _guard_evaluation()
        return "ready"
    name, entry, options, answer = question
    key = f"{name} {sorted((options or {}).items())}"
    if key not in _scorers:
        import reasoning_gym  # pyright: ignore[reportMissingTypeStubs]

        dataset = cast("Any", reasoning_gym).create_dataset(name, **(options or {}))
        _guard_modules()
        _scorers[key] = dataset.score_answer
    score = _scorers[key]
    try:
        value = float(score(answer, dict(entry)))
        why = misread(name, answer, entry) if value >= 1.0 else None
        return value if why is None else why
    except MemoryError:
        return "verifier ran out of memory"
    except Exception as error:
        score(entry["answer"], dict(entry))  # if this raises too, it is not the answer's fault
        return f"the scorer could not read it: {type(error).__name__}"


def _guard_evaluation() -> None:
    """Put the guard before sympy's `parse_expr`, which ends in `eval`, before reasoning-gym imports it."""
    import sympy.parsing.sympy_parser  # pyright: ignore[reportMissingTypeStubs]

    # sympy.physics.units parses names of its own while it is imported, which the guard would refuse.
    import sympy.physics.units  # pyright: ignore[reportMissingTypeStubs, reportUnusedImport]

    infinite = (sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)
    parser: Any = sympy.parsing.sympy_parser
    original: Callable[..., Any] = parser.parse_expr

    def guarded(text: str, *args: Any, **kwargs: Any) -> Any:
        value = original(plain_expression(text), *args, **kwargs)
        if value.has(*infinite):
            raise ValueError("not finite")
        return value

    for module in (sympy, sympy.parsing, sympy.parsing.sympy_parser):
        vars(module)["parse_expr"] = guarded
    import reasoning_gym  # pyright: ignore[reportUnusedImport, reportMissingTypeStubs]  # noqa: F401

    _guard_modules()


def _guard_modules() -> None:
    """Let the name `eval` mean `literal` in every module of reasoning-gym."""
    for name, module in list(sys.modules.items()):
        if name.startswith("reasoning_gym"):
            vars(module)["eval"] = literal


MAX_EXPONENT = 9999
_OPERATORS: dict[type[ast.AST], str] = {
    **{ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod"},
    **{ast.Pow: "pow", ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor", ast.LShift: "lshift"},
    **{ast.RShift: "rshift", ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert"},
}  # names of functions in the module `operator`
_PLAIN_NODES = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Load, *_OPERATORS)
_ELEMENTARY = frozenset(
    (
        *("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
        *("exp", "log", "ln", "sqrt", "Abs", "abs"),
    )
)
_CONSTANTS = frozenset(("pi", "E", "I"))


def plain_expression(text: str) -> str:
    """`text` itself if it is nothing but arithmetic, variables and elementary functions; else `ValueError`.

    A variable is one letter, with or without a number (`x`, `y2`, `w_1`). There are no attributes, no subscripts, no
    strings and no other calls.
    """
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.Call):
            plain = isinstance(node.func, ast.Name) and node.func.id in _ELEMENTARY
        elif isinstance(node, ast.Name):
            variable = re.fullmatch(r"[^\W\d_](_?[0-9]+)?", node.id) is not None
            plain = variable or node.id in _ELEMENTARY or node.id in _CONSTANTS
        elif isinstance(node, ast.Constant):
            plain = isinstance(node.value, int | float)
        else:
            plain = isinstance(node, _PLAIN_NODES)
        if not plain:
            raise ValueError(f"not a plain expression: {type(node).__name__}")
    return text


def literal(text: str, *_: object) -> Any:
    """What scorers get for `eval`: the value of arithmetic over numbers, or of a list or tuple of such and of texts."""
    return _value(_parsed(text).body)


def _parsed(text: str) -> ast.Expression:
    if "#" in text:
        raise ValueError("not a plain expression: it has a comment")
    tree = ast.parse(text.strip(), mode="eval")
    exponents = 0.0  # at most what they are in size, where each is a sum of numbers
    for power in ast.walk(tree):
        if isinstance(power, ast.BinOp) and isinstance(power.op, ast.Pow | ast.LShift):
            numbers = [node.value for node in ast.walk(power.right) if isinstance(node, ast.Constant)]
            exponents += sum(abs(number) for number in numbers if isinstance(number, int | float))
            of_power = _grows(power.left, ast.Pow, ast.LShift) or _grows(power.right, ast.Pow, ast.LShift, ast.Mult)
            if of_power or exponents > MAX_EXPONENT:  # decided by size, not by a clock
                raise ValueError("not a plain expression: powers that are too large")
    return tree


def _grows(side: ast.expr, *by: type[ast.operator]) -> bool:
    """Whether numbers alone grow there by these operations."""
    nodes = list(ast.walk(side))
    return any(isinstance(node, by) for node in nodes) and not any(isinstance(node, ast.Name) for node in nodes)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        values = [_value(element) for element in node.elts]
        return values if isinstance(node, ast.List) else tuple(values)
    if isinstance(node, ast.BinOp):
        operands = [_value(node.left), _value(node.right)]
    elif isinstance(node, ast.UnaryOp):
        operands = [_value(node.operand)]
    else:
        raise ValueError(f"not a plain value: {type(node).__name__}")
    if not all(isinstance(operand, int | float) for operand in operands) or type(node.op) not in _OPERATORS:
        raise ValueError(f"not a plain value: {type(node.op).__name__} on something other than numbers")
    return getattr(operator, _OPERATORS[type(node.op)])(*operands)
