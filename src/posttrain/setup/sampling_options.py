"""Options of recipes that sample from a policy."""

import math
from collections.abc import Mapping

from posttrain.errors import UserError, unknown
from posttrain.options.online import OnlineOptions, SampledOptions
from posttrain.rollouts.async_engine import Schedule

PIPELINED = "pipelined"
SCHEDULES: Mapping[str, Schedule | None] = {
    "auto": None,
    "lockstep": "lockstep",
    "continuous": "continuous",
    PIPELINED: None,  # `Players.pipelined` decides
}

COUNTS = (
    "prompts_per_step",
    "completions_per_prompt",
    "max_new_tokens",
    "max_prompt_tokens",
    "eval_limit",
    "eval_samples",
)
"""Options that must be 1 or more."""


def check_sampling(config: SampledOptions) -> None:
    """Validate the options of sampling and rewards.

    Raises:
        UserError: names the option and its valid range.
    """
    if not 0 < config.temperature < math.inf:
        raise UserError(
            f"--temperature must be above 0, or all completions of a group are equal; got {config.temperature}"
        )
    check_reward_models(config.reward_model, config.ensemble_aggregation, config.uncertainty_penalty)
    if not config.cache_gb > 0:
        raise UserError(f"--cache-gb must be above 0; got {config.cache_gb}")
    if not (config.dataset or config.environment):
        raise UserError("--dataset is required: a hub id, a file or folder, or gym:NAME")
    if config.environment_args and not config.environment:
        raise UserError("--environment-args needs --environment; pass it too")
    if config.seats and not config.environment:
        raise UserError("--seats needs an --environment with several seats; pass it too")
    if config.schedule not in SCHEDULES:
        raise unknown("schedule", config.schedule, SCHEDULES)
    if config.max_episode_tokens < 0 or not 0 <= config.max_lost <= 1:
        raise UserError("--max-episode-tokens must be 0 or more, and --max-lost a fraction from 0 to 1")


def check_reward_models(models: str, use: str, penalty: float) -> None:
    """Validate reward-model options that require another option.

    Raises:
        UserError: names the option and its valid range.
    """
    if use != "uncertain" and penalty != SampledOptions.uncertainty_penalty:
        raise UserError("--uncertainty-penalty needs --ensemble-aggregation uncertain")
    if not models and use != SampledOptions.ensemble_aggregation:
        raise UserError("--ensemble-aggregation needs a --reward-model")
    if not 0 <= penalty < math.inf:
        raise UserError(f"--uncertainty-penalty must be 0 or more; got {penalty}")


def check_evaluations(config: OnlineOptions) -> None:
    """Reject evaluation options if there are no evaluations.

    Raises:
        UserError: names the option and its valid range.
    """
    if config.stop_after < 0 or (config.stop_after and not config.eval_every):
        raise UserError("--stop-after must be 0 or more, and needs evaluations: pass --eval-every too")
    if (config.gold or config.gold_model) and not config.eval_every:
        raise UserError("--gold and --gold-model need held-out evaluations: pass --eval-every and --eval-dataset")
