"""Score given completions by any reward.

    posttrain score --dataset completions.jsonl --reward "numbers=1.0 tags=0.1"
    posttrain score --dataset runs/rl-2026-01-31-1 --reward math --output scored.jsonl
    posttrain score --dataset completions.jsonl --reward-model runs/reward-model-2026-01-31-1 --json
    posttrain score --dataset completions.jsonl --judge "quality=http://localhost:8000/v1#MODEL"

Rows have `prompt` or `messages`, `completion`, `answer` and perhaps `id`; a run is read from its samples.jsonl. What a
row earns does not depend on the others, except under a reward that compares the completions of a task: rows with the
same prompt and answer are one group then.
"""

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from posttrain.background import finish
from posttrain.bindings.judges import JudgeModels
from posttrain.bindings.scoring import by_prompt, samples_of, scoring
from posttrain.data import load_completions, reading_of
from posttrain.data.messages import tools_column, written
from posttrain.environments.scored import ScoredEnvironment, of_seat
from posttrain.errors import UserError
from posttrain.options.evaluation import ScoreCompletions
from posttrain.report import Estimate, Table
from posttrain.report.markup import printable
from posttrain.rewards import Weighted, apart
from posttrain.runs import jsonl
from posttrain.runs.progress import Progress
from posttrain.types import Episode, EpisodeGroup, Score

AT_A_TIME = 64  # completions between two steps of the progress bar
SHOWN = 20  # rows on the terminal
WIDTH = 40  # characters of a cell there


@dataclass(frozen=True)
class Scored:
    """One completion and its scores by name; `total` is their weighted sum (NaN: none that has a weight applies)."""

    id: str
    total: float
    scores: Mapping[str, Score]

    def row(self) -> dict[str, Any]:
        """As a line of `--json`."""
        return {
            "id": self.id,
            "scores": {name: score.total if score.applicable else None for name, score in self.scores.items()},
            "unparsed": {name: score.unparsed for name, score in self.scores.items()},
            "parsed": {name: score.parsed for name, score in self.scores.items()},
        }


@dataclass(frozen=True)
class ScoreResult:
    """What every completion earned."""

    rows: tuple[Scored, ...]
    weights: Mapping[str, float]
    output: Path | None
    seconds: float = 0.0  # that scoring took

    @property
    def mean(self) -> dict[str, float | None]:
        """The mean score by reward over the completions that it applies to; None where there are none."""
        return {name: _mean(score.total for score in self._of(name)) for name in self.weights}

    @property
    def unparsed(self) -> dict[str, float | None]:
        """The share of the completions that a reward applies to, in which no answer was found."""
        return {name: _mean(score.unparsed for score in self._of(name)) for name in self.weights}

    @property
    def not_applicable(self) -> dict[str, int]:
        """By reward, how many completions it does not apply to."""
        return {name: len(self.rows) - len(self._of(name)) for name in self.weights}

    def _of(self, name: str) -> list[Score]:
        return [row.scores[name] for row in self.rows if row.scores[name].applicable]

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        about = {"n": len(self.rows), "mean": self.mean, "unparsed": self.unparsed}
        about |= {"not_applicable": self.not_applicable} if any(self.not_applicable.values()) else {}
        return about | {"rows": [row.row() for row in self.rows]}

    def tables(self) -> list[Table]:
        """Each reward's numbers, and the first rows. What a model wrote is cut and made harmless to a terminal."""
        weighed = [
            (name, f"{weight:g}", None if mean is None else Estimate(mean), None if mean is None else f"{share:.0%}")
            for (name, weight), mean, share in zip(
                self.weights.items(), self.mean.values(), self.unparsed.values(), strict=True
            )
        ]
        totals = [row.total for row in self.rows if not math.isnan(row.total)]
        speed = f" in {self.seconds:.1f} s, {len(self.rows) / self.seconds:.1f} a second" if self.seconds else ""
        note = f"{len(self.rows):,} completions{speed}; "
        note += f"mean of the weighted sum {fmean(totals):.3f}" if totals else "no reward with a weight applies to any"
        if totals and len(totals) < len(self.rows):
            note += f", without {len(self.rows) - len(totals):,} that no reward with a weight applies to"
        for name, count in self.not_applicable.items():
            every = (row.scores[name] for row in self.rows)
            why = " ".join(next((s.explanation.partition(";")[0] for s in every if not s.applicable), "").split())
            note += f"; {name} is not applicable to {count:,}{why and f': {printable(why)[:160]}'}" if count else ""
        more = len(self.rows) - SHOWN
        rest = (
            f"and {more:,} more{'' if self.output else '; --output FILE.jsonl writes all of them'}" if more > 0 else ""
        )
        told = [
            (
                _cell(row.id),
                name,
                f"{score.total:.3f}" if score.applicable else "not applicable",
                _read(score),
                _cell(score.explanation),
            )
            for row in self.rows[:SHOWN]
            for name, score in row.scores.items()
        ]
        return [
            Table("", ("reward", "weight", "mean", "unparsed"), weighed, note),
            Table("", ("id", "reward", "score", "parsed", "explanation"), told, rest),
        ]


