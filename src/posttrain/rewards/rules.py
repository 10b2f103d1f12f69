"""Rules: rewards of form and style.

They see words, not tokens, so how length is counted is an argument: words by default; a caller that has a tokenizer
passes `lambda text: len(tokenizer.encode(text))`.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from posttrain.errors import UserError
from posttrain.rewards.reward import EpisodeReward
from posttrain.rewards.verifiers.extraction import reasoning
from posttrain.types import Episode, Score

# East Asian text mixes scripts within one language; everything else is one word of the character's Unicode name.
_FAMILIES = {"CJK": "han", "HIRAGANA": "han", "KATAKANA": "han", "BOPOMOFO": "han", "HANGUL": "hangul"}


@dataclass(frozen=True)
class LanguageConsistency(EpisodeReward):
    """The share of the completion's letters that are in the expected script, from 0 to 1.

        value = letters in the script / all letters

    It measures the alphabet, not the language: English and French look the same to it, English and Chinese do not,
    and Greek letters in a formula count as Greek. Digits, signs and white space are not letters. Without any letter
    nothing is inconsistent: the value is 1. A script is "latin", "cyrillic", "hangul", "han" (with kana) or any other
    first word of Unicode's character names, in lower case.
    """

    script: str = "prompt"  # or that of most letters of the task's prompt
    name: str = "language"
    bounds = (0.0, 1.0)

    def _score_one(self, episode: Episode) -> Score:
        counts = scripts(episode.completion)
        expected = self.script
        if expected == "prompt":
            asked = scripts(" ".join(message.content for message in episode.task.prompt))
            expected = asked.most_common(1)[0][0] if asked else ""
        if not counts or not expected:
            return Score(1.0, explanation="no letters to compare")
        share = counts[expected] / counts.total()
        others = ", ".join(f"{script} {n}" for script, n in counts.most_common() if script != expected)
        return Score(share, explanation=f"not {expected}: {others}" if others else "")


def scripts(text: str) -> Counter[str]:
    """How many letters `text` has of each script."""
    return Counter(_script(character) for character in text if character.isalpha())


@lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    first = unicodedata.name(letter, "UNKNOWN").split(" ", 1)[0].split("-", 1)[0]
    return _FAMILIES.get(first, first.lower())


def count_words(text: str) -> int:
    """Words between white space."""
    return len(text.split())


@dataclass(frozen=True)
class SoftOverlong(EpisodeReward):
    """DAPO's soft overlong punishment, from -1 to 0.

        value = 0                                  if |y| <= L_max - L_cache
                ((L_max - L_cache) - |y|) / L_cache    if L_max - L_cache < |y| <= L_max
                -1                                 if L_max < |y|

    Yu et al. 2025, eq. 13 (arXiv 2503.14476), which uses L_max = 20480 and L_cache = 4096 tokens.
    """

    limit: int = 512  # L_max, in what `count` counts
    buffer: int = 128  # L_cache, the length of the ramp before the limit
    count: Callable[[str], int] = count_words  # the length |y| of a completion
    name: str = "length"
    bounds = (-1.0, 0.0)

    def __post_init__(self) -> None:
        if not 0 < self.buffer <= self.limit:
            raise UserError(
                f"length needs 0 < buffer <= limit; got buffer={self.buffer}, limit={self.limit}. "
                "The penalty begins at limit - buffer and is whole at limit"
            )

    def _score_one(self, episode: Episode) -> Score:
        length = self.count(episode.completion)
        over = length - (self.limit - self.buffer)
        return Score(-min(max(over / self.buffer, 0.0), 1.0) + 0.0, explanation=f"length {length}")


@dataclass(frozen=True)
class LengthTarget(EpisodeReward):
    """Distance of the completion's length from a target, as a penalty from -1 to 0.

    value = -min(1, | |y| - target | / target)
    """

    target: int = 256  # in what `count` counts
    count: Callable[[str], int] = count_words  # the length |y| of a completion
    name: str = "length_target"
    bounds = (-1.0, 0.0)

    def __post_init__(self) -> None:
        if self.target <= 0:
            raise UserError(f"length_target needs a target above 0; got {self.target}")

    def _score_one(self, episode: Episode) -> Score:
        length = self.count(episode.completion)
        return Score(-min(abs(length - self.target) / self.target, 1.0) + 0.0, explanation=f"length {length}")


@dataclass(frozen=True)
class Repetition(EpisodeReward):
    """Minus the share of the completion's n-grams that it has already said, from -1 (exclusive) to 0.

        value = -(1 - distinct n-grams / all n-grams)

    which is minus the seq-rep-n of Welleck et al. 2019 (arXiv 1908.04319, section 6). Words are what stands between
    white space, in lower case: "so it is so it is so" has 3 distinct bigrams of 6. Fewer than n words repeat none: 0.
    """

    n: int = 4
    name: str = "repetition"
    bounds = (-1.0, 0.0)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UserError(f"repetition needs n-grams of at least one word; got n={self.n}")

    def _score_one(self, episode: Episode) -> Score:
        words = episode.completion.lower().split()
        ngrams = [tuple(words[i : i + self.n]) for i in range(len(words) - self.n + 1)]
        return Score(len(set(ngrams)) / len(ngrams) - 1.0 if ngrams else 0.0)


_END_OF_STEP = re.compile(r"[\n;]|(?<=[.!?])\s|,\s")
_BULLET = re.compile(r"^[ \t]*(?:\d+[.)]|[-*•])[ \t]+", re.MULTILINE)
_NUMBERING = re.compile(r"^step\s*\d+\s*[:.)-]\s*")
_PUNCTUATION_AT_ENDS = " \t.,:;!?"


@dataclass(frozen=True)
class StepDiversity(EpisodeReward):
    """The share of reasoning steps that are distinct, from 0 to 1.

        value = distinct steps / max(steps, min_steps)

    Steps are the parts of the reasoning (before `</think>`; the whole completion where there is no such tag) between
    line ends, semicolons, commas and ends of sentences. Two steps are the same if they differ only in case, white
    space, numbering and final punctuation. No step: 0.
    """

    min_steps: int = 2  # reasoning with fewer cannot earn the whole value; without it, one step would
    name: str = "steps"
    bounds = (0.0, 1.0)

    def __post_init__(self) -> None:
        if self.min_steps < 1:
            raise UserError(f"steps needs min_steps of at least 1; got {self.min_steps}")

    def _score_one(self, episode: Episode) -> Score:
        steps = steps_of(reasoning(episode.completion))
        distinct = len(set(steps))
        return Score(distinct / max(len(steps), self.min_steps), explanation=f"{distinct} of {len(steps)} distinct")


def steps_of(text: str) -> list[str]:
    """The steps of a reasoning text, in the form in which they are compared."""
    parts = (" ".join(part.split()).lower() for part in _END_OF_STEP.split(_BULLET.sub("", text)))
    steps = (_NUMBERING.sub("", part).strip(_PUNCTUATION_AT_ENDS) for part in parts)
    return [step for step in steps if step]


@dataclass(frozen=True)
class Tags(EpisodeReward):
    """1 if the completion has exactly the required shape, else 0; the explanation says what breaks it.

    The shape is: nothing but white space; then for each tag in order `<tag>`, something, `</tag>`, each written once
    in the whole completion, with nothing in between; then, with `text_after`, something more, and without it, nothing.
    """

    tags: tuple[str, ...] = ("think",)
    text_after: bool = True  # whether the answer follows the last tag, or is inside it
    opened_by_prompt: bool = False  # the first opening tag ends the prompt, so the completion starts after it
    name: str = "tags"
    bounds = (0.0, 1.0)

    def _score_one(self, episode: Episode) -> Score:
        opening = f"<{self.tags[0]}>" if self.opened_by_prompt and self.tags else ""
        flaw = self._flaw(opening + episode.completion)
        return Score(float(not flaw), explanation=flaw)

    def _flaw(self, text: str) -> str:
        for tag in self.tags:
            for mark in (f"<{tag}>", f"</{tag}>"):
                if (count := text.count(mark)) != 1:
                    return f"{mark} occurs {count} times, expected once"
        position = 0
        for tag in self.tags:
            opening = re.compile(rf"\s*<{re.escape(tag)}>").match(text, position)
            if opening is None:
                return f"<{tag}> is not where it belongs"
            end = text.find(f"</{tag}>", opening.end())
            if end < 0:
                return f"</{tag}> comes before <{tag}>"
            if not text[opening.end() : end].strip():
                return f"<{tag}> is empty"
            position = end + len(f"</{tag}>")
        rest = text[position:].strip()
        if self.text_after and not rest:
            return "nothing follows the last tag"
        if not self.text_after and rest:
            return "something follows the last tag"
        return ""


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
    """

    phrases: tuple[str, ...] = PHRASES  # whole words, in any case
    cap: int = 2  # steps beyond this many earn nothing more
    name: str = "verification"
    bounds = (0.0, 1.0)

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
