"""What models say as rewards: reward models, with ensemble and step aggregation, classifiers, and the policy itself.

A learned reward takes any `ScoreFn`; tests pass a lambda.
"""

import math
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from statistics import fmean, pvariance
from types import MappingProxyType
from typing import cast

from posttrain.background import all_of
from posttrain.errors import RewardError, UserError, unknown
from posttrain.rewards.custom import CustomReward, from_function
from posttrain.rewards.inputs import ContinuationScorer, RewardContext
from posttrain.rewards.reward import EpisodeReward
from posttrain.types import Episode, EpisodeGroup, Message, Score, ScoreFn, SeatScores, Span, Task, steps_in

Combine = Callable[[Sequence[float], float], float]
Shares = Callable[[Sequence[str]], Sequence[float]]

COMBINATIONS: Mapping[str, Combine] = MappingProxyType(
    {
        "mean": lambda scores, penalty: fmean(scores),
        "worst": lambda scores, penalty: min(scores),
        "uncertain": lambda scores, penalty: fmean(scores) - penalty * pvariance(scores),
    }
)
"""Aggregations of an ensemble's scores, with a weight.

    mean        1/H sum_h r_h
    worst       min_h r_h
    uncertain   1/H sum_h r_h - w 1/H sum_h (r_h - mean)^2

Coste et al. 2023 (https://arxiv.org/abs/2310.02743), who call the last two worst-case and
uncertainty-weighted optimisation.
"""


@dataclass(frozen=True)
class LearnedReward(EpisodeReward):
    """The score of a reward model. It is unbounded and does not indicate correctness."""

    ask: ScoreFn  # conversations in, the score of each by every member out
    name: str = "reward_model"
    use: str = "mean"  # a name in `COMBINATIONS`
    penalty: float = 0.5  # w, for `uncertain`
    role = "learned"
    bounds = (-math.inf, math.inf)
    patient = True

    def __post_init__(self) -> None:
        _check(self.use, self.penalty)

    async def score_episodes(self, episodes: Sequence[Episode]) -> list[Score]:
        """One score per episode."""
        found = _asked(self.ask, self.name, episodes)
        return [Score(COMBINATIONS[self.use](scores, self.penalty)) for scores in found]


SOFTMIN_TEMPERATURE = 0.1  # of `softmin`; the authors'


def _softmin(steps: Sequence[float]) -> Sequence[float]:
    """The sums so far of the steps' rewards, each with its weight."""
    rewards = [2 * step - 1 for step in steps]
    weights = [math.exp((min(rewards) - reward) / SOFTMIN_TEMPERATURE) for reward in rewards]
    return list(accumulate(w * r / math.fsum(weights) for w, r in zip(weights, rewards, strict=True)))


STEP_AGGREGATIONS: Mapping[str, tuple[float, Callable[[Sequence[float]], Sequence[float]]]] = MappingProxyType(
    {
        "min": (1.0, lambda steps: list(accumulate(steps, min))),
        "product": (1.0, lambda steps: list(accumulate(steps, operator.mul))),
        "last": (0.0, lambda steps: steps),
        "mean": (0.0, lambda steps: list(accumulate(step / len(steps) for step in steps))),
        "sum": (0.0, lambda steps: list(accumulate(2 * step - 1 for step in steps))),
        "softmin": (0.0, _softmin),
    }
)
"""Aggregations of the probabilities that steps are right: the value before the first step, and that after each.

    min       min_s p_s
    product   prod_s p_s, the probability that all are right (Lightman et al. 2023, https://arxiv.org/abs/2305.20050)
    last      p_S
    mean      1/S sum_s p_s
    sum       sum_s r_s,   r_s = 2 p_s - 1, which grows with the number of steps
    softmin   sum_s w_s r_s,   w_s = exp(-r_s / T) / sum_u exp(-r_u / T),   T = 0.1

The last is the min-form credit of PURE (Cheng et al. 2025, https://arxiv.org/abs/2504.15275): paid w_s r_s, the steps
from one on sum to about the least r_s of all if that is still to come, and to about 0 behind it. (The paper could be
read in summaries only; r, w and T are those of the authors' code.)

A step is paid by how much it changes that, so that its steps' rewards and the value before them are the aggregate.
"""


