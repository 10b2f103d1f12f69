"""What scores texts that are there already: rewards, reward models and judges of a command without a policy."""

from collections.abc import Callable, Collection, Sequence
from os.path import isfile
from pathlib import Path
from typing import TypeVar

from posttrain.bindings.judges import JudgeModels, judges_in, rewards_with
from posttrain.bindings.reward_models import refuse_other_zeros, steps_of
from posttrain.bindings.sampling import columns_read, refuse_unreadable
from posttrain.data.files import Source
from posttrain.engine.scorer import load_scorer
from posttrain.environments.scored import ScoredEnvironment, overseen, refuse_unknown_rewards
from posttrain.errors import UserError, words_of
from posttrain.options.judging import Scores
from posttrain.options.kinds import Rewards
from posttrain.runs.run import CONFIG, SAMPLES
from posttrain.training.resolve_model import saved_model
from posttrain.types import Episode, Task

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
    judging = judges_in(config, lambda name: saved_model(name).where)
    judging.refuse_policy(f"posttrain {command}")
    rewards, _, _ = rewards_with(judging, config, reward)
    items = read(columns_read(rewards or None))
    tasks = [item.task if isinstance(item, Episode) else item for item in items]
    if rewards:
        refuse_unreadable(rewards, tasks, source)
    refuse_unknown_rewards(tasks, rewards, config.reward_model)
    models = [
        load_scorer(saved_model(name).where, precision=config.precision, microbatch_tokens=config.microbatch_tokens)
        for name in words_of("reward_model", config.reward_model)
    ]
    judging.load()
    refuse_other_zeros(config.ensemble_aggregation, [scorer.facts for scorer in models])
    environment, _, _ = overseen(
        rewards,
        models,
        members=sum(scorer.facts.members for scorer in models),
        use=config.ensemble_aggregation,
        penalty=config.uncertainty_penalty,
        steps=steps_of(config.step_aggregation, [scorer.facts for scorer in models]),
    )
    return items, environment, judging


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
