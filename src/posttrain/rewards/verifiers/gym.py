"""reasoning-gym's procedural tasks, judged by the scorer that belongs to each (https://github.com/open-thought/reasoning-gym).

Nine of those scorers evaluate the answer as Python, some through sympy. What a model wrote is never run here: the
scorers work in a worker process in which `eval` is a reader of literals, and sympy's `parse_expr` takes nothing but
arithmetic over numbers, names of variables and elementary functions.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from posttrain.background import in_thread
from posttrain.errors import RewardError
from posttrain.rewards.reward import EpisodeReward
from posttrain.rewards.verifiers.extraction import AnswerIn, extract, not_found
from posttrain.rewards.verifiers.gym_forms import REFUSED, misread, unasked
from posttrain.rewards.verifiers.gym_notation import as_the_task_writes_it
from posttrain.rewards.verifiers.pool import score_together, workers_for
from posttrain.rewards.verifiers.untrusted import literal, plain_expression
from posttrain.rewards.verifiers.worker import TIMED_OUT, WorkerError, WorkerTimeout
from posttrain.types import Episode, Score, Task

_NOT_FINITE = re.compile(r"(?<![a-z])(?:nan|inf|infinity)[ij]?(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class GymVerifier(EpisodeReward):
    """What reasoning-gym's own scorer says of the answer: 1 for a full score, else 0.

    The task's metadata has the name of its data set under "dataset" and reasoning-gym's dictionary (question, answer,
    metadata) under "entry"; and, since some scorers look at them, the options that it was made with under "options".

    Many of these scorers pay a part for an answer that merely contains the right one ("15" for "5" earns 0.5), which a
    policy soon learns to collect. So a part counts only with `partial_credit`; it is always in the explanation.

    An answer on which the scorer raises or takes longer than `timeout_s` seconds is `unparsed`, value 0. So is one that
    says nan or infinity where the task does not: every comparison with nan is false, which some scorers take for right.
    And so is a full score for more, less or other than one answer in the family's form, and an answer that would cost
    the scorer seconds (`gym_forms`). Where the answer is one number or one word, other ways to write it are read
    (`gym_notation`).

    Raises (while scoring):
        RewardError: the metadata lacks those keys, the family is one that cannot be judged, the data set is unknown, or
            the scorer fails on the task's own answer too.
    """

    answer_in: AnswerIn = "answer"
    partial_credit: bool = False
    timeout_s: float = 5.0
    name: str = "gym"
    role: ClassVar[str] = "verifier"
    columns: ClassVar[tuple[str, ...]] = ("dataset", "entry", "options")
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    async def score_episodes(self, episodes: Sequence[Episode]) -> list[Score]:
        """One score per episode; the scorers share a few worker processes."""
        return await in_thread(score_together, self.name, episodes, self._score_one)

    async def unreadable(self, tasks: Sequence[Task]) -> list[str]:
        """Of each task, why it cannot be judged; "" where it can."""
        return [self._refusal(task) for task in tasks]

    def _refusal(self, task: Task) -> str:
        missing = [key for key in ("dataset", "entry") if key not in task.metadata]
        if missing:
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
            return Score(0.0, explanation=not_found(self.answer_in), unparsed=True)
        entry = task.metadata["entry"]
        if _NOT_FINITE.search(answer) and not _NOT_FINITE.search(f"{entry.get('question')} {entry.get('answer')}"):
            return Score(0.0, answer, "not a finite number", unparsed=True)
        if (why := unasked(task.metadata["dataset"], answer, entry)) is not None:
            return Score(0.0, answer, why, unparsed=True)
        said = as_the_task_writes_it(task.metadata["dataset"], answer, entry)
        question = (task.metadata["dataset"], entry, task.metadata.get("options"), said)
        try:
            raw = workers_for(f"{__name__}:score_answer").ask(question, self.timeout_s)
        except WorkerTimeout:
            return Score(0.0, answer, f"{TIMED_OUT} after {self.timeout_s:g} s", unparsed=True)
        except WorkerError as error:
            raise RewardError(f"reward '{self.name}' failed on task {task.id!r}: {error}") from error
        if isinstance(raw, str):
            return Score(0.0, answer, raw, unparsed=True)
        value = min(max(float(raw), 0.0), 1.0)
        if not self.partial_credit:
            value = float(value == 1.0)
        return Score(value, answer, "" if raw == 1.0 else f"reasoning-gym gives {raw:g}")


Scorer = Callable[[str, dict[str, Any]], float]
Question = tuple[str, Mapping[str, Any], Mapping[str, Any] | None, str]


def score_answer(question: Question | None) -> float | str:
    """In the worker process: the scorer's value, or why it could not read the answer. None only imports."""
    if question is None:
        _guard_evaluation()
        return "ready"
    name, entry, options, answer = question
    score = _scorer(name, options or {})
    try:
        value = float(score(answer, dict(entry)))
        why = misread(name, answer, entry) if value >= 1.0 else None
        return value if why is None else why
    except MemoryError:
        return "verifier ran out of memory"
    except Exception as error:
        score(entry["answer"], dict(entry))  # if this raises too, it is not the answer's fault
        return f"the scorer could not read it: {type(error).__name__}"


_scorers: dict[str, Scorer] = {}


def _scorer(name: str, options: Mapping[str, Any]) -> Scorer:
    key = f"{name} {sorted(options.items())}"
    if key not in _scorers:
        import reasoning_gym  # pyright: ignore[reportMissingTypeStubs]

        dataset = cast("Any", reasoning_gym).create_dataset(name, **options)
        _guard_modules()
        _scorers[key] = dataset.score_answer
    return _scorers[key]


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
