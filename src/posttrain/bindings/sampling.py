"""Setup of recipes that sample: tasks, rewards, policy, engine."""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from posttrain.background import finish
from posttrain.bindings.backend import Backend
from posttrain.bindings.cluster_options import ONE_PROCESS, ClusterOptions
from posttrain.bindings.episode_length import EpisodeLength, episode_length
from posttrain.bindings.judges import JudgeModels, judges_in, players_of, rewards_with
from posttrain.bindings.reward_models import load_scoring, overseen_by, steps_of
from posttrain.data import ChatFormat, disjoint, load_tasks, load_tokenizer, met_before, parse_columns
from posttrain.data.files import is_gym
from posttrain.engine.policy import check_engine
from posttrain.environments.env import Environment, Seat, SingleTurn
from posttrain.environments.scored import (
    ParsedRewards,
    ScoredEnvironment,
    need_group,
    refuse_unknown_rewards,
    verdicts_kept_in,
)
from posttrain.environments.user_methods import load_environment, tasks_of
from posttrain.episodes.episodes import OnTokens, Players, opened
from posttrain.episodes.sampler import Sampler
from posttrain.errors import DataError, UserError
from posttrain.models.footprint import read_shape
from posttrain.models.load import tokenizer_of
from posttrain.options.kinds import Rewards
from posttrain.options.online import OnlineOptions
from posttrain.options.option import given
from posttrain.training.teacher import NO_TEACHERS, Teachers
from posttrain.types import Sampling, Task

if TYPE_CHECKING:
    from posttrain.rewards.combine import Weighted

PIPELINED = "pipelined"


@dataclass(frozen=True)
class Setup:
    """The parts needed for sampling."""

    tasks: list[Task]
    heldout: list[Task]
    environment: ScoredEnvironment
    backend: Backend
    players: Players  # the policy in all seats
    notes: tuple[str, ...]  # messages to the user
    heldout_environment: ScoredEnvironment  # with gold rewards
    gold: dict[str, float] = field(default_factory=dict[str, float])  # their names and weights, where there are some
    # of reward models, local judges and teachers, by name as typed
    model_folders: dict[str, str] = field(default_factory=dict[str, str])
    judging: JudgeModels = field(default_factory=JudgeModels)  # judge models

    @property
    def longest(self) -> int:
        """Tokens that the policy may sample in an episode."""
        turns = self.environment.environment.max_turns * self.players.sampling.max_new_tokens
        return min(turns, self.players.max_tokens or turns)

    def renew_seats(self, step: int) -> None:
        """Have earlier policies play in this step that are as old as asked."""
        for past in self.judging.past.values():
            past.renew(step)

    def opened(self) -> AbstractContextManager[None]:
        """The environment is open while the block runs."""
        return opened(self.environment.environment)

    @contextmanager
    def open_in(self, run: Path) -> Generator[None]:
        """The same; the run has the output of processes, verdicts by a time limit, and the replies of judges."""
        self.backend.log_in(run)
        with verdicts_kept_in(run), self.judging.kept_in(run), self.opened():
            yield

    def sampler(self, options: OnlineOptions, on_tokens: OnTokens | None = None, min_group: int = 1) -> Sampler:
        """Draws prompts of the tasks and samples their completions; `min_group` as in `Sampler`."""
        return Sampler(
            self.environment,
            self.tasks,
            replace(self.players, on_tokens=on_tokens),
            prompts=options.prompts_per_step,
            completions=options.completions_per_prompt,
            seed=options.seed,
            min_group=min_group,
        )


class _Inputs(NamedTuple):
    judging: JudgeModels
    parsed: ParsedRewards
    played: Environment
    others: dict[str, Callable[[int], Seat]]  # who plays seats besides the policy
    tasks: list[Task]
    heldout: list[Task]
    notes: list[str]


def _read(options: OnlineOptions, teachers: Teachers) -> _Inputs:
    check_engine(options.engine)
    judging = judges_in(options, options.seats)
    parsed = rewards_with(judging, options, rewards_of(options), options.gold)
    if options.schedule == PIPELINED:  # groups are scored while others are sampled
        asking = next((each.asks_policy[0] for each in (parsed.rewards, parsed.gold) if each and each.asks_policy), "")
        if asking or judging.policy in judging.models.values():
            who = f"the reward '{asking}' asks the policy, which" if asking else "a judge that is the policy"
            raise UserError(f'{who} cannot answer while it samples; leave out `schedule="pipelined"`')
    own = load_environment(options.environment, options.environment_args) if options.environment else None
    others = players_of(judging, own or SingleTurn(), Sampling(options.max_new_tokens, options.temperature))
    tasks, heldout, notes = read_tasks(options, parsed.rewards, parsed.gold, own, teachers)
    refuse_unknown_rewards([*tasks, *heldout], parsed.rewards, options.reward_model)
    return _Inputs(judging, parsed, own or SingleTurn(), others, tasks, heldout, notes)


