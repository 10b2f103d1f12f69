"""What scores texts that are there already: rewards, reward models and judges of a command without a policy."""

from collections.abc import Callable, Collection, Sequence
from os.path import isfile
from pathlib import Path
from typing import TypeVar

from posttrain.bindings.judges import JudgeModels, judges_in, rewards_with
from posttrain.bindings.reward_models import load_scorers, overseen_by
from posttrain.bindings.sampling import columns_read, refuse_unreadable
from posttrain.data.files import Source
from posttrain.environments.scored import ScoredEnvironment, refuse_unknown_rewards
from posttrain.errors import UserError, words_of
from posttrain.options.judging import Scores
from posttrain.options.kinds import Rewards
from posttrain.runs.run import CONFIG, SAMPLES
from posttrain.training.resolve_model import saved_model
from posttrain.types import Episode, EpisodeGroup, Task

T = TypeVar("T", Episode, Task)


def scoring(
    config: Scores, reward: Rewards, read: Callable[[Collection[str]], Sequence[T]], source: object, command: str
) -> tuple[Sequence[T], ScoredEnvironment, JudgeModels]:
    """Find everything; reward models come last, because they take longest to load.

    `read` is told which columns the rewards name, and reads the `source`.
    """
    if not (reward or config.reward_model or config.judge):
        raise UserError(
            '`reward` is required, such as "numbers" for GSM8K, "math", FILE.py:function, or `reward_model` or `judge`'
        )
    judging = judges_in(config)
    judging.refuse_policy(f"posttrain {command}")
    parsed = rewards_with(judging, config, reward)
    rewards = parsed.rewards
    items = read(columns_read(rewards or None))
    tasks = [item.task if isinstance(item, Episode) else item for item in items]
    if rewards:
        refuse_unreadable(rewards, tasks, source)
    refuse_unknown_rewards(tasks, rewards, config.reward_model)
    where = [saved_model(name).where for name in words_of("reward_model", config.reward_model)]
    models = load_scorers(where, config.microbatch_tokens, config.precision)
    judging.load()
    environment, _, _ = overseen_by(config, parsed, models, [scorer.facts for scorer in models])
    return items, environment, judging


def by_prompt(episodes: Sequence[Episode]) -> list[tuple[EpisodeGroup, list[int]]]:
    """The completions of each prompt and answer as a group, and their places."""
    places: dict[str, list[int]] = {}
    for place, episode in enumerate(episodes):
        places.setdefault(repr((episode.task.prompt, episode.task.answer)), []).append(place)
    return [(EpisodeGroup(episodes[own[0]].task, tuple(episodes[i] for i in own)), own) for own in places.values()]


def samples_of(dataset: Source) -> Source:
    """Of a run its samples; of anything else itself."""
    if not isinstance(dataset, str):
        return dataset
    path = Path(dataset).expanduser()
    if not isfile(path / CONFIG):  # Path.is_file raises where a name is too long
        return dataset
    if not isfile(path / SAMPLES):
        raise UserError(f"the run {dataset} has no {SAMPLES}; give a file of completions")
    return str(path / SAMPLES)
