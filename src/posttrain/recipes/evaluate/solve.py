"""Test-time compute: what several samples of a problem buy, and how to choose among them.

    posttrain solve --model runs/rl-2026-01-31-1 --dataset gym:chain_sum --samples 32
    posttrain solve --model runs/sft-2026-01-31-1 --dataset test.jsonl --reward numbers --reward-model runs/prm
    posttrain solve --model runs/sft-2026-01-31-1 --dataset test.jsonl --reward numbers --reward-model runs/prm \
        --beams 16

Every problem is answered `--samples` times, once, and all ways to choose are compared on the same answers: the
majority, and with a reward model votes weighted by its scores and the best score. Some spend samples where they help:
sampling that ends when the majority is settled, and budgets by how difficult a problem's first samples say that it is.
A process reward model is read as `--step-aggregation` says; with `--beams` it also guides a search by steps. Accuracy
stands beside the tokens that were sampled and those that a reward model reads.
"""

import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from math import exp, isnan
from pathlib import Path
from typing import Any

from posttrain.background import finish
from posttrain.bindings.reward_models import overseen_by
from posttrain.data.order import seed_for
from posttrain.engine.scorer import Scorer, ScorerFacts, load_scorer
from posttrain.environments.scored import ParsedRewards, ScoredEnvironment, of_seat
from posttrain.episodes.episodes import Players, score
from posttrain.episodes.metrics import SOLVED
from posttrain.errors import RewardError, UserError, as_typed, words_of
from posttrain.evaluation.search import beam_search
from posttrain.evaluation.voting import Answered
from posttrain.evaluation.ways import Point, doubled, points
from posttrain.options.evaluation import Solve
from posttrain.recipes.evaluate import Part, prepare, run
from posttrain.recipes.evaluate.result import EvaluateResult, write_page
from posttrain.recipes.evaluate.suites import LM_EVAL, asked
from posttrain.report import Estimate, Table
from posttrain.report.chart import Chart, Series
from posttrain.rewards import Weighted
from posttrain.rewards.reward import apart
from posttrain.runs import jsonl
from posttrain.training.resolve_model import saved_model
from posttrain.types import Episode, EpisodeGroup, Group, Message

SIGNED = ("sum", "softmin")  # aggregations of steps whose scores may be below 0
NOTHING_RIGHT = "solving needs a `reward` that says what is right, such as numbers, math or gym"


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
    """Sample every problem, choose in every way, search where that is asked for, and write the report."""
    one, *others = asked(config)
    if others or one.name.startswith(LM_EVAL):
        raise UserError(f"`suite` of posttrain solve is one, and none of lm-eval; got {config.suite!r}")
    part = prepare(one)
    _refuse_unless_right(part)
    models = [saved_model(name).where for name in words_of("reward_model", config.reward_model)]
    scorers = [load_scorer(where, precision=config.precision) for where in models]
    reward = _reward(config, scorers) if scorers else None
    searched: dict[str, list[list[Answered]]] = {}

    def search(players: Players) -> None:
        assert reward is not None
        if not part.environment.outcome:  # its answers have shown it
            raise UserError(NOTHING_RIGHT)
        for ahead in dict.fromkeys([0, config.lookahead]):
            name = f"beam search, lookahead {ahead}" if ahead else "beam search"
            searched[name] = [
                _searched(config, part, players, reward, len(scorers), beams, ahead)
                for beams in doubled(config.expansions, config.beams)
            ]

    found = run(config, output=output, quiet=quiet, part=replace(part, then=search if config.beams else None))
    sampled = found.model.sampled
    if sampled is None or sampled.measure != "accuracy":
        raise UserError(NOTHING_RIGHT)
    alike = _alike(part.environment)
    problems = [_answered(group, found.outcome, alike) for group in sampled.groups]
    if reward is not None:
        problems = _scored(reward, len(scorers), sampled.groups, problems)
    kept = {id(group.task) for group in sampled.groups}  # of others an answer failed, or cannot be judged
    there = [id(task) in kept for task in part.tasks]
    of_kept = {name: [[*compress(answers, there)] for answers in sizes] for name, sizes in searched.items()}
    if _signed(config, [scorer.facts for scorer in scorers]):  # or more votes would count less
        problems = [_positive(problem) for problem in problems]
        of_kept = {name: [[*map(_positive, answers)] for answers in sizes] for name, sizes in of_kept.items()}
    result = SolveResult(found, tuple(points(problems, of_kept, certainty=config.certainty)))
    _write(result)
    return result


def _signed(config: Solve, facts: Sequence[ScorerFacts]) -> bool:
    """Whether an answer may score below 0. Steps score in [0, 1], whole responses without bounds."""
    return (
        config.step_aggregation in SIGNED
        or config.ensemble_aggregation == "uncertain"
        or not all(fact.steps for fact in facts)
    )


def _positive(problem: Answered) -> Answered:
    """With exp of its scores, which orders them the same."""
    return replace(problem, scores=[exp(min(score, 700.0)) for score in problem.scores])  # of 710 it overflows


