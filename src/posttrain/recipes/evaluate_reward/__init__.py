"""Reward-model evaluation on held-out pairs: accuracy, calibration, biases.

    posttrain evaluate-reward-model --model runs/reward-model-2026-01-31-1 --dataset dev.jsonl
    posttrain evaluate-reward-model --model OWNER/NAME --dataset allenai/reward-bench --split filtered

Accuracy alone hides what a policy will exploit, so beside it stand how sure the model is when it is wrong, how far its
scores follow the length of a response, and whether an ensemble disagrees where it errs. Pairs are read in any layout
that training reads; RewardBench's is one, whose `subset` is a category here. With `--ties`, pairs that people found
equal, it is told whether the model does so, too. A process reward model is evaluated on labelled steps (steps.py).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from posttrain.data import ChatFormat, load_preferences, load_tokenizer, parse_columns, split_for
from posttrain.data.files import Source
from posttrain.data.loaded import Unusable
from posttrain.data.packing import size_of
from posttrain.data.preferences import pair_of, ranked_of, together
from posttrain.engine.scorer import Scorer, load_scorer
from posttrain.errors import UserError
from posttrain.evaluation.pairs import ScoredPair, accuracy, measures, scored_pairs
from posttrain.models.footprint import read_shape
from posttrain.models.load import locate
from posttrain.models.precision import compute_of
from posttrain.options.evaluation import EvaluateReward
from posttrain.options.option import as_written
from posttrain.recipes.evaluate_reward import steps
from posttrain.recipes.evaluate_reward.result import EvaluateRewardResult, ModelResult, reported
from posttrain.recipes.evaluate_reward.steps import judges_steps, notes_of
from posttrain.runs import RunDirectory, Sample, machine_line
from posttrain.runs.progress import Progress, announce
from posttrain.training.resolve_model import SavedModel, saved_model
from posttrain.training.reward import sequences_of
from posttrain.types import Preference

AT_A_TIME = 64  # prompts between two steps of the progress bar


@dataclass(frozen=True, slots=True)
class Compared(Sample):
    """A pair as `samples.jsonl` keeps it: the completion is the one that people did not choose, the reward a margin."""

    chosen: str = ""
    category: str = ""
    source: str = ""


def run(config: EvaluateReward, *, output: Path | None = None, quiet: bool = False) -> EvaluateRewardResult:
    """Score every pair with a reward model, and a baseline where there is one, into a new run directory."""
    began = time.monotonic()
    if config.microbatch_tokens < config.max_tokens:
        raise UserError(
            f"`microbatch_tokens={config.microbatch_tokens}` must be at least `max_tokens={config.max_tokens}`"
        )
    if not config.model:
        raise UserError("`model` is required: a run of posttrain reward-model, a folder or a hub id")
    models = [saved_model(name) for name in (config.model, config.baseline) if name]
    if judges_steps(models[0]):
        return steps.run(config, models, output=output, quiet=quiet)
    rankings, notes = _read(config, models, config.dataset)
    equal, more = _read(config, models, config.ties, ties=True) if config.ties else ([], [])
    notes += [note for note in more if note not in notes]
    scorer = _load(config, models[0])
    about = compute_of(scorer.model.body, config.precision) | {"model": models[0].where, "notes": notes}
    directory = RunDirectory.create(output, "evaluate-reward-model", as_written(config), environment=about)
    announce(machine_line(directory.environment), quiet=quiet)
    found: list[ModelResult] = []
    done = 0
    everything = [*rankings, *equal]
    # one number for each prompt, wherever it is among the pairs and the ties
    first_with = {one[0].prompt: number for number, one in reversed(list(enumerate(everything)))}
    with directory, Progress("evaluate", len(everything) * len(models), quiet=quiet) as progress:
        for saved in models:
            if found:
                del scorer  # its memory is needed for the next one
                scorer = _load(config, saved)
            pairs, ties = list[ScoredPair](), list[ScoredPair]()
            for first in range(0, len(everything), AT_A_TIME):
                some = everything[first : first + AT_A_TIME]
                units = [ranked_of(scorer.chat, preferences) for preferences in some]
                with progress.phase("scoring"):
                    scored = scored_pairs(units, scorer.of(sequences_of(units)), first=first)
                rows: list[Compared] = []
                for one, pair in zip([one for preferences in some for one in preferences], scored, strict=True):
                    known = pair.prompt < len(rankings)
                    rows += [_row(saved.title, one, pair)] if known else []
                    told = replace(pair, category=one.category, prompt=first_with[everything[pair.prompt][0].prompt])
                    (pairs if known else ties).append(told)
                directory.log_samples(0, rows)
                done += len(some)
                progress.step(done, accuracy=accuracy(pairs).value)
            found.append(ModelResult(saved.title, tuple(pairs), tuple(ties)))
        directory.log_metrics(0, measures(found[0].pairs))
    return reported(config, directory, began, found, notes)


def _load(config: EvaluateReward, saved: SavedModel) -> Scorer:
    scorer = load_scorer(saved.where, precision=config.precision, microbatch_tokens=config.microbatch_tokens)
    if scorer.steps:
        raise UserError(
            f"'{saved.title}' is a process reward model, which scores steps and not pairs; name it as `model`, with "
            "labelled steps"
        )
    return scorer


def _row(model: str, preference: Preference, scored: ScoredPair) -> Compared:
    return Compared(
        prompt="\n".join(f"{m.role}: {m.text}" for m in preference.prompt),
        completion=preference.opening + preference.responses[1].text,
        rewards={"chosen": fmean(scored.chosen), "rejected": fmean(scored.rejected)},
        reward=scored.margin,
        model=model,
        chosen=preference.opening + preference.responses[0].text,
        category=preference.category,
        source=preference.source,
    )


def _read(
    config: EvaluateReward, models: Sequence[SavedModel], dataset: Source, *, ties: bool = False
) -> tuple[list[tuple[Preference, ...]], list[str]]:
    """The pairs by prompt, those that every model can hold, and what is to be said about them."""
    if not dataset:
        raise UserError("`dataset` is required: pairs in a file, folder, glob or hub id")
    columns = parse_columns(config.columns)
    words: dict[str, Any] = {"system": config.system, "prompt_template": config.prompt_template}
    part = split_for(dataset)
    split = None if part is None and ties else config.split or part
    how: dict[str, Any] = {"ties": True} if ties else {"limit": config.limit, "columns": columns}
    loaded = load_preferences(dataset, split=split, **how, **words)
    notes = [*notes_of(config, models, loaded.left_out), *loaded.notes]
    kept = loaded.items
    if config.exclude:
        met = {one.prompt for one in load_preferences(config.exclude, columns=columns, **words).items}
        kept = [one for one in kept if one.prompt not in met]
        notes.append(f"{len(loaded.items) - len(kept)} pairs left out: their prompt is in {config.exclude}")
    rankings = together(kept)
    for saved in models:
        chat = ChatFormat(load_tokenizer(locate(saved.where)))
        most = min(config.max_tokens, read_shape(saved.where).context)
        before = sum(map(len, rankings))
        rankings = [some for each in rankings if (some := tuple(one for one in each if _differs(chat, one)))]
        if same := before - sum(map(len, rankings)):
            notes.append(f"{same} pairs left out: the same tokens on both sides for {saved.title}")
        longest = [max(map(size_of, ranked_of(chat, preferences).examples)) for preferences in rankings]
        too_long = sum(length > most for length in longest)
        if too_long:
            notes.append(f"{too_long} prompts left out: over {most} tokens for {saved.title}")
        rankings = [one for one, length in zip(rankings, longest, strict=True) if length <= most]
    if not rankings:
        raise UserError(f"no pair is left to evaluate on; {'; '.join(notes)}")
    return rankings, notes


def _differs(chat: ChatFormat, one: Preference) -> bool:
    """Whether both sides of a pair are not the same tokens."""
    try:
        return bool(pair_of(chat, one))
    except Unusable:
        return False
