"""How far a reward model can be trusted: on held-out pairs, by category, and where it goes wrong.

    posttrain evaluate --suite reward --model runs/reward-model-2026-01-31-1 --dataset dev.jsonl
    posttrain evaluate --suite reward --model OWNER/NAME --dataset allenai/reward-bench --split filtered

Accuracy alone hides what a policy will exploit, so beside it stand how sure the model is when it is wrong, how far its
scores follow the length of a response, and whether an ensemble disagrees where it errs. Pairs are read in any layout
that training reads; RewardBench's is one, whose `subset` is a category here. With `--ties`, pairs that people found
equal, it is told whether the model does so, too.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from posttrain.data import ChatFormat, load_preferences, load_tokenizer, parse_columns
from posttrain.data.packing import size_of
from posttrain.data.preferences import ranked_of, together
from posttrain.errors import UserError, unknown
from posttrain.evaluation.examination import percent
from posttrain.evaluation.pairs import (
    Accuracy,
    ScoredPair,
    accuracy,
    by_category,
    by_length,
    by_prompt,
    calibration,
    calibration_error,
    crossfitted_error,
    disagreement_tells,
    fit_temperature,
    length_correlation,
    log_loss,
    measures,
    scored_pairs,
)
from posttrain.evaluation.ties import Ties, ties_of
from posttrain.models.footprint import read_shape
from posttrain.models.load import locate
from posttrain.monitoring import (
    Estimate,
    Finding,
    Progress,
    RunDirectory,
    Sample,
    Severity,
    Table,
    read_run,
    write_report,
)
from posttrain.monitoring.chart import Chart, Series
from posttrain.rollouts.scorer import Scorer, load_scorer
from posttrain.statistics import Interval, paired_difference_interval
from posttrain.training.reward import sequences_of
from posttrain.training.saved import SavedModel, saved_model, spoken_otherwise
from posttrain.types import Preference

AT_A_TIME = 64  # prompts between two steps of the progress bar
SHOWN = 4  # pairs in the report
SUITES = ("reward",)
MISCALIBRATED = 0.1  # of calibration error: being wrong one time in ten more than it says
LENGTH_RULES = 0.4  # of correlation with length: a sixth of the variance of the margins


@dataclass(frozen=True)
class EvaluateReward:
    """Measure how well a reward model judges held-out pairs."""

    suite: str = "reward"
    """What is evaluated: reward."""
    dataset: str = ""
    """Held-out pairs: a jsonl or parquet file or folder, or a hub id, in any layout that training reads."""
    ties: str = ""
    """Pairs that people found equally good (rows with `tie`): a file as annotate export --to ties writes it."""
    model: str = ""
    """A reward model: a run (its best checkpoint, or its latest), a checkpoint, a folder, or a hub id."""
    baseline: str = ""
    """Another reward model: it gets the same pairs, and the difference its interval."""
    max_tokens: int = 2048
    """The longest of prompt and response; pairs with a longer one are left out, and counted."""
    columns: str = ""
    """Which columns to read, such as "prompt=question chosen=better rejected=worse"."""
    split: str = ""
    """Which part of a folder or hub data set; "test" unless given."""
    limit: int | None = None
    """Use only so many rows, from the first."""
    exclude: str = ""
    """Pairs that the model was trained on: those whose prompt is among them are left out, and counted."""
    system: str | None = None
    """A system message, in place of the data's own; give the one that the model was trained with."""
    prompt_template: str = "{prompt}"
    """Text around each of the user's messages; give the one that the model was trained with."""
    precision: str = "auto"
    """float32, bfloat16, or auto: what this machine computes faster."""
    microbatch_tokens: int = 4096
    """Tokens of one forward pass."""


