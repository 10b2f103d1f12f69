"""What a run will compute: how many sequences of which lengths, measured on its data where there are some."""

import math
from dataclasses import dataclass
from typing import Any

from posttrain.algorithms import online, preference
from posttrain.algorithms.algorithm import OnlineAlgorithm, UnpairedAlgorithm, enough
from posttrain.algorithms.inputs import CriticValues, GreedyReward, Input, ReferenceLogprobs, StateValues, declared
from posttrain.data import ChatFormat, load_demonstrations, load_tasks, load_texts, load_tokenizer, parse_columns
from posttrain.errors import UserError, unknown
from posttrain.models.critic import CRITICS
from posttrain.models.footprint import Shape
from posttrain.models.load import tokenizer_of
from posttrain.models.lora import lora_of
from posttrain.models.lora_options import Lora
from posttrain.recipes.plan.forms import Config, PlanPreference, PlanRewardModel, PlanRL, PlanSFT
from posttrain.training import feedback
from posttrain.training.feedback import PAIRS
from posttrain.training.inputs import sampled_besides
from posttrain.training.plan import Load
from posttrain.training.preference import feedback_for, may_be_remembered

MOST_READ = 500  # rows of the data whose lengths are measured


@dataclass(frozen=True)
class Work:
    """What a command will compute."""

    command: str
    longest: Load  # a step with the longest sequences, for memory
    expected: Load  # one with average ones, for time
    rows: int | None
    steps: int
    batch: str  # both in words
    lengths: str
    updates: int = 1
    cache: int = 0  # bytes for keys and values; 0 where nothing is sampled
    lora: Lora | None = None
    reference: bool = False  # whether one is held beside the policy
    reads: int = 0  # passes over a batch that only read it
    critic: bool = False  # whether a critic's own network is trained beside
    text: Load | None = None  # what is learned in an update, but not sampled
    beside: tuple[Load, ...] = ()  # what is sampled in a step with average sequences, but not learned from
    longest_beside: tuple[Load, ...] = ()  # the same with the longest
    head: bool = True  # whether words are predicted


def work_of(config: Config, shape: Shape) -> Work:
    """What a command with these options will compute."""
    if isinstance(config, PlanRL):
        return _rlwork_of(config, shape)
    if isinstance(config, PlanSFT):
        return _sftwork_of(config, shape)
    return _pairwork_of(config, shape)


def _rlwork_of(config: PlanRL, shape: Shape) -> Work:
    algorithm = _algorithm_of(config)
    lengths, rows = _prompts_of(config)

    def load(prompt_tokens: int) -> Load:
        return Load(
            config.prompts_per_step,
            config.completions_per_prompt,
            prompt_tokens,
            config.max_new_tokens,
            config.microbatch_tokens,
        )

    longest, expected = load(max(lengths)), load(round(sum(lengths) / len(lengths)))
    prompts = f"prompts of {expected.prompt_tokens} on average, {longest.prompt_tokens} at most"
    if not config.dataset:
        prompts = f"prompts taken to have {longest.prompt_tokens} (--dataset measures them)"
    text = _text(config, shape) if algorithm.extra_losses else None
    greedy, continued = _besides(algorithm, GreedyReward, expected), _besides(algorithm, StateValues, expected)
    batch = f"{longest.prompts} prompts x {longest.group} completions = {longest.sequences} completions a step"
    batch += "".join(f", and {one.sequences:,} greedy ones" for one in greedy)
    batch += f", and up to {sum(one.sequences for one in continued):,} continuations of them" if continued else ""
    batch += f", and {text.prompts:,} texts of {text.completion_tokens:,} tokens in an update" if text else ""
    return Work(
        "rl",
        longest,
        expected,
        rows,
        config.steps,
        batch,
        f"{prompts}; completions taken to be as long as they may be, {longest.completion_tokens}",
        updates=config.updates_per_step,
        cache=int(config.cache_gb * 2**30),
        lora=lora_of(config),
        reference=declared(algorithm, ReferenceLogprobs) is not None,
        reads=sum(need.passes for need in algorithm.inputs),
        critic=config.critic == "own",
        text=text,
        beside=(*greedy, *continued),
        longest_beside=sampled_besides(algorithm.inputs, longest),
    )


