"""The command line: `posttrain COMMAND [OPTIONS]`: dispatch, option parsing, output.

Everything that is computed is computed by a recipe. Progress and errors go to standard error, answers to standard
output; with `--json` its last line is one JSON value. Exit code 0: done. 1: our fault, or something failed. 2: the
user's mistake. 130 and 143: stopped by Ctrl-C and SIGTERM, with everything saved that a line then says how to resume.
"""

import dataclasses
import errno
import json
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from posttrain import fast_paths, usage
from posttrain.commands import COMMANDS, EXAMPLES, EXTRAS, FORMER, Command, algorithm_of, begun, sections_of
from posttrain.errors import PosttrainError, UserError, as_typed, described, unknown, words_of
from posttrain.lookup import fetch
from posttrain.options.hyperparameters import field_docstrings
from posttrain.parsing import HELP, HELP_ALL, Section, flag, from_file, given, parse
from posttrain.runs import config_file
from posttrain.runs.callback import load_callback
from posttrain.runs.inputs import beside, given_objects
from posttrain.runs.progress import TYPED
from posttrain.runs.run import CONFIG, read_run
from posttrain.runs.run_directory import refuse_used
from posttrain.runs.trackers import Tracking


@dataclasses.dataclass(frozen=True)
class Shared:
    """Output and progress."""

    config: Path | None = None
    """TOML file of options, such as the config.toml of a run. Flags override it."""
    dry_run: bool = False
    """Estimate memory, time and disk of the run. Nothing is trained or written."""
    output: Path | None = None
    """Output directory; default: a new one in runs/."""
    resume: Path | None = None
    """Run directory to resume. The result is that of an uninterrupted run."""
    accept_changes: str = ""
    """With --resume: what may have changed. Options that name files, such as "reward dataset"; of a pipeline, stages,
    which are done again."""
    track: str = ""
    """Trackers besides TensorBoard, such as wandb,mlflow,trackio; a resumed run keeps its own."""
    track_project: str = "posttrain"
    """Tracker project or experiment."""
    track_name: str = ""
    """Tracker run name; default: the name of the run directory."""
    track_tags: str = ""
    """Tracker tags, comma-separated."""
    callback: str = ""
    """Callback classes, such as watch.py:Watch, space-separated."""
    quiet: bool = False
    """Hide progress; still print warnings."""
    json: bool = False
    """Print the result as one line of JSON, the last of the output."""
    debug: bool = False
    """Show tracebacks of errors."""


SHARED = {field.name: field for field in dataclasses.fields(Shared)}
"""Options that several commands have: each says which. All have --debug."""
_OFTEN = ("config", "dry_run", "output", "resume")  # shown by --help, and not by --help-all alone


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Never raises."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Settings of libraries that are loaded later, whose own bars and notices would tear ours; the user's own stay.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    before = TYPED.set(True)
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except SystemExit as done:  # help was asked for, and printed
        return done.code if isinstance(done.code, int) else 2
    except KeyboardInterrupt:
        command = COMMANDS.get(words[0]) if words else None
        resumes = command is not None and "resume" in command.shared
        made = "; if there is a run directory, --resume RUN continues it" if resumes else ""
        return _complain(f"interrupted{made}", 130, words)
    except BrokenPipeError:  # whoever read our output has heard enough, such as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        return 0
    except Exception as error:
        return _complain(*_said_of(error, words), words)
    finally:
        TYPED.reset(before)


def _said_of(error: Exception, words: Sequence[str]) -> tuple[str, int]:
    """What is said of an error, with what is saved of a run that failed, and its exit code."""
    notes = "".join(f"; {as_typed(note)}" for note in getattr(error, "__notes__", []))
    if isinstance(error, PosttrainError):
        return as_typed(str(error)) + notes, error.exit_code
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("posttrain"):
        extra = EXTRAS.get(words[0] if words else "")
        what = f"'posttrain[{extra}]'" if extra else error.name
        return f"the package '{error.name}' is not installed; type: pip install {what}", 2
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        return f"{error.filename or 'a file'} cannot be written: the disk is read-only; make it writable{notes}", 1
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" while {error.filename} was written" if error.filename else ""
        return f"no space left on the disk{where}; free some space there{notes}", 1
    hint = "" if "--debug" in words else "; run again with --debug to see where"
    return f"unexpected {described(error)}{notes}{hint}", 1


