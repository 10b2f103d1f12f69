"""The majority of a group as its label: TTRL, test-time reinforcement learning, which needs no answers.

Zuo et al. 2025, section 3 (https://arxiv.org/abs/2504.16084).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.rewards.verifiers.extraction import NOT_FOUND, AnswerIn, extract
from posttrain.rewards.verifiers.number_grammar import parse_number
from posttrain.types import EpisodeGroup, Score


@dataclass(frozen=True)
class Majority:
    """1 for the answer that most completions of the group end in, whatever it is; else 0.

        R_i = 1 if y_i = argmax_y sum_j [y_j = y], else 0

    Numbers are compared as numbers (`7.0` is `7`; a percent sign counts, so that `50%` is not `0.5`), other answers as
    texts without the white space around and between words. A completion without an answer has no vote and is
    `unparsed`. Where answers tie, all of them have 1, so that the order of a group does not matter; a group in which
    all differ teaches nothing.

    It is a rule and no verifier: what it pays is agreement. A policy whose majority is wrong becomes surer of its
    mistakes (docs/distillation.md has how to tell beforehand).
    """

    answer_in: AnswerIn = "answer"
    name: str = "majority"
    min_group = 2
    bounds = (0.0, math.inf)  # no value means that a task is solved

    async def score(self, groups: Sequence[EpisodeGroup]) -> list[list[Score]]:
        """As in `Reward`."""
        return [self._of([extract(episode.completion, self.answer_in) for episode in each.episodes]) for each in groups]

    def _of(self, answers: Sequence[str | None]) -> list[Score]:
        keys = [None if answer is None else str(parse_number(answer) or " ".join(answer.split())) for answer in answers]
        votes = Counter(key for key in keys if key is not None)
        most, why = max(votes.values(), default=0), NOT_FOUND[self.answer_in]
        return [
            Score(0.0, explanation=why, unparsed=True)
            if key is None
            else Score(float(votes[key] == most), key, f"{votes[key]} of {len(keys)} agree")
            for key in keys
        ]
