"""Feedback by judges: labels pairs, or scores answers (RLAIF).

    posttrain judge --dataset pairs.jsonl --judge "a=http://localhost:8000/v1#MODEL" --judge-prompt pairwise \
        --output labelled.jsonl
    posttrain judge --dataset items.jsonl --judge "a=OWNER/NAME self=runs/rl-2026-01-31-1" --consensus majority \
        --output agreed.jsonl --disputed people.jsonl
    posttrain annotate import --project hard --dataset people.jsonl
    posttrain judge --dataset pairs.jsonl --judge "a=OWNER/NAME" --constitution default --principles 3 \
        --output labelled.jsonl

The first line is the preference labelling of RLAIF (Lee et al. 2023, https://arxiv.org/abs/2309.00267), by text; the
prompt `pairwise-expected` gives their soft labels. The second pre-screens for people, and its second judge is the
policy; the last is the AI feedback of Constitutional AI (Bai et al. 2022, https://arxiv.org/abs/2212.08073).

What is finished of a run that was interrupted lies beside the output (`labelled.jsonl.part`): the same command goes on.
"""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from posttrain.background import finish
from posttrain.bindings.judges import MAY_DIFFER, judges_in, rewards_with
from posttrain.bindings.sampling import refuse_unreadable
from posttrain.data import load_candidates, reading_of, seed_for
from posttrain.data.candidates import Candidates
from posttrain.data.digests import rows_digest
from posttrain.data.messages import tools_column, written
from posttrain.environments.scored import of_seat
from posttrain.errors import UserError, as_typed, unknown, words_of
from posttrain.options.judging import JudgeAnswers
from posttrain.options.option import as_written, given
from posttrain.report import Table
from posttrain.rewards import Judge, Weighted
from posttrain.rewards.judges.consensus import consensus, preferences, weight_of
from posttrain.rewards.judges.constitution import Principle, by_principle, opposed, read_constitution
from posttrain.rewards.judges.fitting import differences_of, fitted_weights, shared_criteria
from posttrain.runs import jsonl
from posttrain.runs.inputs import CODE, digests_in
from posttrain.runs.progress import Progress
from posttrain.runs.run_directory import replace_text
from posttrain.types import EpisodeGroup

TOGETHER = 32  # rows judged at a time; what was said of them is all that stays


@dataclass
class Verdicts:
    """What was said of the answers of one row."""

    scores: dict[str, list[float | None]] = field(default_factory=dict[str, list[float | None]])
    """By judge, or "judge: principle", of each answer; None where there was no verdict."""
    parsed: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])  # the same as it was read
    swapped: bool = False  # whether a verdict changed with the positions
    why: str = ""  # the first reason of a missing verdict

    @property
    def known(self) -> dict[str, list[float]]:
        """Those that are whole."""
        return {name: cast("list[float]", of) for name, of in self.scores.items() if None not in of}


