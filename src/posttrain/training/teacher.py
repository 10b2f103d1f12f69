"""Teachers of on-policy distillation: models, or the policy itself, that read the policy's samples.

Shape letters: M learned tokens of a packed row, D hidden width.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from posttrain.algorithms.inputs import TeacherDistributions
from posttrain.data.chat import ChatFormat
from posttrain.data.packing import Example, PackedRow, pack, size_of
from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import DataError, UserError, words_of
from posttrain.models.footprint import Shape, read_shape
from posttrain.models.language_model import LanguageModel
from posttrain.models.load import load_model, tokenizer_of
from posttrain.models.logprobs import token_divergence
from posttrain.models.reference import Reference
from posttrain.objectives.kl import generalised_jsd
from posttrain.options.kinds import Model
from posttrain.training.learner import POLICY, TEACHER, Batch, Models
from posttrain.training.resolve_model import named, saved_model
from posttrain.types import Group, Message, Row, Task

COLUMN = "teacher"  # of the data, where teachers have names
_NAMED = re.compile(r"([A-Za-z][\w-]*)=(.+)", re.DOTALL)
_FIELD = re.compile(r"\{(\w+)\}")


def _better(group: Group, row: Row) -> str:
    best = max(group.by_seat[row.seat], key=lambda other: other.reward)
    return best.trajectory.turns[-1].text if best.reward > row.reward and best.trajectory.turns else ""


def _feedback(group: Group, row: Row) -> str:
    return "\n".join(filter(None, (score.explanation for score in row.scores.values() if score.applicable)))


SAID: Mapping[str, Callable[[Group, Row], str]] = MappingProxyType({"better": _better, "feedback": _feedback})
UNSAID: Mapping[str, str] = MappingProxyType(dict.fromkeys(SAID, ""))
"""Fields of a teacher's prompt that are known when a group has been sampled; and before."""


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
    user message, with the fields {prompt} (that message), {answer}, {gold} and the other columns of the row; and,
    unless these are columns, {better}, the completion of the row's group that earned most, and {feedback}, what rewards
    explain of the row's own. Where nothing earned more, there is no feedback, or `most` tokens are exceeded, a teacher
    sees the policy's own prompt.
    """

    parts: Mapping[str, str] = field(default_factory=dict[str, str])
    models: Mapping[str, Teacher] = field(default_factory=dict[str, Teacher])
    prompt: str = ""
    chat: ChatFormat | None = None
    most: int = 0  # tokens that a teacher reads; 0: any number

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

    def shown(self, task: Task, said: Mapping[str, str] = UNSAID) -> tuple[Message, ...]:
        """The prompt of a row as its teacher sees it; `said` has the fields of what was sampled.

        Fields are filled in one pass, so that braces in the data stay as they are.
        """
        if not self.prompt:
            return task.prompt
        users = [place for place, message in enumerate(task.prompt) if message.role == "user"]
        if not users:
            raise DataError(f"{_place(task)} has no user message, which `teacher_prompt` would replace")
        last = task.prompt[users[-1]]
        known = {**said, **task.metadata, "answer": task.answer, "gold": task.gold, "prompt": last.content}

        def value(found: re.Match[str]) -> str:
            if known.get(found[1]) is None:
                raise DataError(f"{_place(task)} has no '{found[1]}', which `teacher_prompt` shows as {found[0]}")
            return str(known[found[1]])

        instead = replace(last, content=_FIELD.sub(value, self.prompt))
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

    def reads(self, group: Group, branches: Sequence[Example]) -> Iterator[tuple[str, Example]]:
        """Of each branch of a group the part that teaches it, and the branch behind the prompt that this part sees.

        Of a branch the tokens of the task's prompt are replaced, and all that follows stays: with a prompt of its own,
        an environment must have shown the task's.
        """
        part = self.part_of(group.task)
        own = self._ids(group.task.prompt) if self.prompt else ()
        rows = [row for row in group.rows for _ in row.trajectory.branches]
        for row, branch in zip(rows, branches, strict=True):
            if branch.prefix[: len(own)] != own:
                raise UserError(
                    "`teacher_prompt` stands in place of the task's prompt, and the environment began an episode with "
                    "other messages; leave it out"
                )
            its = self._prefix(group, row) if self.prompt else ()
            shown = replace(branch, prefix=(*its, *branch.prefix[len(own) :]))
            yield part, branch if 0 < self.most < size_of(shown) else shown

    def _prefix(self, group: Group, row: Row) -> tuple[int, ...]:
        """The tokens of a row's prompt as its teacher sees it."""
        said = {name: tell(group, row) for name, tell in SAID.items() if f"{{{name}}}" in self.prompt}
        missing = any(not text and name not in group.task.metadata for name, text in said.items())
        return self._ids(group.task.prompt if missing else self.shown(group.task, said))

    def _ids(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        assert self.chat is not None, "teachers with a prompt of their own need a chat format"
        return tuple(self.chat.prompt_ids(messages))


NO_TEACHERS = Teachers()
ONE_TEACHER = Teachers({"": TEACHER})


def teacher_divergence(
    need: TeacherDistributions, states_MD: Tensor, row: PackedRow, batch: Batch, parts: Models[Any], temperature: float
) -> Tensor:
    """The divergence of the policy's prediction of each learned token of a row from its teacher's, [M], in nats.

    `states_MD` are the policy's, through which the gradient goes. Each teacher reads the branches that it teaches in
    one row of its own. All teachers of a batch do in each row, if only to read a branch in vain: of sharded ranks,
    which compute together, none may compute a pass more.
    """
    model, taught = parts.model, batch.units["taught"]
    heat = model.heat(row, temperature, states_MD)
    places, found = list[int](), list[Tensor]()
    for part in dict.fromkeys(part for part, _ in taught):
        mine = [number for number in row.examples if taught[number][0] == part]
        read = [taught[number][1] for number in mine or row.examples[:1]]
        teacher = Reference(model) if part == POLICY else parts.references[part]
        (its,) = pack(read, sum(map(size_of, read)))
        given_MD, head = teacher.predictions(its)
        if not (at := [place for place, number in enumerate(row.rows) if number in mine]):
            continue
        how: dict[str, Any] = {"temperature": heat[at] if isinstance(heat, Tensor) else heat, "top_k": need.top_k}
        how |= {"apart": partial(generalised_jsd, beta=need.beta), "from_readout": teacher.body.readout}
        found.append(token_divergence(states_MD[at], model.head, given_MD, head, model.readout, **how))
        places += at
    return torch.cat(found)[torch.tensor(places).argsort()]


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
