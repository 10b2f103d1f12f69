"""From annotations to training rows: pairs, ratings, steps, demonstrations.

Rows are in posttrain's layouts (docs/data.md), except steps, which are for other tools. Without a
consensus there is no row.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any, NamedTuple

from posttrain.annotation.aggregation import method
from posttrain.annotation.consensus import Agreed, agree, settle
from posttrain.annotation.rankings import by_item, votes_of
from posttrain.annotation.task_kinds import STRONGEST, Answer, steps_of
from posttrain.types import Ranking

TrainingRow = dict[str, Any]


class Choice(NamedTuple):
    """An annotator's choice at one turn of a conversation."""

    name: str  # of the item, the annotator and the turn
    annotator: str
    prompt: Sequence[Mapping[str, str]]  # what the model had read
    replies: Mapping[int, str]  # two, by number
    choice: Answer
    models: Mapping[int, str]  # whose they are


class Told(NamedTuple):
    """All answers of a project."""

    kind: str
    prompts: Mapping[str, Sequence[Mapping[str, str]]]  # by the item's name
    texts: Mapping[str, Mapping[int, str]]  # and by the completion's number
    models: Mapping[str, Mapping[int, str]]  # whose they are
    answers: Sequence[tuple[str, str, Answer]]  # item, annotator, and the answer
    rankings: Sequence[Ranking]  # the same as an order, for kinds that say one
    choices: Sequence[Choice] = ()  # for kinds in which people talk with a model
    rules: Sequence[str] = ()
    rulings: Mapping[str, Answer] = {}  # by the item's name, what a manager has decided
    decided: Mapping[str, Ranking] = {}  # the same as an order, for kinds that say one


def pairs(told: Told, way: str) -> Iterator[TrainingRow]:
    """A row for every pair of completions that the consensus separates.

    `strength` is from 0 to 1: the mean over those who compared the two, of 1 for the chosen one, -1 for the other and 0
    for neither; of comparisons, of that times how much better it was found, in parts of the most. It is 0 where a
    method overrules those who compared the two. Where a manager has decided it is 1, or as strong as they said.
    """
    strength = {(item, who): answer.get("strength", STRONGEST) / STRONGEST for item, who, answer in told.answers}
    for one in _agreed(told, way):
        votes = list(votes_of(by_item(told.rankings).get(one.item, [])))
        for chosen, rejected in one.pairs:
            about = [vote for vote in votes if {vote.first, vote.second} == {chosen, rejected}]
            signed = [
                vote.outcome * (1 if vote.first == chosen else -1) * strength[str(vote.item), str(vote.annotator)]
                for vote in about
            ]
            if (ruling := told.rulings.get(str(one.item))) is not None:
                signed = [ruling.get("strength", STRONGEST) / STRONGEST]
            yield _row(told, one, way) | {
                **_two(told, one, chosen, rejected),
                "strength": max(0.0, sum(signed) / len(signed)),
                "annotators": len(about),
            }


def ties(told: Told, way: str) -> Iterator[TrainingRow]:
    """A row for every two completions that people find equally good together; which is called chosen says nothing.

    Not two that beat each other in a circle, nor two on which people are divided, nor two that failed. They are there
    to evaluate with.
    """
    for one in _agreed(told, way):
        equal = {pair for pair, odds in one.belief.odds.items() if odds.neither > max(odds.first, odds.second)}
        for group in one.order:
            for first, second in combinations(sorted(set(group) - set(one.failed)), 2):
                if (first, second) in equal or one.item in told.decided:
                    yield _row(told, one, way) | _two(told, one, first, second) | {"tie": True}


def chosen_replies(told: Told, way: str) -> Iterator[TrainingRow]:
    """A row for each turn at which one of two replies was found better, after what had been said until then.

    Each conversation is its annotator's own, so that there is nothing to agree on.
    """
    for one in told.choices:
        better = one.choice["better"]
        if better is not None:
            (number,) = set(one.replies) - {better}
            yield {
                "prompt": one.prompt,
                "item": one.name,
                "chosen": one.replies[better],
                "rejected": one.replies[number],
                "models": {"chosen": one.models[better], "rejected": one.models[number]},
                "strength": one.choice["strength"] / STRONGEST,
                "annotator": one.annotator,
            }


def kept_rules(told: Told, way: str) -> Iterator[TrainingRow]:
    """A row for each reply to an attack: whether it kept all rules, and which it broke (Glaese et al., 2209.14375)."""
    for one in told.choices:
        for number, text in one.replies.items():
            broken = [told.rules[rule] for rule in one.choice["broken"].get(str(number), ())]
            row = {"prompt": one.prompt, "item": one.name, "completion": text, "label": not broken, "broken": broken}
            yield row | {"annotator": one.annotator, "model": one.models[number]}