def run(config: JudgeAnswers, *, quiet: bool = False) -> tuple[list[str], dict[str, Any]]:
    """Judge every row, and write those that are kept; the files are there when all of them is, or not at all."""
    if not given(config.judge):
        raise UserError("`judge` is required: NAME=MODEL (also the policy's own run) or NAME=URL#MODEL")
    files = jsonl.new_files({"output": config.output, "disputed": config.disputed})
    path, people = files["output"], files.get("disputed")
    principles = read_constitution(config.constitution, "preference").principles if config.constitution else ()
    judging = judges_in(config)
    judging.refuse_policy("posttrain judge")
    prompts = config.judge_prompt or ("principle" if principles else "")
    rewards = rewards_with(judging, replace(config, judge_prompt=prompts), "").rewards
    assert rewards is not None
    judges = [judge for judge, _ in rewards.parts if isinstance(judge, Judge)]
    weights, rows = _weights(config, judges), _read(config, rewards, judges, principles)
    fitted = _fits(config, judges, rows)
    judging.load()
    parts = jsonl.Chunks(path, _about(config, judges, rows, principles) | {"models": [*judging.folders.values()]})
    for judge in judges if parts.done else ():
        vars(judge.spent).update(parts.done[-1]["spent"][judge.name])
    done = sum(len(part["rows"]) for part in parts.done)
    notes = [f"{done} of {len(rows)} rows were judged before"] if done else []
    with judging.kept_beside(path), Progress("judge", len(rows), start=done, quiet=quiet) as progress:
        for start in range(done, len(rows), TOGETHER):
            some = [candidates.group for candidates in rows[start : start + TOGETHER]]
            told = [asdict(verdicts) for verdicts in _judged(config, rewards, some, principles)]
            parts.add({"rows": told, "spent": {judge.name: asdict(judge.spent) for judge in judges}})
            progress.step(start + len(some))
    said = [Verdicts(**row) for part in parts.done for row in part["rows"]]
    rubric = _fit(rows, said, fitted) if fitted else []
    counts = _written(config, path, people, rows, said, weights, notes)
    if rubric:
        file = Path(config.fit_weights).expanduser()
        replace_text(file, judges[0].prompt.with_rubric(rubric))
        notes.append(f'a run judges by the weights with `judge_prompt="{file}"`')
    parts.remove()
    found = {
        "path": path,
        **counts,
        "swapped": fmean(verdicts.swapped for verdicts in said),  # share of rows with a verdict that changed so
        "agreement": _agreement(rows, said),
        "conflicts": opposed([verdicts.known for verdicts in said]),
        "weights": dict(rubric),
        "spent": {judge.name: asdict(judge.spent) for judge in judges},
        "notes": [as_typed(note) for note in notes],
    }
    return _lines(found), found


def _written(
    config: JudgeAnswers,
    path: Path,
    people: Path | None,
    rows: Sequence[Candidates],
    said: Sequence[Verdicts],
    weights: Mapping[str, float],
    notes: list[str],
) -> dict[str, int]:
    """Write the rows that are kept, and those for people; how many there are of each."""
    kept, hard, unjudged = list[dict[str, Any]](), list[dict[str, Any]](), 0
    for candidates, verdicts in zip(rows, said, strict=True):
        known = list(verdicts.known.values())
        whole = len(known) == len(verdicts.scores)
        agreed = not verdicts.swapped and len({tuple(preferences(of)) for of in known}) == 1
        unjudged += not whole
        if not whole or (people and not agreed):
            hard.append(_item(candidates, verdicts))
        else:
            own = [weights[name.partition(":")[0]] for name in verdicts.scores]
            kept.append(_row(candidates, verdicts, consensus(known, config.consensus, own)))
    for file, part in ((path, kept), *([(people, hard)] if people else [])):
        if part:
            jsonl.write(file, part)
        else:
            why = next((verdicts.why for verdicts in said if verdicts.why), "judges disagree on all of them")
            notes.append(f"{file} would be empty, and is not written{f': {why}' if file is path else ''}")
    counts = {"rows": len(rows), "kept": len(kept), "ties": sum("tie" in row for row in kept)}
    return counts | {"disputed": len(hard) - unjudged, "unjudged": unjudged}


def _lines(found: Mapping[str, Any]) -> list[str]:
    """What was found, for people."""
    agreement = {name: f"{share:.3f}" for name, share in found["agreement"].items()}
    rows = [(name, *(f"{n:,}" for n in of.values()), agreement.get(name)) for name, of in found["spent"].items()]
    table = Table("", ("judge", "prompt tokens", "completion tokens", "verdicts", "agreement"), rows)
    pairs = [(pair, f"{both:,}", f"{n:,}") for pair, (both, n) in found["conflicts"].items()]
    opposed = Table("principles that disagree", ("principles", "both judged", "opposed"), pairs)
    fitted = Table("weights", ("criterion", "weight"), [(one, f"{w:+.2f}") for one, w in found["weights"].items()])
    told = f"{found['kept']:,} of {found['rows']:,} rows in {found['path']}, {found['ties']:,} of them ties"
    told += f"; {found['disputed']:,} disputed" if found["disputed"] else ""
    told += f"; {found['unjudged']:,} without a verdict" if found["unjudged"] else ""
    told += f"; verdicts on {found['swapped']:.0%} changed with the positions" if found["swapped"] else ""
    notes = [f"note: {note}" for note in found["notes"]]
    more = [*(opposed.lines() if pairs else ()), *(fitted.lines() if found["weights"] else ())]
    return [*notes, *table.lines(), *more, told]


