"""Kinds of annotation task: valid answers, what they imply about completions, and instructions.

An answer is kept only if its kind's `check` finds it whole. Completions are known by their numbers.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib.resources import files
from operator import eq, itemgetter
from statistics import fmean
from typing import Any, NamedTuple

Answer = dict[str, Any]
Groups = tuple[tuple[int, ...], ...]

STRONGEST = 3  # of a preference
HIGHEST = 7  # of a score
LONGEST = 50_000  # letters of a text that is written


class NoAnswer(ValueError):
    """An invalid answer; its message says what is missing."""


class Question(NamedTuple):
    """A question: the completions that are shown, and what the project's settings add."""

    texts: Mapping[int, str]  # by number; of a conversation, the replies to its turn t are 2t and 2t + 1
    attributes: Sequence[str] = ()
    rules: Sequence[str] = ()
    before: Sequence[Answer] = ()  # of a conversation: what was chosen at the turns before the last


class Kind(NamedTuple):
    """A kind of task."""

    name: str
    says: str  # what people do, in a few words
    completions: tuple[int, int]  # the fewest and the most that an item may have
    check: Callable[[Mapping[str, Any], Question], Answer]  # the answer in what was sent, or NoAnswer
    ranking: Callable[[Answer], tuple[Groups, tuple[int, ...]]] | None = None
    """What an answer says of the order: groups, best first, and those that failed; None where it says nothing of it."""
    verdict: Callable[[Answer], Hashable] | None = None
    """Of kinds that say nothing of an order: what two answers have in common where they agree."""
    alike: Callable[[Sequence[Answer]], float] | None = None
    """Agreement of several answers to one question, up to 1, for kinds without an order."""
    same: Callable[[Answer, Answer], bool] = eq  # whether a second answer says what the first, or the known one, says
    words: Callable[[Answer], str] | None = None
    """An answer for people to read, completions by letters in the order of their numbers; None where all differ."""
    goes_on: Callable[[Answer], int | None] | None = None
    """Of a conversation: the reply with which it continues after a choice; None for a tie."""


def instructions(kind: str) -> str:
    """The text that a project of this kind has unless it is given another one; Markdown."""
    return files("posttrain.annotation").joinpath(f"instructions/{kind}.txt").read_text(encoding="utf-8")


def steps_of(text: str) -> list[str]:
    r"""The steps of a reasoning: its lines that are not empty.

    Example:
        >>> steps_of("2 + 2 = 4\n\n4 + 1 = 6\n")
        ['2 + 2 = 4', '4 + 1 = 6']
    """
    return [line for line in text.splitlines() if line.strip()]


def storable(text: str) -> None:
    """Raise `NoAnswer` for what databases and files cannot keep: half of a surrogate pair, or a zero."""
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise NoAnswer("this text has letters that cannot be kept")


def _number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _within(value: Any, low: int, high: int) -> bool:
    return _number(value) and low <= value <= high


def _once(named: list[Any], question: Question) -> bool:
    """Whether these are the numbers of all completions, each once."""
    return all(map(_number, named)) and sorted(named) == sorted(question.texts)


def _rank(sent: Mapping[str, Any], question: Question) -> Answer:
    """`ranking`: groups of completions, best first; `failed`: those that are no answer. Every completion once."""
    groups, failed = sent.get("ranking"), sent.get("failed", [])
    problem = NoAnswer("rank every answer once, or mark it as failed")
    if not isinstance(groups, list) or not all(isinstance(one, list) for one in (*groups, failed)):
        raise problem
    if not _once([one for group in (*groups, failed) for one in group], question):
        raise problem
    return {"ranking": [sorted(group) for group in groups if group], "failed": sorted(failed)}


def _letter(number: int | str) -> str:
    return chr(ord("A") + int(number))


def _rank_words(answer: Answer) -> str:
    order = " > ".join(" = ".join(map(_letter, group)) for group in answer["ranking"])
    failed = f"failed: {', '.join(map(_letter, answer['failed']))}" if answer["failed"] else ""
    return "; ".join(filter(None, (order, failed)))


