"""Teachers of on-policy distillation: models, or the policy itself, that give logprobs of the policy's samples."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from posttrain.data.chat import ChatFormat
from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import DataError, UserError, words_of
from posttrain.models.footprint import Shape, read_shape
from posttrain.models.language_model import LanguageModel
from posttrain.models.load import load_model, tokenizer_of
from posttrain.models.reference import Reference
from posttrain.options.kinds import Model
from posttrain.training.learner import POLICY, TEACHER
from posttrain.training.resolve_model import named, saved_model
from posttrain.types import Message, Task

COLUMN = "teacher"  # of the data, where teachers have names
_NAMED = re.compile(r"([A-Za-z][\w-]*)=(.+)", re.DOTALL)
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Teacher:
    """A teacher that is not loaded yet: as typed, where it is, and its shape."""

    typed: Model
    where: str
    shape: Shape

    def load(self, policy: LanguageModel) -> Reference:
        """Load it in the number format of the policy, and on its device."""
        model = load_model(self.where, dtype=policy.dtype, device=str(policy.device))
        model.network.requires_grad_(False)
        return Reference(model)


@dataclass(frozen=True)
class Teachers:
    """The teachers of a run, and what they are shown.

    `parts` has the learner's part by what the column `teacher` of a row names, "" for one that teaches all rows, and
    `models` what a part is where it is not the policy with its current weights. A `prompt` stands in place of the last
    user message, with the fields {prompt} (that message), {answer}, {gold} and the other columns of the row.
    """

    parts: Mapping[str, str] = field(default_factory=dict[str, str])
    models: Mapping[str, Teacher] = field(default_factory=dict[str, Teacher])
    prompt: str = ""
    chat: ChatFormat | None = None

    @property
    def columns(self) -> set[str]:
        """The columns of a row that are read."""
        return {*_FIELD.findall(self.prompt), *([COLUMN] if self.parts and "" not in self.parts else [])}

    @property
    def folders(self) -> dict[str, str]:
        """Where models are, by their names as typed."""
        return {named(each.typed): each.where for each in self.models.values()}

    def part_of(self, task: Task) -> str:
        """The part of the learner that teaches a row; raises `DataError` where it names none that there is."""
        if "" in self.parts:
            return self.parts[""]
        name = task.metadata.get(COLUMN)
        if isinstance(name, str) and name in self.parts:
            return self.parts[name]
        said = "names no teacher" if name is None else f"names the teacher {name!r}"
        raise DataError(
            f"{_place(task)} {said} in its column 'teacher'; expected one that `teacher` names: {', '.join(self.parts)}"
        )

    def shown(self, task: Task) -> tuple[Message, ...]:
        """The prompt of a row as its teacher sees it.

        Fields are filled in one pass, so that braces in the data stay as they are.
        """
        if not self.prompt:
            return task.prompt
        users = [place for place, message in enumerate(task.prompt) if message.role == "user"]
        if not users:
            raise DataError(f"{_place(task)} has no user message, which `teacher_prompt` would replace")
        said = task.prompt[users[-1]]
        known = {**task.metadata, "answer": task.answer, "gold": task.gold, "prompt": said.content}

        def value(found: re.Match[str]) -> str:
            if known.get(found[1]) is None:
                raise DataError(f"{_place(task)} has no '{found[1]}', which `teacher_prompt` shows as {found[0]}")
            return str(known[found[1]])

        instead = replace(said, content=_FIELD.sub(value, self.prompt))
        return (*task.prompt[: users[-1]], instead, *task.prompt[users[-1] + 1 :])

    def check(self, tasks: Iterable[Task], chat: ChatFormat, *, completion: int, room: int, most: int) -> None:
        """Check that each row has a teacher, and that its prompt fits, before weights are read.

        A teacher reads `most` tokens; an episode has `room`, of which `completion` may follow the prompt of one turn.
        """
        for task in tasks if self.parts else ():
            self.part_of(task)
            if not self.prompt:
                continue
            own, its = (len(chat.prompt_ids(messages)) for messages in (task.prompt, self.shown(task)))
            whole = its + min(completion, room - own)
            if whole > most:
                raise UserError(
                    f"{_place(task)} has {its} tokens as `teacher_prompt` shows it, and may have {whole} with what is "
                    f"sampled; {most} fit, the smaller of `microbatch_tokens` and the model's context. Lower "
                    "`max_new_tokens` or, of several turns, `max_episode_tokens`; or leave out the row"
                )

    def prefix(self, task: Task) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens of a row's prompt as the policy sees it, and as its teacher does."""
        assert self.chat is not None, "teachers with a prompt of their own need a chat format"
        return tuple(self.chat.prompt_ids(task.prompt)), tuple(self.chat.prompt_ids(self.shown(task)))