@dataclass(frozen=True)
class Judged:
    """What one model made of the pairs."""

    model: str
    pairs: tuple[ScoredPair, ...]
    equal: tuple[ScoredPair, ...] = ()  # those that people found equally good

    @property
    def ties(self) -> Ties | None:
        """What it makes of ties, where there are any."""
        return ties_of(self.pairs, self.equal) if self.equal else None

    def summary(self) -> dict[str, Any]:
        """The numbers for a machine to read."""
        tells, length = disagreement_tells(self.pairs), length_correlation(self.pairs)
        return {
            "model": self.model,
            **_numbers(accuracy(self.pairs)),
            "categories": {name: _numbers(found) for name, found in by_category(self.pairs).items()},
            "prompts": len(by_prompt(self.pairs)),
            "ties": sum(pair.margin == 0 for pair in self.pairs),
            "log_loss": log_loss(self.pairs),
            "calibration_error": calibration_error(self.pairs),
            "calibration": [bin._asdict() for bin in calibration(self.pairs)],
            "temperature": fit_temperature(self.pairs),
            "calibration_error_at_temperature": crossfitted_error(self.pairs),
            "length_correlation": length,
            "by_length": {name: _numbers(found) for name, found in by_length(self.pairs).items()},
            "members": len(self.pairs[0].chosen),
            "disagreement_tells": tells,
            "ties_said": None if self.ties is None else self.ties._asdict(),
        }

    def lines(self) -> list[str]:
        """The same in words."""
        found = self.summary()
        lines = [f"judged as people did: {_share(accuracy(self.pairs))}; {len(self.pairs)} pairs, {found['ties']} ties"]
        lines += [f"    {name or 'without a category'}: {_share(one)}" for name, one in by_category(self.pairs).items()]
        lines.append(
            f"calibration error {found['calibration_error']:.3f}; {found['calibration_error_at_temperature']:.3f} with "
            f"its scores divided by {found['temperature']:.2f}"
        )
        sides = [f"{_share(one)} where the chosen one is {name}" for name, one in by_length(self.pairs).items()]
        if found["length_correlation"] is not None:
            lines.append(f"correlation with length {found['length_correlation']:+.2f}; {', '.join(sides)}")
        if found["members"] > 1:
            told = "-" if found["disagreement_tells"] is None else f"{found['disagreement_tells']:.2f}"
            lines.append(f"{found['members']} members; their disagreement tells errors with an AUC of {told}")
        if (ties := self.ties) is not None:
            lines.append(
                f"{ties.ties} pairs that people found equal: told from others with an AUC of {ties.told:.2f}; right in "
                f"{percent(ties.accuracy, ties.ci95)} of all with ties, {100 * ties.never:.1f} % without"
            )
        return [f"  {line}" for line in lines]


@dataclass(frozen=True)
class EvaluateRewardResult:
    """What was found, and where all of it is."""

    run: Path
    report: Path
    seconds: float
    config: EvaluateReward
    model: Judged
    baseline: Judged | None
    notes: tuple[str, ...]

    @property
    def difference(self) -> tuple[float, Interval] | None:
        """How much more often the model is right than the baseline on the same pairs, with its interval."""
        if self.baseline is None:
            return None
        before, after = (list(by_prompt(one.pairs).values()) for one in (self.baseline, self.model))
        return fmean(after) - fmean(before), paired_difference_interval(before, after)

    def summary(self) -> dict[str, Any]:
        """The numbers for a machine to read."""
        found = self.model.summary()
        if self.baseline is not None and self.difference is not None:
            found["baseline"] = self.baseline.summary()
            found["difference"] = {"value": self.difference[0], "ci95": list(self.difference[1])}
        about = {"dataset": self.config.dataset, "notes": list(self.notes)}
        return found | about | {"seconds": self.seconds, "run": str(self.run), "report": str(self.report)}

    def lines(self) -> list[str]:
        """The same in words."""
        found = [f"{self.model.model} on {self.config.dataset}", *self.model.lines()]
        if self.baseline is not None and self.difference is not None:
            value, (low, high) = self.difference
            found += [f"{self.baseline.model} on the same pairs", *self.baseline.lines()]
            found.append(f"  difference {100 * value:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})")
        return [*found, *(f"note: {note}" for note in self.notes), f"report: {self.report}"]


