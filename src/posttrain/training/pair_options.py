"""What recipes that learn from pairs have in common: their options, and the pairs that these name."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.data import ChatFormat, divide, fitting, load_preferences, pair_of, parse_columns
from posttrain.data.packing import Pair
from posttrain.errors import UserError
from posttrain.training.schedule import unreached
from posttrain.training.settings import check_heldout, check_settings
from posttrain.types import Preference, Task


@dataclass(frozen=True)
class PairOptions:
    """What to learn from, how, and what to hold out."""

    dataset: str = ""
    """Pairs: a hub id, or a jsonl or parquet file or folder with prompt, chosen and rejected (HH-RLHF's, too)."""
    model: str = "smollm2-135m-instruct"
    """What to train: a hub id, a folder, a run (its best or latest checkpoint), or a packaged model."""
    epochs: float = 1.0
    """Passes over the pairs; less than one for a part of them."""
    steps: int = 0
    """Updates; 0: as many as --epochs takes."""
    pairs_per_step: int = 16
    """Pairs in a batch."""
    max_tokens: int = 1024
    """The longest of prompt and response; pairs with a longer one are left out, and counted."""
    lr: float = 1e-6
    """Peak learning rate."""
    warmup_steps: int = 10
    """Steps until the peak."""
    decay: str = "cosine"
    """What comes after the warmup: constant, linear or cosine."""
    weight_decay: float = 0.0
    """Of AdamW."""
    max_grad_norm: float = 1.0
    """Longer gradients are scaled to this."""
    precision: str = "auto"
    """float32, bfloat16, or auto: what this machine computes faster. Master weights are float32 in any case."""
    microbatch_tokens: int = 4096
    """Tokens of one forward and backward pass: bounds memory, never changes the result."""
    columns: str = ""
    """Which columns to read, such as "prompt=question chosen=better rejected=worse"."""
    limit: int | None = None
    """Use only so many pairs, from the first."""
    system: str | None = None
    """A system message, in place of the data's own."""
    prompt_template: str = "{prompt}"
    """Text around each of the user's messages."""
    eval_dataset: str = ""
    """Held-out pairs; those whose prompt is also in the training data are left out of them."""
    eval_share: float = 0.0
    """Hold out this share of the pairs instead; equal prompts are held out together."""
    eval_limit: int = 300
    """Held-out pairs to use."""
    eval_every: int = 0
    """Judge the held-out pairs every so many steps, besides before the first and after the last."""
    save_every: int = 100
    """Save a checkpoint every so many steps, besides after an evaluation and after the last."""
    keep_last: int = 2
    """Checkpoints to keep, besides the best."""
    seed: int = 0
    """Decides every random choice of the run."""


@dataclass(frozen=True)
class Pairs:
    """What is learned, what is held out, and how many updates that makes."""

    learned: list[Pair]
    heldout: list[Pair]
    dropped: int  # pairs that were too long
    steps: int
    notes: tuple[str, ...]  # what to tell the user


def check(options: PairOptions, *, lora_rank: int = 0) -> None:
    """Refuse what cannot be trained with; raises `UserError`, which names the option."""
    check_settings(
        options,
        counts=("pairs_per_step", "max_tokens", "eval_limit"),
        zero_or_more=("eval_every",),
        lora_rank=lora_rank,
    )
    check_heldout(eval_share=options.eval_share, eval_dataset=options.eval_dataset, eval_every=options.eval_every)
    if options.steps < 0 or not 0 < options.epochs < math.inf:
        raise UserError(
            f"--epochs must be above 0 and --steps 0 or more; got {options.epochs} epochs and {options.steps} steps"
        )


@dataclass(frozen=True)
class Sides:
    """Preferences to learn from and to hold out, and what to tell the user of them."""

    learned: list[Preference]
    heldout: list[Preference]
    notes: tuple[str, ...]


def read_preferences(options: PairOptions) -> Sides:
    """The preferences that the options name."""
    if not options.dataset:
        raise UserError("say what to train on with --dataset: a hub id, or a jsonl or parquet file or folder")
    columns = parse_columns(options.columns) if options.columns else None

    notes: list[str] = []

    def tasks(source: str, limit: int | None = None) -> list[Task]:
        words = {"system": options.system, "prompt_template": options.prompt_template}
        found = load_preferences(source, columns=columns, limit=limit, **words)
        if found.left_out:
            first = "; ".join(found.left_out[:3]) + ("; and so on" if len(found.left_out) > 3 else "")
            notes.append(
                f"{len(found.left_out)} of {len(found.left_out) + len(found.preferences)} pairs left out: {first}"
            )
        return [Task(p.prompt, answer=p) for p in found.preferences]

    sides = divide(
        tasks(options.dataset, options.limit),
        share=options.eval_share,
        offered=(lambda: tasks(options.eval_dataset)) if options.eval_dataset else None,
        limit=options.eval_limit,
        seed=options.seed,
    )
    learned, heldout = ([task.answer for task in side] for side in (sides.learned, sides.heldout))
    return Sides(learned, heldout, (*notes, *sides.notes))


def tokenize(options: PairOptions, sides: Sides, chat: ChatFormat, context: int) -> Pairs:
    """Preferences as tokens, without those that are too long.

    Raises:
        UserError: nothing is left on one of the two sides, a pair does not fit a micro-batch, or a batch is larger than
            the data.
    """
    longest = min(options.max_tokens, context)
    learned, heldout = (fitting([pair_of(chat, p) for p in side], longest) for side in (sides.learned, sides.heldout))
    if not learned or (sides.heldout and not heldout):
        raise UserError(
            f"all {'held-out ' if learned else ''}pairs are longer than {longest} tokens, the smaller of --max-tokens "
            f"{options.max_tokens} and the model's context {context}; shorten them, or raise what limits them"
        )
    most = max(len(c.prefix) + len(c.continuation) + len(r.continuation) for c, r in learned + heldout)
    if most > options.microbatch_tokens:
        raise UserError(
            f"the longest pair has {most} tokens, but --microbatch-tokens is {options.microbatch_tokens}; "
            f"type --microbatch-tokens {most} or more, or leave longer ones out with --max-tokens"
        )
    if len(learned) < options.pairs_per_step:
        raise UserError(
            f"--pairs-per-step {options.pairs_per_step} is more than there are pairs; "
            f"type --pairs-per-step {len(learned)} or less"
        )
    steps = options.steps or math.ceil(options.epochs * len(learned) / options.pairs_per_step)
    too_long = [
        f"{len(read) - len(kept)} of {len(read)} {kind} are over {longest} tokens and were left out"
        for kind, read, kept in (("pairs", sides.learned, learned), ("held-out pairs", sides.heldout, heldout))
        if len(kept) < len(read)
    ]
    notes = (*sides.notes, *too_long, *unreached(options.warmup_steps, steps))
    return Pairs(learned, heldout, len(sides.learned) - len(learned), steps, notes)


def heldout_of(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float] | None, dict[str, float] | None]:
    """What a run logged of its held-out pairs, first and last; None where it did not."""
    prefix = "evaluation/"
    found = [
        {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)} for row in rows
    ]
    judged = [values for values in found if values] or [None]
    return judged[0], judged[-1]