def run(config: ScoreCompletions, *, quiet: bool = False) -> ScoreResult:
    """Read, score and, with an output, write; that file is there when all of it is, or not at all."""
    path = jsonl.new_file(config.output) if config.output else None
    episodes, environment, judging = _prepare(config)
    groups = _groups(episodes, environment.reward)
    found: dict[int, Scored] = {}
    began = time.monotonic()
    with judging.kept_beside(path or Path("score")), Progress("score", len(episodes), quiet=quiet) as progress:
        at_once = max(1, AT_A_TIME // max(len(rows) for _, rows in groups))
        for first in range(0, len(groups), at_once):
            some = groups[first : first + at_once]
            scores = finish(environment.reward.score_parts([group for group, _ in some]))
            for (group, places), of_group in zip(some, scores, strict=True):
                shown = [of_seat(scores, "") for scores in of_group]
                ids = [episode.task.id for episode in group.episodes]
                scored = [Scored(name, environment.reward.total(s), s) for name, s in zip(ids, shown, strict=True)]
                found |= zip(places, scored, strict=True)
            mean = _mean(row.total for row in found.values() if not math.isnan(row.total))
            progress.step(len(found), **({} if mean is None else {"reward": mean}))
    seconds = time.monotonic() - began
    rows = [found[place] for place in range(len(episodes))]
    if path:
        jsonl.write(path, map(_written, episodes, rows))
    return ScoreResult(tuple(rows), environment.reward.weights, path, seconds)


def _groups(episodes: Sequence[Episode], reward: Weighted) -> list[tuple[EpisodeGroup, list[int]]]:
    """What is scored together, and the rows of each: every row alone, unless a reward compares answers to a task."""
    if not reward.compares:
        return [(group, [place]) for place, group in enumerate(apart(episodes))]
    groups = by_prompt(episodes)
    for _, rows in groups:
        if len(rows) < reward.min_group:
            raise UserError(
                f"reward '{reward.most_compared}' compares {reward.min_group} or more completions of a task; row "
                f"{rows[0] + 1} has {len(rows)} with its prompt and answer"
            )
    return groups


def _prepare(config: ScoreCompletions) -> tuple[Sequence[Episode], ScoredEnvironment, JudgeModels]:
    if not config.dataset:
        raise UserError("`dataset` is required: a jsonl or parquet file or folder, a hub id, or a run")

    def read(named: Collection[str]) -> Sequence[Episode]:
        return load_completions(samples_of(config.dataset), named=named, **reading_of(config))

    return scoring(config, config.reward, read, config.dataset, "score")


def _written(episode: Episode, scored: Scored) -> dict[str, Any]:
    """A line of the output: the row's own words, and all that was found."""
    answer = episode.task.answer
    spans = {name: [asdict(span) for span in score.spans] for name, score in scored.scores.items() if score.spans}
    return {
        **scored.row(),
        **({"spans": spans} if spans else {}),
        "reward": None if math.isnan(scored.total) else scored.total,
        "explanation": {name: score.explanation for name, score in scored.scores.items()},
        "prompt": written(episode.task.prompt),
        **tools_column(episode.task.prompt),
        "completion": episode.completion,
        "answer": answer if isinstance(answer, str | int | float | list | None) else str(answer),
    }


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None


def _read(score: Score) -> str:
    """What was read as the answer, and whether that was an answer."""
    text = "" if score.parsed is None else _cell(score.parsed)
    return f"{text} (unparsed)".strip() if score.unparsed else text


def _cell(text: str) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."
