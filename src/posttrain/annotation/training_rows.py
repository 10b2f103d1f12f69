"""From annotations to training rows: pairs, ratings, steps, demonstrations.

Rows are in posttrain's layouts (docs/data.md). Without a consensus there is no row.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any, NamedTuple

from posttrain.annotation.aggregation import method
from posttrain.annotation.rankings import Agreed, agree, by_item, votes_of
from posttrain.annotation.store.tables import Item
from posttrain.annotation.task_kinds import KINDS, STRONGEST, Answer, steps_of
from posttrain.types import Ranking

TrainingRow = dict[str, Any]


class Choice(NamedTuple):
    """An annotator's choice at one turn of a conversation."""

    name: str  # of the item, the annotator and the turn
    annotator: str
    prompt: Sequence[Mapping[str, str]]  # what the model had read
    replies: Mapping[int, Mapping[str, str]]  # two, by number: text, and the model whose it is
    choice: Answer


class Told(NamedTuple):
    """All answers of a project."""

    kind: str
    items: Mapping[str, Item]  # by name
    answers: Sequence[tuple[str, str, Answer]]  # item, annotator, and the answer
    choices: Sequence[Choice] = ()  # for kinds in which people talk with a model
    rules: Sequence[str] = ()
    rulings: Mapping[str, Answer] = {}  # by the item's name, what a manager has decided

    @property
    def rankings(self) -> list[Ranking]:
        """The answers as an order; empty where the kind says none."""
        ranking = KINDS[self.kind].ranking
        return [Ranking(item, who, *ranking(answer)) for item, who, answer in self.answers] if ranking else []

    def agreed(self, way: str) -> list[Agreed]:
        """The consensus by a method, and the rulings in its place."""
        rankings, order = self.rankings, KINDS[self.kind].ranking
        decided = {item: Ranking(item, "", *order(answer)) for item, answer in self.rulings.items()} if order else {}
        return agree(rankings, method(way)(rankings), decided)


def pairs(told: Told, way: str) -> Iterator[TrainingRow]:
    """A row for every pair of completions that the consensus separates.

    `strength` is from 0 to 1: the mean over those who compared the two, of 1 for the chosen one, -1 for the other and 0
    for neither; of comparisons, of that times how much better it was found, in parts of the most. It is 0 where a
    method overrules those who compared the two. Where a manager has decided it is 1, or as strong as they said.
    """
    strength = {(item, who): answer.get("strength", STRONGEST) / STRONGEST for item, who, answer in told.answers}
    said = by_item(told.rankings)
    for one in told.agreed(way):
        votes = list(votes_of(said[one.item]))
        for chosen, rejected in one.pairs:
            about = [vote for vote in votes if {vote.first, vote.second} == {chosen, rejected}]
            signed = [
                vote.outcome * (1 if vote.first == chosen else -1) * strength[str(vote.item), str(vote.annotator)]
                for vote in about
            ]
            if (ruling := told.rulings.get(str(one.item))) is not None:
                signed = [ruling.get("strength", STRONGEST) / STRONGEST]
            mean = max(0.0, sum(signed) / len(signed))
            yield _two(told, one, way, chosen, rejected) | {"strength": mean, "annotators": len(about)}


def ties(told: Told, way: str) -> Iterator[TrainingRow]:
    """A row for every two completions that people find equally good together, to evaluate with; either is `chosen`.

    Not two that beat each other in a circle, nor two on which people are divided, nor two that failed.
    """
    for one in told.agreed(way):
        equal = {pair for pair, odds in one.belief.odds.items() if odds.neither > max(odds.first, odds.second)}
        for group in one.order:
            for first, second in combinations(sorted(set(group) - set(one.failed)), 2):
                if (first, second) in equal or one.item in told.rulings:
                    yield _two(told, one, way, first, second) | {"tie": True}


