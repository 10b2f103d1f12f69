"""Judge prompts: templates whose placeholders are filled in one pass.

Text of the policy is never evaluated: placeholders and braces in an answer are kept.

| placeholder | is |
|---|---|
| `{question}` | the last user message of the task's prompt |
| `{conversation}` | all messages before the answer |
| `{answer}` | the policy's last turn |
| `{reference}` | the task's answer |
| `{boundary}` | a delimiter derived from the episode, which no answer can contain |
| `{scale 0 to 10}` | the lowest and the highest score; it becomes "0 to 10" |
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from posttrain.errors import UserError, unknown
from posttrain.types import Episode

NAMES = ("question", "conversation", "answer", "reference", "boundary")
PACKAGED = ("quality", "reference")
"""Packaged prompts: the answer's quality, and its agreement with the reference answer."""

_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
_SCALE = re.compile(rf"\{{scale ({_NUMBER}) to ({_NUMBER})\}}")
_FIELD = re.compile(rf"\{{({'|'.join(NAMES)}|scale {_NUMBER} to {_NUMBER})\}}")
_WORD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class JudgePrompt:
    """A prompt, checked; `source` says in errors where it is from.

    Example:
        >>> JudgePrompt("Rate {answer} from {scale 1 to 5}.").fill({"answer": "{answer}"})
        'Rate {answer} from 1 to 5.'
    """

    text: str
    source: str = "the judge's prompt"

    def __post_init__(self) -> None:
        for word in _WORD.findall(self.text):
            if word not in NAMES and get_close_matches(word, NAMES, n=1, cutoff=0.75):
                raise unknown(f"placeholder in {self.source}:", word, NAMES)
        if not self.needs("answer"):
            raise UserError(f"{self.source} shows no answer to the judge; write {{answer}} where it belongs")
        scales = _SCALE.findall(self.text)
        if len(scales) != 1 or not float(scales[0][0]) < float(scales[0][1]):
            raise UserError(
                f"{self.source} must say its scale once, the lowest score first, such as {{scale 0 to 10}}; it says "
                f"{', '.join(f'{low} to {high}' for low, high in scales) or 'none'}"
            )

    @property
    def scale(self) -> tuple[float, float]:
        """The lowest and the highest score."""
        ((low, high),) = _SCALE.findall(self.text)
        return float(low), float(high)

    def needs(self, name: str) -> bool:
        """Whether the prompt has this placeholder."""
        return f"{{{name}}}" in self.text

    def fill(self, values: Mapping[str, str]) -> str:
        """The text with every placeholder replaced in one pass; values are not expanded."""
        return _FIELD.sub(
            lambda found: values[found[1]] if found[1] in NAMES else found[1].removeprefix("scale "), self.text
        )

    def of(self, episode: Episode, boundary: str) -> str:
        """The judge prompt of an episode; lone surrogates, which a model can emit, become question marks."""
        messages = episode.messages
        last = max((i for i, message in enumerate(messages) if message.role == "assistant"), default=len(messages))
        prompt = episode.task.prompt
        values = {
            "question": next((m.content for m in reversed(prompt) if m.role == "user"), ""),
            "conversation": "\n".join(f"[{boundary} {m.role}]\n{m.text}" for m in messages[:last]),
            "answer": episode.completion,
            "reference": "" if episode.task.answer is None else str(episode.task.answer),
            "boundary": boundary,
        }
        return self.fill(values).encode("utf-8", "replace").decode("utf-8")


def read_prompt(name: str) -> JudgePrompt:
    """A prompt by its name in `PACKAGED`, or a file; of a file the name has a dot or a slash.

    Raises:
        UserError: there is no such prompt or file, or it is not a prompt.
    """
    if "." not in name and "/" not in name:
        if name not in PACKAGED:
            raise unknown("prompt of a judge", name, [*PACKAGED, "path/to/prompt.txt"])
        path = Path(__file__).with_name(f"{name}.txt")
    else:
        path = Path(name).expanduser()
    try:
        return JudgePrompt(path.read_text(encoding="utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(f"cannot read the judge's prompt {name}: {why}") from error
