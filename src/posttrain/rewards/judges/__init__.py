"""Pointwise LLM judges: single-answer grading (Zheng et al. 2023, https://arxiv.org/abs/2306.05685).

Not implemented: pairwise comparison, with its position bias. A judge takes any `ChatModel`; tests pass a stub. Its
prompt is a template whose placeholders are filled in one pass: those in an answer are kept, and so are its braces.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from posttrain.errors import UserError, unknown
from posttrain.rewards.custom import from_function
from posttrain.rewards.inputs import seed_of
from posttrain.rewards.reward import EpisodeReward
from posttrain.types import ChatModel, Episode, EpisodeGroup, Message, Sampling, Score, SeatScores, StopReason, Task

NAMES = ("question", "conversation", "answer", "reference", "boundary")
PACKAGED = ("quality", "reference")
"""Packaged prompts: the answer's quality, and its agreement with the reference answer."""

_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
_SCALE = re.compile(rf"\{{scale ({_NUMBER}) to ({_NUMBER})\}}")
_FIELD = re.compile(rf"\{{({'|'.join(NAMES)}|scale {_NUMBER} to {_NUMBER})\}}")
_WORD = re.compile(r"\{(\w+)\}")
_MARKS, _SIGNED = r"[*_\s]*", r"([+-]?[0-9]+(?:\.[0-9]+)?)"  # Markdown's bold and italics
_VERDICT = re.compile(
    rf"{_MARKS}score{_MARKS}:{_MARKS}{_SIGNED}(?:\s*(?:/|out of)\s*{_SIGNED})?{_MARKS}\.?", re.IGNORECASE
)

VERDICT = Sampling(1024, temperature=0.0)
_SHOWN = 200  # characters of a verdict in an explanation of why there is no score


@dataclass(frozen=True)
class JudgePrompt:
    """A prompt, checked; `source` says in errors where it is from."""

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
    """A prompt by its name in `PACKAGED`, or a file, whose name has a dot or a slash; else `UserError`."""
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


@dataclass(frozen=True)
class Judge(EpisodeReward):
    """Judges an episode; its score is mapped from the prompt's scale to [0, 1].

    A verdict without a score is resampled with another seed. After `tries` verdicts without one the reward does
    not apply to the episode. A request and its seed depend only on the run's seed, the task and the episode.
    """

    model: ChatModel
    name: str = "judge"
    prompt: JudgePrompt = field(default_factory=lambda: read_prompt("quality"))
    sampling: Sampling = VERDICT  # at temperature 0 another try would say the same, so tries after the first have 1
    seed: int = 0  # of the run
    tries: int = 3  # verdicts about an episode, at most
    at_once: int = 16  # concurrent requests
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
        """As in `CustomReward`: at most `at_once` episodes at a time; after a failure no new request is sent."""
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


def score_in(verdict: str, scale: tuple[float, float]) -> float | None:
    """The number N of a verdict whose last line is `Score: N`; None where it is another line, or N off the scale.

    Case and Markdown's asterisks do not count, a point may follow, and so may the highest score, as in `8/10`. An
    earlier line counts for nothing, for it may quote the answer.
    """
    lines = verdict.strip().splitlines() or [""]
    found = _VERDICT.fullmatch(lines[-1].strip())
    if found is None or (found[2] and float(found[2]) != scale[1]):
        return None
    number = float(found[1])
    return number if scale[0] <= number <= scale[1] else None
