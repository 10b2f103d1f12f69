"""LLM judges: a chat model, a prompt (`prompt.py`), and its kind (`kinds.py`): what it is asked, and how it is scored.

A judge takes any `ChatModel`; tests pass a stub.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from posttrain.background import few_of
from posttrain.errors import UserError
from posttrain.rewards.inputs import ContinuationScorer, seed_of
from posttrain.rewards.judges.kinds import Pairwise, Question, Verdict
from posttrain.rewards.judges.prompt import JudgePrompt, read_prompt
from posttrain.rewards.reward import EpisodeReward, apart, scoring
from posttrain.types import ChatModel, Episode, EpisodeGroup, Message, Sampling, Score, SeatScores, StopReason, Task

VERDICT = Sampling(1024, temperature=0.0)
_SHOWN = 200  # characters of a verdict in an explanation of why there is no score


@dataclass
class Spent:
    """What a judge has used: tokens, and verdicts that were read; those of a cache count."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    verdicts: int = 0


@dataclass(frozen=True)
class Judge(EpisodeReward):
    """Judges episodes by the kind of its prompt; scores are from 0 to 1.

    A verdict without a score is resampled with another seed. After `tries` verdicts without one the reward does
    not apply to the episode. A request and its seed depend only on the run's seed, the task and what is shown.
    """

    model: ChatModel
    name: str = "judge"
    prompt: JudgePrompt = field(default_factory=lambda: read_prompt("quality"))
    sampling: Sampling = VERDICT  # at temperature 0 tries after the first, and several votes, are sampled at 1
    seed: int = 0  # of the run
    tries: int = 3  # verdicts of one vote, at most
    at_once: int = 16  # concurrent requests
    spent: Spent = field(default_factory=Spent, compare=False)
    role = "judge"
    bounds = (0.0, 1.0)
    patient = True

    def __post_init__(self) -> None:
        if self.tries < 1 or self.at_once < 1:
            raise UserError(f"a judge needs 1 or more tries and requests at once; got {self.tries} and {self.at_once}")
        if self.prompt.kind.grades(self.prompt.scale) and not isinstance(self.model, ContinuationScorer):
            raise UserError(
                f"the prompt of judge '{self.name}' reads logprobs of grades, which models behind an API do not give; "
                f'name a model that runs here: `judge="{self.name}=MODEL"`, or use another prompt'
            )

    @property
    def columns(self) -> frozenset[str]:
        """Those that its prompt shows."""
        return self.prompt.columns

    @property
    def orders(self) -> bool:
        """Whether it asks about each two answers in both orders, and says what they made of it."""
        return isinstance(self.prompt.kind, Pairwise)

    @property
    def min_group(self) -> int:
        """How many episodes of a task its kind compares."""
        return self.prompt.kind.least

    async def unreadable(self, tasks: Sequence[Task]) -> list[str]:
        """For each task, why it cannot be judged: what the prompt needs of a row is not there."""
        return [self.prompt.wrong(task, self.name) for task in tasks]

    async def score(self, groups: Sequence[EpisodeGroup]) -> list[list[SeatScores]]:
        """A score of each episode, of at most `at_once` requests at a time; after a failure no new one is sent."""
        kind, votes = self.prompt.kind, range(self.prompt.votes)
        asked = [kind.questions(group) for group in groups]
        said = iter(await few_of(self.at_once, self._vote, [(q, n) for of in asked for q in of for n in votes]))
        verdicts = [[_agreed([next(said) for _ in votes]) for _ in questions] for questions in asked]
        scale = self.prompt.scale
        return [[*kind.scores(group, told, scale)] for group, told in zip(groups, verdicts, strict=True)]

    async def __call__(self, episode: Episode) -> Score:
        """The score of an episode; raises `UserError` where the kind compares several."""
        if self.min_group > 1:
            raise UserError(f"judge '{self.name}' compares {self.min_group} or more answers to a task; call 'score'")
        ((score,),) = await self.score(apart([episode]))
        return score if isinstance(score, Score) else Score.not_applicable()

    async def _vote(self, asked: tuple[Question, int]) -> Verdict:
        question, vote = asked
        told = [repr([(message.role, message.text) for message in each.messages]) for each in question.episodes]
        task = question.episodes[0].task
        place = seed_of(self.seed, "judge", self.name, task.id, *told, *question.values.values())
        with scoring(self.name, question.episodes[0]):
            text = self.prompt.of(question, f"{seed_of(place, 'boundary'):016x}")
            return await self._asked(question, Message("user", text), seed_of(place, "vote", vote) if vote else place)

    async def _asked(self, question: Question, asked: Message, place: int) -> Verdict:
        kind, scale, text = self.prompt.kind, self.prompt.scale, ""
        if (grades := kind.grades(scale)) and not kind.ending:
            return await self._weighed(grades, [asked])
        for attempt in range(self.tries):
            again = (attempt > 0 or self.prompt.votes > 1) and not self.sampling.temperature
            sampling = replace(self.sampling, temperature=1.0) if again else self.sampling
            reply = await self.model.chat([asked], sampling=sampling, seed=seed_of(place, attempt))
            self.spent.prompt_tokens += reply.usage.prompt_tokens
            self.spent.completion_tokens += reply.usage.completion_tokens
            self.spent.verdicts += 1
            if reply.stop_reason is StopReason.CONTEXT and not reply.text:
                return Verdict(None, "the judge's context is too short for the episode")
            text = reply.text
            if reply.stop_reason is not StopReason.STOP:
                continue
            if grades:
                rationale = text.partition(kind.ending)[0]  # a verifier that was trained on verdicts goes on to one
                return await self._weighed(grades, [asked, Message("assistant", rationale + kind.ending)])
            if (value := kind.read(text, scale, question)) is not None:
                return Verdict(value, text)
        hint = ", which kinds expected and genrm do not need" if isinstance(self.model, ContinuationScorer) else ""
        return Verdict(
            None,
            f"none of {self.tries} verdicts ends with a line '{kind.line}'{hint}; the last one ends {text[-_SHOWN:]!r}"
            if not grades
            else f"none of {self.tries} rationales ended within {self.sampling.max_new_tokens} tokens",
        )

    async def _weighed(self, grades: Sequence[str], messages: Sequence[Message]) -> Verdict:
        """The verdict that the probabilities of grades are."""
        assert isinstance(self.model, ContinuationScorer)
        try:
            found = await self.model.logprobs(messages, grades)
        except UserError as error:  # such as a context that is too short
            return Verdict(None, str(error))
        self.spent.verdicts += 1
        odds = {grade: math.exp(math.fsum(told)) for grade, told in zip(grades, found, strict=True)}
        said = [message.content for message in messages if message.role == "assistant"]
        shares = {**{f"p({grade})": p for grade, p in odds.items()}, "p(other text)": 1 - math.fsum(odds.values())}
        return Verdict(
            self.prompt.kind.weigh(odds), "".join(said) + " ".join(f"{name}={p:.3g}" for name, p in shares.items())
        )


def _agreed(votes: Sequence[Verdict]) -> Verdict:
    """The mean of the votes that have a value."""
    values: list[Any] = [value for value, _ in votes if value is not None]
    if len(votes) == 1 or not values:
        return votes[0]
    mean = tuple(map(fmean, zip(*values, strict=True))) if isinstance(values[0], tuple) else fmean(values)
    return Verdict(mean, "\n\n".join(text for _, text in votes))
