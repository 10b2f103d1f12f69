"""Stages of a pipeline: what one is, where it writes, and how it names what earlier ones made.

An option of a stage may hold `${NAME}`: a value of the table [with], or what an earlier stage made, its run or its
output file. `${NAME.OPTION}` is another file that the stage writes, the one that its option OPTION names.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from posttrain.options.hyperparameters import field_docstrings
from posttrain.parsing import Section
from posttrain.runs.inputs import SPLIT, beside

if TYPE_CHECKING:  # it imports this room
    from posttrain.commands import Command

SUFFIXES = {"Output file": ".jsonl", "File (.jsonl)": ".jsonl", "File (.txt)": ".txt", "Output folder": ""}
"""How the text of an option begins that names an output, and how the name ends that a pipeline gives the output."""
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
Table = Mapping[str, Any]


@dataclass(frozen=True)
class Known:
    """What a stage may be: a command, and the forms that its options fill."""

    commands: Mapping[str, "Command"]
    sections: Callable[[str, Table], list[Section]]

    def outputs(self, command: str) -> dict[str, str]:
        """The options of a command that name files or folders which it writes, and the names of those in a stage."""
        texts = field_docstrings(self.commands[command].form)
        return {
            o: f"{o}{end}" for o, text in texts.items() for begin, end in SUFFIXES.items() if text.startswith(begin)
        }


@dataclass(frozen=True)
class Stage:
    """A command with its options, in which references to other stages are not put in yet."""

    name: str
    command: str
    table: Table
    outputs: Mapping[str, str]  # names of the files or folders that it writes, by option
    policy: bool  # whether it makes a model that samples
    needs: tuple[str, ...] = ()  # stages whose outputs it reads
    own: str = ""  # digest of its options, and of the files that they name
    digest: str = ""  # of that, and of the stages that it needs

    def output(self, root: Path, option: str = "") -> Path:
        """Where the stage writes what `option` names, or else its run or its output."""
        option = option or ("output" if "output" in self.outputs else "")
        return Path(self.table[option]) if option in self.table else root / self.name / self.outputs.get(option, "")


@dataclass(frozen=True)
class Stages:
    """All of a pipeline, in order."""

    title: str
    origin: Path
    by_name: dict[str, Stage]

    def options(self, stage: Stage, root: Path) -> dict[str, Any]:
        """The options of a stage of a pipeline whose directory is `root`, as a file of --config has them."""

        def path(name: str) -> str:
            head, _, option = name.partition(".")
            return str(self.by_name[head].output(root, option))

        def placed(key: str, value: Any) -> Any:
            quotes = key in SPLIT and isinstance(value, str)  # its words are apart by spaces
            return put(value, lambda name: shlex.quote(path(name)) if quotes else path(name))

        made = {option: str(stage.output(root, option)) for option in stage.outputs}
        looked_up = beside(stage.table, self.origin)
        return made | {key: placed(key, value) for key, value in looked_up.items()}


def put(value: Any, meaning: Callable[[str], Any]) -> Any:
    """A value with what each `${NAME}` in it means; one that is nothing else becomes that itself, such as a number.

    Example:
        >>> put({"${a}": ["${b}", "at ${b}"]}, {"a": "x", "b": 2}.__getitem__)
        {'x': [2, 'at 2']}
    """
    if isinstance(value, Mapping):
        return {put(key, meaning): put(item, meaning) for key, item in cast(Table, value).items()}
    if isinstance(value, list):
        return [put(item, meaning) for item in cast(list[Any], value)]
    if not isinstance(value, str):
        return value
    if whole := _REFERENCE.fullmatch(value):
        return meaning(whole[1])
    return _REFERENCE.sub(lambda found: str(meaning(found[1])), value)


def named_in(value: Any) -> list[str]:
    """The names that a value refers to, each once.

    Example:
        >>> named_in({"dataset": {"${kept.pairs}": 0.5}, "model": "${cold}"})
        ['kept.pairs', 'cold']
    """
    return list(dict.fromkeys(_REFERENCE.findall(json.dumps(value, default=str, ensure_ascii=False))))
