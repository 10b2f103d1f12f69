"""Rewards compared on the same stored samples: which tells right from wrong, at what cost, and what fools it.

    posttrain compare-rewards --samples runs/evaluate-2026-01-31-1 --reward "numbers mine.py:score" --truth numbers
    posttrain compare-rewards --samples samples.jsonl --truth right --reward-model "runs/orm runs/prm" \
        --judge "judge=URL#MODEL"

Nothing is sampled. Each reward, judge and reward model is scored by itself: the area under its ROC curve (AUC, the
chance that a right sample scores more than a wrong one) over all samples and within prompts, how often the best of n by
it is right, tokens that models read and write, seconds, and what fools it by posttrain audit-reward.
"""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, cast

from posttrain.background import finish
from posttrain.bindings.scoring import by_prompt, samples_of, scoring
from posttrain.data import Record, load_completions, load_tokenizer, read_rows, reading_of
from posttrain.environments.scored import of_seat
from posttrain.errors import UserError, words_of
from posttrain.evaluation.audit import audit
from posttrain.evaluation.pairs import exceeds
from posttrain.models.load import locate
from posttrain.options.audits import CompareRewards
from posttrain.report import Estimate, Table
from posttrain.rewards import Judge, Reward, Weighted
from posttrain.rewards.judges.consensus import Consensus
from posttrain.rewards.reward import role_of
from posttrain.runs.progress import announce
from posttrain.statistics import Interval, best_of_n, mean_interval
from posttrain.training.resolve_model import saved_model
from posttrain.types import Episode, EpisodeGroup

TRUTHS = ("right", "correct", "label", "gold")  # columns that say what is right, unless one is named


class Compared(NamedTuple):
    """What a reward makes of the samples; None where it cannot be said."""

    reward: str
    auc: float | None
    auc_within: float | None  # a mean over prompts that have right and wrong samples
    auc_within_ci95: Interval | None
    best_of_n: float
    best_of_n_ci95: Interval
    tokens: int | None  # that models read and wrote; None of a judge that weighs grades, which has no replies
    seconds: float
    fooled_by: tuple[str, ...] | None  # attacks that it pays, fails on or is slow to read; None where not attacked


@dataclass(frozen=True)
class CompareRewardsResult:
    """The rewards, the best of n by which is most often right first."""

    rewards: tuple[Compared, ...]
    samples: int
    prompts: int
    n: int
    one: float  # how often a sample is right
    any_right: float  # how often one of n is

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        return vars(self) | {"rewards": [one._asdict() for one in self.rewards]}

    def lines(self) -> list[str]:
        """The same for people."""
        rows = [
            (
                one.reward,
                None if one.auc is None else f"{one.auc:.3f}",
                None
                if one.auc_within is None or one.auc_within_ci95 is None
                else Estimate(one.auc_within, *one.auc_within_ci95),
                Estimate(one.best_of_n, *one.best_of_n_ci95),
                None if one.tokens is None else f"{one.tokens:,}",
                f"{one.seconds:.1f}",
                None if one.fooled_by is None else ", ".join(one.fooled_by) or "none",
            )
            for one in self.rewards
        ]
        columns = ("reward", "AUC", "AUC within prompts", f"best of {self.n}", "tokens", "seconds", "fooled by")
        note = (
            f"{self.samples:,} samples of {self.prompts:,} prompts. Without a reward {self.one:.3f} are right; of "
            f"{self.n} samples one is in {self.any_right:.3f}. Ranges are 95% intervals over prompts."
        )
        return Table("", columns, rows, note).lines()


