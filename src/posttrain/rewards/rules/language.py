"""Language consistency, by script (the idea: DeepSeek-R1, arXiv 2501.12948, section 2.3.2, which counts words)."""

import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from posttrain.rewards.reward import EpisodeReward
from posttrain.types import Episode, Score

# East Asian text mixes scripts within one language; everything else is one word of the character's Unicode name.
_FAMILIES = {"CJK": "han", "HIRAGANA": "han", "KATAKANA": "han", "BOPOMOFO": "han", "HANGUL": "hangul"}


@dataclass(frozen=True)
class LanguageConsistency(EpisodeReward):
    """The share of the completion's letters that are in the expected script, from 0 to 1.

        value = letters in the script / all letters

    It measures the alphabet, not the language: English and French look the same to it, English and Chinese do not,
    and Greek letters in a formula count as Greek. Digits, signs and white space are not letters. Without any letter
    nothing is inconsistent: the value is 1.

    Args:
        script: "latin", "cyrillic", "greek", "arabic", "hebrew", "devanagari", "thai", "hangul", "han" (with kana) or
            any other first word of Unicode's character names, in lower case; or "prompt": the script that most
            letters of the task's prompt are in.
    """

    script: str = "prompt"
    name: str = "language"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

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
    """How many letters `text` has of each script.

    Example:
        >>> scripts("Ответ: x = 7, 答え")
        Counter({'cyrillic': 5, 'han': 2, 'latin': 1})
    """
    return Counter(_script(character) for character in text if character.isalpha())


@lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    first = unicodedata.name(letter, "UNKNOWN").split(" ", 1)[0].split("-", 1)[0]
    return _FAMILIES.get(first, first.lower())
