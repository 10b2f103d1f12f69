"""Prompts of judges: templates whose placeholders are filled in one pass: those in an answer are kept, as its braces.

| placeholder | is |
|---|---|
| `{question}` | the last user message of the task's prompt |
| `{conversation}` | all messages before the answer |
| `{answer}` | the policy's last turn |
| `{answer_a}`, `{answer_b}`, `{answers}` | the answers that are compared: the first, the second, all of them |
| `{reference}` | the task's answer |
| `{rubric}`, `{criterion}` | the criteria of the column `rubric`, with their weights; the one that is asked about |
| `{principle}` | the column `principle`, such as a principle of a constitution |
| `{boundary}` | a delimiter derived from the episode, which no answer can contain |
| `{scale 0 to 10}` | the lowest and the highest score; it becomes "0 to 10" |
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from posttrain import user_code
from posttrain.errors import UserError, unknown
from posttrain.rewards.judges.kinds import KINDS, Kind, Question, Scale, criteria
from posttrain.types import Task

COLUMNS = ("reference", "rubric", "principle")  # of a task, without which it cannot be judged
NAMES = ("question", "conversation", "answer", "answer_a", "answer_b", "answers", "criterion", "boundary", *COLUMNS)
PACKAGED = (
    *("quality", "reference", "pairwise", "principle", "pairwise-expected"),
    *("listwise", "rubric", "expected", "genrm", "genrm-cot"),
)
"""Packaged prompts: the answer's quality, its agreement with the reference answer, and one of each other kind."""

_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
_SCALE = re.compile(rf"\{{scale ({_NUMBER}) to ({_NUMBER})\}}")
_WORD = re.compile(r"\{(\w+)\}")
SETTINGS = ("kind", "votes", "rubric")
_SETTINGS = re.compile(rf"(?={'|'.join(f'{name}:' for name in SETTINGS)})((?:[a-z]+:[^\n]*\n)+)---\n")


