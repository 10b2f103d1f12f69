"""Checking and backtracking phrases in the reasoning."""

import re
from dataclasses import dataclass
from typing import ClassVar

from posttrain.errors import UserError
from posttrain.rewards.reward import EpisodeReward
from posttrain.rewards.rules.steps import steps_of
from posttrain.rewards.verifiers.extraction import reasoning
from posttrain.types import Episode, Score

PHRASES = (
    *("wait", "check", "verify", "double-check", "let me see", "actually", "hold on", "not right", "mistake", "wrong"),
    *("instead", "try again", "on second thought", "recompute", "go back"),
)


@dataclass(frozen=True)
class VerificationPhrases(EpisodeReward):
    """How often the reasoning checks itself or turns back, from 0 to 1, counted up to `cap`.

        value = min(distinct steps that contain a phrase and say something more, cap) / cap

    The cap, and the rule that a bare or repeated "wait" counts for nothing, keep it from being farmed; it still pays
    for words, not for checking, so its weight belongs well below the verifier's.

    Args:
        phrases: whole words, in any case.
        cap: steps beyond this many earn nothing more.
    """

    phrases: tuple[str, ...] = PHRASES
    cap: int = 2
    name: str = "verification"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if self.cap < 1 or not self.phrases:
            raise UserError(
                f"verification needs a cap of at least 1 and a phrase; got cap={self.cap}, {len(self.phrases)} phrases"
            )

    def _score_one(self, episode: Episode) -> Score:
        longest_first = sorted(self.phrases, key=len, reverse=True)
        pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)", re.IGNORECASE)
        # what is left of a step without its phrases: two steps that differ in those alone are one
        rests = {
            " ".join(re.findall(r"\w\S*", pattern.sub(" ", step)))
            for step in steps_of(reasoning(episode.completion))
            if pattern.search(step)
        }
        found = len(rests - {""})
        return Score(min(found, self.cap) / self.cap, explanation=f"{found} checking steps")