NO_TEACHERS = Teachers()


def find_teachers(typed: Model, prompt: str, policy: str, *, microbatch_tokens: int) -> Teachers:
    """The teachers that --teacher names: MODEL, or NAME=MODEL of each; none for an empty text. No weights are read.

    A model is a hub id, a folder, a run or a packaged model, or `policy`, the policy with its current weights, which is
    in the folder `policy`.
    """
    if not typed:
        return NO_TEACHERS
    if prompt and "{prompt}" not in prompt:
        raise UserError(f"`teacher_prompt` needs {{prompt}}, where the question stands; got {prompt!r}")
    named = _by_name(typed)
    parts = {name: f"{TEACHER} {name}" if name else TEACHER for name in named}
    models: dict[str, Teacher] = {}
    for name, model in named.items():
        if model == POLICY:
            if not prompt:
                raise UserError(
                    "a teacher that is the policy has to see more than the policy does; pass `teacher_prompt`, such as "
                    '"{prompt}\n\nThe solution is: {answer}"'
                )
            parts[name] = POLICY
        else:
            models[parts[name]] = find_model("teacher", model, policy, microbatch_tokens=microbatch_tokens)
    return Teachers(parts, models, prompt)


def _by_name(typed: Model) -> dict[str, Model]:
    """Teachers by name; one without a name is "". What is there is a path, whatever its name."""
    if not isinstance(typed, str) or not _NAMED.match(typed) or Path(typed).expanduser().exists():
        return {"": typed}
    found: dict[str, Model] = {}
    for word in words_of("teacher", typed):
        pair = _NAMED.fullmatch(word)
        if pair is None or pair[1] in found:
            wrong = "has no name" if pair is None else "is given twice"
            raise UserError(f"the teacher '{pair[1] if pair else word}' {wrong}; of several, each is NAME=MODEL")
        found[pair[1]] = pair[2]
    return found


def _place(task: Task) -> str:
    return f"the row {task.id or repr(task.prompt[-1].content)[:60]}"


def find_model(role: str, name: Model, policy: str, *, microbatch_tokens: int) -> Teacher:
    """A model that reads the tokens of the policy in the folder `policy`; `role` is what errors call it."""
    where = saved_model(name).where
    mine, its = (load_tokenizer(tokenizer_of(one)).get_vocab() for one in (policy, where))
    if said := differing(mine, its, role):
        raise UserError(
            f"the {role} {name} has another tokenizer than the policy: {said}; it reads the policy's tokens as they "
            f"are, so pass a {role} of the policy's model family"
        )
    student, teacher = read_shape(policy), read_shape(where)
    if teacher.vocabulary < student.vocabulary:
        raise UserError(
            f"the {role} {name} predicts {teacher.vocabulary:,} tokens and the policy {student.vocabulary:,}, so that "
            f"it has no logprob for some; give another {role}"
        )
    longest = min(student.context, microbatch_tokens)
    if teacher.context < longest:
        raise UserError(
            f"the {role} {name} reads {teacher.context} tokens at most, and a prompt with its completion may have "
            f"{longest}; lower microbatch_tokens to {teacher.context}, or give another {role}"
        )
    return Teacher(name, where, teacher)


def differing(mine: dict[str, int], its: dict[str, int], role: str = "teacher") -> str:
    """The difference of the teacher's vocabulary from the policy's; "" if they are equal.

    Example:
        >>> differing({"a": 0, "b": 1}, {"a": 0, "b": 2, "c": 1})
        "2 of 3 tokens differ, such as 'b' (1 in the policy's, 2 in the teacher's)"
    """
    tokens = sorted({*mine, *its}, key=lambda token: (mine.get(token, len(mine)), token))
    if not (other := [token for token in tokens if mine.get(token) != its.get(token)]):
        return ""
    first = other[0]
    return (
        f"{len(other)} of {len(tokens)} tokens differ, such as {first!r} ({mine.get(first, 'none')} in the policy's, "
        f"{its.get(first, 'none')} in the {role}'s)"
    )
