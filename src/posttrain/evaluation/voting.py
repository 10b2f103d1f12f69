"""Which of several answers to a problem to give: by votes, by votes with weights, by the best score.

Self-consistency (Wang et al. 2022, https://arxiv.org/abs/2203.11171) gives the answer that most samples end in;
weighted best-of-n adds the scores of a reward model over equal answers (Li et al. 2022, https://arxiv.org/abs/2206.02336);
best-of-n gives the answer of highest score (Cobbe et al. 2021, https://arxiv.org/abs/2110.14168).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import product
from math import comb
from random import Random
from statistics import fmean

from posttrain.statistics import best_of_n, pass_at_k

DRAWS = 64  # sets of n of the samples that an accuracy is the mean of; all of them are one set


@dataclass(frozen=True)
class Answered:
    """The samples of one problem, in the order in which they were drawn."""

    answers: Sequence[str | None]  # what each ends in; equal texts are one answer; None where none is found
    right: Sequence[bool]
    tokens: Sequence[float] = ()  # that each sampled
    scores: Sequence[float] = ()  # of a reward model, where there is one
    read: Sequence[float] = ()  # tokens that it read of each


def winner(answers: Sequence[str | None], weights: Sequence[float] | None = None) -> int:
    """The place of the first sample with the answer of most votes, or of the largest sum of weights; ties to the first.

    Samples without an answer do not vote; where none has one, the first is given.

    Example:
        >>> winner(["7", "8", None, "8"]), winner(["7", "8", "8"], [0.9, 0.1, 0.3]), winner(["7", "8"])
        (1, 0, 0)
    """
    votes: dict[str, float] = {}
    for place, answer in enumerate(answers):
        if answer is not None:
            votes[answer] = votes.get(answer, 0.0) + (1.0 if weights is None else weights[place])
    return answers.index(max(votes, key=votes.__getitem__)) if votes else 0


def _weighted(problem: Answered, places: Sequence[int]) -> bool:
    answers, scores = [problem.answers[place] for place in places], [problem.scores[place] for place in places]
    return problem.right[places[winner(answers, scores)]]


WAYS: Mapping[str, Callable[[Answered, Sequence[int]], bool]] = {
    "majority": lambda problem, places: problem.right[places[winner([problem.answers[place] for place in places])]],
    "weighted": _weighted,  # needs scores, as `best` does
    "best": lambda problem, places: problem.right[max(places, key=problem.scores.__getitem__)],
    # pass@n: whether a perfect verifier would have one to choose
    "oracle": lambda problem, places: any(problem.right[place] for place in places),
}
"""Ways to choose among samples of a problem: whether what is given is right, of the samples in these places."""

SCORED = ("weighted", "best")  # those that read scores


def accuracy_of(way: str, problem: Answered, n: int, *, draws: int = DRAWS) -> float:
    """The share of sets of n of a problem's samples by which `way` is right: of `draws` sets, the same in each call.

    Of `oracle`, which is pass@n, and of `best` it is the mean over all sets.

    Raises:
        ValueError: unless 1 <= n <= the number of samples.

    Example:
        >>> three = Answered(("7", "8", "8"), (True, False, False))
        >>> accuracy_of("majority", three, 3), accuracy_of("oracle", three, 3)
        (0.0, 1.0)
    """
    size = len(problem.answers)
    if not 1 <= n <= size:
        raise ValueError(f"an accuracy of {size} samples is of 1 to {size} of them; got n={n}")
    if way == "oracle":
        return pass_at_k(size, sum(problem.right), n)
    if way == "best":
        worst_first = sorted(range(size), key=lambda place: (problem.scores[place], -place))  # ties to the first
        return best_of_n(range(size), [problem.right[place] for place in worst_first], n)
    if n == size:
        return float(WAYS[way](problem, range(size)))
    draw = Random(f"0-{n}")
    return fmean(WAYS[way](problem, sorted(draw.sample(range(size), n))) for _ in range(draws))


def certainty(answers: Sequence[str | None]) -> float:
    """How likely the answer of most votes is to keep them, however many samples follow; 0 without an answer.

        P(p1 > p2 | votes) of Beta(v1 + 1, v2 + 1) for the two answers of most votes

    The criterion of Adaptive-Consistency with its Beta prior (Aggarwal et al. 2023, https://arxiv.org/abs/2305.11860,
    section 3.1); of whole numbers of votes it is a sum of binomial chances, without an integral.

    Example:
        >>> certainty(["7", "7", "7"]), certainty(["7", "8", "7", "7"]), certainty(["7", "8"])
        (0.9375, 0.8125, 0.5)
    """
    votes = sorted((answers.count(answer) for answer in {*answers} - {None}), reverse=True)
    if not votes:
        return 0.0
    first, second = votes[0], votes[1] if votes[1:] else 0
    # P(Beta(a, b) > 1/2) is the chance that of a + b - 1 fair coins fewer than a show heads
    coins = first + second + 1
    return sum(comb(coins, heads) for heads in range(first + 1)) / 2**coins


def until_settled(problem: Answered, threshold: float = 0.95) -> int:
    """How many samples, in order, self-consistency draws until its majority is as certain as `threshold`."""
    size = len(problem.answers)
    return next((n for n in range(1, size) if certainty(problem.answers[:n]) >= threshold), size)


def by_difficulty(problems: Sequence[Answered], mean: int, first: int = 4) -> list[int]:
    """How many samples each problem gets, `mean` on average: the rest goes where the majority is least certain.

    All get `first`; then one at a time goes to the problem whose samples so far agree least, which predicts that it is
    hard. A simple form of the allocation by predicted difficulty of Damani et al. 2024 (https://arxiv.org/abs/2410.04707),
    without a model that predicts it. No problem gets more than it has.

    Raises:
        ValueError: unless 1 <= first <= mean.
    """
    if not 1 <= first <= mean:
        raise ValueError(f"a budget needs 1 <= first <= mean; got first={first}, mean={mean}")
    given = [min(first, len(problem.answers)) for problem in problems]
    queue = [(certainty(p.answers[:n]), place) for place, (p, n) in enumerate(zip(problems, given, strict=True))]
    heapify(queue)
    left = mean * len(problems) - sum(given)
    while left > 0 and queue:
        _, place = heappop(queue)
        if given[place] < len(problems[place].answers):
            given[place], left = given[place] + 1, left - 1
            heappush(queue, (certainty(problems[place].answers[: given[place]]), place))
    return given


def by_bins(way: str, problems: Sequence[Answered], mean: int, first: int = 4, bins: int = 5) -> list[int]:
    """How many samples each problem gets, at most `mean` on average, by how difficult it is predicted to be.

    All get `first`. By these problems are sorted into `bins` of equal size: by their mean score where `way` reads
    scores, else by the certainty of their majority. Each bin has the budget (first, 2 first, 4 first, ...) that is best
    on the other half of the problems, of all budgets with the same total. This is the compute-optimal choice of Snell
    et al. 2024 (https://arxiv.org/abs/2408.03314, section 3.2), of a number of samples: predicted difficulty, two-fold
    cross-validation. Unlike there, the samples that predict count.

    Raises:
        ValueError: unless 1 <= first <= mean.
    """
    if not 1 <= first <= mean:
        raise ValueError(f"a budget needs 1 <= first <= mean; got first={first}, mean={mean}")
    size = min(len(problem.answers) for problem in problems)
    levels = [first * 2**i for i in range(size) if first * 2**i <= size]

    def ease(place: int) -> float:
        problem = problems[place]
        return fmean(problem.scores[:first]) if way in SCORED else certainty(problem.answers[:first])

    order, given = sorted(range(len(problems)), key=ease), [0] * len(problems)
    halves = [_parts(order[half::2], bins) for half in (0, 1)]
    for mine, others in (halves, halves[::-1]):
        gains = [{n: sum(accuracy_of(way, problems[place], n) for place in part) for n in levels} for part in others]
        most, best = mean * sum(map(len, mine)), (-1.0, 0, (first,) * bins)
        for budget in product(levels, repeat=bins):
            spent = sum(n * len(part) for n, part in zip(budget, mine, strict=True))
            if spent <= most:
                worth = sum(gain[n] for n, gain in zip(budget, gains, strict=True))
                best = max(best, (worth, -spent, budget))
        for n, part in zip(best[2], mine, strict=True):
            for place in part:
                given[place] = n
    return given


def _parts(places: Sequence[int], parts: int) -> list[Sequence[int]]:
    """Parts of equal size, as far as that goes, in order."""
    return [places[len(places) * n // parts : len(places) * (n + 1) // parts] for n in range(parts)]