def _complain(message: str, code: int, words: Sequence[str]) -> int:
    if "--debug" in words:
        traceback.print_exc()
    print(f"posttrain: {' '.join(message.split())}", file=sys.stderr)
    return code


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in (*HELP, HELP_ALL, "help"):
        print(overview(), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] == "--version":
        print(f"posttrain {version('posttrain')}")
        return 0
    if words[1:2] and words[1] in (*HELP, HELP_ALL) and words[0] not in COMMANDS and (some := _group(words[0])):
        print(f"usage: posttrain {words[0]} COMMAND [OPTIONS]\n\ncommands:")
        print("\n".join(_summaries(some)))
        return 0
    name, argv = find(words)
    return _run(name, COMMANDS[name], argv)


def _group(word: str) -> list[str]:
    """The commands of two words that begin with this one, such as `models pull`."""
    return [name for name in COMMANDS if name.startswith(f"{word} ")]


def _summaries(names: Collection[str]) -> list[str]:
    width = max(map(len, names))
    return [f"  {name:<{width}}  {COMMANDS[name].summary}" for name in names]


def find(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command that is typed, and what follows it."""
    if words[0].startswith("-"):
        raise UserError(f"the command comes first, then its options; got '{words[0]}'; see posttrain --help")
    pairs = _group(words[0])
    if pairs and (len(words) == 1 or words[1].startswith("-")):
        raise UserError(f"say which: {' or '.join(f'posttrain {name}' for name in pairs)}")
    length = 2 if pairs else 1
    name = " ".join(words[:length])
    if name not in COMMANDS:
        if name in FORMER:
            meant = " ".join(FORMER[name][1:])
            raise UserError(f"{name} is {meant} now; type: posttrain {meant}, then the other options")
        raise unknown("command", name, COMMANDS)
    return name, list(words[length:])


def overview() -> str:
    """What `posttrain --help` prints."""
    return "\n".join(
        [
            "usage: posttrain COMMAND [OPTIONS]",
            "",
            "The whole post-training loop of a language model.",
            "",
            "commands:",
            *_summaries(COMMANDS),
            "",
            "examples:",
            *(f"  {example}" for example in EXAMPLES),
            "",
            "posttrain COMMAND --help shows the most used options of a command, --help-all all of them.",
        ]
    )


def _run(name: str, command: Command, argv: Sequence[str]) -> int:
    *parts, shared = read(name, argv)
    fast_paths.off()  # refuses one that is not known, before anything is read
    if getattr(shared, "resume", None) and getattr(shared, "output", None):
        raise UserError("--resume continues in the run's own directory; leave out --output")
    passed = {key: getattr(shared, key) for key in ("output", "resume", "quiet") if key in command.shared}
    if accepted := getattr(shared, "accept_changes", "").split():
        if not getattr(shared, "resume", None):
            raise UserError("--accept-changes needs --resume RUN; pass it too")
        passed["accept_changes"] = accepted
    if command.family:
        parts[1] = algorithm_of(command.family, parts[0].algorithm, parts[1])
    if "track" in command.shared:
        passed |= _watching(shared)
    if getattr(shared, "dry_run", False) and command.dry_run:
        if shared.output:
            refuse_used(shared.output)
        plan = command.dry_run(*parts, resume=getattr(shared, "resume", None))
        if shared.json:
            found = plan.summary()
            print(json.dumps(found | {key: [as_typed(line) for line in found[key]] for key in ("warnings", "notes")}))
        else:
            print(as_typed("\n".join(plan.lines())))
        return 0
    if model := command.fetches(parts[0]):
        fetch(model)
    result = command.function(*parts, **passed)
    as_json = getattr(shared, "json", False)
    if not as_json:
        print("\n".join(command.show(result)))
    code = _stopped(name, result) or command.code(result)
    if as_json:
        print(json.dumps(command.answer(result), default=str), flush=True)
    return code


def _watching(shared: Any) -> dict[str, Any]:
    names = tuple(filter(None, (name.strip() for name in shared.track.split(","))))
    tags = tuple(filter(None, (tag.strip() for tag in shared.track_tags.split(","))))
    if not names and (tags or shared.track_name or shared.track_project != Shared.track_project):
        raise UserError("--track-project, --track-name and --track-tags need a tracker: pass --track")
    tracking = Tracking(names, shared.track_project, shared.track_name, tags) if names else None
    return {"tracking": tracking, "callbacks": [load_callback(spec) for spec in words_of("callback", shared.callback)]}


def read(name: str, argv: Sequence[str]) -> list[Any]:
    """The options of a command: its own, its algorithm's knobs and its cluster's where it has any, and shared ones."""
    command = COMMANDS[name]
    file, origin = _file(name, command, argv)
    algorithm = given(argv, "algorithm")
    sections = sections_of(name, {**file, "algorithm": algorithm} if algorithm else file)
    form = sections[0].form
    names = (*command.shared, "debug")
    fields: list[tuple[str, Any, Any]] = [(one, SHARED[one].type, SHARED[one].default) for one in names]
    often = " ".join(one for one in names if one in _OFTEN)
    said = {"__doc__": Shared.__doc__, "HELP": {"run": often}, "TEXTS": field_docstrings(Shared)}
    sections.append(Section("general", dataclasses.make_dataclass("Shared", fields, namespace=said, frozen=True)))
    about, program = (form.__doc__ or "").strip(), f"posttrain {name}"
    if {*HELP, HELP_ALL} & {*argv}:
        full = not {*HELP} & {*argv}
        print(usage.page(program, about, sections, from_file(file, sections, origin), full=full))
        raise SystemExit(0)
    return parse(argv, sections, program=program, file=file, origin=origin)


def _file(name: str, command: Command, argv: Sequence[str]) -> tuple[Mapping[str, Any], str]:
    """What the file of --config says, or the configuration of the run of --resume; and what to call it in errors."""
    config, resume = (given(argv, key) if key in command.shared else None for key in ("config", "resume"))
    if config and resume:
        raise UserError("--resume takes its configuration from the run; leave out --config, and give changes as flags")
    if config:
        file = config_file.read(Path(config))
        said = {key: value for key, value in file.items() if given(argv, flag(key)[2:]) is None}
        if objects := given_objects(said):
            raise UserError(
                f"{config}: `{objects[0]}` was given from Python ({file[objects[0]].split()[0]}); run it there, or "
                f"type {flag(objects[0])}"
            )
        return file | beside(said, Path(config)), config
    if not resume:
        return {}, ""
    run = read_run(Path(resume))
    meant, options = begun(run)
    if meant not in ("", name):
        raise UserError(
            f"{resume} is a run of posttrain {meant}, not of posttrain {name}; type: posttrain {meant} --resume "
            f"{shlex.quote(resume)}"
        )
    if objects := given_objects(options):
        raise UserError(
            f"{resume} was given {' and '.join(f'`{key}`' for key in objects)} from Python "
            f"({options[objects[0]].split()[0]}); resume it there: posttrain.resume({resume!r}, {objects[0]}=...)"
        )
    return options, str(run.path / CONFIG)


def _stopped(name: str, result: Any) -> int:
    """For a run that a signal stopped: say how to go on. Returns the exit code that the signal means, else 0."""
    cause = getattr(result, "interrupted", "")
    if not cause:
        return 0
    if result.steps:
        how = f"saved; resume with: posttrain {name} --resume {shlex.quote(str(result.run))}"
    else:
        how = "before the first, so there is nothing to resume; start again"
    print(f"posttrain: stopped by {cause} after step {result.steps}, {how}", file=sys.stderr)
    return 128 + signal.Signals[cause]