@dataclass(frozen=True)
class JudgePrompt:
    """A prompt, checked; `source` says in errors where it is from.

    The text may begin with settings, `kind: pairwise`, `votes: 3` and `rubric: [...]`, criteria as JSON, each in a
    line, and a line `---`.
    """

    text: str
    source: str = "the judge's prompt"
    kind: Kind = field(init=False, compare=False)
    votes: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        kind, votes = self._settings()
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "votes", votes)
        for word in _WORD.findall(self.text):
            if word not in self._names and get_close_matches(word, self._names, n=1, cutoff=0.75):
                raise unknown(f"placeholder in {self.source}:", word, self._names)
        for name in kind.fields:
            if not self.needs(name):
                what = "answer" if name.startswith("answer") else name
                raise UserError(f"{self.source} shows no {what} to the judge; write {{{name}}} where it belongs")
        scales = _SCALE.findall(self.text)
        if len(scales) != kind.scaled or not all(float(low) < float(high) for low, high in scales):
            malformed = re.findall(r"\{scale[^}]*\}", self.text)
            says = ", ".join(f"{low} to {high}" for low, high in scales) or (malformed[0] if malformed else "none")
            raise UserError(
                f"{self.source} must say its scale once, the lowest score first, such as {{scale 0 to 10}}; it says "
                f"{says}"
                if kind.scaled
                else f"{self.source} is of a kind without a scale, and it says {says}; remove it"
            )
        try:
            kind.grades(self.scale)
        except UserError as error:
            raise UserError(f"{self.source}: {error}") from None

    def _settings(self) -> tuple[Kind, int]:
        """The kind and the number of votes, which are taken from the text."""
        found = _SETTINGS.match(self.text)
        if found is None:
            if self.text.startswith(tuple(f"{name}:" for name in SETTINGS)):
                raise UserError(f"{self.source} begins with settings; end them with a line ---")
            return Kind(), 1
        given = {key: value.strip() for key, _, value in (line.partition(":") for line in found[1].splitlines())}
        for key in given:
            if key not in SETTINGS:
                raise unknown(f"setting of {self.source}:", key, SETTINGS)
        kind, votes = given.get("kind", "pointwise"), given.get("votes", "1")
        if not votes.isdecimal() or not int(votes):
            raise UserError(f"the votes of {self.source} must be a whole number of 1 or more; got '{votes}'")
        if ".py:" not in kind and kind not in KINDS:
            raise unknown(f"kind of judge in {self.source}:", kind, [*KINDS, "path/to/file.py:CLASS"])
        make = user_code.load("kind of judge", kind, "class") if ".py:" in kind else KINDS[kind]
        object.__setattr__(self, "text", self.text[found.end() :])
        made: Kind = make()
        if "rubric" in given:
            try:
                made.rubric = json.loads(given["rubric"])
                criteria(Task(()), made.rubric or ())
            except (json.JSONDecodeError, UserError) as error:
                raise UserError(f"the rubric of {self.source} must be a list of criteria as JSON: {error}") from None
            if not self.needs("rubric", "criterion") and kind in KINDS:
                raise UserError(f"{self.source} has a rubric and does not show it; write {{criterion}} or {{rubric}}")
        return made, int(votes)

    def with_rubric(self, criteria: Sequence[tuple[str, float]]) -> str:
        """The text of a prompt file of the kind rubric that has these criteria and weights."""
        rows = json.dumps([{"criterion": text, "weight": weight} for text, weight in criteria], ensure_ascii=False)
        return f"kind: rubric\nvotes: {self.votes}\nrubric: {rows}\n---\n{self.text}"

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*NAMES, *self.kind.fields)))

    @property
    def scale(self) -> Scale:
        """The lowest and the highest score; (0, 1) of a kind without a scale."""
        return next(((float(low), float(high)) for low, high in _SCALE.findall(self.text)), (0.0, 1.0))

    @property
    def columns(self) -> frozenset[str]:
        """The columns of the data that it shows, besides prompt, answers and reference; "**" of a kind from a file."""
        if type(self.kind) not in KINDS.values():
            return frozenset({"**"})
        shows = self.needs("rubric", "criterion") and self.kind.rubric is None
        found = {"rubric": shows, "principle": self.needs("principle")}
        return frozenset(name for name, needed in found.items() if needed)

    def needs(self, *names: str) -> bool:
        """Whether the prompt has one of these placeholders."""
        return any(f"{{{name}}}" in self.text for name in names)

    def fill(self, values: Mapping[str, str]) -> str:
        """The text with every placeholder replaced in one pass; values are not expanded."""
        fields = re.compile(rf"\{{({'|'.join(self._names)}|scale {_NUMBER} to {_NUMBER})\}}")
        return fields.sub(
            lambda found: found[1].removeprefix("scale ") if found[1].startswith("scale ") else values[found[1]],
            self.text,
        )

    def of(self, question: Question, boundary: str) -> str:
        """What the judge is asked; lone surrogates, which a model can emit, become question marks."""
        first, task = question.episodes[0], question.episodes[0].task
        messages, said = first.messages, [episode.completion for episode in question.episodes]
        last = max((i for i, message in enumerate(messages) if message.role == "assistant"), default=len(messages))
        rubric = criteria(task, self.kind.rubric) if self.needs("rubric") else ()
        values = dict.fromkeys(self._names, "") | {
            "question": next((m.content for m in reversed(task.prompt) if m.role == "user"), ""),
            "conversation": "\n".join(f"[{boundary} {m.role}]\n{m.text}" for m in messages[:last]),
            "answer": said[0],
            "answer_a": said[0],
            "answer_b": said[-1],
            "answers": "\n".join(f"[{boundary} answer {number}]\n{text}" for number, text in enumerate(said, 1)),
            "reference": "" if task.answer is None else str(task.answer),
            "rubric": "\n".join(f"- (weight {weight:g}) {text}" for text, weight in rubric),
            "principle": str(task.metadata.get("principle", "")),
            "boundary": boundary,
            **question.values,
        }
        return self.fill(values).encode("utf-8", "replace").decode("utf-8")

    def wrong(self, task: Task, judge: str) -> str:
        """Why the judge of this name cannot judge the answers to a task; "" if it can."""
        said = f"the prompt of judge '{judge}' has"
        if self.needs("reference") and task.answer is None:
            return f"{said} {{reference}}, which is that answer"
        if self.needs("principle") and not task.metadata.get("principle"):
            return f"{said} {{principle}}, a column; add it, or give posttrain judge a `constitution`"
        try:
            if self.needs("rubric", "criterion"):
                criteria(task, self.kind.rubric)
        except UserError as error:
            return str(error)
        return ""


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