def _read(
    config: JudgeAnswers, rewards: Weighted, judges: Sequence[Judge], principles: Sequence[Principle]
) -> Sequence[Candidates]:
    """The answers; raises `UserError` for those that a judge cannot judge."""
    if config.principles > max(1, len(principles)):
        raise UserError(f"`principles` is {config.principles}, and the constitution has {len(principles)}")
    if principles and (other := next((judge.name for judge in judges if not judge.prompt.needs("principle")), "")):
        raise UserError(f"the prompt of judge '{other}' has no {{principle}}, which `constitution` is for; add it")
    if not config.dataset:
        raise UserError("`dataset` is required: a jsonl or parquet file or folder, or a hub id, of answers")
    rows = load_candidates(config.dataset, **reading_of(config))
    for group in (row.group for row in rows):
        if len(group.episodes) < rewards.min_group:
            raise UserError(
                f"judge '{rewards.most_compared}' compares {rewards.min_group} or more answers; {group.task.id} has "
                f'{len(group.episodes)}; use a prompt of another kind, such as `judge_prompt="quality"`'
            )
    asked = [by_principle(row.group, principles[0]) if principles else row.group for row in rows]
    refuse_unreadable(rewards, [group.task for group in asked], config.dataset)
    return rows


def _weights(config: JudgeAnswers, judges: Sequence[Judge]) -> dict[str, float]:
    """The weight of each judge's scores."""
    names = [judge.name for judge in judges]
    told: dict[str, float] = {}
    for name, _, text in (word.partition("=") for word in words_of("accuracy", config.accuracy)):
        if name not in names:
            raise unknown("judge in `accuracy`:", name, names)
        if not text.replace(".", "", 1).isdecimal():
            raise UserError(f"`accuracy` has NAME=NUMBER of each judge, such as {name}=0.8; got '{name}={text}'")
        told[name] = weight_of(float(text))
    if told and (missing := next((name for name in names if name not in told), "")):
        raise UserError(f"`accuracy` says nothing of judge '{missing}'; give {missing}=NUMBER too")
    return told or dict.fromkeys(names, 1.0)


def _about(
    config: JudgeAnswers, judges: Sequence[Judge], rows: Sequence[Candidates], principles: Sequence[Principle]
) -> dict[str, Any]:
    """All that verdicts depend on."""
    later = ("output", "disputed", "fit_weights", "consensus", "accuracy", "dataset", *MAY_DIFFER)
    return {
        **{key: value for key, value in as_written(config).items() if key not in later},
        "rows": rows_digest(row.group for row in rows),
        "prompts": rows_digest(
            (j.name, type(j.prompt.kind).__qualname__, j.prompt.text, j.prompt.votes, j.prompt.kind.rubric)
            for j in judges
        ),
        "files": digests_in({key: value for key, value in as_written(config).items() if key in (*CODE, "judge")}),
        "principles of the constitution": rows_digest(principles),
    }


def _judged(
    config: JudgeAnswers, rewards: Weighted, groups: Sequence[EpisodeGroup], principles: Sequence[Principle]
) -> list[Verdicts]:
    """What each judge says of the answers of each row, by each of the principles that are sampled for it."""
    found, sampled = [Verdicts() for _ in groups], list[list[Principle | None]]()
    for group in groups:
        said = [episode.completion for episode in group.episodes]
        draw = random.Random(seed_for(config.seed, "principles", group.task.id, *said))
        sampled.append([*draw.sample(list(principles), config.principles)] if principles else [None])
    for by in zip(*sampled, strict=True):
        asked = [by_principle(group, one) if one else group for group, one in zip(groups, by, strict=True)]
        for verdicts, one, scores in zip(found, by, finish(rewards.score_parts(asked)), strict=True):
            for judge in rewards.weights:
                own = [of_seat(each, "")[judge] for each in scores]
                name = f"{judge}: {one.name}" if one else judge
                verdicts.scores[name] = [score.value if score.applicable else None for score in own]
                verdicts.parsed[name] = [score.parsed for score in own]
                verdicts.swapped |= any(score.metrics.get("swapped") for score in own)
                verdicts.why = verdicts.why or next((s.explanation for s in own if not s.applicable), "")
    return found


