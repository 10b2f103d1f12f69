"""Kinds of judges: what one is asked about the answers to a task, and what its verdicts mean.

A prompt file declares its kind in its first lines, `kind: pairwise`; without it is pointwise. A kind is a class without
arguments: a line in `KINDS` registers it, and `kind: FILE.py:CLASS` names one of a file.
"""

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from itertools import combinations, permutations
from statistics import fmean
from typing import Any, ClassVar, NamedTuple, cast

from posttrain.errors import UserError, unknown
from posttrain.rewards.inputs import seed_of
from posttrain.types import Episode, EpisodeGroup, Score, Task

Scale = tuple[float, float]
"""The lowest and the highest score; (0, 1) where the prompt has none."""
_MARKS, _SIGNED = r"[*_\s]*", r"([+-]?[0-9]+(?:\.[0-9]+)?)"  # Markdown's bold and italics


class Question(NamedTuple):
    """What a judge is asked once, or as often as it has votes."""

    episodes: tuple[Episode, ...]  # the answers that it is shown, in this order
    values: Mapping[str, str] = {}  # placeholders of the kind's own


class Verdict(NamedTuple):
    """What a judge said to a question."""

    value: Any  # what `read` found, of several votes the mean; None: nothing
    text: str  # all of it, or why there is no value


class Kind:
    """Pointwise: single-answer grading (Zheng et al. 2023, https://arxiv.org/abs/2306.05685); base of other kinds.

    s = (N - low) / (high - low)
    """

    fields: ClassVar[Sequence[str]] = ("answer",)  # placeholders that its prompt must have
    scaled: ClassVar[bool] = True  # whether that must have a scale
    least: ClassVar[int] = 1  # how many answers to a task it compares
    line: ClassVar[str] = "Score: N"  # how a verdict ends
    ending: ClassVar[str] = ""  # with `grades`: what stands between a rationale, which is sampled, and the grade
    rubric: Any = None  # criteria that the prompt has itself, in place of the column

    def questions(self, group: EpisodeGroup) -> list[Question]:
        """What the judge is asked about the answers to one task."""
        return [Question((episode,)) for episode in group.episodes]

    def read(self, verdict: str, scale: Scale, question: Question) -> Any:
        """The value of a verdict, a number or a tuple of them; None where it has none."""
        return score_in(verdict, scale)

    def grades(self, scale: Scale) -> Sequence[str]:
        """The replies whose probabilities are the verdict; empty where a reply is sampled, and read."""
        return ()

    def weigh(self, probabilities: Mapping[str, float]) -> float:
        """The value of the probabilities of `grades`."""
        raise NotImplementedError

    def scores(self, group: EpisodeGroup, verdicts: Sequence[Verdict], scale: Scale) -> list[Score]:
        """A score from 0 to 1 for each episode, from the verdicts on `questions`, in their order."""
        low, high = scale
        return [
            Score.not_applicable(text)
            if value is None
            else Score((value - low) / (high - low), parsed=f"{value:g}", explanation=text)
            for value, text in verdicts
        ]


class Pairwise(Kind):
    r"""Comparisons of two answers, each in both orders (Zheng et al. 2023, sections 3.3 and 3.4).

        s_i = 1/(G-1) sum_j o_ij,   o_ij = 1 if both verdicts prefer i, 0 if both prefer j, else 1/2

    Verdicts that differ when the positions are swapped are a tie; `swapped` is the share of an answer's comparisons of
    which that is so, `first` that of verdicts for what stood first. G answers take G(G-1) requests.
    """

    fields = ("answer_a", "answer_b")
    scaled, least, line = False, 2, "Winner: A"

    def questions(self, group: EpisodeGroup) -> list[Question]:
        """Each two answers in both orders."""
        return [Question(pair) for pair in permutations(group.episodes, 2)]

    def read(self, verdict: str, scale: Scale, question: Question) -> float | None:
        """1 where A wins, 0 where B does, 1/2 for a tie."""
        found = last_line(verdict, r"winner", r"(A|B|tie)")
        return {"a": 1.0, "b": 0.0, "tie": 0.5}[found[1].lower()] if found else None

    def outcome(self, first: float, second: float) -> float:
        """What an answer gets from a comparison, of its value where it stood first and where it stood second."""
        return (1 + _sign(first - 0.5)) / 2 if _sign(first - 0.5) == _sign(second - 0.5) else 0.5

    def scores(self, group: EpisodeGroup, verdicts: Sequence[Verdict], scale: Scale) -> list[Score]:
        """The share of the others that an answer wins against."""
        places = range(len(group.episodes))
        said = dict(zip(permutations(places, 2), verdicts, strict=True))
        won, swapped, stood = [[list[float]() for _ in places] for _ in range(3)]
        told = [[text for pair, (_, text) in said.items() if place in pair] for place in places]
        for i, j in combinations(places, 2):
            one, other = said[i, j].value, said[j, i].value
            if one is None or other is None:
                continue
            outcome = self.outcome(one, 1 - other)
            for place, share in ((i, outcome), (j, 1 - outcome)):
                won[place].append(share)
                swapped[place].append(float(_sign(one - 0.5) != _sign(0.5 - other)))
                stood[place] += [(1 + _sign(value - 0.5)) / 2 for value in (one, other)]
        return [
            Score(
                fmean(won[place]),
                explanation="\n\n".join(told[place]),
                metrics={"swapped": fmean(swapped[place]), "first": fmean(stood[place])},
            )
            if won[place]
            else Score.not_applicable(next(text for pair, (v, text) in said.items() if place in pair and v is None))
            for place in places
        ]