def _algorithm_of(config: PlanRL) -> OnlineAlgorithm:
    """The algorithm; what `rl` would refuse is refused."""
    counts = ("steps", "prompts_per_step", "completions_per_prompt", "updates_per_step", "max_new_tokens")
    for name in (*counts, "pretraining_per_step"):
        if getattr(config, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be 1 or more; got {getattr(config, name)}")
    algorithm = online(config.algorithm)()
    enough(algorithm, config.completions_per_prompt)
    if config.critic not in CRITICS:
        raise unknown("critic", config.critic, CRITICS)
    if config.critic != PlanRL.critic and not declared(algorithm, CriticValues):
        raise UserError(f"{config.algorithm} has no critic; leave out --critic")
    if config.pretraining_dataset and not algorithm.extra_losses:
        raise UserError(f"{config.algorithm} learns from no text; leave out --pretraining-dataset")
    return algorithm


def _prompts_of(config: PlanRL) -> tuple[list[int], int | None]:
    """The lengths of prompts, measured if there are data, and how many rows those have."""
    if not config.dataset:
        return [config.prompt_tokens], None
    tasks = load_tasks(config.dataset, columns=_columns(config), limit=config.limit, seed=config.seed, **_words(config))
    chat = ChatFormat(load_tokenizer(tokenizer_of(config.model), config.chat_template))
    found = [len(chat.prompt_ids(task.prompt)) for task in tasks[:MOST_READ]]
    lengths = [length for length in found if length <= config.max_prompt_tokens]
    if not lengths:
        raise UserError(
            f"all prompts are longer than --max-prompt-tokens {config.max_prompt_tokens}, the shortest has "
            f"{min(found)}; give a larger one"
        )
    return lengths, len(tasks)


def _besides(algorithm: OnlineAlgorithm, kind: type[Input], load: Load) -> tuple[Load, ...]:
    """The completions that the algorithm's input of this kind samples besides a batch of this load."""
    return sampled_besides([need for need in algorithm.inputs if isinstance(need, kind)], load)


def _text(config: PlanRL, shape: Shape) -> Load:
    """The pretraining text of an update."""
    most, lengths = min(config.max_prompt_tokens, shape.context, config.microbatch_tokens), [config.max_prompt_tokens]
    if config.pretraining_dataset:
        chat = ChatFormat(load_tokenizer(tokenizer_of(config.model), config.chat_template))
        lengths = [len(chat.text_ids(text)) for text in load_texts(config.pretraining_dataset, limit=MOST_READ)]
    mean = sum(min(length, most) for length in lengths) / len(lengths)
    return Load(config.pretraining_per_step, 1, 0, round(mean), config.microbatch_tokens)


def _sftwork_of(config: PlanSFT, shape: Shape) -> Work:
    most = min(config.max_tokens, shape.context)
    lengths, rows, steps = [most], None, config.steps or 1
    if config.dataset:
        data = load_demonstrations(config.dataset, columns=_columns(config), limit=config.limit, **_words(config))
        chat, rows = ChatFormat(load_tokenizer(tokenizer_of(config.model), config.chat_template)), len(data)
        found = [
            len(example.token_ids) for messages in data[:MOST_READ] for example in chat.training_examples(messages)
        ]
        lengths = [length for length in found if length <= most]
        if not lengths:
            raise UserError(
                f"all examples are longer than {most} tokens, the shortest has {min(found)}; raise --max-tokens"
            )
        steps = config.steps or math.ceil(config.epochs * rows / config.examples_per_step)

    def load(tokens: int) -> Load:
        return Load(config.examples_per_step, 1, 0, tokens, config.microbatch_tokens)

    longest, expected = load(max(lengths)), load(round(sum(lengths) / len(lengths)))
    examples = f"examples of {expected.completion_tokens} on average, {longest.completion_tokens} at most"
    if not config.dataset:
        examples = f"examples taken to have {longest.completion_tokens} (--dataset measures them)"
    return Work(
        "sft",
        longest,
        expected,
        rows,
        steps,
        f"{longest.prompts} examples a step",
        examples,
        lora=lora_of(config),
    )


def _pairwork_of(config: PlanPreference | PlanRewardModel, shape: Shape) -> Work:
    most = min(config.max_tokens, shape.context)
    sizes, rows, steps = [(most // 2, most - most // 2)], None, config.steps or 1  # prompt, and a response
    if config.dataset:
        kind = feedback_for(preference(config.algorithm)()) if isinstance(config, PlanPreference) else PAIRS
        sides = feedback.read(config, kind)
        chat, rows = ChatFormat(load_tokenizer(tokenizer_of(config.model), config.chat_template)), len(sides.learned)
        units = feedback.fitting(kind, [kind.tokens(chat, item) for item in sides.learned[:MOST_READ]], most)
        if not units:
            raise UserError(f"all {kind.noun} are longer than {most} tokens; raise --max-tokens")
        sizes = [(len(e.prefix), len(e.continuation)) for unit in units for e in kind.sequences(unit)]
        steps = config.steps or math.ceil(config.epochs * rows / config.pairs_per_step)

    def load(prompt: float, response: float) -> Load:
        return Load(config.pairs_per_step, 2, round(prompt), round(response), config.microbatch_tokens)

    longest = load(*max(sizes, key=sum))
    expected = load(*(sum(column) / len(sizes) for column in zip(*sizes, strict=True)))
    scored = isinstance(config, PlanRewardModel)
    algorithm = None if scored else preference(config.algorithm)()
    compared = algorithm is not None and declared(algorithm, ReferenceLogprobs) is not None
    held = compared and algorithm is not None and not may_be_remembered(algorithm)
    lengths = (
        f"prompts of {expected.prompt_tokens} and responses of {expected.completion_tokens} on average, together "
        f"{longest.prompt_tokens + longest.completion_tokens} at most"
    )
    if not config.dataset:
        lengths = f"prompt and response taken to have {most} (--dataset measures them)"
    return Work(
        "reward-model" if scored else "preference",
        longest,
        expected,
        rows,
        steps,
        f"{longest.prompts} pairs a step",
        lengths,
        lora=lora_of(config),
        reference=held,
        reads=compared * (3 if isinstance(algorithm, UnpairedAlgorithm) else 1),
        head=not scored,
    )


def _columns(config: PlanRL | PlanSFT) -> dict[str, str] | None:
    return parse_columns(config.columns) if config.columns else None


def _words(config: PlanRL | PlanSFT) -> dict[str, Any]:
    return {"system": config.system, "prompt_template": config.prompt_template}