def run(config: CompareRewards, *, quiet: bool = False) -> CompareRewardsResult:
    """Read the samples, then score them by one reward after another."""
    if not config.samples:
        raise UserError("`samples` is required: a run, or a file with prompts, completions and what is right")
    how, source = reading_of(config), samples_of(config.samples)
    right = _truth(read_rows(source, **how), config.truth)
    groups: list[tuple[EpisodeGroup, list[float]]] = []  # the samples of each prompt, and which of them are right

    def read(named: Collection[str]) -> Sequence[Episode]:
        episodes = load_completions(source, named=named, **how)
        groups[:] = [(group, [right[i] for i in rows]) for group, rows in by_prompt(episodes)]
        return episodes

    found: list[Compared] = []
    # each reward model by itself: several together would be one ensemble
    one_model = [
        replace(config, reward="", judge="", judge_prompt="", reward_model=name)
        for name in words_of("reward_model", config.reward_model)
    ]
    others = [replace(config, reward_model="")] if config.reward or config.judge or not one_model else []
    for each in (*others, *one_model):
        _, environment, judging = scoring(each, each.reward, read, config.samples, "compare-rewards")
        for part, _ in environment.reward.parts:
            if role_of(part) != "monitor":
                announce(f"scoring by {each.reward_model or part.name}", quiet=quiet)
                with judging.kept_beside(Path("compare-rewards")):
                    found.append(_compared(part, each.reward_model, groups, config.attack_tasks))
    n = min(len(truths) for _, truths in groups)
    of_n = [best_of_n(truths, truths, n) for _, truths in groups]
    ordered = sorted(found, key=lambda one: -one.best_of_n)
    single = fmean(fmean(truths) for _, truths in groups)
    return CompareRewardsResult(tuple(ordered), len(right), len(groups), n, single, fmean(of_n))


def _truth(rows: Sequence[Record], name: str) -> list[float]:
    """What is right, of each sample; raises `UserError` where nothing says it."""

    def value(row: Record, name: str) -> float | None:
        found = next((one[name] for one in _stored(row) if name in one), None)
        return float(found) if isinstance(found, bool | int | float) and found in (0, 1) else None

    for each in [name] if name else TRUTHS:
        values = [value(row, each) for row in rows]
        if known := [one for one in values if one is not None]:
            if len(known) < len(rows):
                raise rows[values.index(None)].fail(f"'{each}', which says what is right, must be 0 or 1")
            return known
    stored = {key for one in _stored(rows[0]) for key in one}
    raise UserError(
        f"`truth` names a column or a stored reward that is 0 or 1; {f'{name!r} is none' if name else 'none was given'}"
        f"; the first row has: {', '.join(sorted(map(str, stored)))}"
    )


def _stored(row: Record) -> list[Mapping[str, Any]]:
    """The columns of a sample, and the rewards that were stored with it."""
    found = [row.fields, *(row.fields.get(key) for key in ("rewards", "scores"))]
    return [cast("Mapping[str, Any]", one) for one in found if isinstance(one, Mapping)]


def _compared(
    part: Reward, model: str, groups: Sequence[tuple[EpisodeGroup, list[float]]], attack_tasks: int
) -> Compared:
    """One reward, which reads the samples of a prompt together."""
    alone = Weighted(((part, 1.0),))
    began = time.monotonic()
    scores = finish(alone.score_parts([group for group, _ in groups]))
    seconds, tokens = time.monotonic() - began, 0
    judges = part.judges if isinstance(part, Consensus) else [part] if isinstance(part, Judge) else []
    if any(judge.prompt.kind.grades(judge.prompt.scale) for judge in judges):
        tokens = None
    elif judges:
        tokens = sum(judge.spent.prompt_tokens + judge.spent.completion_tokens for judge in judges)
    if model:
        tokenizer = load_tokenizer(locate(saved_model(model).where))
        texts = ["\n".join(m.text for m in episode.messages) for group, _ in groups for episode in group.episodes]
        tokens = sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
    within: list[float] = []
    best: list[float] = []
    good, bad = list[float](), list[float]()
    n = min(len(truths) for _, truths in groups)
    for of_group, (_, truths) in zip(scores, groups, strict=True):
        totals = [alone.total(of_seat(one, "")) for one in of_group]
        known = [-math.inf if math.isnan(total) else total for total in totals]  # not chosen
        ours, theirs = ([t for t, r in zip(known, truths, strict=True) if r == side] for side in (1, 0))
        within += [exceeds(ours, theirs)] if ours and theirs else []
        good, bad = [*good, *ours], [*bad, *theirs]
        best.append(best_of_n(known, truths, n))
    attacks: tuple[str, ...] | None = None
    if attack_tasks and not alone.compares:
        found = audit(alone, [group.task for group, _ in groups][:attack_tasks])
        attacks = tuple(dict.fromkeys(one.attack for one in found.findings if one.kind != "refused"))
    auc = exceeds(good, bad) if good and bad else None
    mean = (fmean(within), mean_interval(within)) if within else (None, None)
    return Compared(model or part.name, auc, *mean, fmean(best), mean_interval(best), tokens, seconds, attacks)