@dataclass(frozen=True, slots=True)
class Compared(Sample):
    """A pair as `samples.jsonl` keeps it: the completion is the one that people did not choose, the reward a margin."""

    chosen: str = ""
    category: str = ""
    source: str = ""


def run(config: EvaluateReward, *, output: Path | None = None, quiet: bool = False) -> EvaluateRewardResult:
    """Score every pair with a reward model, and a baseline where there is one, into a new run directory."""
    began = time.monotonic()
    if config.suite not in SUITES:
        raise unknown("suite", config.suite, SUITES)
    if config.microbatch_tokens < config.max_tokens:
        raise UserError(
            f"--microbatch-tokens {config.microbatch_tokens} must be at least --max-tokens {config.max_tokens}"
        )
    if not config.model:
        raise UserError("say which reward model with --model: a run of posttrain reward-model, a folder or a hub id")
    models = [saved_model(name) for name in (config.model, config.baseline) if name]
    rankings, notes = _read(config, models, config.dataset)
    equal, more = _read(config, models, config.ties, ties=True) if config.ties else ([], [])
    notes += [note for note in more if note not in notes]
    scorer = _load(config, models[0])
    about = {"device": str(scorer.model.body.device), "precision": str(scorer.model.body.dtype), "notes": notes}
    directory = RunDirectory.create(output, "evaluate", asdict(config), environment=about)
    found: list[Judged] = []
    done = 0
    everything = [*rankings, *equal]
    with directory, Progress("evaluate", len(everything) * len(models), quiet=quiet) as progress:
        for saved in models:
            if found:
                del scorer  # its memory is needed for the next one
                scorer = _load(config, saved)
            judged = Judged(saved.title, ())
            for first in range(0, len(everything), AT_A_TIME):
                some = everything[first : first + AT_A_TIME]
                units = [ranked_of(scorer.chat, preferences) for preferences in some]
                with progress.phase("scoring"):
                    scored = scored_pairs(units, scorer.of(sequences_of(units)), first=first)
                compared = [one for preferences in some for one in preferences]
                judged = _more(judged, compared, scored, len(rankings))
                decided = [pair for pair in zip(compared, scored, strict=True) if pair[1].prompt < len(rankings)]
                directory.log_samples(0, (_row(saved.title, *pair) for pair in decided))
                done += len(some)
                progress.step(done, accuracy=accuracy(judged.pairs).value)
            found.append(_by_prompt(judged, everything))
        directory.log_metrics(0, measures(found[0].pairs))
    seconds = time.monotonic() - began
    baseline = found[1] if config.baseline else None
    result = EvaluateRewardResult(directory.path, directory.report, seconds, config, found[0], baseline, tuple(notes))
    _report(result)
    return result


def _more(judged: Judged, compared: Sequence[Preference], scored: Sequence[ScoredPair], decided: int) -> Judged:
    """The same with more pairs; those from number `decided` on are ties."""
    new = [replace(pair, category=one.category) for pair, one in zip(scored, compared, strict=True)]
    pairs, equal = ([p for p in new if (p.prompt < decided) == known] for known in (True, False))
    return replace(judged, pairs=(*judged.pairs, *pairs), equal=(*judged.equal, *equal))


def _by_prompt(judged: Judged, everything: Sequence[tuple[Preference, ...]]) -> Judged:
    """The same with one number for each prompt, wherever it is among the pairs and the ties."""
    first = {one[0].prompt: number for number, one in reversed(list(enumerate(everything)))}

    def numbered(pairs: Sequence[ScoredPair]) -> tuple[ScoredPair, ...]:
        return tuple(replace(pair, prompt=first[everything[pair.prompt][0].prompt]) for pair in pairs)

    return replace(judged, pairs=numbered(judged.pairs), equal=numbered(judged.equal))


def _load(config: EvaluateReward, saved: SavedModel) -> Scorer:
    return load_scorer(saved.where, precision=config.precision, microbatch_tokens=config.microbatch_tokens)


