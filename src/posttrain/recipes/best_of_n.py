"""Best-of-n sampling: keep the completions of highest reward (rejection sampling).

    posttrain best-of-n --dataset prompts.jsonl --reward-model runs/reward-model-2026-01-31-1 --output best.jsonl
    posttrain sft --dataset best.jsonl
    posttrain best-of-n --dataset train.jsonl --reward numbers --at-least 1 --keep 4 --output right.jsonl
    posttrain best-of-n --dataset prompts.jsonl --reward-model runs/reward-model-2026-01-31-1 --gold-model OTHER \
        --output best.jsonl --adversarial-pairs fooled.jsonl
    posttrain best-of-n --dataset gym:chain_sum --reward gym --output best.jsonl --step-labels steps.jsonl
    posttrain best-of-n --dataset prompts.jsonl --reward-model RUN --output best.jsonl --pairs pairs.jsonl

The first two lines are one round of RAFT (Dong et al. 2023, https://arxiv.org/abs/2304.06767) and of the rejection
sampling of Llama 2 (Touvron et al. 2023, https://arxiv.org/abs/2307.09288, section 3.2.3); the third keeps different
right answers, as RFT does (Yuan et al. 2023, https://arxiv.org/abs/2308.01825). What the best of every smaller n earns
is told as well, with the gold reward beside if one is given: where gold falls while the reward rises, it is being
gamed. An answer that was cut off is never kept.

The fourth also writes adversarial pairs: (chosen: highest gold, rejected: highest reward), where the two
rewards rank them differently. Adding them to a reward model's training pairs is a round of adversarial training. Where
people are the gold, `--annotation-items items.jsonl` writes the answer of highest reward and a random other one, for
`annotate import`.

The fifth also writes completions whose steps are labelled, for a process reward model (evaluation/step_labels.py), and
the last one pairs of the best and the worst completion of a prompt, for preference optimisation.

What is finished of a run that was interrupted lies beside the output (`best.jsonl.part`): the same command goes on.
"""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from posttrain.bindings.backend import online_backend
from posttrain.bindings.heldout import weighed
from posttrain.bindings.judges import MAY_DIFFER
from posttrain.bindings.sampling import Setup, set_up
from posttrain.data.digests import rows_digest
from posttrain.data.messages import tools_column, written
from posttrain.data.order import seed_for
from posttrain.episodes.episodes import sample_groups
from posttrain.errors import RewardError, UserError, as_typed
from posttrain.evaluation.step_labels import step_rows
from posttrain.options.online import BestOfN, OnlineOptions, SampledOptions
from posttrain.options.option import as_written
from posttrain.report import Table
from posttrain.report.overoptimization import best_of_n_kl
from posttrain.runs import jsonl
from posttrain.runs.inputs import CODE, digests_in
from posttrain.runs.jsonl import Chunks
from posttrain.runs.progress import Progress
from posttrain.statistics import best_of_n
from posttrain.training import adversarial
from posttrain.training.resolve_model import saved_model
from posttrain.types import Group, Message, Row, StopReason

EXTRA = ("pairs", "step_labels", "adversarial_pairs", "annotation_items")  # the options of other files
LABELS = ("step_labels", "label_by", "continuations", "label_per_prompt")  # the options of labelled steps
TOGETHER = 32  # prompts sampled at a time; what was kept of them is all that stays


class Earned(NamedTuple):
    """What the best of n earns, on average over prompts."""

    n: int
    kl: float  # from the policy that was sampled, in nats, at most
    reward: float
    gold: float | None


@dataclass(frozen=True)
class BestOfNResult:
    """What was kept, and what choosing was worth."""

    path: Path
    prompts: int
    kept: int
    without: int  # prompts of which nothing was kept
    cut_off: int  # answers
    earned: tuple[Earned, ...]
    seconds: float
    notes: tuple[str, ...]
    adversarial_pairs: int | None  # pairs written; None where not asked for
    annotation_items: int | None  # items
    step_labels: int | None = None  # completions whose steps are labelled
    pairs: int | None = None  # of the best and the worst completion

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        notes = [as_typed(note) for note in self.notes]
        return asdict(self) | {"earned": [one._asdict() for one in self.earned], "notes": notes}

    def lines(self) -> list[str]:
        """The same for people."""
        gold = any(one.gold is not None for one in self.earned)
        rows = [
            (f"{one.n}", f"{one.kl:.2f}", f"{one.reward:.3f}", *([f"{one.gold:.3f}"] if gold else []))
            for one in self.earned
        ]
        table = Table("what the best of n earns", ("n", "KL <=", "reward", *(["gold"] if gold else [])), rows)
        kept = f"{self.kept:,} answers to {self.prompts - self.without:,} of {self.prompts:,} prompts in {self.path}"
        if not self.kept:
            kept = f"no answer to any of {self.prompts:,} prompts was kept, so {self.path} is not written"
        cut = f"; {self.cut_off:,} answers were truncated and left out" if self.cut_off else ""
        told = [] if self.adversarial_pairs is None else [f"{self.adversarial_pairs:,} adversarial pairs"]
        told += [] if self.pairs is None else [f"{self.pairs:,} pairs"]
        told += [] if self.annotation_items is None else [f"{self.annotation_items:,} items to annotate"]
        told += [] if self.step_labels is None else [f"{self.step_labels:,} completions with labelled steps"]
        notes = [f"note: {as_typed(note)}" for note in self.notes]
        return [*notes, *table.lines(), kept + cut, *told]


