"""The main job: cold start, RL and held-out evaluation of a small pretrained model.

    posttrain quickstart

What happens, in about eight minutes on two CPU cores (mean of three seeds: held-out sampled pass@1 0.07 after the cold
start and 0.46 after RL, greedy 0.04 and 0.51, pass@8 0.42 and 0.66):

1. The packaged model is asked sums that it has never seen, such as 4 - 1 - 7 + 3. It cannot do them.
2. Cold start: supervised fine-tuning on 960 worked demonstrations. The first half think, in terse steps; of the second
   half six in seven answer at once. So the policy can think, seldom does, and is mostly wrong.
3. GRPO with a verifier (1 for the right answer) and a format reward (0.1 for thinking in tags). Completions that think
   are right more often, so the policy discovers within a few updates that thinking pays.
4. Base, cold start and RL are evaluated on held-out problems that no training stage has seen: sampled (temperature 1),
   greedy, and pass@8, the share of problems that one of eight samples solves.

Left out of DeepSeek-R1's recipe (arXiv 2501.12948), whose stages these are: rejection sampling, the second rounds of
SFT and RL, and the language-consistency reward. No KL term: for verifiable rewards most tools leave it out today.
"""

import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from posttrain.algorithms.grpo import GRPO
from posttrain.bindings.episode_length import episode_length
from posttrain.data import Example, batch_indices, load_gym, seed_for
from posttrain.data.tasks import dress
from posttrain.engine.policy import Policy, load_policy
from posttrain.environments.env import SingleTurn
from posttrain.environments.scored import ScoredEnvironment
from posttrain.episodes.episodes import Players, sample_groups
from posttrain.episodes.metrics import SOLVED, rollout_metrics
from posttrain.errors import UserError
from posttrain.evaluation import accuracy
from posttrain.evaluation.accuracy import Accuracy, Difference, Examination
from posttrain.models.precision import compute_of
from posttrain.options.online import OnlineOptions
from posttrain.options.option import as_written
from posttrain.options.tools import Quickstart
from posttrain.planning import Plan, plan_of, unloaded
from posttrain.planning.work import sampled_work, with_algorithm
from posttrain.report import Estimate, Table, write_report
from posttrain.rewards import GymVerifier, NumberVerifier, Tags, Weighted
from posttrain.runs import RunDirectory, machine_line
from posttrain.runs.environment import peak_gb
from posttrain.runs.progress import Progress, announce
from posttrain.runs.run import samples_of
from posttrain.training.learner import POLICY
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import PolicyLoss, policy_batch
from posttrain.training.schedule import learning_rate
from posttrain.training.supervised import NLL, supervised_batch
from posttrain.types import Group, Message, Sampling, Task

SYSTEM = "Solve the problem."
MAX_NEW_TOKENS = 48
MICROBATCH_TOKENS = 768
# whose loss is logged: that of training is of ordered ones, and cannot show what is learned
HELDOUT_DEMONSTRATIONS = 32
LENIENT = NumberVerifier(last_number=True, name="last_number")  # only logged: the last number of whatever was said
ENVIRONMENT = ScoredEnvironment(
    Weighted(((GymVerifier(answer_in="outside_think"), 1.0), (Tags(), 0.1), (LENIENT, 0.0)))
)


def _share(exam: Examination, score: str) -> float:
    """The mean of a score over sampled completions: `tags` for thinking, `last_number` for a lenient judge."""
    return fmean(row.scores[score].total for group in exam.answers["sampled"].groups for row in group.rows)


def _solved_by(exam: Examination, thinking: bool) -> float | None:
    """The share of sampled completions with (or without) thinking that are right; None if there are none."""
    scores = [row.scores for group in exam.answers["sampled"].groups for row in group.rows]
    solved = [part[ENVIRONMENT.outcome].total >= SOLVED for part in scores if (part["tags"].value == 1) == thinking]
    return fmean(solved) if solved else None


