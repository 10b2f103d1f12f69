"""What one does from Python: run a form, and go on with a run."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from posttrain.bindings.objects import bound, digest_of
from posttrain.commands import COMMANDS, Command, algorithm_of, begun, sections_of
from posttrain.errors import UserError, refuse_unknown
from posttrain.options.audits import Arena, AuditJudge, AuditReward, CompareRewards
from posttrain.options.cluster import AsyncOptions
from posttrain.options.evaluation import Compare, Evaluate, EvaluateReward, Generate, ScoreCompletions, Solve
from posttrain.options.hyperparameters import hyperparameters
from posttrain.options.online import RL, BestOfN, OnlinePreference
from posttrain.options.option import MARK, Form, name_of, options_of
from posttrain.options.training import SFT, Preferences, Scoring
from posttrain.parsing import from_file
from posttrain.runs.inputs import InputsChanged, given_objects, options_named
from posttrain.runs.progress import announce
from posttrain.runs.result import LiveView, RunResult, in_notebook
from posttrain.runs.run import CONFIG, read_run
from posttrain.threads import late

if TYPE_CHECKING:  # the recipes import torch
    from posttrain.bindings.backend import MakesLearner
    from posttrain.recipes.arena import ArenaResult
    from posttrain.recipes.audit_reward import AuditRewardResult
    from posttrain.recipes.best_of_n import BestOfNResult
    from posttrain.recipes.compare_rewards import CompareRewardsResult
    from posttrain.recipes.evaluate.result import EvaluateResult
    from posttrain.recipes.evaluate.solve import SolveResult
    from posttrain.recipes.evaluate_reward.audit import AuditJudgeResult
    from posttrain.recipes.evaluate_reward.result import EvaluateRewardResult
    from posttrain.recipes.generate import GenerateResult
    from posttrain.recipes.generate.episodes import EpisodesResult
    from posttrain.recipes.online_preference import OnlinePreferenceResult
    from posttrain.recipes.preference import PreferencesResult
    from posttrain.recipes.reward_model import ScoringResult
    from posttrain.recipes.rl import RLResult
    from posttrain.recipes.score import ScoreResult
    from posttrain.recipes.sft import SFTResult
    from posttrain.training.learner import Learner

R = TypeVar("R", bound=RunResult)


class _Asked(TypedDict, total=False):
    output: str | Path | None
    quiet: bool


class _Trained(_Asked, total=False):
    callbacks: Sequence[object]
    cluster: AsyncOptions | None
    learner: "Learner | MakesLearner | None"


@overload
def run(form: SFT, **where: Unpack[_Trained]) -> "SFTResult": ...
@overload
def run(form: RL, **where: Unpack[_Trained]) -> "RLResult": ...
@overload
def run(form: OnlinePreference, **where: Unpack[_Trained]) -> "OnlinePreferenceResult": ...
@overload
def run(form: Preferences, **where: Unpack[_Trained]) -> "PreferencesResult": ...
@overload
def run(form: Scoring, **where: Unpack[_Trained]) -> "ScoringResult": ...
@overload
def run(form: Solve, **where: Unpack[_Asked]) -> "SolveResult": ...  # pyright: ignore[reportOverlappingOverload]
@overload
def run(form: Evaluate, **where: Unpack[_Asked]) -> "EvaluateResult": ...
@overload
def run(form: EvaluateReward, **where: Unpack[_Asked]) -> "EvaluateRewardResult": ...
@overload
def run(form: Generate, *, quiet: bool = False) -> "GenerateResult | EpisodesResult": ...
@overload
def run(form: BestOfN, *, quiet: bool = False) -> "BestOfNResult": ...
@overload
def run(form: ScoreCompletions, *, quiet: bool = False) -> "ScoreResult": ...
@overload
def run(form: AuditReward, *, quiet: bool = False) -> "AuditRewardResult": ...
@overload
def run(form: AuditJudge, *, quiet: bool = False) -> "AuditJudgeResult": ...
@overload
def run(form: CompareRewards, *, quiet: bool = False) -> "CompareRewardsResult": ...
@overload
def run(form: Arena, *, quiet: bool = False) -> "ArenaResult": ...
@overload
def run(form: Form, **where: Unpack[_Trained]) -> Any: ...
def run(
    form: Form,
    *,
    output: str | Path | None = None,
    quiet: bool = False,
    callbacks: Sequence[object] = (),
    cluster: AsyncOptions | None = None,
    learner: "Learner | MakesLearner | None" = None,
) -> Any:
    """Run a form: train, evaluate, generate. All its objects are checked before weights are read.

    Args:
        form: what to do, such as `RL(dataset=..., reward=...)`.
        output: the run's directory, or output file; a new one in runs/ unless given.
        quiet: whether to show no progress.
        callbacks: of a form that trains: objects with some of the methods of `Callback`.
        cluster: of a form that trains: its processes on a Ray cluster.
        learner: of a form that trains: what trains in place of posttrain's own (`training.learner.Learner`), or a
            function that makes it from the policy.

    Raises:
        UserError: says in one line what was given, what is expected, and what to type.
    """
    kind = Evaluate if isinstance(form, Compare) else type(form)
    name = next((name for name, command in COMMANDS.items() if command.form is kind), "")
    if not name:
        raise UserError(f"'run' takes a form, such as RL(...) or Evaluate(...); got {type(form).__name__}")
    command = COMMANDS[name]
    return _call(name, command, form, cluster, _passed(command, output, quiet, callbacks, learner), quiet)


@overload
def resume(
    run: R,
    *,
    quiet: bool = False,
    callbacks: Sequence[object] = (),
    accept_changes: str | Sequence[str] = (),
    learner: "Learner | MakesLearner | None" = None,
    **changes: Any,
) -> R: ...
@overload
def resume(
    run: str | Path,
    *,
    quiet: bool = False,
    callbacks: Sequence[object] = (),
    accept_changes: str | Sequence[str] = (),
    learner: "Learner | MakesLearner | None" = None,
    **changes: Any,
) -> RunResult: ...
def resume(
    run: str | Path | RunResult,
    *,
    quiet: bool = False,
    callbacks: Sequence[object] = (),
    accept_changes: str | Sequence[str] = (),
    learner: "Learner | MakesLearner | None" = None,
    **changes: Any,
) -> RunResult:
    """Go on with a run that trains, as if it had not been interrupted.

    Args:
        run: its directory.
        quiet: whether to show no progress.
        callbacks: as in `run`.
        accept_changes: options whose files or objects may be others than those that the run began with.
        learner: as in `run`.
        changes: the objects that the run was given, again, and options that may change, such as `steps`.

    Raises:
        UserError: no such run, an object that is missing or another one, or an option that may not change.
    """
    path = run.run if isinstance(run, RunResult) else Path(run)
    found = read_run(path)
    name, config = begun(found)
    command = COMMANDS[name]
    if "resume" not in command.shared:
        raise UserError(f"{path} is a run of posttrain {name}, which has no steps to go on with")
    kind = command.form
    refuse_unknown(kind, changes)
    if missing := [key for key in given_objects(config) if key not in changes]:
        raise UserError(
            f"{path} was given {' and '.join(f'`{key}` ({config[key].split()[0][len(MARK) :]})' for key in missing)} "
            f"from Python; give the same again: "
            f"resume({str(path)!r}, {', '.join(f'{key}=...' for key in missing)})"
        )
    sections = sections_of(name, config)
    left_out = {*changes, *(["knobs"] if "algorithm" in given_objects(config) else [])}  # the object has its own
    kept = {key: value for key, value in config.items() if key not in left_out}
    values = from_file(kept, sections, str(path / CONFIG))
    said = {section.table: value for section, value in zip(sections, values, strict=True)}
    form, processes = kind(**(said[""] | changes)), said.get("cluster")
    cluster = AsyncOptions(**processes) if processes else None
    passed = _passed(command, None, quiet, callbacks, learner) | {"resume": path, "accept_changes": accept_changes}
    return _call(name, command, form, cluster, passed, quiet, said.get("knobs"), before=config)


def _passed(
    command: Command,
    output: str | Path | None,
    quiet: bool,
    callbacks: Sequence[object],
    learner: "Learner | MakesLearner | None",
) -> dict[str, Any]:
    trains = "resume" in command.shared
    if not trains and (callbacks or learner is not None):
        raise UserError("'callbacks' and 'learner' are for forms that train; leave them out")
    if "output" not in command.shared and output is not None:
        raise UserError("`output` is an option of this form itself; give it there")
    live = [LiveView()] if trains and in_notebook() and not quiet else []
    passed = {"output": Path(output) if output is not None else None, "quiet": quiet or bool(live)}
    passed = {key: value for key, value in passed.items() if key in command.shared}
    passed |= {"callbacks": [*callbacks, *live]} if trains else {}
    return passed | ({"learner": learner} if learner is not None else {})


def _call(
    name: str,
    command: Command,
    form: Form,
    cluster: AsyncOptions | None,
    passed: dict[str, Any],
    quiet: bool,
    knobs: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
) -> Any:
    if said := late():
        announce(said, quiet=quiet)
    parts: list[Any] = []
    with bound(form, sent=bool(cluster and cluster.trainers)) as given:
        marks, form = dict(given.marks), given.form
        if command.family:
            form, algorithm, mark = _algorithm(command, form, knobs or {})
            marks.pop("algorithm", None)
            marks |= {"algorithm": mark} if mark else {}
            parts.append(algorithm)
        if before is not None:
            _refuse_others(before, marks, options_named(passed["accept_changes"], options_of(type(form))))
        if cluster is not None:
            parts.append(_narrowed(name, command, cluster))
        for option in given.unchecked if not quiet else ():
            announce(f"no source of `{option}` is found, so a resumed run cannot tell whether it is the same")
        if "resume" in command.shared:
            passed["given"] = marks
        found = command.function(form, *parts, **passed)
        if cause := getattr(found, "interrupted", ""):
            announce(f"stopped by {cause} after step {found.steps}; to go on: resume({str(found.run)!r})", quiet=quiet)
        if "resume" in command.shared:
            for line in command.show(found):
                if not line.startswith(("run ", "report ", "try it ")):
                    announce(line, quiet=passed["quiet"])
            announce(f"run {found.run}, report {found.report}", quiet=passed["quiet"])
        return found


def _refuse_others(config: Mapping[str, Any], marks: Mapping[str, str], accepted: Sequence[str]) -> None:
    """Raise `InputsChanged` for objects that are others than those of a run, before weights are read."""

    def digest(said: object) -> str:
        return said.partition(" ")[2] if isinstance(said, str) and said.startswith(MARK) else ""

    names = sorted({*given_objects(config), *marks} - {*accepted})
    if changed := [name for name in names if digest(config.get(name)) != digest(marks.get(name))]:
        said = (f"the {'rows' if 'dataset' in name else 'source or state'} of `{name}`" for name in changed)
        raise InputsChanged(changed, f"{' and '.join(said)} changed since the run started")


def _algorithm(command: Command, form: Any, knobs: Mapping[str, Any]) -> tuple[Any, Any, str]:
    """The form with the algorithm's name, the algorithm, and what is kept of it if it has no name."""
    from posttrain.algorithms import ALGORITHMS  # torch

    value: Any = form.algorithm
    if isinstance(value, str):
        kind = hyperparameters(value, command.family)
        return form, algorithm_of(command.family, value, kind(**knobs)), ""
    if isinstance(value, type):
        raise UserError(f"`algorithm` is the class {value.__name__}; give an object of it: {value.__name__}()")
    if not dataclasses.is_dataclass(value) or not hasattr(value, "family"):
        raise UserError(
            f"`algorithm` is a name, or an object with its hyperparameters such as GRPO(kl_coefficient=0); got "
            f"{value!r}"
        )
    name = next((name for name, make in ALGORITHMS.items() if make is type(value)), "")
    if (family := str(getattr(value, "family", ""))) != command.family:
        forms = {"online": "RL(...)", "preference": "Preference(...) or OnlinePreference(...)"}
        fitting = forms.get(family, f"a form of the family '{family}'")
        raise UserError(f"{name_of(value)} is no algorithm of {type(form).__name__}; give it to {fitting}")
    mark = "" if name else f"{MARK}{name_of(value)} sha256:{digest_of(type(value))}"
    return dataclasses.replace(form, algorithm=name or type(value).__name__), value, mark


def _narrowed(name: str, command: Command, cluster: AsyncOptions) -> Any:
    """The options of processes that the form has; raises `UserError` for others that were given."""
    if not command.cluster:
        raise UserError(f"posttrain {name} runs in one process; leave out 'cluster'")
    known = options_of(command.cluster)
    if other := next((key for key in options_of(AsyncOptions) if key not in known and cluster.says(key)), ""):
        raise UserError(f"posttrain {name} has no `{other}`; leave it out")
    return command.cluster(**{key: getattr(cluster, key) for key in known})
