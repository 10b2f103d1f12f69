"""Given training data, from options to tokens, and to a session: demonstrations, and human feedback.

Kinds of feedback: preference pairs, judgements and ratings of single responses, and labels of their steps. A batch
size is a number of units: an example, a pair, the judgements of one row of the data, or one rated or labelled response.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from posttrain.bindings.cluster_options import MAY_DIFFER
from posttrain.data import (
    ChatFormat,
    divide,
    graded_of,
    load_demonstrations,
    load_judgements,
    load_preferences,
    load_ratings,
    pair_of,
    parse_columns,
)
from posttrain.data.digests import digests, rows_digest
from posttrain.data.files import Source
from posttrain.data.judgements import Judgement, judged_row
from posttrain.data.loaded import Loaded, Unusable
from posttrain.data.order import batch_indices
from posttrain.data.packing import Example, Graded, Labelled, Pair, Ranked, Stepwise, size_of
from posttrain.data.preferences import ranked_of, shortened, together
from posttrain.data.ratings import Rated, Reasoning, first_steps, load_steps, stepwise_of
from posttrain.errors import UserError
from posttrain.options.training import SFT, PairOptions
from posttrain.runs.training import Evaluations, MetricsRow, Trained, Training, patience
from posttrain.training.schedule import LearningRate, unreached
from posttrain.types import Message, Preference, Task

Conversation = tuple[Message, ...]
DataOptions = SFT | PairOptions
T = TypeVar("T")  # the content of one row of the data
U = TypeVar("U")  # the same as tokens


@dataclass(frozen=True)
class Feedback(Generic[T, U]):
    """A kind of feedback."""

    noun: str  # the name of its units in messages
    load: Callable[..., Loaded[T]]
    prompt: Callable[[T], tuple[Message, ...]]
    tokens: Callable[[ChatFormat, T], Sequence[U]]
    sequences: Callable[[U], Sequence[Example]]
    # the tokens of a unit that must be in one micro-batch
    row: Callable[[Sequence[Example]], int] = lambda sequences: max(map(size_of, sequences))
    per_step: str = "pairs_per_step"  # the option that says how many units a batch has
    shortened: Callable[[U, int], U | None] = lambda unit, longest: None  # shortens a unit that is too long

    def examples(self, units: Sequence[U]) -> list[Example]:
        """The sequences of units, one after the other."""
        return [example for unit in units for example in self.sequences(unit)]


def _together(sequences: Sequence[Example]) -> int:
    return len(sequences[0].prefix) + sum(len(each.continuation) for each in sequences)


PAIRS: Feedback[Preference, Pair] = Feedback(
    "pairs",
    load_preferences,
    lambda preference: preference.prompt,
    lambda chat, preference: [pair_of(chat, preference)],
    lambda pair: pair,
    _together,
)


def _load_rankings(source: Source, **options: Any) -> Loaded[tuple[Preference, ...]]:
    found = load_preferences(source, **options)
    return Loaded(together(found), found.left_out, found.unread)


RANKINGS: Feedback[tuple[Preference, ...], Ranked] = Feedback(
    "pairs",  # all of one prompt that follow each other count as one
    _load_rankings,
    lambda preferences: preferences[0].prompt,
    lambda chat, preferences: [ranked_of(chat, preferences)],
    lambda ranked: ranked.examples,
    _together,
    shortened=shortened,
)

JUDGEMENTS: Feedback[tuple[Judgement, ...], tuple[Labelled, ...]] = Feedback(
    "judged rows",
    load_judgements,
    lambda judgements: judgements[0].prompt,
    lambda chat, judgements: [judged_row(chat, judgements)],
    lambda unit: [judged.example for judged in unit],
)

RATINGS: Feedback[Rated, Graded] = Feedback(
    "rated responses",
    load_ratings,
    lambda rated: rated.prompt,
    lambda chat, rated: [graded_of(chat, rated)],
    lambda graded: [graded.example],
)

STEPS: Feedback[Reasoning, Stepwise] = Feedback(
    "reasonings",
    load_steps,
    lambda reasoning: reasoning.prompt,
    lambda chat, reasoning: [stepwise_of(chat, reasoning)],
    lambda stepwise: [stepwise.example],
    shortened=first_steps,
)


def demonstrations(train_on: str) -> Feedback[Conversation, Example]:
    """Demonstrations, with all assistant turns learned or the last; what stands before the first one is the prompt."""

    def tokens(chat: ChatFormat, conversation: Conversation) -> list[Example]:
        if train_on == "last":
            return [Example.whole(*chat.training_ids(conversation, train_on="last"))]
        # several where the template cannot show all turns as they are produced in one
        return [Example.whole(*ids) for ids in chat.training_examples(conversation)]

    return Feedback(
        "examples",
        load_demonstrations,
        lambda conversation: conversation[: [message.role for message in conversation].index("assistant")],
        tokens,
        lambda example: [example],
        per_step="examples_per_step",
    )


@dataclass(frozen=True)
class Sides(Generic[T]):
    """Training and held-out feedback, with notes to the user."""

    learned: list[T]
    heldout: list[T]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Units(Generic[U]):
    """Training units, held-out units, and the number of updates."""

    learned: list[U]
    heldout: list[U]
    dropped: int  # units that were too long
    steps: int
    notes: tuple[str, ...]  # messages to the user
    per_step: int  # units of a batch
    seed: int  # of their order

    def batch(self, step: int) -> list[U]:
        """The training units of a step."""
        return [self.learned[i] for i in batch_indices(len(self.learned), self.per_step, step, self.seed)]


def read(options: DataOptions, kind: Feedback[T, U], own: Sequence[T] = ()) -> Sides[T]:
    """The feedback that the options name; without a data set what there is of its `own`."""
    if not options.dataset and not own:
        raise UserError("`dataset` is required: a file, folder, glob or hub id")
    columns = parse_columns(options.columns)

    notes: list[str] = []

    def tasks(source: Source, limit: int | None = None) -> list[Task]:
        if not source:
            return [Task(kind.prompt(item), answer=item) for item in own[:limit]]
        words = {"system": options.system, "prompt_template": options.prompt_template}
        found = kind.load(source, columns=columns, limit=limit, seed=options.seed, **words)
        if found.left_out:
            first = "; ".join(found.left_out[:3]) + ("; and so on" if len(found.left_out) > 3 else "")
            notes.append(
                f"{len(found.left_out)} of {len(found.left_out) + len(found.items)} {kind.noun} left out: {first}"
            )
        notes.extend(note for note in found.notes if note not in notes)
        return [Task(kind.prompt(item), answer=item) for item in found.items]

    *sides, dropped = divide(
        tasks(options.dataset, options.limit),
        share=options.eval_share,
        offered=(lambda: tasks(options.eval_dataset)) if options.eval_dataset else None,
        limit=options.eval_limit,
        seed=options.seed,
    )
    learned, heldout = ([task.answer for task in side] for side in sides)
    return Sides(learned, heldout, (*notes, *dropped))


def tokenize(options: DataOptions, kind: Feedback[T, U], sides: Sides[T], chat: ChatFormat, context: int) -> Units[U]:
    """Tokenise feedback, dropping units that are too long; raises `UserError` where nothing is left on a side."""
    longest, per_step = min(options.max_tokens, context), getattr(options, kind.per_step)
    notes = [*sides.notes]

    def fit(which: str, items: Sequence[T]) -> tuple[list[U], int]:
        """The units of a side that fit, and how many do not, or are items of which nothing can be learned."""
        units, reasons = list[U](), list[str]()
        for item in items:
            try:
                units += kind.tokens(chat, item)
            except Unusable as reason:
                reasons.append(str(reason))
        if reasons and not units:
            raise UserError(f"nothing can be learned from any of the {which}{kind.noun}: {reasons[0]}")
        fits = (max(map(size_of, kind.sequences(unit))) <= longest for unit in units)
        shorter = (unit if fit else kind.shortened(unit, longest) for unit, fit in zip(units, fits, strict=True))
        kept = [unit for unit in shorter if unit is not None]
        if not kept and (items or not which):
            raise UserError(
                f"all {len(units)} {which}{kind.noun} are longer than {longest} tokens, the smaller of `max_tokens="
                f"{options.max_tokens}` and the model's context {context}; shorten them, or raise what limits them"
            )
        if reasons:
            notes.append(f"{len(reasons)} {which}{kind.noun} left out: {reasons[0]}")
        if over := len(units) - len(kept):
            notes.append(f"{over} of {len(units)} {which}{kind.noun} are over {longest} tokens and were left out")
        return kept, len(units) + len(reasons) - len(kept)

    (learned, dropped), (heldout, _) = fit("", sides.learned), fit("held-out ", sides.heldout)
    most = max(kind.row(kind.sequences(unit)) for unit in learned + heldout)
    if most > options.microbatch_tokens:
        raise UserError(
            f"the longest of the {kind.noun} has {most} tokens, but `microbatch_tokens` is "
            f"{options.microbatch_tokens}; type `microbatch_tokens={most}` or more, or leave longer ones out with "
            "`max_tokens`"
        )
    if len(learned) < per_step:
        notes.append(
            f"`{kind.per_step}={per_step}`, and there are {len(learned)} {kind.noun}: a step takes all of them"
        )
        per_step = len(learned)
    steps = options.steps or math.ceil(options.epochs * len(learned) / per_step)
    notes += [*chat.notes, *unreached(options.warmup_steps, steps)]
    return Units(learned, heldout, dropped, steps, tuple(notes), per_step, options.seed)


def _score(row: MetricsRow) -> float | None:
    """The accuracy on held-out pairs, of ratings alone their correlation."""
    return row.get("evaluation/accuracy", row.get("evaluation/correlation"))


def feedback_training(
    options: DataOptions,
    units: Units[Any],
    trained: Trained,
    *,
    settings: Mapping[str, Any],
    environment: Mapping[str, Any],
    notes: tuple[str, ...],
    score: Callable[[MetricsRow], float | None] = _score,
    headline: Mapping[str, str] = MappingProxyType({"loss": "loss", "accuracy": "accuracy"}),
    evaluated: tuple[bool, bool] | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> Training:
    """For `open_session`; checkpoint selection and early stopping use `score`, by default that of held-out feedback.

    `evaluated` says whether there is an evaluation before the first step and after the last one; by default if units
    are held out.
    """
    first, last = evaluated or (bool(units.heldout),) * 2
    steps = units.steps
    return Training(
        steps=steps,
        trained=trained,
        rate=LearningRate(options.lr, options.warmup_steps, options.decay, steps),
        evaluations=Evaluations(options.eval_every, first, last, score, patience(options.stop_after, score)),
        environment={**environment, "steps": steps, "data": digests(settings), "rows": rows_digest(units.learned)},
        save_every=options.save_every,
        keep_last=options.keep_last,
        may_differ=("steps", "epochs", "stop_after", *MAY_DIFFER),
        notes=notes,
        headline=headline,
        prepare=prepare,
    )
