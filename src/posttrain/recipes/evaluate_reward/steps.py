"""Process reward models on labelled steps: are steps told right from wrong, and is the first wrong one found?

The second is ProcessBench's protocol (`evaluation/steps.py`).
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

from posttrain.data import ChatFormat, load_tokenizer, parse_columns, split_for
from posttrain.data.loaded import Unusable
from posttrain.data.packing import Stepwise, size_of
from posttrain.data.ratings import Reasoning, first_steps, load_steps, stepwise_of
from posttrain.engine.scorer import load_scorer
from posttrain.errors import ModelError, UserError
from posttrain.evaluation.pairs import accuracy
from posttrain.evaluation.process_bench import ALL_RIGHT
from posttrain.evaluation.steps import HALF, crossfitted, first_wrong, scored_steps, step_measures
from posttrain.models.footprint import read_shape
from posttrain.models.heads import scores_steps
from posttrain.models.load import locate, read_config
from posttrain.models.precision import compute_of
from posttrain.options.evaluation import EvaluateReward
from posttrain.options.option import as_written
from posttrain.recipes.evaluate_reward.result import EvaluateRewardResult, ModelResult, reported
from posttrain.runs import RunDirectory, Sample, machine_line
from posttrain.runs.progress import Progress, announce
from posttrain.training.resolve_model import SavedModel, spoken_otherwise

AT_A_TIME = 64  # reasonings between two steps of the progress bar


def judges_steps(saved: SavedModel) -> bool:
    """Whether this is a process reward model."""
    try:
        return scores_steps(read_config(saved.title, locate(saved.where)))
    except ModelError:
        return False  # what is wrong with it is said when it is loaded


def run(
    config: EvaluateReward, models: Sequence[SavedModel], *, output: Path | None = None, quiet: bool = False
) -> EvaluateRewardResult:
    """Score every labelled step with a process reward model, and with a baseline, into a new run directory."""
    began = time.monotonic()
    if config.ties or not all(map(judges_steps, models)):
        raise UserError(
            f"'{models[0].title}' is a process reward model, which scores steps; leave out `ties`, and name such a "
            "model as `baseline`"
        )
    reasonings, notes = _read(config, models)
    load = partial(load_scorer, precision=config.precision, microbatch_tokens=config.microbatch_tokens)
    scorer = load(models[0].where)
    held = _held(config, models, reasonings, notes)
    about = compute_of(scorer.model.body, config.precision) | {"model": models[0].where, "notes": notes}
    directory = RunDirectory.create(output, "evaluate-reward-model", as_written(config), environment=about)
    announce(machine_line(directory.environment), quiet=quiet)
    found, units = list[ModelResult](), list[Unit]()
    with directory, Progress("evaluate", len(held) * len(models), quiet=quiet) as progress:
        for saved in models:
            if found:
                del scorer  # its memory is needed for the next one
                scorer = load(saved.where)
            units = [(one, whole, stepwise_of(scorer.chat, one)) for one, whole in held]
            logits = list[tuple[float, ...]]()
            for first in range(0, len(units), AT_A_TIME):
                some = units[first : first + AT_A_TIME]
                with progress.phase("scoring"):
                    scores = scorer.of([unit.example for *_, unit in some])
                logits += [score[: len(unit.right)] for (*_, unit), score in zip(some, scores, strict=True)]
                progress.step(len(found) * len(units) + len(logits))
            found.append(_judged(saved.title, units, logits))
            directory.log_samples(0, _rows(saved.title, units, logits))
            if len(found) == 1:  # metrics are of the model, not of its baseline
                directory.log_metrics(0, _measures(units, logits) | {"accuracy": accuracy(found[0].pairs).value})
    if cut := sum(not _known(whole, unit) for _, whole, unit in units):
        notes.append(f"{cut} reasonings were cut before a wrong step: only their steps count, not the first wrong one")
    if found[0].first_wrong is None:
        notes.append("the first wrong step is not measured: that needs rows with a wrong step and rows without one")
    return reported(config, directory, began, found, notes)


Judged = tuple[Reasoning, bool]  # and whether it is whole
Unit = tuple[Reasoning, bool, Stepwise]


def _read(config: EvaluateReward, models: Sequence[SavedModel]) -> tuple[list[Reasoning], list[str]]:
    if not config.dataset:
        raise UserError("`dataset` is required: labelled steps in a file, folder, glob or hub id")
    columns = parse_columns(config.columns)
    words: dict[str, Any] = {"system": config.system, "prompt_template": config.prompt_template, "columns": columns}
    split = config.split or split_for(config.dataset)
    loaded = load_steps(config.dataset, split=split, limit=config.limit, **words)
    notes = notes_of(config, models, loaded.left_out)
    met = {one.prompt for one in load_steps(config.exclude, **words).items} if config.exclude else set()
    kept = [one for one in loaded.items if one.prompt not in met]
    if config.exclude:
        notes.append(f"{len(loaded.items) - len(kept)} rows left out: their prompt is in {config.exclude}")
    return kept, [*notes, *loaded.notes]


def notes_of(config: EvaluateReward, models: Sequence[SavedModel], left_out: Sequence[str]) -> list[str]:
    """What is said of the models, and of rows that were left out."""
    notes = [note for saved in models for note in saved.notes()]
    for saved in models:
        notes += spoken_otherwise(saved, system=config.system, prompt_template=config.prompt_template)
    return notes + ([f"{len(left_out)} rows left out: {'; '.join(left_out[:3])}"] if left_out else [])


def _held(
    config: EvaluateReward, models: Sequence[SavedModel], reasonings: Sequence[Reasoning], notes: list[str]
) -> list[Judged]:
    """Reasonings that every model can hold; of those that are too long for one of them the steps that fit.

    All models are given the same, or their difference would be of different steps.
    """
    found, left = [(one, True) for one in reasonings], list[str]()
    for saved in models:
        chat = ChatFormat(load_tokenizer(locate(saved.where)))
        most = min(config.max_tokens, config.microbatch_tokens, read_shape(saved.where).context)
        before, found, short = found, list[Judged](), 0
        for one, whole in before:
            try:
                unit = stepwise_of(chat, one)
            except Unusable as reason:
                left.append(str(reason))
                continue
            if size_of(unit.example) <= most:
                found.append((one, whole))
            elif first := first_steps(unit, most):
                labelled = [place for place, label in enumerate(one.labels, 1) if label is not None]
                until = labelled[len(first.right) - 1]
                found.append((replace(one, steps=one.steps[:until], labels=one.labels[:until]), False))
            else:
                short += 1
        notes += [f"{short} rows left out: no labelled step ends within {most} tokens"] if short else []
    notes += [f"{len(left)} rows left out: {left[0]}"] if left else []
    if not found:
        raise UserError(f"no labelled step is left to evaluate on; {'; '.join(notes)}")
    return found


def _known(whole: bool, unit: Stepwise) -> bool:
    """Whether the first wrong step is known: of a cut reasoning without one it may have been cut off."""
    return whole or first_wrong(unit) is not None


def _judged(title: str, units: Sequence[Unit], logits: Sequence[Sequence[float]]) -> ModelResult:
    prompts = {prompt: number for number, prompt in enumerate(dict.fromkeys(one.prompt for one, *_ in units))}
    numbers = [prompts[one.prompt] for one, *_ in units]
    steps = scored_steps([unit for *_, unit in units], logits)
    pairs = tuple(replace(step, prompt=numbers[step.prompt]) for step in steps)
    known = [place for place, (_, whole, unit) in enumerate(units) if _known(whole, unit)]
    labels = [ALL_RIGHT if (place := first_wrong(unit)) is None else place for *_, unit in units]
    told = crossfitted([labels[i] for i in known], [logits[i] for i in known], [numbers[i] for i in known])
    return ModelResult(title, pairs, first_wrong=told)


def _place(whole: bool, unit: Stepwise) -> str:
    place = first_wrong(unit)
    return str(place + 1) if place is not None else "none" if whole else "unknown: the reasoning was cut"


def _measures(units: Sequence[Unit], logits: Sequence[Sequence[float]]) -> dict[str, float]:
    measures = step_measures([unit for *_, unit in units], logits)
    known = [place for place, (_, whole, unit) in enumerate(units) if _known(whole, unit)]
    kept = [unit for *_, unit in compress(units, known)]
    told = step_measures(kept, [*compress(logits, known)]) if kept else {}
    return measures | {name: told.get(name, math.nan) for name in ("first_error", "wrong")}


def _rows(model: str, units: Sequence[Unit], logits: Sequence[Sequence[float]]) -> list[Sample]:
    """Reasonings, each with the margin of its worst judged step: below 0 where one is judged wrongly."""
    return [
        Sample(
            prompt="\n".join(f"{message.role}: {message.text}" for message in one.prompt),
            completion="\n".join(f"{step} [{logit:+.2f}]" for step, logit in zip(one.steps, scores, strict=False)),
            reward=min(logit if right > HALF else -logit for right, logit in zip(unit.right, scores, strict=True)),
            answer=f"first wrong step: {_place(whole, unit)}",
            model=model,
        )
        for (one, whole, unit), scores in zip(units, logits, strict=True)
    ]