def set_up(
    options: OnlineOptions,
    model: str,
    load: Callable[[], Backend],
    *,
    together: int = 1,
    group_sizes: Sequence[tuple[int, str]] = (),
    cluster: ClusterOptions = ONE_PROCESS,
    teachers: Teachers = NO_TEACHERS,
) -> Setup:
    """Load the model, in the folder `model`, and all other parts that the options name.

    `load` is called when all else has been checked: that `together` completions of a prompt fit in one micro-batch,
    that rewards can score groups of `group_sizes`, too, each with its name in errors, and teachers what is sampled.
    """
    with ExitStack() as stack:
        judging, heldout = (found := _read(options, teachers)).judging, found.heldout
        scoring = load_scoring(options, cluster, stack, found.parsed, judging)
        parsed, models, gold_model, folders, _ = scoring
        environment, heldout_environment, gold = overseen_by(
            options,
            parsed,
            [model.ask for model in models],
            [model.facts for model in models],
            gold_model=gold_model.ask if gold_model else None,
            gold_steps=steps_of(options.step_aggregation, [gold_model.facts] if gold_model else []),
            environment=found.played,
        )
        for size, name in ((options.completions_per_prompt, "`completions_per_prompt`"), *group_sizes):
            need_group(environment, size, name)
        if options.eval_every:
            need_group(heldout_environment, options.eval_samples, "`eval_samples`")
        chat = ChatFormat(load_tokenizer(tokenizer_of(model), options.chat_template, options.template_args))
        prompts = _fitting(options, found, chat, read_shape(model).context, together, teachers)
        for each in [*models, *([gold_model] if gold_model else [])]:
            each.refuse_too_long([*prompts.tasks, *heldout], options.max_new_tokens)
        backend = scoring.joined(load(), stack)
        players = Players(
            backend.engine,
            backend.chat,
            Sampling(options.max_new_tokens, options.temperature),
            found.others,
            max_tokens=prompts.room,
            schedule=options.schedule if options.schedule in ("lockstep", "continuous") else None,
            pipelined=options.schedule == PIPELINED,
            max_lost=options.max_lost,
            policy_chat=judging.policy,
        )
        judging.bind(backend.chat, backend.context, backend.model, options.cache_gb)
        folders |= judging.folders | {one.name: one.name for one in judging.classifiers} | teachers.folders
        sampled = (prompts.tasks, heldout, environment, backend, players, (*found.notes, *parsed.notes, *prompts.notes))
        return Setup(*sampled, heldout_environment, gold, folders, judging)


class _Prompts(NamedTuple):
    """The tasks whose prompts fit, their lengths in tokens, and messages about the others."""

    tasks: list[Task]
    lengths: list[int]
    room: int  # tokens that a seat may have in an episode
    notes: list[str]


