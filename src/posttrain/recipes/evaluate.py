"""Accuracy on held-out tasks, with confidence intervals.

    posttrain evaluate --model runs/rl-2026-01-31-1 --dataset gym:chain_sum
    posttrain evaluate --model OWNER/NAME --dataset test.jsonl --reward numbers --baseline smollm2-135m-instruct

Two accuracies tell different stories, so both are measured unless one is asked for: sampled pass@1 is what RL
maximises, greedy what a user of the model sees. Where pass@1 is far below pass@k, the model can do what it seldom does.
Where no reward says what is solved, such as a function whose scores are not 0 to 1, the mean reward is reported. Left
out: judging by anything but the outcome; the other rewards are kept with each sample and not averaged.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from posttrain.data import disjoint, load_tasks, parse_columns, seed_for, split_for
from posttrain.environments.gold_rewards import overseen
from posttrain.environments.judged import verdicts_kept_in
from posttrain.environments.load import load_environment
from posttrain.environments.scored import ScoredEnvironment, need_group
from posttrain.errors import DataError, EpisodeError, UserError
from posttrain.evaluation.accuracy import Accuracy, summarize
from posttrain.evaluation.examination import Examination, numbers, percent
from posttrain.evaluation.intervals import pass_at_interval
from posttrain.models.precision import compute_of
from posttrain.monitoring import (
    Estimate,
    Finding,
    Progress,
    RunDirectory,
    Sample,
    Severity,
    Table,
    Thresholds,
    announce,
    machine_line,
    read_run,
    write_report,
)
from posttrain.monitoring.samples import samples_of
from posttrain.rollouts.episodes import Players, none_left, opened, sample_groups
from posttrain.rollouts.fitting import fitting
from posttrain.rollouts.judges import JudgeModels, judges_in, rewards_with
from posttrain.rollouts.measures import SOLVED, lost_metrics
from posttrain.rollouts.options import JudgeOptions
from posttrain.rollouts.policy import Policy, load_policy
from posttrain.rollouts.setup import refuse_unreadable
from posttrain.training.saved import SavedModel, saved_model, spoken_otherwise
from posttrain.types import Group, Sampling, Task

SAMPLES = 8  # of each task, where nothing else is asked for
GYM_TASKS = 200  # that a gym: source makes, where nothing else is asked for
AT_A_TIME = 256  # completions between two steps of the progress bar: more than the engine decodes together
SHOWN = 4  # completions in the report


@dataclass(frozen=True)
class Evaluate(JudgeOptions):
    """Accuracy of a model on held-out tasks, with confidence intervals."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset environment split columns limit exclude system",
        "model": "model baseline precision",
        "rewards": "reward judge",
        "sampling": "greedy samples temperature max_new_tokens engine",
        "run": "seed",
    }
    dataset: str = ""
    """Held-out tasks: a file, folder, glob, hub id, or gym:NAME?option=value. Of gym: sources, the held-out split."""
    model: str = "smollm2-135m-instruct"
    """Model: hub id, folder or run. A run means its best checkpoint, or else its latest; checkpoints, adapters and
    packaged models work too."""
    baseline: str = ""
    """Model to compare with on the same tasks (paired difference). Such as the one before training."""
    reward: str = ""
    """Rewards, such as "numbers" or FILE.py:NAME; the first verifier decides. Default for gym: sources: gym."""
    environment: str = ""
    """Multi-turn environment: FILE.py:CLASS or installed name. Default: single-turn. Without --dataset, its own
    held-out tasks; without --reward, its own reward."""
    environment_args: str = ""
    """Arguments of the environment, such as "size=100 max_turns=6"."""
    max_lost: float = 0.1
    """Maximum fraction of failed episodes; above it the evaluation stops. Failed episodes are in no denominator."""
    greedy: bool = False
    """Greedy decoding, one completion per task. No sampling unless --samples is given."""
    samples: int | None = None
    """Samples per task; default: 8, and a greedy one. With --samples alone nothing is decoded greedily."""
    temperature: float = 1.0
    """Sampling temperature."""
    max_new_tokens: int = 256
    """Maximum tokens per completion; truncated ones are counted."""
    max_prompt_tokens: int | None = None
    """Leave out longer prompts, and count them. Default: a prompt beyond the model's context is an error."""
    columns: str = ""
    """Column mapping, such as "prompt=question answer=final"."""
    split: str = ""
    """Split of a folder or hub dataset; default: "test"."""
    limit: int | None = None
    """Maximum number of tasks; for gym: sources, the number to generate (default 200)."""
    exclude: str = ""
    """Training data to decontaminate against. Its tasks are left out, and counted."""
    system: str | None = None
    """System message; use the training one. Replaces the data's own."""
    prompt_template: str = "{prompt}"
    """Template of each question; use the training one."""
    chat_template: str = ""
    """Jinja file that replaces the tokenizer's chat template."""
    precision: str = "auto"
    """float32, bfloat16, or auto (the faster one)."""
    engine: str = "embedded"
    """Engine: embedded, vllm, or a server's URL. vllm must be installed; the server is vLLM's."""
    cache_gb: float = 1.5
    """KV cache size, in GB."""
    seed: int = 0
    """Random seed of sampling and of gym: tasks."""

    def decodings(self) -> dict[str, tuple[int, float]]:
        """The ways to answer, by name: how many answers to a task, and at which temperature."""
        both = not self.greedy and self.samples is None
        found: dict[str, tuple[int, float]] = {}
        if both or self.samples is not None:
            found["sampled"] = (SAMPLES if self.samples is None else self.samples, self.temperature)
        if both or self.greedy:
            found["greedy"] = (1, 0.0)
        return found


