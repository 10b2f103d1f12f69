"""Reading a pipeline: repeats unrolled, values put in, every option, name, reference and file checked."""

import hashlib
import json
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from posttrain.errors import UserError, unknown
from posttrain.options.option import options_of
from posttrain.parsing import from_file
from posttrain.pipelines.stages import Known, Stage, Stages, Table, named_in, put
from posttrain.runs import config_file
from posttrain.runs.inputs import beside, digests_in

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_WHEN = ("wait",)  # options that say when a stage goes on, and not what it makes
_TOP = {"title": str, "with": dict, "evaluate": dict, "stage": list}


def shipped() -> list[str]:
    """The names of the pipelines that are part of the package."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.toml"))


def read_stages(file: str, typed: Sequence[str], known: Known) -> Stages:
    """The stages of a file or of a shipped pipeline, with values of its table [with] as they are `typed`.

    Raises `UserError` for what can be known before the first stage begins: options, names, references, files.
    """
    origin = Path(__file__).with_name(f"{file}.toml") if file in shipped() else Path(file).expanduser().absolute()
    if not file or not origin.is_file():
        raise UserError(f"no pipeline '{file}'; name a TOML file, or one of those shipped: {', '.join(shipped())}")
    said = config_file.read(origin)
    for key, value in said.items():
        if key not in _TOP:
            raise unknown(f"key in {origin}:", key, _TOP)
        if not isinstance(value, _TOP[key]) or not all(isinstance(one, dict) for one in value if key == "stage"):
            tables = f"tables, [[{key}]]" if key == "stage" else f"a table, [{key}]"
            raise UserError(f"{origin}: '{key}' must be {'text' if key == 'title' else tables}; got {value!r:.80}")
    return _Reader(origin, said, typed, known).read()


class _Reader:
    """Reads one file from its first stage to its last."""

    def __init__(self, origin: Path, said: Table, typed: Sequence[str], known: Known) -> None:
        self.origin, self.known, self.title = origin, known, str(said.get("title", origin.stem))
        self.entries: list[Table] = said.get("stage", [])
        self.evaluate: Table = said.get("evaluate", {})
        self.values = self._values(said.get("with", {}), typed)
        self.now: dict[str, str] = {}  # which stage a name means: of a repeat, that of the last round
        self.found: dict[str, Stage] = {}

    def read(self) -> Stages:
        for entry in self.entries:
            if "repeat" in entry:
                self._rounds(entry)
            else:
                self._add(entry)
        if not self.found:
            raise UserError(f"{self.origin} has no stage; one is a table [[stage]] with name, run and options")
        for stage in self.found.values():
            read = digests_in(beside(stage.table, self.origin))
            what = {key: value for key, value in stage.table.items() if key not in _WHEN}
            own = _digest([stage.command, what, sorted(stage.outputs), read])
            digest = _digest([own, *(self.found[name].digest for name in stage.needs)])
            self.found[stage.name] = replace(stage, own=own, digest=digest)
        return Stages(self.title, self.origin, self.found)

    def _values(self, said: Table, typed: Sequence[str]) -> dict[str, Any]:
        given = dict(said)
        for word in typed:
            key, equals, text = word.partition("=")
            if not equals:
                raise UserError(f"--with takes NAME=VALUE, such as model=OWNER/NAME; got '{word}'")
            if key not in (*said, "seed"):
                raise unknown("value in --with:", key, said)
            given[key] = text if isinstance(said.get(key), str) else _parsed(text)

        def value(name: str, behind: tuple[str, ...]) -> Any:
            if name not in given:
                raise unknown(f"value in [with] of {self.origin}:", name, given)
            if name in behind:
                circle = " -> ".join((*behind[behind.index(name) :], name))
                raise UserError(f"{self.origin}: values of [with] name each other in a circle: {circle}; write one out")
            return put(given[name], lambda other: value(other, (*behind, name)))

        return {name: value(name, ()) for name in given}

    def _rounds(self, entry: Table) -> None:
        """Unroll a repeat: stages NAME-1, NAME-2 and so on; `${before}` is the last policy of the round before."""
        body: list[Table] = entry.get("stage") or [{k: v for k, v in entry.items() if k not in ("repeat", "before")}]
        if "stage" in entry and (other := next((key for key in entry if key not in ("repeat", "before", "stage")), "")):
            raise UserError(f"{self.origin}: '{other}' belongs into a [[stage.stage]] of the repeat, or before it")
        where = f"the repeat of '{body[0].get('name', '')}'"
        rounds = put(entry["repeat"], lambda name: self._meaning(name, where))
        if type(rounds) is not int or rounds < 1:
            raise UserError(f"{self.origin}: repeat must be a whole number of 1 or more; got {rounds!r}")
        if "before" in entry:
            self.values["before"] = put(entry["before"], lambda name: self._meaning(name, where))
        for number in range(1, rounds + 1):
            made = [self._add(one, f"-{number}") for one in body]
            if policies := [stage.name for stage in made if stage.policy]:
                self.values["before"] = f"${{{policies[-1]}}}"
        self.values.pop("before", None)

    def _add(self, entry: Table, ending: str = "") -> Stage:
        """A stage, and behind it the evaluation of its policy where the file wants one."""
        name, command = entry.get("name"), entry.get("run")
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (*self.values, "before"):
            taken = "; it is a value of [with]" if name in self.values else ""
            raise UserError(f"{self.origin}: a stage needs a name of letters, digits, _ and -; got {name!r}{taken}")
        if (own := name + ending) in self.found:
            raise UserError(f"{self.origin}: two stages are called '{own}'; give each a name of its own")
        fitting = [one for one, about in self.known.commands.items() if {"config", "json"} <= {*about.shared}]
        if command not in fitting:
            raise unknown(f"command in stage '{name}' of {self.origin}:", str(command), fitting)
        table = {key: value for key, value in entry.items() if key not in ("name", "run")}
        if command == "evaluate":
            table = {**self.evaluate, **table}
        elif "seed" in self.values and "seed" in options_of(self.known.commands[command].form):
            table = {"seed": "${seed}", **table}  # evaluations keep theirs, so that held-out tasks stay the same
        stage = self._keep(own, command, put(table, lambda other: self._meaning(other, name)))
        self.now |= {name: own, own: own}
        if stage.policy and self.evaluate:
            table = put(self.evaluate, lambda other: self._meaning(other, "evaluate"))
            self._keep(f"{own}.evaluate", "evaluate", {**table, "model": f"${{{own}}}"})
        return stage

    def _meaning(self, name: str, of: str) -> Any:
        """What `${name}` in the stage `of` means: a value, or a reference to a stage by its own name."""
        head, dot, option = name.partition(".")
        if head in self.values and not dot:
            return self.values[head]
        if head in self.now:
            return f"${{{self.now[head]}{dot}{option}}}"
        raise self._lost(head, of)

    def _lost(self, name: str, of: str) -> UserError:
        """The error for a name that means nothing yet."""
        entries = [one for entry in self.entries for one in entry.get("stage", [entry])]
        graph = {str(one.get("name")): {named.partition(".")[0] for named in named_in(one)} for one in entries}
        if name == "before":
            return UserError(f"{self.origin}: ${{before}} in stage '{of}' needs a repeat with before = \"MODEL\"")
        if name not in graph or of not in graph:
            return unknown(f"name in stage '{of}' of {self.origin}:", name, [*self.values, *self.now])
        if circle := _path(graph, name, of):
            said = " -> ".join((of, *circle))
            return UserError(f"{self.origin}: stages name each other in a circle: {said}; one must begin without")
        return UserError(f"{self.origin}: stage '{of}' names ${{{name}}}, which comes after it; move '{name}' up")

    def _keep(self, name: str, command: str, table: dict[str, Any]) -> Stage:
        """Check a stage's options with the files that they name, and remember it."""
        about, where = self.known.commands[command], f"stage '{name}' of {self.origin}"
        for key, option in options_of(about.form).items():
            if option.kind == "dataset" and isinstance(table.get(key), Mapping):  # a mixture
                table[key] = shlex.join(f"{source}={weight}" for source, weight in table[key].items())
        outputs = self.known.outputs(command) if "output" not in about.shared else {}
        if "output" in table:
            raise UserError(f"{where}: a pipeline writes into its own directory; leave out 'output'")
        names = [one.partition(".") for one in named_in(table)]
        if (after := table.pop("after", None)) is not None and not named_in(after):
            raise UserError(f"{where}: 'after' names stages, such as after = \"${{asked}}\"; got {after!r}")
        for needed, dot, option in names:
            if dot:
                made = self.known.outputs(self.found[needed].command)
                if option not in made:
                    raise unknown(f"output of stage '{needed}' in {where}:", option, made)
                if option not in self.found[needed].table:
                    wanted = {**self.found[needed].outputs, option: made[option]}
                    self.found[needed] = replace(self.found[needed], outputs=wanted)
        needs = tuple(dict.fromkeys(needed for needed, _, _ in names))
        written = {key: value for key, value in outputs.items() if key == "output"}
        stage = Stage(name, command, table, written, about.policy, needs)
        stages = Stages(self.title, self.origin, {**self.found, name: stage})
        options = stages.options(stage, Path.cwd() / "PIPELINE")
        try:
            sections = self.known.sections(command, options)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        for section, values in zip(sections, from_file(options, sections, where), strict=True):
            try:
                section.form(**values)
            except UserError as error:
                raise UserError(f"{where}: {error}") from error
        self.found[name] = stage
        return stage


def _path(graph: Mapping[str, set[str]], begin: str, end: str) -> list[str]:
    """The names on a way from one to the other, both included; none where there is none."""
    ways, seen = [[begin]], {begin}
    for way in ways:  # which grows
        if way[-1] == end:
            return way
        new = graph.get(way[-1], set[str]()) - seen
        seen |= new
        ways += [[*way, one] for one in sorted(new)]
    return []


def _parsed(text: str) -> Any:
    """A value as TOML has it, or else text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
