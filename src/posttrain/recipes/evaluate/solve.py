"""Test-time compute: what several samples of a problem buy, and how to choose among them.

    posttrain solve --model runs/rl-2026-01-31-1 --dataset gym:chain_sum --samples 32
    posttrain solve --model runs/sft-2026-01-31-1 --dataset test.jsonl --reward numbers --reward-model runs/prm

Every problem is answered `--samples` times, once, and all ways to choose are compared on the same answers: the
majority, and with a reward model votes weighted by its scores and the best score. Two spend samples where they help:
sampling that ends when the majority is settled, and a budget that goes to problems whose first samples disagree. A
process reward model is read as `--step-aggregation` says. Accuracy stands beside the tokens that were sampled and those
that a reward model reads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from posttrain.background import finish
from posttrain.bindings.reward_models import refuse_other_zeros, steps_of
from posttrain.engine.scorer import Scorer, load_scorer
from posttrain.environments.scored import of_seat, overseen
from posttrain.episodes.metrics import SOLVED
from posttrain.errors import RewardError, UserError, as_typed, words_of
from posttrain.evaluation.voting import WAYS, Answered, accuracy_of, by_difficulty, until_settled
from posttrain.options.evaluation import Solve
from posttrain.recipes.evaluate import run
from posttrain.recipes.evaluate.result import EvaluateResult, write_page
from posttrain.report import Estimate, Table
from posttrain.report.chart import Chart, Series
from posttrain.rewards import Weighted
from posttrain.statistics import Interval, mean_interval, paired_difference_interval
from posttrain.training.resolve_model import saved_model
from posttrain.types import Episode, EpisodeGroup, Group, Row

FIRST = 4  # samples that predict how hard a problem is


class Point(NamedTuple):
    """A way to choose, at what it costs."""

    way: str
    samples: float  # of a problem, on average
    tokens: float  # of a problem, on average: sampled, and read by a reward model
    accuracy: float
    ci95: Interval
    over_one: float  # the gain over one sample, paired by problem
    over_one_ci95: Interval


@dataclass(frozen=True)
class SolveResult:
    """What more samples buy, and the evaluation that they are of."""

    evaluation: EvaluateResult
    points: tuple[Point, ...]

    @property
    def table(self) -> Table:
        """A row for each way and number of samples."""
        rows = [
            (
                point.way,
                f"{point.samples:.4g}",
                f"{point.tokens:,.0f}",
                Estimate(point.accuracy, *point.ci95),
                Estimate(point.over_one, *point.over_one_ci95) if point.samples > 1 else None,
            )
            for point in self.points
        ]
        columns = ("way", "samples", "tokens", "accuracy", "over one sample")
        note = "Tokens of a problem: sampled, and read by a reward model that chooses. Ranges are 95% intervals."
        return Table("What more samples buy", columns, rows, note)

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        return self.evaluation.summary() | {"points": [point._asdict() for point in self.points]}

    def lines(self) -> list[str]:
        """The same for people."""
        notes = [f"note: {as_typed(note)}" for note in self.evaluation.notes]
        return [*self.table.lines(), *notes, f"report: {self.evaluation.report}"]


def solve(config: Solve, *, output: Path | None = None, quiet: bool = False) -> SolveResult:
    """Sample every problem, choose in every way, and write the report."""
    models = [saved_model(name).where for name in words_of("reward_model", config.reward_model)]
    scorers = [load_scorer(where, precision=config.precision) for where in models]
    reward = _reward(config, scorers) if scorers else None
    found = run(config, output=output, quiet=quiet)
    sampled = found.model.sampled
    if sampled is None or sampled.measure != "accuracy":
        raise UserError("solving needs a `reward` that says what is right, such as numbers, math or gym")
    problems = [_answered(group, found.outcome) for group in sampled.groups]
    if reward is not None:
        problems = _scored(reward, len(scorers), sampled.groups, problems)
    result = SolveResult(found, tuple(points(problems, certainty=config.certainty)))
    _write(result)
    return result


def _answered(group: Group, outcome: str) -> Answered:
    scores = [row.scores[outcome] for row in group.rows]
    return Answered(
        [
            None if score.unparsed else score.parsed if score.parsed is not None else _last(row)
            for score, row in zip(scores, group.rows, strict=True)
        ],
        [score.total >= SOLVED for score in scores],
        [len(row.trajectory.logprobs) for row in group.rows],
    )


def _last(row: Row) -> str:
    """What a verifier that names no answer was shown: votes are for equal texts then."""
    return row.conversation[-1].content.strip()


def _reward(config: Solve, scorers: Sequence[Scorer]) -> Weighted:
    """What the reward models score together; they are loaded before anything is sampled."""
    facts = [scorer.facts for scorer in scorers]
    refuse_other_zeros(config.ensemble_aggregation, facts)
    return overseen(
        None,
        scorers,
        members=sum(fact.members for fact in facts),
        use=config.ensemble_aggregation,
        penalty=config.uncertainty_penalty,
        steps=steps_of(config.step_aggregation, facts),
    ).environment.reward


def _scored(reward: Weighted, models: int, groups: Sequence[Group], problems: Sequence[Answered]) -> list[Answered]:
    """With the scores of reward models, and the tokens that they read."""
    found: list[Answered] = []
    for group, problem in zip(groups, problems, strict=True):
        asked = EpisodeGroup(group.task, tuple(Episode(group.task, row.conversation) for row in group.rows))
        (of_group,) = finish(reward.score_parts([asked]))
        scores = [reward.total(of_seat(score, "")) for score in of_group]
        if any(map(math.isnan, scores)):
            raise RewardError(f"the reward model does not apply to an answer to task {group.task.id!r}")
        read = [sum(len(turn.context_ids) + len(turn.token_ids) for turn in row.trajectory.turns) for row in group.rows]
        found.append(replace(problem, scores=scores, read=[models * tokens for tokens in read]))
    return found


def points(problems: Sequence[Answered], *, certainty: float = 0.95) -> list[Point]:
    """Every way at 1, 2, 4 and so on samples of each problem, and those that spend samples where they help.

    Fewer samples than there are stand for all sets of so many (`accuracy_of`); their tokens are so many times the mean.
    """
    size = min(len(problem.answers) for problem in problems)
    ways = [way for way in WAYS if problems[0].scores or way not in ("weighted", "best")]
    one = [fmean(problem.right) for problem in problems]
    found: list[Point] = []

    def add(way: str, samples: Sequence[float], rates: Sequence[float]) -> None:
        judged = way in ("weighted", "best")
        each = [fmean(problem.tokens) + (fmean(problem.read) if judged and problem.read else 0) for problem in problems]
        spent = [n * tokens for n, tokens in zip(samples, each, strict=True)]
        gain = fmean(rates) - fmean(one)
        interval = paired_difference_interval(one, rates)
        found.append(Point(way, fmean(samples), fmean(spent), fmean(rates), mean_interval(rates), gain, interval))

    for way in ways:
        for n in sorted({*(2**i for i in range(size.bit_length())), size}):
            if n > 1 or way == ways[0]:
                rates = one if n == 1 else [accuracy_of(way, problem, n) for problem in problems]
                add(way if n > 1 else "one sample", [n] * len(problems), rates)
    ends = [until_settled(problem, certainty) for problem in problems]
    add("majority, until settled", ends, [_majority(*told) for told in zip(problems, ends, strict=True)])
    for mean in [2**i for i in range(size.bit_length()) if FIRST < 2**i < size]:
        given = by_difficulty(problems, mean, FIRST)
        add("majority, by difficulty", given, [_majority(*told) for told in zip(problems, given, strict=True)])
    return found


def _majority(problem: Answered, samples: int) -> float:
    return float(WAYS["majority"](problem, range(samples)))


def _write(result: SolveResult) -> None:
    """The report, with a curve of accuracy against tokens for each way."""
    ways = dict.fromkeys(point.way for point in result.points if point.way != "one sample")
    first = [(point.tokens, point.accuracy) for point in result.points[:1]]
    curves = [Series(way, [*first, *((p.tokens, p.accuracy) for p in result.points if p.way == way)]) for way in ways]
    chart = Chart("accuracy", curves, unit="by tokens of a problem", percent=True, zero=False)
    write_page(result.evaluation, [result.table], [("What more samples buy", [chart])])