@dataclass(frozen=True)
class QuickstartResult:
    """What the job found: base, cold start and RL on the held-out problems."""

    run: Path
    report: Path
    seconds: float
    base: Examination
    cold_start: Examination
    rl: Examination

    @property
    def gains(self) -> dict[str, Difference]:
        """RL minus cold start on the same problems: `sampled` pass@1, `greedy`, and `pass_at_K` with all K samples."""
        before, after = self.cold_start.answers["sampled"], self.rl.answers["sampled"]
        passed = accuracy.difference(before, after, max(after.pass_at))
        return self.rl.over(self.cold_start) | {f"pass_at_{after.samples_per_task}": passed}

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON; accuracies are held-out and between 0 and 1, `gain` is RL minus cold start."""
        found: dict[str, Any] = {
            key: {name: accuracy.numbers(answers) for name, answers in exam.answers.items()}
            | {
                "thinking": _share(exam, "tags"),
                "solved_if_thinking": _solved_by(exam, thinking=True),
                "solved_if_not": _solved_by(exam, thinking=False),
                "lenient": _share(exam, "last_number"),
            }
            for key, exam in (("base", self.base), ("cold_start", self.cold_start), ("rl", self.rl))
        }
        found["gain"] = {name: {"value": gain.value, "ci95": list(gain.ci95)} for name, gain in self.gains.items()}
        return found | {"n": self.rl.headline.n, "seconds": self.seconds, "peak_gb": peak_gb(), "run": str(self.run)}

    def table(self) -> Table:
        """The numbers for people."""
        most = max(self.rl.headline.pass_at)
        rows: list[tuple[str | Estimate, ...]] = []
        for exam in (self.base, self.cold_start, self.rl):
            sampled = exam.answers["sampled"]
            accuracies = [Estimate(found.accuracy, *found.ci95) for found in exam.answers.values()]
            passed = Estimate(sampled.pass_at[most], *accuracy.pass_at_interval(sampled, most))
            rows.append((exam.model, *accuracies, passed, f"{_share(exam, 'tags'):.0%}", f"{sampled.mean_tokens:.0f}"))
        gains = [f"{value:+.3f} ({low:+.3f} to {high:+.3f})" for value, (low, high), _ in self.gains.values()]
        return Table(
            "Held-out problems",
            ("model", "sampled pass@1", "greedy", f"pass@{most}", "thinks", "tokens"),
            [*rows, ("gain of RL", *gains, "", "")],
            note=f"{self.rl.headline.n} problems that no training stage has seen ({self.base.headline.n} for the "
            "base). Ranges are 95% intervals over problems, of the gain paired by problem. Sampled at temperature 1; "
            f"greedy takes the most likely token; pass@{most} is the share of problems that one of {most} samples "
            "solves.",
        )


def run(config: Quickstart, *, output: Path | None = None, quiet: bool = False) -> QuickstartResult:
    """The whole job; see the top of this file."""
    began = time.monotonic()
    heldout = problems(config, "heldout", config.problems)
    train = problems(config, "train", config.demonstrations + config.rl_steps * config.prompts_per_step)
    demonstrated, practised = train[: config.demonstrations], train[config.demonstrations :]
    policy = load_policy(config.model)
    about = compute_of(policy.model, "auto")
    with RunDirectory.create(output, "quickstart", as_written(config), environment=about) as directory:
        announce(machine_line(directory.environment), quiet=quiet)
        base = _examined(config, policy, "base", heldout[: config.base_problems], quiet)
        cold_start_log = _cold_start(config, policy, demonstrated, heldout, directory.path / "cold-start", quiet)
        cold_start = _examined(config, policy, "cold start", heldout, quiet)
        policy.save(directory.path / "cold-start" / "model")
        rl_log = _reinforce(config, policy, practised, directory.path / "rl", quiet)
        rl = _examined(config, policy, "RL", heldout, quiet)
        policy.save(directory.path / "rl" / "model")
        for stage, exam in enumerate((base, cold_start, rl)):
            directory.log_samples(stage, samples_of(exam.answers["greedy"].groups[:8], model=exam.model))
        result = QuickstartResult(directory.path, directory.report, time.monotonic() - began, base, cold_start, rl)
        write_report(directory.read(), tables=[result.table()], parts=[cold_start_log.read(), rl_log.read()])
    return result


def dry_run(config: Quickstart, resume: Path | None = None, *, measure: bool = True) -> Plan:
    """Plan the RL stage, which takes the most memory and time; the other stages are in the notes. Reads no weights."""
    tasks = problems(config, "train", config.rl_steps * config.prompts_per_step)
    options = OnlineOptions(
        model=config.model,
        prompts_per_step=config.prompts_per_step,
        completions_per_prompt=config.completions_per_prompt,
        max_new_tokens=MAX_NEW_TOKENS,
        microbatch_tokens=MICROBATCH_TOKENS,
    )
    model = unloaded(options, resume)
    lengths = [len(model.chat.prompt_ids(task.prompt)) for task in tasks]
    episode = episode_length(SingleTurn(), model.chat, MAX_NEW_TOKENS, config.seed)
    work = sampled_work("quickstart", model.shape, options, lengths, steps=config.rl_steps, episode=episode)
    updates = config.sft_epochs * config.demonstrations // config.sft_batch
    completions = (min(config.base_problems, config.problems) + 2 * config.problems) * (config.samples + 1)
    notes = (
        f"these are the numbers of RL; before it {updates:,} updates of {config.sft_batch} demonstrations (cold start)",
        f"and three evaluations with {completions:,} completions in all",
    )
    work = replace(with_algorithm(work, GRPO(kl_coefficient=0.0)), notes=(*model.notes, *notes))
    plan = plan_of(options, work, measure=measure)
    return replace(plan, disk=2 * model.shape.parameters * plan.training.itemsize)  # two models, and no checkpoints


def _cold_start(
    config: Quickstart, policy: Policy, tasks: Sequence[Task], heldout: Sequence[Task], path: Path, quiet: bool
) -> RunDirectory:
    """Supervised fine-tuning on worked demonstrations, with the loss on held-out ones before and after."""
    examples, unseen = (
        [Example.whole(*policy.chat.training_ids(messages)) for messages in conversations(config, some)]
        for some in (tasks, heldout[:HELDOUT_DEMONSTRATIONS])
    )
    optimizer = MasterAdamW(policy.model.trainable())
    learner = LocalLearner(policy.model, optimizer, microbatch_tokens=MICROBATCH_TOKENS)
    steps = config.sft_epochs * len(examples) // config.sft_batch
    directory = RunDirectory.create(path, "quickstart: cold start", as_written(config))

    def evaluate_loss() -> dict[str, float]:
        return {"evaluation/loss": learner.forward(supervised_batch(unseen), NLL())["loss"]}

    with directory, Progress("cold start", steps, quiet=quiet) as progress:
        directory.log_metrics(0, evaluate_loss())
        for step in range(steps):
            begin = step * config.sft_batch
            batch = [examples[i % len(examples)] for i in range(begin, begin + config.sft_batch)]
            lr = learning_rate(step, steps=steps, peak=config.sft_lr, warmup=steps // 10, decay="linear")
            metrics = learner.forward_backward(supervised_batch(batch), NLL()) | learner.optim_step({POLICY: lr})
            if step + 1 == steps:
                metrics |= evaluate_loss()
            directory.log_metrics(step + 1, metrics | {"lr": lr})
            progress.step(step + 1, loss=metrics["loss"])
    return directory


def _reinforce(config: Quickstart, policy: Policy, tasks: Sequence[Task], path: Path, quiet: bool) -> RunDirectory:
    """GRPO with the verifier and the format rule."""
    algorithm = GRPO(kl_coefficient=0.0)
    optimizer = MasterAdamW(policy.model.trainable(), betas=(0.9, 0.99))
    learner = LocalLearner(policy.model, optimizer, microbatch_tokens=MICROBATCH_TOKENS)
    directory = RunDirectory.create(path, "quickstart: RL", as_written(config))
    with directory, Progress("RL", config.rl_steps, quiet=quiet) as progress:
        for step in range(config.rl_steps):
            began = time.perf_counter()
            with progress.phase("rollout"):
                drawn = [tasks[i] for i in batch_indices(len(tasks), config.prompts_per_step, step, config.seed)]
                seed = seed_for(config.seed, "rollout", step)
                groups = _sampled(policy, drawn, 1.0, config.completions_per_prompt, seed, progress)
            sampled = time.perf_counter()
            batch, metrics = policy_batch(groups, algorithm)
            lr = learning_rate(step, steps=config.rl_steps, peak=config.rl_lr, warmup=3, decay="constant")
            with progress.phase("update"):
                metrics |= learner.forward_backward(batch, PolicyLoss(algorithm)) | learner.optim_step({POLICY: lr})
            metrics |= rollout_metrics(groups, ENVIRONMENT.outcome) | {"lr": lr, "memory_gb": peak_gb()}
            metrics |= {"seconds/rollout": sampled - began, "seconds/train": time.perf_counter() - sampled}
            directory.log_metrics(step + 1, metrics)
            directory.log_samples(step + 1, samples_of(groups, per_group=1))
            progress.step(step + 1, accuracy=metrics["accuracy"], thinks=metrics["reward/tags"])
    return directory


def _sampled(
    policy: Policy, tasks: Sequence[Task], temperature: float, samples: int, seed: int, progress: Progress
) -> list[Group]:
    sampling = Sampling(MAX_NEW_TOKENS, temperature)
    players = Players(policy.engine, policy.chat, sampling, on_tokens=progress.tokens)
    return sample_groups(ENVIRONMENT, tasks, players, completions_per_prompt=samples, seed=seed)


def _examined(config: Quickstart, policy: Policy, name: str, tasks: Sequence[Task], quiet: bool) -> Examination:
    """Sampled and greedy answers; every model gets the same problems and the same noise."""
    found: dict[str, Accuracy] = {}
    with Progress(f"examine {name}", 2, quiet=quiet) as progress:
        for decoding, samples, temperature in (("sampled", config.samples, 1.0), ("greedy", 1, 0.0)):
            with progress.phase(decoding):
                seed = seed_for(config.seed, "examination")
                groups = _sampled(policy, tasks, temperature, samples, seed, progress)
            found[decoding] = accuracy.summarize(groups, ENVIRONMENT.outcome_of(groups), greedy=temperature == 0)
            progress.step(len(found), **{name: answers.accuracy for name, answers in found.items()})
    return Examination(name, **found)


def problems(config: Quickstart, split: str, size: int) -> list[Task]:
    """Sums of the data set, asked as the policy is asked."""
    if not config.dataset.startswith("gym:chain_sum"):
        raise UserError(f"quickstart demonstrates sums, gym:chain_sum with any options; got '{config.dataset}'")
    tasks = load_gym(config.dataset, size=size, seed=config.seed, split=split)
    return [Task(dress(t.prompt, SYSTEM, "{prompt}"), t.answer, t.gold, t.metadata, t.id) for t in tasks]


def conversations(config: Quickstart, tasks: Sequence[Task]) -> list[tuple[Message, ...]]:
    """The tasks with their worked answers."""
    said = demonstrate(config, tasks)
    return [(*task.prompt, Message("assistant", text)) for task, text in zip(tasks, said, strict=True)]


def demonstrate(config: Quickstart, tasks: Sequence[Task]) -> list[str]:
    """A worked answer to each task; the first ones all think, of the others `config.thinking` do."""
    chance = random.Random(seed_for(config.seed, "demonstrations"))
    first = round(config.thinking_first * len(tasks))
    shares = [1.0] * first + [config.thinking] * (len(tasks) - first)
    return [
        work_out(task, config.slips, chance) if chance.random() < share else str(task.answer)
        for task, share in zip(tasks, shares, strict=True)
    ]


def work_out(task: Task, slips: float, chance: random.Random) -> str:
    """The answer in steps, of which a share of `slips` first go wrong and are corrected."""
    expression: str = task.metadata["entry"]["metadata"]["expression"]
    first, *rest = re.findall(r"[+-]?\d+", expression.replace(" ", ""))
    total, steps = int(first), list[str]()
    for term in rest:
        right = total + int(term)
        if chance.random() < slips:
            steps.append(f"{total}{term}={right + chance.choice((-2, -1, 1, 2))}, wait")
        steps.append(f"{total}{term}={right}")
        total = right
    return f"<think>{', '.join(steps)}</think>{total}"
