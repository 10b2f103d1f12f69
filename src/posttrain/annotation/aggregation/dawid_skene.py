"""Dawid-Skene: annotator error rates and true labels, estimated jointly by EM.

Dawid and Skene 1979 (https://doi.org/10.2307/2346806), by crowd-kit. Each comparison of two completions has a true
outcome z (the first is better, the second, neither), and annotator w says y with a probability of their own:

    P(z = c) = p_c,   P(y_w = k | z = c) = e^w_kc

The two are found by expectation maximisation, which begins with the majority. Which of the two completions is called
the first says nothing, so each comparison is given both ways round: p and e are then the same either way.

What to know about it:
- An annotator who says the opposite of what is true is as informative as one who says what is true, once it is known.
- It needs several comparisons by each annotator, and several annotators of each comparison. With two annotators who
  differ there is nothing that says which of them is wrong.
"""

from collections.abc import Mapping, Sequence

import pandas
from crowdkit.aggregation import DawidSkene

from posttrain.annotation.consensus import Belief, Odds
from posttrain.annotation.rankings import by_item, votes_of
from posttrain.types import Ranking

ROUNDS = 100


def beliefs(rankings: Sequence[Ranking]) -> Mapping[str | int, Belief]:
    """The probabilities of the three outcomes, given what all annotators say."""
    rows = [
        ((vote.item, first, second), vote.annotator, outcome)
        for vote in votes_of(rankings)
        for first, second, outcome in (
            (vote.first, vote.second, vote.outcome),
            (vote.second, vote.first, -vote.outcome),
        )
    ]
    odds: dict[str | int, dict[tuple[int, int], Odds]] = {item: {} for item in by_item(rankings)}
    names = {task: number for number, task in enumerate(dict.fromkeys(task for task, _, _ in rows))}
    people = {person: number for number, person in enumerate(dict.fromkeys(person for _, person, _ in rows))}
    table = pandas.DataFrame(
        [(names[task], people[person], outcome) for task, person, outcome in rows],
        columns=["task", "worker", "label"],
    )
    fitted = DawidSkene(n_iter=ROUNDS).fit(table).probas_
    assert fitted is not None
    outcomes = [int(column) for column in fitted.columns]
    for (item, first, second), name in names.items():
        if first < second:
            likely = dict(zip(outcomes, map(float, fitted.loc[name]), strict=True))
            odds[item][first, second] = Odds(*(likely.get(outcome, 0.0) for outcome in (1, 0, -1)))
    return {item: Belief(found) for item, found in odds.items()}