def _refuse_unless_right(part: Part) -> None:
    """Refuse rewards that do not say what is right, before anything is sampled.

    A function shows by a score outside [0, 1] that it does not; it is asked about a text that is no answer.
    """
    reward = part.environment.reward
    if reward.outcome and not (reward.certain or reward.asks) and part.environment.environment.max_turns == 1:
        task = part.tasks[0]
        episode = Episode(task, (*task.prompt, Message("assistant", task.prompt[-1].content)))
        with suppress(RewardError):  # of what only an episode that was played has
            finish(reward.score_parts([EpisodeGroup(task, (episode,) * reward.min_group)]))
    if not reward.outcome:
        raise UserError(NOTHING_RIGHT)


def _alike(environment: ScoredEnvironment) -> Callable[[str, str], bool]:
    """When two answers are votes for one: where the verifier says so, or their texts are equal."""
    verifier = next(reward for reward, _ in environment.reward.parts if reward.name == environment.outcome)
    return getattr(verifier, "alike", operator.eq)


def _searched(
    config: Solve, part: Part, players: Players, reward: Weighted, models: int, beams: int, lookahead: int
) -> list[Answered]:
    """What a search for answers to all problems found; its tokens are shared evenly among the answers of a problem."""
    words = {"beams": beams, "expansions": config.expansions, "lookahead": lookahead}
    seed = seed_for(config.seed, "search", beams)
    judge = partial(_scores_of, reward)
    found = beam_search(part.environment, part.tasks, players, judge, **words, seed=seed)
    groups = score(part.environment, part.tasks, [one.answers for one in found], players)
    alike = _alike(part.environment)
    return [
        replace(
            _answered(group, part.environment.outcome, alike),
            tokens=[one.tokens / beams] * beams,
            scores=one.scores,
            read=[models * one.read / beams] * beams,
        )
        for group, one in zip(groups, found, strict=True)
    ]


def _answered(group: Group, outcome: str, alike: Callable[[str, str], bool]) -> Answered:
    scores = [row.scores[outcome] for row in group.rows]
    said = [
        # a verifier that names no answer was shown the whole text: votes are for equal ones then
        None if score.unparsed else row.conversation[-1].content.strip() if score.parsed is None else score.parsed
        for score, row in zip(scores, group.rows, strict=True)
    ]
    votes: dict[str, str] = {}
    for answer in filter(None, said):
        if answer not in votes:
            votes[answer] = next((vote for vote in dict.fromkeys(votes.values()) if alike(answer, vote)), answer)
    return Answered(
        [answer if answer is None else votes.get(answer, answer) for answer in said],
        [score.total >= SOLVED for score in scores],
        [len(row.trajectory.logprobs) for row in group.rows],
    )


def _reward(config: Solve, scorers: Sequence[Scorer]) -> Weighted:
    """What the reward models score together; they are loaded before anything is sampled."""
    facts = [scorer.facts for scorer in scorers]
    if config.beams and not all(fact.steps for fact in facts):
        name = next(fact.name for fact in facts if not fact.steps)
        raise UserError(
            f"`beams` needs a process reward model, and {name} scores whole responses; train one (reward-model, with "
            "heads of steps), or leave out `beams`"
        )
    return overseen_by(config, ParsedRewards(None, None), scorers, facts).environment.reward


def _scores_of(reward: Weighted, episodes: Sequence[Episode]) -> list[float]:
    found = [reward.total(of_seat(parts, "")) for (parts,) in finish(reward.score_parts(apart(episodes)))]
    for total, episode in zip(found, episodes, strict=True):
        if isnan(total):
            raise RewardError(f"the reward model does not apply to an answer to task {episode.task.id!r}")
    return found


def _scored(reward: Weighted, models: int, groups: Sequence[Group], problems: Sequence[Answered]) -> list[Answered]:
    """With the scores of reward models, and the tokens that they read."""
    found: list[Answered] = []
    for group, problem in zip(groups, problems, strict=True):
        scores = _scores_of(reward, [Episode(group.task, row.conversation) for row in group.rows])
        read = [sum(len(turn.context_ids) + len(turn.token_ids) for turn in row.trajectory.turns) for row in group.rows]
        found.append(replace(problem, scores=scores, read=[models * tokens for tokens in read]))
    return found


def _write(result: SolveResult) -> None:
    """The report, with a curve of accuracy against tokens for each way, and `points.jsonl`, the same as rows."""
    jsonl.write(result.evaluation.run / "points.jsonl", [point._asdict() for point in result.points])
    write_page(result.evaluation, [result.table], [("What more samples buy", [chart_of(result.points)])])


def chart_of(points: Sequence[Point]) -> Chart:
    """Accuracy against tokens: a curve for each way, from one sample on; bars are intervals of the gain over that."""
    first, *others = points
    curves: list[Series] = []
    for way in dict.fromkeys(point.way for point in others):
        mine = sorted((point for point in others if point.way == way), key=lambda point: point.tokens)
        bars = [(p.tokens, first.accuracy + p.over_one_ci95[0], first.accuracy + p.over_one_ci95[1]) for p in mine]
        curves.append(Series(way, [(p.tokens, p.accuracy) for p in (first, *mine)], bars))
    return Chart("accuracy", curves, unit="by tokens of a problem", percent=True, zero=False)