def _row(model: str, preference: Preference, scored: ScoredPair) -> Compared:
    return Compared(
        prompt="\n".join(f"{m.role}: {m.content}" for m in preference.prompt),
        completion=preference.opening + preference.rejected,
        rewards={"chosen": fmean(scored.chosen), "rejected": fmean(scored.rejected)},
        reward=scored.margin,
        model=model,
        chosen=preference.opening + preference.chosen,
        category=preference.category,
        source=preference.source,
    )


def _read(
    config: EvaluateReward, models: Sequence[SavedModel], dataset: str, *, ties: bool = False
) -> tuple[list[tuple[Preference, ...]], list[str]]:
    """The pairs by prompt, those that every model can hold, and what is to be said about them."""
    if not dataset:
        raise UserError("say what to judge with --dataset: pairs in a jsonl or parquet file or folder, or a hub id")
    columns = parse_columns(config.columns) if config.columns else None
    words: dict[str, Any] = {
        "system": config.system,
        "prompt_template": config.prompt_template,
    }
    file = Path(dataset).expanduser().is_file()
    split = None if file and ties else config.split or (None if file else "test")
    if ties:
        loaded = load_preferences(dataset, split=split, ties=True, **words)
    else:
        loaded = load_preferences(dataset, split=split, limit=config.limit, columns=columns, **words)
    notes = [note for saved in models for note in saved.notes()]
    for saved in models:
        notes += spoken_otherwise(saved, system=config.system, prompt_template=config.prompt_template)
    if loaded.left_out:
        notes.append(f"{len(loaded.left_out)} rows left out: {'; '.join(loaded.left_out[:3])}")
    kept = loaded.items
    if config.exclude:
        met = {one.prompt for one in load_preferences(config.exclude, columns=columns, **words).items}
        kept = [one for one in kept if one.prompt not in met]
        notes.append(f"{len(loaded.items) - len(kept)} pairs left out: their prompt is in {config.exclude}")
    rankings = together(kept)
    for saved in models:
        chat = ChatFormat(load_tokenizer(locate(saved.where)))
        most = min(config.max_tokens, read_shape(saved.where).context)
        longest = [max(map(size_of, ranked_of(chat, preferences).examples)) for preferences in rankings]
        too_long = sum(length > most for length in longest)
        if too_long:
            notes.append(f"{too_long} prompts left out: over {most} tokens for {saved.title}")
        rankings = [one for one, length in zip(rankings, longest, strict=True) if length <= most]
    if not rankings:
        raise UserError(f"no pair is left to judge; {'; '.join(notes)}")
    return rankings, notes


def _report(result: EvaluateRewardResult) -> None:
    """The page: the table, the curve of calibration, and the pairs on which the model is surest and wrong."""
    read = read_run(result.run)
    ours = [row for row in read.samples if row["model"] == result.model.model]
    wrong = sorted((row for row in ours if row["reward"] < 0), key=lambda row: row["reward"])
    page = replace(read, metrics=[], samples=[row | {"answer": row["chosen"]} for row in wrong[:SHOWN]])
    write_report(page, tables=_tables(result), findings=_findings(result), charts=[("Calibration", [_curve(result)])])


def _models(result: EvaluateRewardResult) -> list[Judged]:
    return [one for one in (result.model, result.baseline) if one is not None]


