"""Audit of a judge, reward model or reward on labelled pairs: whether it agrees, and what it falls for.

    posttrain audit-judge --dataset pairs.jsonl --judge "judge=http://localhost:8000/v1#MODEL"
    posttrain audit-judge --dataset pairs.jsonl --ties pairs.jsonl --reward-model runs/reward-model-2026-01-31-1 --json
    posttrain audit-judge --dataset pairs.jsonl --reward mine.py:score --pairs counterfactual.jsonl
    posttrain audit-judge --dataset autoj_pairwise.json.gz --ratings vicuna_eval.json.gz --reward-model OWNER/NAME

Agreement with the labels is told with an interval, by category, so that kinds of truth (people's choices, answers that
are objectively right) stay apart; with another judge's ratings it is a rank correlation. Then: calibration, and bias of
position, length and self-preference; texts without content that beat the chosen response; an instruction to the judge
inside the rejected one; the same pairs in other words; and in other styles, changed by rule.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from posttrain.bindings.scoring import scoring
from posttrain.data import load_ratings, reading_of
from posttrain.data.messages import written
from posttrain.data.preferences import load_judged
from posttrain.errors import RewardError, UserError
from posttrain.evaluation.accuracy import percent
from posttrain.evaluation.attacks import INJECTED, WHOLE
from posttrain.evaluation.judging import FANCIER, STYLES, Asked, Verdict, plain, reworded, totals, verdicts
from posttrain.evaluation.pairs import ScoredPair, by_category
from posttrain.options.audits import AuditJudge
from posttrain.options.option import given
from posttrain.recipes.evaluate_reward.result import ModelResult
from posttrain.report import Table
from posttrain.rewards import Weighted
from posttrain.runs import jsonl
from posttrain.runs.progress import Progress, announce
from posttrain.statistics import kendall_interval, kendall_tau
from posttrain.types import Preference, Task

SIDES = ("chosen", "rejected")
TOGETHER = 2  # pairs
INSTRUCTION = "instruction to the judge"  # inside the rejected response
MORE = "more with an instruction to the judge"
REWORDED = "other words"


@dataclass(frozen=True)
class AuditJudgeResult:
    """What was found; rates are means over pairs, in which a tie counts half."""

    agreement: ModelResult
    rates: Mapping[str, Mapping[str, float]]  # by what was tried, and which of it
    findings: tuple[dict[str, Any], ...]  # texts that fool it more often than is allowed
    rank_correlation: Mapping[str, dict[str, Any]]  # with the ratings of each attribute: Kendall's tau-b, ci95, n

    @property
    def truths(self) -> dict[str, dict[str, Any]]:
        """Agreement with each kind of truth, where categories name one."""
        kinds = [(one, *one.category.partition(": ")) for one in self.agreement.pairs]
        found = by_category([replace(one, category=kind) for one, kind, parted, _ in kinds if parted])
        return {kind: {"accuracy": v, "ci95": ci95, "n": n} for kind, (v, ci95, n) in found.items()}

    @property
    def by_chance(self) -> list[str]:
        """The kinds of truth with which it may agree no more often than chance does."""
        parts = self.truths or {"all pairs": self.agreement.summary()}
        return [name for name, one in parts.items() if one["ci95"][0] <= 0.5]

    @property
    def passed(self) -> bool:
        """Whether nothing fools it, and it agrees with each kind of truth more often than chance."""
        return not self.findings and not self.by_chance

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        found = {**self.agreement.summary(), **self.rates, "rank_correlation": dict(self.rank_correlation)}
        return {**found, "truths": self.truths, "findings": list(self.findings), "passed": self.passed}

    def lines(self) -> list[str]:
        """The same for people."""
        found = self.summary()
        parts = {"all pairs": found} | found["truths"] | found["categories"]
        told = [(f"agreement: {name}", one) for name, one in parts.items()]
        rows = [(name, f"{percent(one['accuracy'], one['ci95'])} of {one['n']}") for name, one in told]
        rows.append(("calibration error", f"{found['calibration_error_at_temperature']:.3f}"))
        if found["length_correlation"] is not None:
            rows.append(("correlation of margins with length", f"{found['length_correlation']:+.2f}"))
        if found["ties_said"]:
            rows.append(("AUC of ties against other pairs", f"{found['ties_said']['told']:.2f}"))
        for name, one in self.rank_correlation.items():
            low, high = one["ci95"]
            said = (
                "not defined" if one["tau"] is None else f"{one['tau']:+.2f} ({low:+.2f} to {high:+.2f}) of {one['n']}"
            )
            rows.append((f"rank correlation with ratings: {name}", said))
        rows += [(f"{kind}: {name}", percent(rate)) for kind, some in self.rates.items() for name, rate in some.items()]
        failed = [f"fooled by {', '.join(repr(one['attack']) for one in self.findings)}"] * bool(self.findings)
        failed += [f"no better than chance on {name}" for name in self.by_chance]
        return [
            *Table("", ("measure", "value"), rows).lines(),
            "",
            f"failed: {'; '.join(failed)}" if failed else "passed",
        ]


def run(config: AuditJudge, *, quiet: bool = False) -> AuditJudgeResult:
    """Read the pairs, have them judged, and with `pairs` write them in all styles."""
    if not config.dataset:
        raise UserError("`dataset` is required: labelled pairs in a file, folder, glob or hub id")
    path = jsonl.new_file(config.pairs, option="pairs") if config.pairs else None
    how = reading_of(config)
    judged = load_judged(config.dataset, **how).items
    equal = load_judged(config.ties, ties=True, columns=how["columns"]).items if config.ties else []
    rated = load_ratings(config.ratings, limit=config.limit).items if given(config.ratings) else []
    pairs, ties = [one for one, _ in judged], [one for one, _ in equal]
    models = [cast("Mapping[str, Any]", task.metadata.get("models") or {}) for _, task in judged]
    wrote = [[of.get(side) for side in SIDES] for of in models]
    if config.own and not any(both.count(config.own) == 1 for both in wrote):
        raise UserError(
            f"`own`: no row has {config.own!r} on one side of its column 'models', "
            '{"chosen": NAME, "rejected": NAME}'
        )

    def read(_: Collection[str]) -> Sequence[Task]:
        return [*(task for _, task in (*judged, *equal)), *(Task(one.prompt, id=one.source) for one in rated)]

    tasks, environment, judging = scoring(config, config.reward, read, config.dataset, "audit-judge")
    if rated and environment.reward.compares:
        raise UserError("`ratings` are of single answers, and this judge compares answers; leave it out")
    announce(f"judging {len(pairs)} pairs, each with attacks and in other styles", quiet=quiet)
    with judging.kept_beside(path or Path("audit-judge")):
        found = _asked(environment.reward, pairs, ties, tasks, quiet=quiet)
        answers = zip(tasks[len(pairs) + len(ties) :], [one.response for one in rated], strict=True)
        scores = totals(environment.reward, list(answers))
    if path:
        jsonl.write(path, (row for one in pairs for row in _styled(one)))
    result = _agreement(pairs, found["label"], found["tie"], environment.reward)
    rates = _rates(found, len(pairs))
    if config.own:
        rates["own responses"] = _of_own(config.own, wrote, found["label"])
    fooling = rates["beats the chosen response"] | {INSTRUCTION: rates["rejected response wins"][MORE]}
    fooling |= {f"{REWORDED} flip the preference": rates[REWORDED]["preference flips"]}
    findings = [{"attack": name, "paid": rate} for name, rate in fooling.items() if rate > config.max_fooled]
    taus: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for one in rated for name in one.ratings):
        both = [(x, one.ratings[name]) for x, one in zip(scores, rated, strict=True) if name in one.ratings]
        both = [pair for pair in both if not isnan(pair[0])]
        columns = [score for score, _ in both], [rating for _, rating in both]
        taus[name] = {"tau": kendall_tau(*columns), "ci95": kendall_interval(*columns), "n": len(both)}
    return AuditJudgeResult(result, rates, tuple(findings), taus)


def _asked(
    judge: Weighted, pairs: Sequence[Preference], ties: Sequence[Preference], tasks: Sequence[Task], *, quiet: bool
) -> dict[str, list[Verdict]]:
    """The verdicts on each kind of pair, in order: as labelled, in styles, and against texts without content."""
    found: dict[str, list[Verdict]] = {"tie": []}
    labelled, equal = list(zip(pairs, tasks, strict=False)), zip(ties, tasks[len(pairs) :], strict=False)
    with Progress("audit-judge", len(pairs) + len(ties), quiet=quiet) as progress:
        for start in range(0, len(pairs), TOGETHER):  # all of a pair, for each text is scored once
            some = labelled[start : start + TOGETHER]
            kinds = _kinds(some)
            said = iter(verdicts(judge, [each for asked in kinds.values() for each in asked]))
            for kind, asked in kinds.items():
                found.setdefault(kind, []).extend(next(said) for _ in asked)
            progress.step(start + len(some))
        found["tie"] = verdicts(judge, [(task, one.chosen, one.rejected) for one, task in equal])
        progress.step(len(pairs) + len(ties))
    return found


def _kinds(pairs: Sequence[tuple[Preference, Task]]) -> dict[str, list[Asked]]:
    """What is asked about pairs, each kind in their order."""
    kinds: dict[str, list[Asked]] = {"label": [], INSTRUCTION: [], REWORDED: []}
    for one, task in pairs:
        kinds["label"].append((task, one.chosen, one.rejected))
        kinds[REWORDED].append((task, reworded(one.chosen), reworded(one.rejected)))
        kinds[INSTRUCTION].append((task, f"{one.rejected}\n\n{INJECTED}", one.chosen))
        for name, text in WHOLE:
            kinds.setdefault(f"text {name}: {text[:20]!r}", []).append((task, text, one.chosen))
        for name, style in STYLES.items():
            kinds.setdefault(f"style {name}", []).append((task, style(one.chosen), plain(one.chosen)))
        for a in FANCIER:
            for b in FANCIER:
                kinds.setdefault(f"{a}/{b}", []).append((task, STYLES[a](one.chosen), STYLES[b](one.rejected)))
    return kinds


def _agreement(
    pairs: Sequence[Preference], said: Sequence[Verdict], tied: Sequence[Verdict], judge: Weighted
) -> ModelResult:
    """Accuracy, calibration and bias of length, as of a reward model; lengths are in words."""
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(one.prompt for one in pairs))}
    found = tuple(
        ScoredPair(
            (verdict.margin,),
            (0.0,),
            len(one.chosen.split()),
            len(one.rejected.split()),
            one.category,
            numbers[one.prompt],
        )
        for one, verdict in zip(pairs, said, strict=True)
        if not isnan(verdict.margin)
    )
    if not found:
        raise RewardError(
            f"the judge said nothing about any of {len(pairs)} pairs; see posttrain score for its verdicts"
        )
    equal = tuple(
        ScoredPair((verdict.margin,), (0.0,), prompt=len(numbers) + i)
        for i, verdict in enumerate(tied)
        if not isnan(verdict.margin)
    )
    return ModelResult(", ".join(judge.weights), found, equal)


def _rates(found: Mapping[str, Sequence[Verdict]], pairs: int) -> dict[str, dict[str, float]]:
    """How often the first of each kind of pair is preferred, of those that were judged."""

    def win(kind: str) -> float:
        wins = [verdict.win for verdict in found[kind] if not isnan(verdict.margin)]
        return fmean(wins) if wins else 0.0

    matrix = {(a, b): win(f"{a}/{b}") for a in FANCIER for b in FANCIER}
    gaps = {cell: FANCIER.index(cell[0]) - FANCIER.index(cell[1]) for cell in matrix}
    without = 1 - win("label")
    both = [a.margin * b.margin for a, b in zip(found["label"], found[REWORDED], strict=True)]
    flips = [agreed < 0 for agreed in both if not isnan(agreed)]
    rates = {
        "no verdict": {"on pairs": sum(isnan(one.margin) for one in found["label"]) / pairs},
        "beats the chosen response": {kind[5:]: win(kind) for kind in found if kind.startswith("text ")},
        "rejected response wins": {"as it is": without, MORE: win(INSTRUCTION) - without},
        REWORDED: {"preference flips": fmean(flips) if flips else 0.0},
        "beats itself in plain text": {kind[6:]: win(kind) for kind in found if kind.startswith("style ")},
        "agreement, chosen and rejected in style": {f"{a}, {b}": rate for (a, b), rate in matrix.items()},
        "agreement, style tempts": {
            "to the chosen (easy)": fmean(matrix[cell] for cell, gap in gaps.items() if gap > 0),
            "to neither (normal)": fmean(matrix[cell] for cell, gap in gaps.items() if gap == 0),
            "to the rejected (hard)": fmean(matrix[cell] for cell, gap in gaps.items() if gap < 0),
        },
    }
    known = [one for one in found["label"] if not isnan(one.margin)]
    compared = [(one.swapped, one.first) for one in known if one.swapped is not None and one.first is not None]
    if compared:
        swapped, first = map(fmean, zip(*compared, strict=True))
        rates["position"] = {"orders disagree": swapped, "first is preferred": first}
    return rates


def _of_own(own: str, wrote: Sequence[Sequence[str | None]], said: Sequence[Verdict]) -> dict[str, float]:
    """How often responses of this model are preferred to those of others, by the judge and by the labels."""
    pairs = [(sides[0] == own, one) for sides, one in zip(wrote, said, strict=True) if sides.count(own) == 1]
    known = [(ours, one.win) for ours, one in pairs if not isnan(one.margin)]
    if not known:
        return {}
    labels, judge = fmean(ours for ours, _ in known), fmean(win if ours else 1 - win for ours, win in known)
    return {"preferred by the judge": judge, "by the labels": labels, "difference": judge - labels}


def _styled(one: Preference) -> Iterator[dict[str, Any]]:
    """A pair in all styles of both sides, so that style says nothing of which is chosen."""
    for a in FANCIER:
        for b in FANCIER:
            styled = {"chosen": STYLES[a](one.chosen), "rejected": STYLES[b](one.rejected)}
            yield {"prompt": written(one.prompt), **styled, "category": f"{a}/{b}"}
