"""How likely the policy finds the reference answer after its own reasoning: a reward that needs no verifier."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from posttrain.background import all_of
from posttrain.errors import RewardError
from posttrain.rewards.custom import CustomReward, from_function
from posttrain.rewards.inputs import ContinuationScorer, RewardContext
from posttrain.types import Episode, EpisodeGroup, Message, Score, Task


@dataclass(frozen=True)
class ReferenceProbability:
    """Reference probability reward, RLPR (Yu et al. 2025, https://arxiv.org/abs/2506.18254), of a group's episodes.

        r   = mean_i p(y*_i | x, z, y*_<i)      r' = mean_i p(y*_i | x, y*_<i)
        R   = clip(r - r', 0, 1)

    x is the prompt, z the reasoning, y* the reference answer; p is the policy that sampled, at temperature 1. The
    reasoning ends with the last `before`, which is put behind a completion that does not have it, and before the answer
    in r'. The mean of probabilities, unlike that of logprobs, is not ruled by one unlikely token. Its filter of groups
    by the standard deviation of their rewards is `min_reward_std` of rl: a fixed threshold, where the paper's follows
    the average of training. (The paper could be read in summaries only, so its equations have no numbers here.)
    """

    before: str = "<answer>"
    bounds = (-math.inf, math.inf)  # no value says that a task is solved
    asks_policy = True

    async def __call__(self, group: EpisodeGroup, reward_context: RewardContext) -> list[Score]:
        """The reward of each episode; it does not apply to one that does not end with the assistant."""
        policy, answer = reward_context.policy, str(group.task.answer)
        if not isinstance(policy, ContinuationScorer):
            raise RewardError("the reward 'rlpr' asks the policy that is trained; use it in rl and online-preference")

        async def mean(messages: Sequence[Message], said: str) -> float:
            (logprobs,) = await policy.logprobs([*messages, Message("assistant", said)], [answer])
            return fmean(map(math.exp, logprobs))

        plain = await mean(group.task.prompt, self.before)

        async def score(episode: Episode) -> Score:
            *told, last = episode.messages
            if last.role != "assistant":
                return Score.not_applicable("the episode does not end with the assistant")
            reasoning = last.content.rpartition(self.before)[0] if self.before in last.content else f"{last.content}\n"
            found = await mean(told, reasoning + self.before)
            return Score(min(1.0, max(0.0, found - plain)), explanation=f"{found:.4f}, without reasoning {plain:.4f}")

        return await all_of(map(score, group.episodes))

    async def unreadable(self, tasks: Sequence[Task]) -> list[str]:
        """A task without a reference answer cannot be scored."""
        return [
            "" if task.answer is not None and f"{task.answer}".strip() else "rlpr needs a reference answer"
            for task in tasks
        ]


def rlpr(before: str = ReferenceProbability.before, name: str = "rlpr") -> CustomReward:
    """The reward `rlpr`; `before` stands between reasoning and answer."""
    return from_function(ReferenceProbability(before), name)