def _tables(result: EvaluateRewardResult) -> list[Table]:
    rows: list[tuple[str | Estimate | None, ...]] = []
    for judged in _models(result):
        found, sides = judged.summary(), by_length(judged.pairs)
        length, tells = found["length_correlation"], found["disagreement_tells"]
        rows.append(
            (
                judged.model,
                _estimate(accuracy(judged.pairs)),
                f"{found['calibration_error']:.3f}",
                "-" if length is None else f"{length:+.2f}",
                _estimate(sides["longer"]) if "longer" in sides else None,
                _estimate(sides["shorter"]) if "shorter" in sides else None,
                "-" if tells is None else f"{tells:.2f}",
            )
        )
    columns = (
        *("model", "judged as people did", "calibration error", "correlation with length"),
        *("chosen is longer", "chosen is shorter", "disagreement tells errors"),
    )
    note = (
        f"{len(result.model.pairs)} pairs; ranges are 95 % intervals over pairs; equal scores are half right. The "
        "correlation is of how much more a response scores with how many more tokens it has. The last is the chance "
        "that an ensemble's members disagree more over a pair that is judged wrongly."
    )
    tables = [Table(f"Held-out pairs: {result.config.dataset}", columns, rows, note)]
    told = [(judged.model, judged.ties) for judged in _models(result)]
    if said := [(model, ties) for model, ties in told if ties is not None]:
        lines = [
            (model, f"{ties.told:.2f}", Estimate(ties.accuracy, *ties.ci95), percent(ties.never), f"{ties.epsilon:.3f}")
            for model, ties in said
        ]
        columns = ("model", "tells them from others (AUC)", "right, with ties", "right, never a tie", "a tie up to")
        note = (
            f"{said[0][1].ties} pairs that people found equal beside {said[0][1].pairs} that they decided. The margin "
            "up to which a pair is called a tie is found on one half of the pairs and used on the other."
        )
        tables.append(Table("Pairs that people found equal", columns, lines, note))
    if categories := by_category(result.model.pairs):
        each = [by_category(judged.pairs) for judged in _models(result)]
        lines = [
            (name or "none", str(one.pairs), *(_estimate(found[name]) for found in each))
            for name, one in categories.items()
        ]
        columns = ("category", "pairs", *(judged.model for judged in _models(result)))
        tables.append(Table("By category", columns, lines))
    return tables


def _curve(result: EvaluateRewardResult) -> Chart:
    """How often the model is right, by how sure it is."""
    series = [
        Series(judged.model, [(100 * one.confidence, one.right) for one in calibration(judged.pairs)])
        for judged in _models(result)
    ]
    perfect = Series("as sure as right", [(50.0, 0.5), (100.0, 1.0)])
    return Chart("Right by how sure (%)", [*series, perfect], percent=True, zero=False)


def _findings(result: EvaluateRewardResult) -> list[Finding]:
    """What to know before a policy is trained on these scores."""
    found: list[Finding] = []
    numbers = result.model.summary()
    (value, (low, high), _), length = accuracy(result.model.pairs), numbers["length_correlation"]
    evidence = f"{100 * value:.1f} % of the pairs are judged as people did ({100 * low:.1f} to {100 * high:.1f})"
    if low <= 0.5:
        found.append(Finding(Severity.PROBLEM, "Not to be told apart from a coin", evidence, "Train on more pairs."))
    else:
        found.append(Finding(Severity.GOOD, "It knows something of what people choose", evidence))
    if result.difference is not None:
        value, (low, high) = result.difference
        severity, word = (
            (Severity.GOOD, "Better than") if low > 0 else (Severity.WARNING, "Worse than") if high < 0 else (None, "")
        )
        evidence = f"{100 * value:+.1f} points on the same pairs ({100 * low:+.1f} to {100 * high:+.1f})"
        title = f"{word or 'Not to be told apart from'} the baseline"
        found.append(Finding(severity or Severity.NOTE, title, evidence))
    if numbers["calibration_error"] >= MISCALIBRATED:
        evidence = f"calibration error {numbers['calibration_error']:.3f}"
        advice = f"Divide its scores by {numbers['temperature']:.2f}, or train it with pairs held out."
        found.append(Finding(Severity.WARNING, "It is not as often right as it is sure", evidence, advice))
    if length is not None and abs(length) >= LENGTH_RULES:
        evidence = f"margins follow the difference in length with a correlation of {length:+.2f}"
        advice = "A policy will learn the length: train with --length-debias 1, or watch it closely."
        found.append(Finding(Severity.WARNING, "It scores length", evidence, advice))
    return [*found, *(Finding(Severity.NOTE, "About these pairs", note) for note in result.notes)]


def _estimate(found: Accuracy) -> Estimate:
    return Estimate(found.value, *found.ci95)


def _numbers(found: Accuracy) -> dict[str, Any]:
    return {"accuracy": found.value, "ci95": list(found.ci95), "n": found.pairs}


def _share(found: Accuracy) -> str:
    return percent(found.value, found.ci95)