def judgements(told: Told, way: str) -> Iterator[TrainingRow]:
    """A row for each completion that is found good or bad.

    Of thumbs: by most of those who judged it. Of an order: what most failed is bad, and the first of it that did not
    fail is good; what lies between is neither.
    """
    if told.kind == "thumbs":
        thumbs: Counter[tuple[str, int]] = Counter()
        for item, _, answer in told.answers:
            thumbs.update({(item, number): 1 for number in answer["good"]})
            thumbs.subtract({(item, number): 1 for number in answer["bad"]})
        for (item, number), balance in thumbs.items():
            if item in told.rulings:
                balance = 1 if number in told.rulings[item]["good"] else -1
            if balance:
                text = told.texts[item][number]
                row = {"prompt": told.prompts[item], "completion": text, "label": balance > 0, "item": item}
                yield row | {"model": told.models[item][number]}
        return
    for one in _agreed(told, way):
        best = () if len(one.order) == 1 else [number for number in one.order[0] if number not in one.failed]
        for number in sorted({*best, *one.failed}):
            said = {"completion": told.texts[str(one.item)][number], "model": told.models[str(one.item)][number]}
            yield _row(told, one, way) | said | {"label": number not in one.failed}


def steps(told: Told, way: str) -> Iterator[TrainingRow]:
    """A row for each reasoning: its steps up to the first wrong one, with a label for each, by most annotators.

    Where two places have as many votes there is no row.
    """
    votes: dict[str, Counter[int | None]] = {}
    for item, _, answer in told.answers:
        votes.setdefault(item, Counter())[answer["wrong"]] += 1
    for item, counted in votes.items():
        (wrong, most), *others = counted.most_common(2)
        if item in told.rulings:
            wrong = told.rulings[item]["wrong"]
            most = counted[wrong]
        elif others and others[0][1] == most:
            continue
        every = steps_of(told.texts[item][0])
        seen = every if wrong is None else every[: wrong + 1]
        yield {
            "prompt": told.prompts[item],
            "steps": seen,
            "labels": [place != wrong for place in range(len(seen))],
            "agree": most,
            "annotators": counted.total(),
            "item": item,
            "model": told.models[item][0],
        }


def ratings(told: Told, way: str) -> Iterator[TrainingRow]:
    """A row for each completion: of each attribute the mean of the scores that people gave, or what was decided."""
    given: dict[str, list[Answer]] = {}
    for item, _, answer in told.answers:
        given.setdefault(item, []).append(answer)
    for item, answers in given.items():
        counted = [told.rulings[item]] if item in told.rulings else answers
        for number, text in told.texts[item].items():
            scores = [answer["scores"][str(number)] for answer in counted]
            means = {attribute: fmean(one[attribute] for one in scores) for attribute in scores[0]}
            row = {"prompt": told.prompts[item], "completion": text, "ratings": means}
            yield row | {"annotators": len(answers), "item": item, "model": told.models[item][number]}


def demonstrations(told: Told, way: str) -> Iterator[TrainingRow]:
    """A row for each written demonstration."""
    for item, annotator, answer in told.answers:
        yield {"prompt": told.prompts[item], "completion": answer["text"], "annotator": annotator, "item": item}


Rows = Callable[[Told, str], Iterator[TrainingRow]]
ORDERED: tuple[str, ...] = ("rank", "compare", "thumbs", "score")

LESSONS: Mapping[str, Mapping[str, Rows]] = {
    "pairs": {**dict.fromkeys(ORDERED, pairs), "converse": chosen_replies, "red-team": chosen_replies},
    "ties": dict.fromkeys(("rank", "compare", "score"), ties),
    "judgements": {**dict.fromkeys(ORDERED, judgements), "red-team": kept_rules},
    "ratings": {"score": ratings},
    "steps": {"steps": steps},
    "demonstrations": {"demonstrate": demonstrations},
}
"""Row generators, by layout and kind of task."""


def _agreed(told: Told, way: str) -> list[Agreed]:
    return settle(agree(told.rankings, method(way)(told.rankings)), told.decided)


def _row(told: Told, one: Agreed, way: str) -> TrainingRow:
    return {"prompt": told.prompts[str(one.item)], "item": one.item, "method": way}


def _two(told: Told, one: Agreed, chosen: int, rejected: int) -> TrainingRow:
    """What two completions say, and whose they are."""
    texts, models = told.texts[str(one.item)], told.models[str(one.item)]
    return {
        "chosen": texts[chosen],
        "rejected": texts[rejected],
        "models": {"chosen": models[chosen], "rejected": models[rejected]},
    }
