"""Reward functions of TRL, as they are: name one here, or make it, and posttrain calls it as TRL's trainers do.

    posttrain rl --dataset math.jsonl --reward "examples/trl_rewards.py:accuracy_reward=1.0"

They read completions as lists of messages, so the data's prompts must be lists of messages too; `accuracy_reward` reads
the column `solution`. docs/rewards.md says what a function may ask for.
"""

from trl.rewards import accuracy_reward, get_soft_overlong_punishment  # pyright: ignore[reportPrivateImportUsage]

__all__ = ["accuracy_reward", "overlong"]

overlong = get_soft_overlong_punishment(max_completion_len=256, soft_punish_cache=64)
