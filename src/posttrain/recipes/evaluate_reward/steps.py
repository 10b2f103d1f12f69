"""Process reward models on labelled steps: are steps told right from wrong, and is the first wrong one found?

The second is ProcessBench's protocol (`evaluation/steps.py`).
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from posttrain.data import parse_columns, split_for
from posttrain.data.loaded import Unusable
from posttrain.data.packing import Stepwise, size_of
from posttrain.data.ratings import Reasoning, first_steps, load_steps, stepwise_of
from posttrain.engine.scorer import Scorer, load_scorer
from posttrain.errors import ModelError, UserError
from posttrain.evaluation.pairs import accuracy
from posttrain.evaluation.process_bench import ALL_RIGHT
from posttrain.evaluation.steps import HALF, crossfitted, first_wrong, scored_steps, step_measures
from posttrain.models.heads import scores_steps
from posttrain.models.load import locate, read_config
from posttrain.models.precision import compute_of
from posttrain.options.evaluation import EvaluateReward
from posttrain.options.option import as_written
from posttrain.recipes.evaluate_reward.result import EvaluateRewardResult, ModelResult, write_page
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
    scorer = _load(config, models[0])
    units = _units(config, scorer, reasonings, notes)
    about = compute_of(scorer.model.body, config.precision) | {"model": models[0].where, "notes": notes}
    directory = RunDirectory.create(output, "evaluate-reward-model", as_written(config), environment=about)
    announce(machine_line(directory.environment), quiet=quiet)
    found, logits = list[ModelResult](), list[tuple[float, ...]]()
    with directory, Progress("evaluate", len(units) * len(models), quiet=quiet) as progress:
        for saved in models:
            if found:
                scorer = _load(config, saved)
                units = _units(config, scorer, reasonings, [])
            logits = []
            for first in range(0, len(units), AT_A_TIME):
                some = units[first : first + AT_A_TIME]
                with progress.phase("scoring"):
                    scores = scorer.of([unit.example for _, unit in some])
                logits += [score[: len(unit.right)] for (_, unit), score in zip(some, scores, strict=True)]
                progress.step(len(found) * len(units) + len(logits))
            found.append(_judged(saved.title, units, logits))
            directory.log_samples(0, _rows(saved.title, units, logits))
            if len(found) == 1:  # metrics are of the model, not of its baseline
                measures = step_measures([unit for _, unit in units], logits)
                directory.log_metrics(0, measures | {"accuracy": accuracy(found[0].pairs).value})
    if found[0].first_wrong is None:
        notes.append("the first wrong step is not measured: that needs rows with a wrong step and rows without one")
    result = EvaluateRewardResult(
        directory.path,
        directory.report,
        time.monotonic() - began,
        str(config.dataset),
        found[0],
        found[1] if config.baseline else None,
        tuple(notes),
    )
    write_page(result)
    return result


Unit = tuple[Reasoning, Stepwise]


def _read(config: EvaluateReward, models: Sequence[SavedModel]) -> tuple[list[Reasoning], list[str]]:
    if not config.dataset:
        raise UserError("`dataset` is required: labelled steps in a file, folder, glob or hub id")
    columns = parse_columns(config.columns) if config.columns else None
    words: dict[str, Any] = {"system": config.system, "prompt_template": config.prompt_template, "columns": columns}
    split = config.split or split_for(config.dataset, "test")
    loaded = load_steps(config.dataset, split=split, limit=config.limit, **words)
    notes = [note for saved in models for note in saved.notes()]
    for saved in models:
        notes += spoken_otherwise(saved, system=config.system, prompt_template=config.prompt_template)
    if loaded.left_out:
        notes.append(f"{len(loaded.left_out)} rows left out: {'; '.join(loaded.left_out[:3])}")
    met = {one.prompt for one in load_steps(config.exclude, **words).items} if config.exclude else set()
    kept = [one for one in loaded.items if one.prompt not in met]
    if config.exclude:
        notes.append(f"{len(loaded.items) - len(kept)} rows left out: their prompt is in {config.exclude}")
    return kept, [*notes, *loaded.notes]


def _load(config: EvaluateReward, saved: SavedModel) -> Scorer:
    return load_scorer(saved.where, precision=config.precision, microbatch_tokens=config.microbatch_tokens)


def _units(config: EvaluateReward, scorer: Scorer, reasonings: Sequence[Reasoning], notes: list[str]) -> list[Unit]:
    """Reasonings as tokens; of those that are too long the steps that fit."""
    most = min(config.max_tokens, scorer.most)
    found, left = list[Unit](), list[str]()
    for one in reasonings:
        try:
            unit: Stepwise | None = stepwise_of(scorer.chat, one)
        except Unusable as reason:
            left.append(str(reason))
            continue
        if unit is not None and size_of(unit.example) > most:
            unit = first_steps(unit, most)
        found += [(one, unit)] if unit is not None else []
    notes += [f"{len(left)} rows left out: {left[0]}"] if left else []
    if over := len(reasonings) - len(left) - len(found):
        notes.append(f"{over} rows left out: no labelled step ends within {most} tokens")
    if not found:
        raise UserError(f"no labelled step is left to evaluate on; {'; '.join(notes)}")
    return found


def _judged(title: str, units: Sequence[Unit], logits: Sequence[Sequence[float]]) -> ModelResult:
    prompts = {prompt: number for number, prompt in enumerate(dict.fromkeys(one.prompt for one, _ in units))}
    numbers = [prompts[one.prompt] for one, _ in units]
    steps = scored_steps([unit for _, unit in units], logits)
    pairs = tuple(replace(step, prompt=numbers[step.prompt]) for step in steps)
    labels = [ALL_RIGHT if (place := first_wrong(unit)) is None else place for _, unit in units]
    return ModelResult(title, pairs, first_wrong=crossfitted(labels, logits, numbers))


def _rows(model: str, units: Sequence[Unit], logits: Sequence[Sequence[float]]) -> list[Sample]:
    """Reasonings, each with the margin of its worst judged step: below 0 where one is judged wrongly."""
    return [
        Sample(
            prompt="\n".join(f"{message.role}: {message.text}" for message in one.prompt),
            completion="\n".join(f"{step} [{logit:+.2f}]" for step, logit in zip(one.steps, scores, strict=False)),
            reward=min(logit if right > HALF else -logit for right, logit in zip(unit.right, scores, strict=True)),
            answer=f"first wrong step: {'none' if (place := first_wrong(unit)) is None else place + 1}",
            model=model,
        )
        for (one, unit), scores in zip(units, logits, strict=True)
    ]
