"""Pointwise LLM judge: single-answer grading (Zheng et al. 2023, https://arxiv.org/abs/2306.05685).

A judge takes any `ChatModel`; tests pass a stub. Not implemented: pairwise comparison, with its position bias.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from posttrain.errors import UserError
from posttrain.rewards.context import seed_of
from posttrain.rewards.custom import from_function
from posttrain.rewards.judges.prompt import JudgePrompt, read_prompt
from posttrain.rewards.judges.verdict import score_in
from posttrain.rewards.reward import EpisodeReward
from posttrain.types import (
    ChatModel,
    Episode,
    EpisodeGroup,
    Message,
    Sampling,
    Score,
    SeatScores,
    StopReason,
    Task,
)

VERDICT = Sampling(1024, temperature=0.0)
_SHOWN = 200  # characters of a verdict in an explanation of why there is no score


def _default_prompt() -> JudgePrompt:
    return read_prompt("quality")


@dataclass(frozen=True)
class Judge(EpisodeReward):
    """Judges an episode; its score is mapped from the prompt's scale to [0, 1].

    A verdict without a score is resampled with another seed. After `tries` verdicts without one the reward does
    not apply to the episode. A request and its seed depend only on the run's seed, the task and the episode.

    Args:
        model: the judge model.
        name: of the reward.
        prompt: with its scale.
        sampling: of verdicts. At temperature 0 another try would say the same, so tries after the first have 1.
        seed: of the run.
        tries: verdicts about an episode, at most.
        at_once: concurrent requests.
    """

    model: ChatModel
    name: str = "judge"
    prompt: JudgePrompt = field(default_factory=_default_prompt)
    sampling: Sampling = VERDICT
    seed: int = 0
    tries: int = 3
    at_once: int = 16
    role = "judge"
    bounds = (0.0, 1.0)
    patient = True

    def __post_init__(self) -> None:
        if self.tries < 1 or self.at_once < 1:
            raise UserError(f"a judge needs 1 or more tries and requests at once; got {self.tries} and {self.at_once}")

    async def unreadable(self, tasks: Sequence[Task]) -> list[str]:
        """For each task, why it cannot be judged: the prompt needs a reference answer, and there is none."""
        why = f"the prompt of judge '{self.name}' has {{reference}}, which is that answer"
        return [why if self.prompt.needs("reference") and task.answer is None else "" for task in tasks]

    async def score(self, groups: Sequence[EpisodeGroup]) -> list[list[SeatScores]]:
        """As in `CustomReward`: at most `at_once` episodes at a time.

        After a failure no new request is sent; those in flight may finish, so that their replies can be cached.
        """
        return await from_function(self, self.name).score(groups)

    async def __call__(self, episode: Episode) -> Score:
        """The score of an episode."""
        said = [(message.role, message.text) for message in episode.messages]
        place = seed_of(self.seed, "judge", self.name, episode.task.id, repr(said))
        text = ""
        asked = Message("user", self.prompt.of(episode, f"{seed_of(place, 'boundary'):016x}"))
        for attempt in range(self.tries):
            again = attempt > 0 and not self.sampling.temperature
            sampling = replace(self.sampling, temperature=1.0) if again else self.sampling
            reply = await self.model.chat([asked], sampling=sampling, seed=seed_of(place, attempt))
            if reply.stop_reason is StopReason.CONTEXT and not reply.text:
                return Score.not_applicable("the judge's context is too short for the episode")
            found = score_in(reply.text, self.prompt.scale) if reply.stop_reason is StopReason.STOP else None
            if found is not None:
                low, high = self.prompt.scale
                return Score((found - low) / (high - low), parsed=f"{found:g}", explanation=reply.text)
            text = reply.text
        return Score.not_applicable(
            f"none of {self.tries} verdicts ends with a line 'Score: N'; the last one ends {text[-_SHOWN:]!r}"
        )