class PairwiseExpected(Pairwise):
    """Soft preferences (RLAIF, Lee et al. 2023, https://arxiv.org/abs/2309.00267), from the first token of the verdict.

        o_ij = 1/2 (p_1(A) + p_2(B)),   p_n(A) = p(A) / (p(A) + p(B)) in order n of i and j

    A bias to a position adds as much to p_1(A) as it takes from p_2(B), roughly; so the mean has less of it.
    """

    def grades(self, scale: Scale) -> Sequence[str]:
        """The names of both."""
        return ("A", "B")

    def weigh(self, probabilities: Mapping[str, float]) -> float:
        """That of A among both."""
        total = math.fsum(probabilities.values())
        return probabilities["A"] / total if total else math.nan

    def outcome(self, first: float, second: float) -> float:
        """The mean of both."""
        return (first + second) / 2


class Listwise(Kind):
    """Scores of all answers to a task in one verdict, relative to each other; they are shown in a random order."""

    fields = ("answers",)
    least, line = 2, "Scores: N, N, ..."

    def questions(self, group: EpisodeGroup) -> list[Question]:
        """One, about all of them."""
        return [Question(tuple(group.episodes[place] for place in self._order(group)))]

    def read(self, verdict: str, scale: Scale, question: Question) -> tuple[float, ...] | None:
        """As many numbers on the scale as there are answers."""
        found = last_line(verdict, r"scores?", rf"{_SIGNED}(?:\s*,\s*{_SIGNED})*")
        numbers = tuple(map(float, re.findall(_SIGNED, found[0]))) if found else ()
        fits = len(numbers) == len(question.episodes) and all(scale[0] <= one <= scale[1] for one in numbers)
        return numbers if fits else None

    def scores(self, group: EpisodeGroup, verdicts: Sequence[Verdict], scale: Scale) -> list[Score]:
        """Those of the one verdict."""
        (value, text), order = verdicts[0], self._order(group)
        by_place = {} if value is None else dict(zip(order, value, strict=True))
        each = [Verdict(by_place.get(place), text) for place in range(len(order))]
        return super().scores(group, each, scale)

    def _order(self, group: EpisodeGroup) -> list[int]:
        """Of the task and its answers, whatever their order: answers that swap places are shown in swapped places."""
        seed = seed_of("listwise", group.task.id, *sorted(episode.completion for episode in group.episodes))
        return random.Random(seed).sample(range(len(group.episodes)), len(group.episodes))


class Rubric(Kind):
    """A rubric of each task: Rubrics as Rewards (Gunjal et al. 2025, https://arxiv.org/abs/2507.17746), explicit.

        s = sum_j w_j c_j / sum_{w_j > 0} w_j, cut to 0 to 1

    c_j says whether the answer meets criterion j, which is asked by itself; with positive weights it is their equation
    (1). A criterion of negative weight is a fault. Their implicit aggregation is a pointwise prompt with `{rubric}`.
    `parsed` has all c_j, in the rubric's order.
    """

    fields = ("answer", "criterion")
    scaled, line = False, "Met: yes"

    def questions(self, group: EpisodeGroup) -> list[Question]:
        """Whether each answer meets each criterion."""
        told = [{"criterion": text} for text, _ in criteria(group.task, self.rubric)]
        return [Question((episode,), values) for episode in group.episodes for values in told]

    def read(self, verdict: str, scale: Scale, question: Question) -> float | None:
        """1 for yes."""
        found = last_line(verdict, r"met", r"(yes|no)")
        return float(found[1].lower() == "yes") if found else None

    def scores(self, group: EpisodeGroup, verdicts: Sequence[Verdict], scale: Scale) -> list[Score]:
        """The weighted share; an answer with a criterion without a verdict has none."""
        weights = [weight for _, weight in criteria(group.task, self.rubric)]
        most, said, found = math.fsum(w for w in weights if w > 0), iter(verdicts), list[Score]()
        for _ in group.episodes:
            own = [next(said) for _ in weights]
            if missing := [text for value, text in own if value is None]:
                found.append(Score.not_applicable(missing[0]))
                continue
            share = math.fsum(w * value for w, (value, _) in zip(weights, own, strict=True)) / most
            said_to = " ".join(f"{value:g}" for value, _ in own)
            explanation = "\n\n".join(text for _, text in own)
            found.append(Score(min(1.0, max(0.0, share)), parsed=said_to, explanation=explanation))
        return found