def _compare(sent: Mapping[str, Any], question: Question) -> Answer:
    """`better`: one of the two; `strength`: from 1, slightly, to 3, much. Neither: null and 0."""
    better, strength = sent.get("better"), sent.get("strength")
    equal = better is None and _within(strength, 0, 0)
    unequal = _number(better) and better in question.texts and _within(strength, 1, STRONGEST)
    if not equal and not unequal:
        raise NoAnswer("say which of the two is better, and how much, or that neither is")
    return {"better": better, "strength": strength, "of": sorted(question.texts)}


def _compared(answer: Answer) -> tuple[Groups, tuple[int, ...]]:
    if answer["better"] is None:
        return (tuple(answer["of"]),), ()
    return ((answer["better"],), tuple(one for one in answer["of"] if one != answer["better"])), ()


def _choose(sent: Mapping[str, Any], question: Question) -> Answer:
    """Of the two replies to the last `turn`: a comparison, and in `broken` by reply the rules that it breaks.

    What is kept is `choices`, those of all turns. Rules are known by their numbers, from 0.
    """
    turn, broken = len(question.before), sent.get("broken", {})
    if len(question.texts) != 2 * turn + 2 or sent.get("turn") != turn:
        raise NoAnswer("the conversation has gone on since this page was opened; load it again")
    replies = {number: question.texts[number] for number in (2 * turn, 2 * turn + 1)}
    choice = _compare(sent, Question(replies))
    whole = isinstance(broken, Mapping) and set(broken) <= set(map(str, replies))
    for rules in broken.values() if whole else ():
        whole &= isinstance(rules, list) and all(_within(rule, 0, len(question.rules) - 1) for rule in rules)
        whole = whole and len(set(rules)) == len(rules)
    if not whole:
        raise NoAnswer("mark the rules that each of the two replies breaks")
    marked = {str(number): sorted(broken.get(str(number), ())) for number in replies} if question.rules else {}
    return {"choices": [*question.before, choice | {"broken": marked}]}


def _compare_words(answer: Answer) -> str:
    if answer["better"] is None:
        return "neither"
    how = {1: "slightly better", 2: "better", 3: "much better"}[answer["strength"]]
    return f"{_letter(answer['of'].index(answer['better']))} is {how}"


def _thumbs(sent: Mapping[str, Any], question: Question) -> Answer:
    """`good` and `bad`: every completion is in one of the two."""
    good, bad = sent.get("good"), sent.get("bad")
    if not isinstance(good, list) or not isinstance(bad, list) or not _once([*good, *bad], question):
        raise NoAnswer("say of every answer whether it is good or bad")
    return {"good": sorted(good), "bad": sorted(bad)}


def _same_thumbs(answers: Sequence[Answer]) -> float:
    """The mean over completions of the share of those who say what most say of it."""
    marks = Counter(number for answer in answers for number in answer["good"])
    every = [*answers[0]["good"], *answers[0]["bad"]]
    return fmean(max(marks[number], len(answers) - marks[number]) / len(answers) for number in every)


def _thumbs_words(answer: Answer) -> str:
    marks = ((name, ", ".join(map(_letter, answer[name]))) for name in ("good", "bad"))
    return "; ".join(f"{name}: {letters}" for name, letters in marks if letters)


def _score(sent: Mapping[str, Any], question: Question) -> Answer:
    """`scores`: by completion and attribute, from 1 to 7."""
    given = sent.get("scores") or {}
    whole = isinstance(given, Mapping) and set(given) == set(map(str, question.texts))
    for scores in given.values() if whole else ():
        whole = whole and isinstance(scores, Mapping) and set(scores) == set(question.attributes)
        whole = whole and all(_within(score, 1, HIGHEST) for score in scores.values())
    if not whole:
        raise NoAnswer(f"give every answer a score from 1 to {HIGHEST} for each of: {', '.join(question.attributes)}")
    return {"scores": {number: dict(scores) for number, scores in sorted(given.items())}}