def _row(candidates: Candidates, verdicts: Verdicts, scores: Sequence[float]) -> dict[str, Any]:
    """A labelled row in a layout that training reads."""
    task, said = candidates.group.task, [episode.completion for episode in candidates.group.episodes]
    row = {"prompt": written(task.prompt), **tools_column(task.prompt), "id": task.id, "verdicts": verdicts.scores}
    if len(said) == 1:
        return {**row, "completion": said[0], "score": scores[0]}
    if len(said) > 2:
        return {**row, "responses": said, "scores": list(scores)}
    (which,) = preferences(scores)
    better, worse = said if which >= 0 else said[::-1]
    label = {"strength": abs(scores[0] - scores[1])} if which else {"tie": True}
    return {**row, "chosen": better, "rejected": worse, **label}


def _item(candidates: Candidates, verdicts: Verdicts) -> dict[str, Any]:
    """A row for `annotate import`."""
    task, said = candidates.group.task, [episode.completion for episode in candidates.group.episodes]
    own = {key: task.metadata[key] for key in ("item", "completions", "priority", "expected") if key in task.metadata}
    return {
        "item": task.id,
        "prompt": written(task.prompt),
        "completions": said,
        **own,  # what an item has besides, such as the models of its completions
        "verdicts": verdicts.scores,
    }


def _agreement(rows: Sequence[Candidates], said: Sequence[Verdicts]) -> dict[str, float]:
    """Of each judge, the share of labelled comparisons that it decides as the data do; a tie counts half."""
    right: defaultdict[str, list[float]] = defaultdict(list)
    for row, verdicts in zip(rows, said, strict=True):
        labels = preferences(row.given) if len(row.given) > 1 else []
        for name, scores in verdicts.known.items() if labels else ():
            pairs = zip(labels, preferences(scores), strict=True)
            right[name.partition(":")[0]] += [(1 + label * own) / 2 for label, own in pairs if label]
    return {name: fmean(shares) for name, shares in right.items() if shares}


def _fits(config: JudgeAnswers, judges: Sequence[Judge], rows: Sequence[Candidates]) -> list[str]:
    """The criteria whose weights are fitted, if any are; raises `UserError` for what they cannot be fitted to."""
    if not config.fit_weights:
        return []
    if len(judges) > 1 or config.constitution:
        raise UserError("`fit_weights` is of one judge, and of no constitution; pass one `judge` alone")
    path = Path(config.fit_weights).expanduser()
    if path.suffix != ".txt" or path.exists() or not path.parent.is_dir():
        raise UserError(f"`fit_weights` names a new file of a folder that is there, such as fitted.txt; got '{path}'")
    if not any(any(preferences(row.given)) for row in rows if len(row.given) > 1):
        raise UserError("`fit_weights` needs labelled pairs: chosen and rejected, or responses whose scores differ")
    return shared_criteria(judges[0].prompt, [row.group.task for row in rows])


def _fit(rows: Sequence[Candidates], said: Sequence[Verdicts], texts: Sequence[str]) -> list[tuple[str, float]]:
    """The criteria with weights by which labelled pairs are ranked; those without a verdict are left out."""
    labelled = [(preferences(row.given), told) for row, told in zip(rows, said, strict=True) if len(row.given) > 1]
    met = [differences_of(labels, told.parsed[name]) for labels, told in labelled for name in told.known]
    return list(zip(texts, fitted_weights([one for of in met for one in of]), strict=True))