def chosen_replies(told: Told, way: str) -> Iterator[TrainingRow]:
    """A row for each turn at which one of two replies was found better: every conversation is its annotator's own."""
    for one in told.choices:
        if (better := one.choice["better"]) is not None:
            (worse,) = set(one.replies) - {better}
            two = {"chosen": one.replies[better], "rejected": one.replies[worse]}
            yield {
                "prompt": one.prompt,
                "item": one.name,
                **{name: reply["text"] for name, reply in two.items()},
                "models": {name: reply["model"] for name, reply in two.items()},
                "strength": one.choice["strength"] / STRONGEST,
                "annotator": one.annotator,
            }


def kept_rules(told: Told, way: str) -> Iterator[TrainingRow]:
    """A row for each reply to an attack: whether it kept all rules, and which it broke (Glaese et al., 2209.14375)."""
    for one in told.choices:
        for number, reply in one.replies.items():
            broken = [told.rules[rule] for rule in one.choice["broken"].get(str(number), ())]
            yield {
                "prompt": one.prompt,
                "item": one.name,
                "completion": reply["text"],
                "label": not broken,
                "broken": broken,
                "annotator": one.annotator,
                "model": reply["model"],
            }


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
                yield _one(told, item, number, label=balance > 0)
        return
    for one in told.agreed(way):
        best = () if len(one.order) == 1 else [number for number in one.order[0] if number not in one.failed]
        for number in sorted({*best, *one.failed}):
            yield _one(told, str(one.item), number, method=way, label=number not in one.failed)


def steps(told: Told, way: str) -> Iterator[TrainingRow]:
    """A row for each reasoning on which most agree: its steps up to the first wrong one, with a label for each."""
    votes: dict[str, Counter[int | None]] = {}
    for item, _, answer in told.answers:
        votes.setdefault(item, Counter())[answer["wrong"]] += 1
    for item, counted in votes.items():
        (wrong, most), *others = counted.most_common(2)
        if item in told.rulings:
            wrong = told.rulings[item]["wrong"]
        elif others and others[0][1] == most:
            continue
        (reasoning,) = told.items[item].completions
        every = steps_of(reasoning.text)
        seen = every if wrong is None else every[: wrong + 1]
        yield {
            "prompt": told.items[item].prompt,
            "steps": seen,
            "labels": [place != wrong for place in range(len(seen))],
            "agree": counted[wrong],
            "annotators": counted.total(),
            "item": item,
            "model": reasoning.model,
        }


def ratings(told: Told, way: str) -> Iterator[TrainingRow]:
    """A row for each completion: of each attribute the mean of the scores that people gave, or what was decided."""
    given: dict[str, list[Answer]] = {}
    for item, _, answer in told.answers:
        given.setdefault(item, []).append(answer)
    for item, answers in given.items():
        counted = [told.rulings[item]] if item in told.rulings else answers
        for number in range(len(told.items[item].completions)):
            scores = [answer["scores"][str(number)] for answer in counted]
            means = {attribute: fmean(one[attribute] for one in scores) for attribute in scores[0]}
            yield _one(told, item, number, ratings=means, annotators=len(answers))


def demonstrations(told: Told, way: str) -> Iterator[TrainingRow]:
    """A row for each written demonstration."""
    for item, annotator, answer in told.answers:
        prompt = told.items[item].prompt
        yield {"prompt": prompt, "completion": answer["text"], "annotator": annotator, "item": item}


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


def _one(told: Told, item: str, number: int, **said: Any) -> TrainingRow:
    of, completion = told.items[item], told.items[item].completions[number]
    return {"prompt": of.prompt, "completion": completion.text, **said, "item": item, "model": completion.model}


def _two(told: Told, one: Agreed, way: str, chosen: int, rejected: int) -> TrainingRow:
    item = told.items[str(one.item)]
    first, second = item.completions[chosen], item.completions[rejected]
    models = {"chosen": first.model, "rejected": second.model}
    row = {"prompt": item.prompt, "item": one.item, "method": way}
    return row | {"chosen": first.text, "rejected": second.text, "models": models}