@dataclass(frozen=True, slots=True)
class Answer(Sample):
    """A completion as `samples.jsonl` keeps it: a `Sample`, how it was decoded, and of which task."""

    decoding: str = ""
    task: str = ""
    tokens: int = 0
    unparsed: bool = False


@dataclass(frozen=True)
class EvaluateResult:
    """What was found, and where all of it is."""

    run: Path
    report: Path
    seconds: float
    config: Evaluate
    model: Examination
    baseline: Examination | None
    notes: tuple[str, ...]  # what was left out, and what may make the number mean something else

    def summary(self) -> dict[str, Any]:
        """The numbers for a machine to read. The headline's are at the top: sampled, where there are samples."""
        found = numbers(self.model.headline) | {"decoding": next(iter(self.model.answers))} | self.model.summary()
        if self.baseline is not None:
            over = self.model.over(self.baseline)
            found["baseline"] = self.baseline.summary()
            found["difference"] = {k: {"value": d.value, "ci95": list(d.ci95), "n": d.n} for k, d in over.items()}
        about = {"dataset": self.config.dataset, "notes": list(self.notes)}
        return found | about | {"seconds": self.seconds, "run": str(self.run), "report": str(self.report)}

    def lines(self) -> list[str]:
        """The same in words."""
        found = [f"{self.model.model} on {self.config.dataset or self.config.environment}", *self.model.lines()]
        if self.baseline is not None:
            found += [f"{self.baseline.model} on the same tasks", *self.baseline.lines()]
            found += [f"  {finding.title}: {finding.evidence}" for finding in _differences(self)]
        return [*found, *(f"note: {note}" for note in self.notes), f"report: {self.report}"]