def _fitting(
    options: OnlineOptions, found: _Inputs, chat: ChatFormat, context: int, together: int, teachers: Teachers
) -> _Prompts:
    """The tasks whose prompts fit the model, if they do with `together` completions in one micro-batch."""
    room = min(options.max_episode_tokens or context, context)
    if found.played.max_turns > 1:  # what a micro-batch takes of them
        room = min(room, options.microbatch_tokens // together)
    most = min(options.max_prompt_tokens, room - 1)
    every = [(task, len(chat.prompt_ids(task.prompt))) for task in found.tasks]
    fits = [(task, length) for task, length in every if length <= most]
    if not fits:
        raise UserError(
            f"all {len(every)} prompts are longer than {most} tokens, the smaller of "
            f"`max_prompt_tokens={options.max_prompt_tokens}` and what the model's context of {room} leaves room for"
        )
    tasks, lengths = [task for task, _ in fits], [length for _, length in fits]
    whole = max(n + together * min(options.max_new_tokens, room - n) for n in lengths)
    if whole > options.microbatch_tokens:
        raise UserError(
            f"a prompt and {'its completion' if together == 1 else 'two completions'} may have {whole} tokens, but "
            f"`microbatch_tokens` is "
            f"{options.microbatch_tokens}; type `microbatch_tokens={whole}` or more, or a smaller `max_new_tokens`"
        )
    notes = [*chat.notes]
    if options.prompts_per_step > len(fits):
        notes.append(f"`prompts_per_step={options.prompts_per_step}` of {len(fits)} tasks: some are in a step twice")
    if len(fits) < len(every):
        notes.append(f"{len(every) - len(fits)} prompts are over {most} tokens and were left out")
    completion = room if found.played.max_turns > 1 else options.max_new_tokens
    longest = min(options.microbatch_tokens, context)
    teachers.check([*tasks, *found.heldout], chat, completion=completion, room=room, most=longest)
    return _Prompts(tasks, lengths, room, notes)


class PlannedPrompts(NamedTuple):
    """The lengths of prompts in tokens, messages to the user, and what a run would have besides its policy."""

    lengths: list[int]
    notes: tuple[str, ...]
    episode: EpisodeLength
    functions: bool  # whether there are any, which scorers may have
    chat_models: int  # parameters of local judges and players


def read_prompts(
    options: OnlineOptions, chat: ChatFormat, context: int, *, together: int = 1, teachers: Teachers = NO_TEACHERS
) -> PlannedPrompts:
    """The prompts of a run that is only planned: reads everything that the options name except weights."""
    read = _read(options, teachers)
    if read.parsed.rewards:
        need_group(ScoredEnvironment(read.parsed.rewards), options.completions_per_prompt, "`completions_per_prompt`")
    found = _fitting(options, read, chat, context, together, teachers)
    episode = episode_length(read.played, chat, options.max_new_tokens, options.seed)
    most = max(options.max_new_tokens, found.room - max(found.lengths))
    episode = replace(episode, tokens=min(episode.tokens, most))
    chats = sum(read_shape(folder).parameters for folder in read.judging.folders.values())
    return PlannedPrompts(found.lengths, (*read.notes, *found.notes), episode, bool(read.parsed.movable), chats)


def rewards_of(config: OnlineOptions) -> Rewards:
    """The rewards as typed; by default none with a reward model or judge, and `gym` for a gym: source."""
    if not (given(config.dataset) or given(config.environment)):
        raise UserError("`dataset` is required: a hub id, a file or folder, or gym:NAME")
    if config.reward or config.reward_model or config.judge:
        return config.reward
    if config.environment:
        return "environment"
    if is_gym(config.dataset):
        return "gym=1.0"
    raise UserError(
        '`reward` is required, such as "numbers" for GSM8K, "math" or FILE.py:function; or `reward_model` or `judge`'
    )


def read_tasks(
    config: OnlineOptions,
    rewards: "Weighted | None",
    gold: "Weighted | None",
    environment: Environment | None = None,
    teachers: Teachers = NO_TEACHERS,
) -> tuple[list[Task], list[Task], list[str]]:
    """Training tasks, held-out tasks, and messages to the user."""
    if environment is not None and not config.dataset:
        refuse_dressing(config, "`dataset`")
        found = tasks_of(environment, "train", config.seed)[: config.limit]
        heldout = tasks_of(environment, "heldout", config.seed)[: config.eval_limit] if config.eval_every else []
        if not found or (config.eval_every and not heldout):
            raise UserError(
                f"{config.environment} has no {'held-out ' if found else ''}tasks of its own; name some with "
                f"{'`eval_dataset`' if found else '`dataset`'}"
            )
        return found, heldout, []
    words: dict[str, Any] = {"system": config.system, "prompt_template": config.prompt_template}
    columns = parse_columns(config.columns)
    named = columns_read(rewards, gold, environment, teachers) | {getattr(config, "curriculum", "")}
    words |= {"named": named, "columns": columns, "seed": config.seed}
    tasks = load_tasks(config.dataset, limit=config.limit, **words)
    for each in (rewards, None if config.eval_every else gold):  # gold is read on held-out tasks, if there are any
        refuse_unreadable(each, tasks, config.dataset)
    if config.eval_dataset and not config.eval_every:
        raise UserError("`eval_dataset` needs `eval_every`; pass it too")
    if not config.eval_every:
        return tasks, [], tasks.notes
    gym = is_gym(config.dataset)
    if not (config.eval_dataset or gym):
        raise UserError("`eval_every` needs held-out tasks: pass `eval_dataset`")
    heldout = load_tasks(
        config.eval_dataset or config.dataset,
        split="heldout" if gym and not config.eval_dataset else None,
        limit=config.eval_limit,
        **words,
    )
    for each in (rewards, gold):
        refuse_unreadable(each, heldout, config.eval_dataset or config.dataset)
    kept, removed = disjoint(tasks, heldout)
    return tasks, kept, [*tasks.notes, *met_before(removed)]


def columns_read(*readers: object) -> set[str]:
    """The columns that rewards and an environment name; "**" where one may read any."""
    return {name for reader in readers for name in getattr(reader, "columns", ("**",) if reader else ())}


def refuse_dressing(options: object, source: str) -> None:
    """Raise `UserError` for an option that shapes prompts of the data set `source`: an environment writes its own."""
    for name, unset in (("system", None), ("prompt_template", "{prompt}"), ("columns", "")):
        if getattr(options, name, unset) != unset:
            raise UserError(
                f"`{name}` is for tasks of {source}; the environment writes the prompts of its own tasks. Leave it out"
            )


def refuse_unreadable(rewards: "Weighted | None", tasks: Sequence[Task], source: object) -> None:
    """Raise `DataError` for rows whose answers cannot be read: better now than when something has been sampled.

    They are not left out: the rest would be easier ones.
    """
    said = finish(rewards.unreadable(tasks)) if rewards else []
    if found := [(number, why) for number, why in enumerate(said, 1) if why]:
        number, why = found[0]
        task = tasks[number - 1]
        text = repr(task.answer)
        has = f" has the answer {text if len(text) <= 80 else text[:77] + '...'}" if task.answer is not None else ""
        more = f"; {len(found):,} of {len(tasks):,} rows are like that" if len(found) > 1 else ""
        raise DataError(
            f"{source} row {number} ({task.id}){has}: {why}{more}; correct or remove such rows, or judge by "
            "another `reward`"
        )
