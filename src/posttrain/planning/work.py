"""What a plan is of: a model without its weights, and number and lengths of a run's sequences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.algorithms.algorithm import OnlineAlgorithm
from posttrain.algorithms.inputs import GreedyReward, StateValues, declared
from posttrain.algorithms.load import Load
from posttrain.bindings.episode_length import EpisodeLength
from posttrain.bindings.feedback import Feedback, Units
from posttrain.data import ChatFormat, load_tokenizer
from posttrain.data.packing import Example, size_of
from posttrain.models.footprint import Shape, read_shape
from posttrain.models.load import tokenizer_of
from posttrain.options.online import OnlineOptions
from posttrain.options.training import SFT, PairOptions
from posttrain.planning.costs import Networks
from posttrain.training.resolve_model import began_from


@dataclass(frozen=True)
class Unloaded:
    """A model without weights."""

    shape: Shape
    chat: ChatFormat
    notes: tuple[str, ...]  # what to tell the user


def unloaded(options: SFT | PairOptions | OnlineOptions, resume: Path | None, *, scored: bool = False) -> Unloaded:
    """The model that a run would begin from, or that the run in `resume` began from; raises what that would raise.

    With `scored` it becomes a reward model.
    """
    saved = began_from(options.model, resume)
    shape = read_shape(saved.where, scored=scored)
    chat = ChatFormat(load_tokenizer(tokenizer_of(saved.where), options.chat_template, options.template_args))
    return Unloaded(shape, chat, saved.notes())


@dataclass(frozen=True)
class Work(Networks):
    """The workload of a command."""

    command: str
    shape: Shape
    longest: Load  # a step with the longest sequences, for memory
    expected: Load  # one with average ones, for time
    rows: int
    steps: int
    batch: str  # both in words
    lengths: str
    updates: int = 1
    updated: tuple[Load, Load] | None = None  # longest and expected of an update, where it is not all of a step
    cache: int = 0  # bytes for keys and values; 0 where nothing is sampled
    text: Load | None = None  # trained on in an update, but not sampled
    beside: tuple[Load, ...] = ()  # auxiliary samples of a step, of average length
    longest_beside: tuple[Load, ...] = ()  # the same with the longest
    functions: bool = False  # whether there are reward functions that scorers would run
    notes: tuple[str, ...] = ()  # what the run would tell its user


def sampled_work(
    command: str, shape: Shape, options: OnlineOptions, lengths: Sequence[int], *, steps: int, episode: EpisodeLength
) -> Work:
    """Of a run on samples for prompts of these lengths in tokens, each followed by an episode."""

    def load(prompt_tokens: int) -> Load:
        words = (prompt_tokens, episode.tokens, options.microbatch_tokens)
        return Load(options.prompts_per_step, options.completions_per_prompt, *words)

    longest, expected = load(max(lengths)), load(round(sum(lengths) / len(lengths)))
    return Work(
        command,
        shape,
        longest,
        expected,
        len(lengths),
        steps,
        f"{longest.prompts} prompts x {longest.group} completions = {longest.sequences} completions a step",
        f"prompts of {expected.prompt_tokens} on average, {longest.prompt_tokens} at most; {episode.counted}",
        cache=int(options.cache_gb * 2**30),
    )


def with_algorithm(work: Work, algorithm: OnlineAlgorithm, *, text: Load | None = None) -> Work:
    """The same with the inputs and auxiliary losses of an online algorithm."""
    greedy, continued = (
        need.load(work.expected) if (need := declared(algorithm, kind)) else () for kind in (GreedyReward, StateValues)
    )
    batch = work.batch + "".join(f", and {one.sequences:,} greedy ones" for one in greedy)
    batch += f", and up to {sum(one.sequences for one in continued):,} continuations of them" if continued else ""
    batch += f", and {text.prompts:,} texts of {text.completion_tokens:,} tokens in an update" if text else ""
    return replace(
        work,
        batch=batch,
        reads=sum(need.passes for need in algorithm.inputs),
        text=text,
        beside=(*greedy, *continued),
        longest_beside=tuple(one for need in algorithm.inputs for one in need.load(work.longest)),
    )


def supervised_work(
    command: str, shape: Shape, examples: Sequence[Example], *, per_step: int, steps: int, microbatch_tokens: int
) -> Work:
    """Of a run on whole examples."""
    lengths = [size_of(example) for example in examples]

    def load(tokens: int) -> Load:
        return Load(per_step, 1, 0, tokens, microbatch_tokens)

    longest, expected = load(max(lengths)), load(round(sum(lengths) / len(lengths)))
    said = f"examples of {expected.completion_tokens} on average, {longest.completion_tokens} at most"
    return Work(command, shape, longest, expected, len(lengths), steps, f"{per_step} examples a step", said)


def feedback_work(
    command: str,
    shape: Shape,
    kind: Feedback[Any, Any],
    units: Units[Any],
    *,
    per_step: int,
    microbatch_tokens: int,
    **more: Any,
) -> Work:
    """Of a run that learns from what people said of responses; `more` as in `Work`."""
    families = [kind.sequences(unit) for unit in units.learned]
    sizes = [(len(e.prefix), len(e.continuation)) for family in families for e in family]

    def load(group: float, prompt: float, response: float) -> Load:
        return Load(per_step, round(group), round(prompt), round(response), microbatch_tokens)

    longest = load(max(map(len, families)), *max(sizes, key=sum))
    expected = load(len(sizes) / len(families), *(sum(column) / len(sizes) for column in zip(*sizes, strict=True)))
    lengths = (
        f"prompts of {expected.prompt_tokens} and responses of {expected.completion_tokens} on average, together "
        f"{longest.prompt_tokens + longest.completion_tokens} at most"
    )
    batch = f"{longest.prompts} {kind.noun} a step"
    return Work(command, shape, longest, expected, len(families), units.steps, batch, lengths, **more)