@dataclass
class _Seen:
    """What is remembered of every answer, also of those that are not kept."""

    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # those that are kept
    rewards: list[Sequence[float]] = field(default_factory=list[Sequence[float]])  # of each prompt
    golds: list[Sequence[float]] = field(default_factory=list[Sequence[float]])  # empty where there is no gold
    whole: list[Sequence[bool]] = field(default_factory=list[Sequence[bool]])  # which answers were not cut off
    without: int = 0
    lost: int = 0  # prompts with an answer to which no reward applies
    cut_off: int = 0
    pairs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    adversarial_pairs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    annotation_items: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    step_labels: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def add(self, other: "_Seen") -> None:
        """What was seen of more prompts."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def earned(self) -> tuple[Earned, ...]:
        """What the best of 1, 2, 4 and so on up to all of them earns; one that was cut off where there is no other."""
        most = len(self.rewards[0])
        sizes = sorted({*(2**i for i in range(most.bit_length())), most})
        order = [_places(zip(*told, strict=True)) for told in zip(self.whole, self.rewards, strict=True)]
        return tuple(
            Earned(
                n,
                best_of_n_kl(n),
                fmean(map(best_of_n, order, self.rewards, repeat(n))),
                fmean(map(best_of_n, order, self.golds, repeat(n))) if self.golds else None,
            )
            for n in sizes
        )


def _places(answers: Iterable[tuple[bool, float]]) -> list[float]:
    """Of each answer, whether it ended and its reward, its place from the worst; equal ones share theirs."""
    said = list(answers)
    levels = {one: float(place) for place, one in enumerate(sorted(set(said)))}
    return [levels[one] for one in said]


def run(config: BestOfN, *, quiet: bool = False) -> BestOfNResult:
    """Sample, judge, choose and write; the file is there when all of it is, or not at all."""
    path = _check(config)
    began = time.perf_counter()
    saved = saved_model(config.model)
    options = OnlineOptions(**{option.name: getattr(config, option.name) for option in fields(SampledOptions)})
    setup = set_up(replace(options, prompts_per_step=1), saved.where, partial(online_backend, options, saved.where))
    if config.step_labels and not setup.environment.outcome:
        raise UserError("`step_labels` needs a `reward` that says what is right, such as numbers, math or gym")
    parts = Chunks(path, _about(config, setup, saved.where))
    seen = _Seen()
    for part in parts.done:
        seen.add(_Seen(**part))
    done, every = len(seen.rewards) + seen.lost, len(setup.tasks)
    notes = [*saved.notes(), *setup.notes, *([f"{done} of {every} prompts were done before"] if done else [])]
    with (
        setup.judging.kept_beside(path),
        Progress("best-of-n", every, start=done, quiet=quiet) as progress,
        setup.opened(),
    ):
        for start in range(done, every, TOGETHER):
            part = _sampled(config, setup, start, progress)
            parts.add(asdict(part))
            seen.add(part)
            best = [max(zip(*told, strict=True))[1] for told in zip(seen.whole, seen.rewards, strict=True)]
            progress.step(min(start + TOGETHER, every), **({"best": fmean(best)} if seen.rewards else {}))
    if not seen.rewards:
        raise RewardError(f"no reward applies to all completions of any of the {every} prompts; use another one")
    if seen.lost:
        failed = ", or an episode of them failed" if config.environment else ""
        left = f"{seen.lost} of {every} prompts were left out"
        notes.append(f"{left}: no reward applies to one of their answers{failed}")
    written = jsonl.write(path, seen.rows) if seen.rows else 0
    counts = {
        name: jsonl.write(Path(file).expanduser(), getattr(seen, name)) if (file := getattr(config, name)) else None
        for name in EXTRA
    }
    parts.remove()
    seconds = time.perf_counter() - began
    if not written:
        notes.append(_why_none(config, seen))
    told = (seen.without, seen.cut_off, seen.earned(), seconds, tuple(notes))
    return BestOfNResult(path, every, written, *told, **counts)


def _why_none(config: BestOfN, seen: _Seen) -> str:
    if all(not any(whole) for whole in seen.whole):
        return f"every answer was truncated at `max_new_tokens={config.max_new_tokens}`; raise it"
    told = zip(seen.whole, seen.rewards, strict=True)
    most = max(reward for each in told for whole, reward in zip(*each, strict=True) if whole)
    return f"no answer that ended earned `at_least={config.at_least:g}`; the most was {most:g}"


def _check(config: BestOfN) -> Path:
    if config.environment and any(getattr(config, option) for option in EXTRA):
        raise UserError(
            "`pairs`, `step_labels`, `adversarial_pairs` and `annotation_items` need single-turn tasks; leave them out "
            "with `environment`"
        )
    if config.adversarial_pairs and not (config.gold or config.gold_model):
        raise UserError("`adversarial_pairs` needs a gold reward: `gold_model` or `gold`; or use `annotation_items`")
    return jsonl.new_files({option: getattr(config, option) for option in ("output", *EXTRA)})["output"]


def _about(config: BestOfN, setup: Setup, model: str) -> dict[str, Any]:
    """All that the answers depend on; prompts by what they say, models by where they are now."""
    left_out = ("output", "pairs", "adversarial_pairs", "annotation_items", *MAY_DIFFER)
    left_out = (*left_out, *([] if config.step_labels else LABELS))
    options = {key: value for key, value in as_written(config).items() if key not in left_out}
    return {
        **options,
        **({"step_labels": True} if config.step_labels else {}),
        "prompts": rows_digest(setup.tasks),
        "files": digests_in({key: value for key, value in options.items() if key in (*CODE, "judge")}),
        "models": [model, *setup.model_folders.values()],
    }


def _sampled(config: BestOfN, setup: Setup, start: int, progress: Progress) -> _Seen:
    """What is seen of the prompts from number `start` on."""
    seen = _Seen()
    with progress.phase("sampling"):
        groups = sample_groups(
            setup.heldout_environment,
            setup.tasks[start : start + TOGETHER],
            replace(setup.players, on_tokens=progress.tokens),
            completions_per_prompt=config.completions_per_prompt,
            seed=seed_for(config.seed, "best-of-n", start),
        )
    whole = [group for group in groups if not group.lost and len(group.rows) == config.completions_per_prompt]
    seen.lost = len(setup.tasks[start : start + TOGETHER]) - len(whole)
    if config.step_labels:
        with progress.phase("labelling"):
            seen.step_labels = step_rows(
                whole,
                setup.environment,
                replace(setup.players, on_tokens=progress.tokens),
                by=config.label_by,
                continuations=config.continuations,
                per_prompt=config.label_per_prompt,
                seed=seed_for(config.seed, "step labels", start),
            )
    for group in whole:
        best = chosen(group, config.keep, config.at_least)
        seen.rewards.append(group.rewards)
        seen.whole.append([row.trajectory.stop_reason is StopReason.STOP for row in group.rows])
        golds = [weighed(row.scores, setup.gold) for row in group.rows] if setup.gold else []
        if any(map(math.isnan, golds)):
            raise RewardError(f"no gold reward applies to an answer to task {group.task.id!r}; leave such tasks out")
        if golds:
            seen.golds.append(golds)
            seen.adversarial_pairs += adversarial.pair_rows(group, golds)
        seen.pairs += adversarial.best_worst_rows(group, config.at_least)
        seen.annotation_items += adversarial.item_rows(group, config.seed)
        seen.cut_off += seen.whole[-1].count(False)
        seen.without += not best
        seen.rows += [
            {
                "messages": written(row.conversation),
                **tools_column(row.conversation),
                "id": group.task.id,
                "reward": row.reward,
                "scores": {name: score.total for name, score in row.scores.items() if score.applicable},
            }
            for row in best
        ]
    return seen


def chosen(group: Group, keep: int, least: float | None) -> list[Row]:
    """The rows to keep, the best first; of equal ones the first that was sampled."""
    texts: dict[tuple[Message, ...], Row] = {}
    for row in sorted(group.rows, key=lambda row: -row.reward):
        if row.trajectory.stop_reason is StopReason.STOP and (least is None or row.reward >= least):
            texts.setdefault(row.conversation, row)
    return list(texts.values())[:keep]