def run(config: Evaluate, *, output: Path | None = None, quiet: bool = False) -> EvaluateResult:
    """Examine a model, and a baseline where there is one, into a new run directory."""
    began = time.monotonic()
    parts = _prepare(config)
    models = [parts.model] + ([parts.baseline] if parts.baseline else [])
    answers = len(parts.tasks) * sum(count for count, _ in config.decodings().values())  # of one model
    policy = _load(config, parts.model)
    about = compute_of(policy.model, config.precision) | {"model": parts.model.where, "notes": list(parts.notes)}
    directory = RunDirectory.create(output, "evaluate", asdict(config), environment=about)
    announce(machine_line(directory.environment), quiet=quiet)
    found: list[Examination] = []
    failed: Counter[str] = Counter()
    with (
        directory,
        verdicts_kept_in(directory.path, parts.judging),
        Progress("evaluate", answers * len(models), quiet=quiet) as progress,
        opened(parts.environment.environment),
    ):
        for saved in models:
            if found:
                del policy  # its memory is needed for the next one
                policy = _load(config, saved)
            found.append(
                _examine(config, parts, saved.title, policy, directory, progress, len(found) * answers, failed)
            )
        # a function may have shown with its last answer only that 1 does not mean solved
        found = [examination.judged_by(parts.environment.outcome) for examination in found]
        metrics = found[0].metrics()
        for baseline in found[1:]:
            metrics |= {f"baseline/{name}": value for name, value in baseline.metrics().items()}
        directory.log_metrics(0, metrics | lost_metrics(failed))
    result = EvaluateResult(
        run=directory.path,
        report=directory.report,
        seconds=time.monotonic() - began,
        config=config,
        model=found[0],
        baseline=found[1] if parts.baseline else None,
        notes=(*parts.notes, *_lost(failed, answers * len(models))),
    )
    _report(result)
    return result