class Expected(Kind):
    """The expected grade over the probabilities of all grades (G-Eval, Liu et al. 2023, https://arxiv.org/abs/2303.16634).

        N = sum_g p(g) g / sum_g p(g)

    Of a grade p is the probability that the reply begins with it, so that no grade may begin with another.
    """

    def grades(self, scale: Scale) -> list[str]:
        """The whole numbers of a scale of one digit."""
        if not 0 <= scale[0] < scale[1] <= 9 or any(one % 1 for one in scale):
            raise UserError("grades of one digit are needed, such as {scale 1 to 5}, so that none begins with another")
        return [str(grade) for grade in range(int(scale[0]), int(scale[1]) + 1)]

    def weigh(self, probabilities: Mapping[str, float]) -> float:
        """Their mean."""
        total = math.fsum(probabilities.values())
        return math.fsum(int(grade) * p for grade, p in probabilities.items()) / total if total else math.nan


class GenRM(Kind):
    """A generative verifier (Zhang et al. 2024, https://arxiv.org/abs/2408.15240): s = p("Yes" | question, answer)."""

    scaled = False

    def grades(self, scale: Scale) -> Sequence[str]:
        """Yes alone."""
        return ("Yes",)

    def weigh(self, probabilities: Mapping[str, float]) -> float:
        """That of Yes."""
        return probabilities["Yes"]


class GenRMCoT(GenRM):
    """GenRM-CoT of the same paper: the mean over K rationales (`votes`) of p("Yes" | question, answer, rationale)."""

    ending = "\nVerification: Is the answer correct (Yes/No)?\n"


KINDS: dict[str, Callable[[], Kind]] = {
    "pointwise": Kind,
    "pairwise": Pairwise,
    "pairwise-expected": PairwiseExpected,
    "listwise": Listwise,
    "rubric": Rubric,
    "expected": Expected,
    "genrm": GenRM,
    "genrm-cot": GenRMCoT,
}
"""Every kind that has a name."""


CRITERION = ("criterion", "weight")  # keys


def criteria(task: Task, own: Any = None) -> list[tuple[str, float]]:
    """The criteria of a prompt's own rubric, or else of a task's column `rubric`, and their weights, by default 1.

    Raises `UserError` if there are none.
    """
    given, whose = (task.metadata.get("rubric"), "column 'rubric'") if own is None else (own, "prompt's 'rubric'")
    if given is None:
        raise UserError("it has no column 'rubric', a list of criteria; add it, or a line rubric: [...] to the prompt")
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise UserError(f"its {whose} must be a list of criteria; got {given!r:.80}")
    rows = cast("Sequence[Any]", given)
    found: list[tuple[str, float]] = []
    for row in rows:
        table = cast("Mapping[str, Any]", row if isinstance(row, Mapping) else {"criterion": row})
        text, weight = table.get("criterion"), table.get("weight", 1)
        absent = [name for name in CRITERION if name not in table]
        for key in table:  # others may stand there
            if key not in CRITERION and get_close_matches(str(key), absent, n=1, cutoff=0.75):
                raise unknown(f"key of a criterion of the {whose}:", str(key), CRITERION)
        number = isinstance(weight, int | float) and not isinstance(weight, bool) and math.isfinite(weight)
        if not isinstance(text, str) or not text.strip() or not number:
            raise UserError(
                f'a criterion of the {whose} is {row!r:.80}; expected text, or {{"criterion": text, "weight": number}}'
            )
        found.append((text, float(weight)))
    if not any(weight > 0 for _, weight in found):
        raise UserError(f"its {whose} has no criterion with a weight above 0; expected a list of criteria")
    return found


def score_in(verdict: str, scale: Scale) -> float | None:
    """The number N of a verdict whose last line is `Score: N`; None where it is another line, or N off the scale.

    Case and Markdown's asterisks do not count, a point may follow, and so may the highest score, as in `8/10`. An
    earlier line counts for nothing, for it may quote the answer.
    """
    found = last_line(verdict, "score", rf"{_SIGNED}(?:\s*(?:/|out of)\s*{_SIGNED})?")
    if found is None or (found[2] and float(found[2]) != scale[1]):
        return None
    number = float(found[1])
    return number if scale[0] <= number <= scale[1] else None


def last_line(verdict: str, name: str, value: str) -> re.Match[str] | None:
    """The last line of a verdict if it is `NAME: VALUE`, two patterns, read as that of `score_in`."""
    lines = verdict.strip().splitlines() or [""]
    return re.fullmatch(rf"{_MARKS}{name}{_MARKS}:{_MARKS}{value}{_MARKS}\.?", lines[-1].strip(), re.IGNORECASE)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