@dataclass(frozen=True)
class StepReward(EpisodeReward):
    """The score of a process reward model: the aggregate of its steps, and what each adds to it as a `Span`.

    A step is a line of what a seat has sampled (`steps_in`), in all its turns; without any the score is 0. Of several
    models the probabilities of a step are aggregated.
    """

    asks: Sequence[ScoreFn]  # conversations in, the logit of each step of their last message out
    aggregation: str = "min"  # a name in `STEP_AGGREGATIONS`
    name: str = "reward_model"
    use: str = "mean"  # a name in `COMBINATIONS`
    penalty: float = 0.5  # w, for `uncertain`
    role = "learned"
    bounds = (-math.inf, math.inf)
    patient = True

    def __post_init__(self) -> None:
        _check(self.use, self.penalty)
        if self.aggregation not in STEP_AGGREGATIONS:
            raise unknown("aggregation of steps", self.aggregation, STEP_AGGREGATIONS)

    async def score_episodes(self, episodes: Sequence[Episode]) -> list[SeatScores]:
        """One score per episode, or one for each trained seat."""
        seats = [list(episode.texts) or [""] for episode in episodes]
        turns = [[_turns(one, seat) for seat in of] for one, of in zip(episodes, seats, strict=True)]
        asked = [turn for episode in turns for seat in episode for turn in seat if steps_in(turn[-1].content)]
        found = iter(zip(*(_answers(ask, self.name, asked) for ask in self.asks), strict=True))

        def score(of_seat: Sequence[tuple[Message, ...]]) -> Score:
            places, right = list[tuple[int, int, int]](), list[float]()
            for number, turn in enumerate(of_seat):
                steps = steps_in(turn[-1].content)
                places += [(number, start, end) for start, end in steps]
                of_models = next(found) if steps else ()
                if wrong := [len(logits) for logits in of_models if len(logits) != len(steps)]:
                    raise RewardError(
                        f"the model behind reward '{self.name}' gave {wrong[0]} scores to {len(steps)} steps"
                    )
                odds = [[0.5 * (1 + math.tanh(logit / 2)) for logit in logits] for logits in of_models]
                right += [COMBINATIONS[self.use](of_step, self.penalty) for of_step in zip(*odds, strict=True)]
            if not right:
                return Score(0.0, explanation="no step")
            before, aggregate = STEP_AGGREGATIONS[self.aggregation]
            added = [after - so_far for so_far, after in pairwise([before, *aggregate(right)])]
            spans = tuple(Span(*place, value) for place, value in zip(places, added, strict=True))
            return Score(before, explanation="steps " + " ".join(f"{one:.2f}" for one in right), spans=spans)

        scores = [[score(of_seat) for of_seat in episode] for episode in turns]
        return [
            dict(zip(of, each, strict=True)) if len(of) > 1 else each[0] for of, each in zip(seats, scores, strict=True)
        ]


def _turns(episode: Episode, seat: str) -> list[tuple[Message, ...]]:
    """What a seat had before it at each of its turns, and what it sampled there."""
    texts, view = episode.turn_texts(seat), episode.views.get(seat) or episode.messages
    places = [place for place, message in enumerate(view) if message.role == "assistant"]
    last = places[len(places) - len(texts) :]  # those before them are of the prompt
    return [(*view[:place], Message("assistant", text)) for place, text in zip(last, texts, strict=True)]


@dataclass(frozen=True)
class Classifier(EpisodeReward):
    """The probability of a label that a sequence classifier gives to the completion, as text without the prompt.

    `ask` has texts in, the probability of the label in each out; put there before it scores.
    """

    model: str  # a folder or hub id of a sequence classifier, such as one of toxicity or sentiment
    label: str  # one of its labels
    avoid: bool = False  # whether the label is unwanted: the score is 1 less its probability
    name: str = "classifier"
    ask: list[Shares] = field(default_factory=list[Shares], init=False, repr=False, compare=False)
    role = "learned"
    bounds = (-math.inf, math.inf)  # no probability says that a task is solved
    patient = True

    async def score_episodes(self, episodes: Sequence[Episode]) -> list[Score]:
        """One score per episode."""
        found = self.ask[0]([episode.completion for episode in episodes])
        return [Score(1 - share if self.avoid else share) for share in found]


@dataclass(frozen=True)
class Disagreement(EpisodeReward):
    """Disagreement of an ensemble: the standard deviation of the members' scores. A monitor."""

    ask: ScoreFn
    name: str = "disagreement"
    role = "monitor"
    patient = True

    async def score_episodes(self, episodes: Sequence[Episode]) -> list[Score]:
        """One score per episode."""
        return [Score(pvariance(scores) ** 0.5) for scores in _asked(self.ask, self.name, episodes)]


def cached_scores(ask: ScoreFn) -> ScoreFn:
    """The same, which keeps its last result, for rewards that share it."""
    lock, last = threading.Lock(), (list[tuple[Message, ...]](), cast("Sequence[Sequence[float]]", ()))

    def scores(conversations: Sequence[Sequence[Message]]) -> Sequence[Sequence[float]]:
        nonlocal last
        asked = [tuple(one) for one in conversations]
        with lock:
            if last[0] != asked:
                last = asked, ask(conversations)
            return last[1]

    return scores


def _check(use: str, penalty: float) -> None:
    if use not in COMBINATIONS:
        raise unknown("use of a reward model", use, COMBINATIONS)
    if not 0 <= penalty < math.inf:
        raise UserError(f"the penalty of disagreement must be 0 or more; got {penalty}")


def _asked(ask: ScoreFn, name: str, episodes: Sequence[Episode]) -> Sequence[Sequence[float]]:
    found = _answers(ask, name, [episode.messages for episode in episodes])
    if not all(len(scores) for scores in found):
        raise RewardError(f"the model behind reward '{name}' gave 0 answers to 1 episodes")
    return found


def _answers(ask: ScoreFn, name: str, asked: Sequence[Sequence[Message]]) -> Sequence[Sequence[float]]:
    found: Sequence[Sequence[float]] = ask(asked) if asked else []
    if len(found) != len(asked):
        raise RewardError(f"the model behind reward '{name}' gave {len(found)} answers to {len(asked)} episodes")
    return found


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