def _examine(
    config: Evaluate,
    parts: "_Parts",
    title: str,
    policy: Policy,
    directory: RunDirectory,
    progress: Progress,
    done: int,
    failed: "Counter[str]",
) -> Examination:
    """Ask one model every task in every way; what it says is kept as it comes."""
    found: dict[str, Accuracy] = {}
    for decoding, (count, temperature) in config.decodings().items():
        groups: list[Group] = []
        players = Players(
            policy.engine,
            policy.chat,
            Sampling(config.max_new_tokens, temperature),
            max_tokens=policy.model.context,
            max_lost=config.max_lost,
            on_tokens=progress.tokens,
            on_lost=lambda episode: failed.update([episode.cause]),
        )
        at_once = max(1, AT_A_TIME // count)
        for first in range(0, len(parts.tasks), at_once):
            with progress.phase(decoding):
                some = sample_groups(
                    parts.environment,
                    parts.tasks[first : first + at_once],
                    players,
                    completions_per_prompt=count,
                    seed=seed_for(config.seed, "evaluation", first),
                )
            groups += some
            directory.log_samples(0, _answers(some, title, decoding, parts.environment.outcome))
            done += min(at_once, len(parts.tasks) - first) * count
            if not groups:
                raise EpisodeError(none_left(failed))
            found[decoding] = summarize(groups, parts.environment.outcome, greedy=temperature == 0)
            progress.step(done, **{found[decoding].measure: found[decoding].accuracy})
    return Examination(title, **found)


def _lost(failed: Mapping[str, int], asked: int) -> list[str]:
    """What to say of episodes that failed."""
    causes = ", ".join(f"{count} {cause}" for cause, count in failed.items())
    return [f"{sum(failed.values())} of {asked} episodes failed ({causes}) and are in no denominator"] if failed else []


@dataclass(frozen=True)
class _Parts:
    tasks: list[Task]
    environment: ScoredEnvironment
    model: SavedModel
    baseline: SavedModel | None
    notes: tuple[str, ...]
    judging: JudgeModels


def _load(config: Evaluate, saved: SavedModel) -> Policy:
    return load_policy(
        saved.where,
        precision=config.precision,
        chat_template=config.chat_template,
        engine=config.engine,
        cache_gb=config.cache_gb,
    )


def _prepare(config: Evaluate) -> _Parts:
    """Find everything but the weights; whatever is wrong with the options shows here, before anything is written."""
    answers, temperature = config.decodings().get("sampled", (1, 1.0))
    if answers < 1 or config.max_new_tokens < 1:
        raise UserError("--samples and --max-new-tokens must be 1 or more; for greedy decoding only, type --greedy")
    if not 0 <= config.max_lost <= 1:
        raise UserError(f"--max-lost must be a fraction from 0 to 1; got {config.max_lost}")
    if temperature <= 0:
        raise UserError(f"--temperature must be above 0, or all samples are the same; got {temperature}; type --greedy")
    judging = judges_in(config, lambda name: saved_model(name).where)
    judging.refuse_policy("posttrain evaluate")
    rewards, _, judge_notes = rewards_with(
        judging, config, config.reward or ("" if config.judge else _judged_by(config))
    )
    if rewards is None:
        raise UserError(
            'a reward is required: --reward, such as "numbers" for GSM8K, "math", or FILE.py:function, or with --judge'
        )
    played = load_environment(config.environment, config.environment_args) if config.environment else None
    environment = overseen(rewards, environment=played).environment
    for decoding, (count, _) in config.decodings().items():
        alone = f"a greedy answer (leave out --greedy, and type --samples {max(SAMPLES, environment.min_group)})"
        need_group(environment, count, alone if decoding == "greedy" else "--samples")
    tasks, notes = _tasks(config, environment)
    notes += judge_notes
    model = saved_model(config.model)
    baseline = saved_model(config.baseline) if config.baseline else None
    models = [saved for saved in (model, baseline) if saved is not None]
    for saved in models:
        notes += saved.notes()
        notes += spoken_otherwise(saved, system=config.system, prompt_template=config.prompt_template)
    kept = tasks
    for saved in models:
        kept = fitting(
            kept,
            saved.where,
            max_prompt_tokens=config.max_prompt_tokens,
            title=saved.title,
            chat_template=config.chat_template,
        )
    if len(kept) < len(tasks):
        notes.append(f"{len(tasks) - len(kept)} prompts over {config.max_prompt_tokens} tokens were left out")
    judging.load()
    return _Parts(kept, environment, model, baseline, tuple(notes), judging)


def _judged_by(config: Evaluate) -> str:
    """The rewards where none are named."""
    if config.judge:
        return ""
    return "environment" if config.environment else "gym" if config.dataset.startswith("gym:") else ""


def _tasks(config: Evaluate, environment: ScoredEnvironment) -> tuple[list[Task], list[str]]:
    """The tasks, and what is to be said about them."""
    if not config.dataset and config.environment:
        own = list(environment.environment.tasks("heldout", config.seed))[: config.limit]
        if not own:
            raise UserError(f"{config.environment} has no held-out tasks of its own; pass --dataset")
        return own, []
    if not config.dataset:
        raise UserError("--dataset is required: a file or folder, a hub id, or gym:NAME")
    gym, part = config.dataset.startswith("gym:"), split_for(config.dataset, "test")
    words: dict[str, Any] = {
        "columns": parse_columns(config.columns) if config.columns else None,
        "system": config.system,
        "prompt_template": config.prompt_template,
        "seed": config.seed,
    }
    try:
        tasks = load_tasks(
            config.dataset,
            split=config.split or ("heldout" if gym else part),
            limit=GYM_TASKS if gym and config.limit is None else config.limit,
            **words,
        )
    except DataError as error:
        if config.split or gym or part is None:
            raise
        raise DataError(f"{error}; evaluation reads the split 'test' unless --split names another") from error
    refuse_unreadable(environment.reward, tasks, config.dataset)
    if not config.exclude:
        return tasks, []
    kept = disjoint(load_tasks(config.exclude, **words), tasks)
    return kept.tasks, [f"{kept.removed} tasks were left out: they are in {config.exclude}, or twice here"]


def _answers(groups: Sequence[Group], model: str, decoding: str, outcome: str) -> list[Answer]:
    return [
        Answer(
            **asdict(sample),
            decoding=decoding,
            task=group.task.id,
            tokens=len(trajectory.logprobs),
            unparsed=scores[outcome].unparsed if outcome else any(score.unparsed for score in scores.values()),
        )
        for group in groups
        for sample, trajectory, scores in zip(
            samples_of([group], model=model), group.trajectories, group.scores, strict=True
        )
    ]


def _report(result: EvaluateResult) -> None:
    """The page: what was found, the table, and a few completions, of other tasks each, right and wrong ones."""
    read = read_run(result.run)
    first = {(row["task"], row["model"] == result.model.model): row for row in reversed(read.samples)}
    ours = [row for (_, is_model), row in reversed(first.items()) if is_model]
    right, wrong = (
        [r for r in ours if r["reward"] is not None and (r["reward"] >= SOLVED) == solved] for solved in (True, False)
    )
    shown = [*right[: SHOWN // 2], *wrong[: SHOWN // 2]]
    page = replace(read, metrics=[], samples=shown)
    write_report(page, tables=[_table(result)], findings=[*_differences(result), *_findings(result)])


def _table(result: EvaluateResult) -> Table:
    rows = [
        (
            examination.model,
            decoding,
            Estimate(found.accuracy, *found.ci95),
            Estimate(found.pass_at[most], *pass_at_interval(found, most))
            if (most := max(found.pass_at, default=1)) > 1
            else None,
            percent(found.unparsed),
            percent(found.truncated),
            f"{found.mean_tokens:.0f}",
        )
        for examination in (result.model, result.baseline)
        if examination is not None
        for decoding, found in examination.answers.items()
    ]
    headline = result.model.headline
    rewarded = headline.measure == "reward"
    first = "mean reward" if rewarded else "pass@1"
    columns = ("model", "answers", first, "pass@k", "no answer found", "cut off", "tokens")
    of = "no reward says what is solved" if rewarded else f"k is {max(headline.pass_at)}"
    note = (
        f"{headline.n} tasks. Ranges are 95 % intervals over tasks; {of}; samples are "
        f"drawn at temperature {result.config.temperature:g}."
    )
    return Table(f"Held-out tasks: {result.config.dataset or result.config.environment}", columns, rows, note)


def _differences(result: EvaluateResult) -> list[Finding]:
    """Whether the model is better than the baseline, as far as the tasks can tell."""
    found: list[Finding] = []
    for decoding, (value, (low, high), n) in result.model.over(result.baseline).items() if result.baseline else ():
        severity, word = (
            (Severity.GOOD, "better than") if low > 0 else (Severity.WARNING, "worse than") if high < 0 else (None, "")
        )
        title = f"{decoding}: {word or 'not to be told apart from'} the baseline"
        evidence = f"{100 * value:+.1f} points of pass@1 on the same {n} tasks ({100 * low:+.1f} to {100 * high:+.1f})"
        if result.model.headline.measure == "reward":
            evidence = f"{value:+.3f} mean reward on the same {n} tasks ({low:+.3f} to {high:+.3f})"
        found.append(Finding(severity or Severity.NOTE, title, evidence))
    return found


def _findings(result: EvaluateResult) -> list[Finding]:
    """What to know before the number is trusted."""
    headline, limits = result.model.headline, Thresholds()
    found: list[Finding] = []
    if headline.unparsed >= limits.unparsed:
        evidence = f"no answer was found in {percent(headline.unparsed)} of the completions"
        advice = "Look at the samples: say in the prompt how to answer, or use another verifier."
        found.append(Finding(Severity.WARNING, "Many answers cannot be read", evidence, advice))
    if headline.truncated >= limits.truncated:
        evidence = f"{percent(headline.truncated)} of the completions were cut off"
        found.append(Finding(Severity.WARNING, "Many answers are cut off", evidence, "Raise --max-new-tokens."))
    found += [Finding(Severity.NOTE, "About these tasks", note) for note in result.notes]
    return found