def _scored(answer: Answer) -> tuple[Groups, tuple[int, ...]]:
    """By the mean over attributes."""
    means = {int(number): fmean(scores.values()) for number, scores in answer["scores"].items()}
    levels = sorted(set(means.values()), reverse=True)
    return tuple(tuple(sorted(one for one in means if means[one] == level)) for level in levels), ()


def _ranges(answers: Sequence[Answer]) -> list[int]:
    """How far the scores lie apart, of each completion and attribute."""
    each = [(number, attribute) for number, scores in answers[0]["scores"].items() for attribute in scores]
    given = ([answer["scores"][number][attribute] for answer in answers] for number, attribute in each)
    return [max(scores) - min(scores) for scores in given]


def _score_words(answer: Answer) -> str:
    each = {
        number: (f"{name} {score}" for name, score in scores.items()) for number, scores in answer["scores"].items()
    }
    return "; ".join(f"{_letter(number)}: {', '.join(scores)}" for number, scores in each.items())


def _steps(sent: Mapping[str, Any], question: Question) -> Answer:
    """`wrong`: the number of the first wrong step, from 0; null if none is."""
    (text,) = question.texts.values()
    wrong = sent.get("wrong", ...)
    if wrong is not None and not _within(wrong, 0, len(steps_of(text)) - 1):
        raise NoAnswer("mark the first wrong step, or say that all are right")
    return {"wrong": wrong}


def _demonstrate(sent: Mapping[str, Any], question: Question) -> Answer:
    """`text`: what an assistant should say."""
    text = sent.get("text")
    if not isinstance(text, str) or not text.strip():
        raise NoAnswer("write an answer first")
    storable(text)
    if len(text) > LONGEST:
        raise NoAnswer(f"an answer has at most {LONGEST:,} letters; this one has {len(text):,}")
    return {"text": text.strip()}


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "rank",
            "put answers in order, best first",
            (2, 9),
            _rank,
            lambda answer: (tuple(map(tuple, answer["ranking"])), tuple(answer["failed"])),
            words=_rank_words,
        ),
        Kind(
            "compare",
            "say which of two answers is better, and how much",
            (2, 2),
            _compare,
            _compared,
            same=lambda one, other: one["better"] == other["better"],  # strength is ignored
            words=_compare_words,
        ),
        Kind(
            "thumbs",
            "say of each answer whether it is good",
            (1, 9),
            _thumbs,
            lambda answer: (tuple(tuple(group) for group in (answer["good"], answer["bad"]) if group), ()),
            alike=_same_thumbs,
            words=_thumbs_words,
        ),
        Kind(
            "score",
            "give each answer a score for each attribute",
            (1, 9),
            _score,
            _scored,
            alike=lambda said: 1 - fmean(_ranges(said)) / (HIGHEST - 1),  # in parts of the widest range
            same=lambda one, other: max(_ranges([one, other]), default=0) <= 1,
            words=_score_words,
        ),
        Kind(
            "steps",
            "mark the first wrong step of a reasoning",
            (1, 1),
            _steps,
            verdict=itemgetter("wrong"),
            alike=lambda said: Counter(one["wrong"] for one in said).most_common(1)[0][1] / len(said),
            words=lambda one: (
                "all steps are right" if one["wrong"] is None else f"step {one['wrong'] + 1} is the first wrong one"
            ),
        ),
        Kind("demonstrate", "write the answer", (0, 1), _demonstrate),
        Kind(
            "converse",
            "talk with a model and choose between two replies",
            (0, 0),
            _choose,
            goes_on=itemgetter("better"),
        ),
        Kind(
            "red-team",
            "try to make a model break the rules",
            (0, 0),
            _choose,
            # An attack goes on from the reply that it got further with (Bai et al., 2204.05862, of red teaming).
            goes_on=lambda choice: next((one for one in choice["of"] if choice["better"] not in (None, one)), None),
        ),
    )
}
"""By name."""
