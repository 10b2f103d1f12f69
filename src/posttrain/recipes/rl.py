"""Reinforcement learning from rewards: sample groups of completions, score them, update, repeat.

    posttrain rl --dataset gym:chain_sum --reward "gym=1.0 tags=0.1"
    posttrain rl --dataset train.jsonl --eval-dataset test.jsonl --reward numbers --model OWNER/NAME --lora-rank 16
    posttrain rl --algorithm ppo --dataset prompts.jsonl --reward-model runs/reward-model-2026-01-31-1

The loop in `run` is the whole method: what differs between algorithms is in `algorithms/`, one file each. A step:

    1 sample     prompts are drawn, and episodes played in groups      episodes/sampler.py, engine/
    2 score      the rewards of each group                             environments/scored.py, rewards/
    3 batch      advantages and columns of each token                  training/policy.py, algorithms/inputs.py
    4 update     loss, gradients, optimiser                            training/policy.py, training/local_learner.py
    5 finish     metrics, samples, checkpoint                          runs/session.py
    6 evaluate   held-out tasks, where an evaluation is due            bindings/heldout.py

Before the next step the engine has the new weights: in one process it samples from the learner's own, and
`rollouts.trained` hands them on. With `--max-staleness` coming steps are sampled meanwhile (`episodes/ahead.py`).
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import pstdev
from typing import Any, Unpack

import torch

from posttrain.algorithms import inputs
from posttrain.algorithms.algorithm import OnlineAlgorithm
from posttrain.bindings import heldout
from posttrain.bindings.algorithm import check_algorithm, leaves_start, warmup_of
from posttrain.bindings.backend import online_backend
from posttrain.bindings.cluster_options import ONE_PROCESS, ClusterOptions
from posttrain.bindings.prover import find_prover, load_prover
from posttrain.bindings.sampling import Setup, set_up
from posttrain.data import controls
from posttrain.data.curriculum import Curriculum, curriculum_for
from posttrain.data.order import seed_for
from posttrain.engine.policy import Policy
from posttrain.engine.scheduler import Scheduler
from posttrain.episodes.ahead import ages_of
from posttrain.episodes.metrics import lost_metrics, rollout_metrics, solved_of
from posttrain.episodes.sampler import Draws, Rolled, Rollouts, Sampler
from posttrain.models.reference import Reference, reference_for
from posttrain.options.online import RL
from posttrain.options.option import as_written
from posttrain.planning.plan import plan_rl as dry_run  # noqa: F401
from posttrain.runs.result import RunResult
from posttrain.runs.resuming import restarted
from posttrain.runs.run import samples_of
from posttrain.runs.session import Session, open_session
from posttrain.runs.training import RunOptions, Training
from posttrain.training.beside import gradients, losses_beside, models_beside, rates_beside
from posttrain.training.learner import POLICY, REFERENCE, Batch, Learner, Loss
from posttrain.training.local_learner import learner_for
from posttrain.training.policy import (
    PolicyLoss,
    context_of,
    distance,
    examples_in,
    policy_batch,
    shortened,
    teacher_logprobs,
)
from posttrain.training.ranks import Ranks
from posttrain.training.resolve_model import began_from, precision_of
from posttrain.training.schedule import unreached
from posttrain.training.supervised import NLL, pretraining_examples, pretraining_texts, supervised_batch
from posttrain.training.teacher import Teacher, Teachers, find_teachers
from posttrain.types import Group

START = "start"  # the learner's name of the policy before training, to which evaluations measure the KL
MAY_DIFFER = ("steps", "stop_after", "tis_cap", "importance", "importance_level", "importance_floor")  # at resume
TEACHER_KL = "teacher_kl"  # held-out KL(policy || teacher), nats per completion

TIS_CAP = 2.0  # where steps are sampled ahead (Yao et al. 2025; Espeholt et al. 2018, arXiv 1802.01561, have 1)

# initial state of a run: prompt draws, adapted hyperparameters, rewards with a score outside 0 to 1, inputs' state
_FRESH: dict[str, Any] = {"draws": 0, "used_ahead": [], "adapted": {}, "unbounded": {}, "inputs": {}, "curriculum": {}}


@dataclass(frozen=True)
class RLResult(RunResult):
    """The results of a run."""

    stopped_early: bool  # before the last step: `stop_after`, `kl_budget` or a callback; a signal is `interrupted`
    before: heldout.HeldOut | heldout.HeldOutReward | None  # if there are held-out tasks
    after: heldout.HeldOut | heldout.HeldOutReward | None  # of the last evaluation within the KL budget, if any


@restarted
def run(
    config: RL, algorithm: OnlineAlgorithm, cluster: ClusterOptions = ONE_PROCESS, **where: Unpack[RunOptions]
) -> RLResult:
    """Train a policy in a new run directory, or resume the run in `resume`."""
    parts = _prepare(config, algorithm, cluster, where)
    setup, learner = parts.setup, parts.setup.backend.learner
    knobs = asdict(algorithm)
    settings = as_written(config) | {"knobs": knobs, **setup.backend.settings}
    with (
        setup.backend.stack,
        open_session("rl", settings, _training(config, algorithm, parts, settings), **where) as session,
        setup.open_in(session.directory.path),
        ExitStack() as stack,
    ):
        examine = partial(_examine, config, parts, session)
        state = _FRESH | session.state
        setup.environment.reward.restore(state["unbounded"])
        draws, algorithm = Draws(state["draws"], state["used_ahead"]), replace(algorithm, **state["adapted"])
        parts.curriculum.state = dict(state["curriculum"])
        rollouts = _rollouts(config, algorithm, parts, session, draws)
        rollouts = stack.enter_context(setup.backend.rollouts(rollouts, steps=config.steps, at=session.step))
        batch_of = partial(policy_batch, longest=setup.longest)
        weights = setup.environment.reward.weights
        context_at = partial(
            context_of, learner, temperature=config.temperature, teachers=parts.teachers, weights=weights
        )
        setup.renew_seats(session.step)
        session.evaluate(examine)  # here and below only where an evaluation is due
        for step in session.steps():
            seed = seed_for(config.seed, "dropout", step)
            with session.rollout():
                rolled, columns = rollouts.take(step)
            context = context_at(state=dict(state["inputs"]))
            batch, metrics = batch_of(rolled.groups, algorithm, columns, context=context, seed=seed, key=f"{step}")
            with session.update(batch.examples):  # none, where no group has a gradient: then it adds none
                losses, texts, rates = _update(config, algorithm, parts, session, seed)
                for _ in range(config.updates_per_step if POLICY in rates else 1):  # the last one's metrics stay
                    metrics |= gradients(learner, batch, losses)
                    metrics |= _auxiliary_losses(learner, texts)
                    metrics |= learner.optim_step(rates)
                if "kl" in batch.scalars and step >= warmup_of(algorithm):  # adaptive KL control
                    algorithm = algorithm.adapted(batch.scalars["kl"])
                if config.ref_sync_every and (step + 1) % config.ref_sync_every == 0:
                    learner.copy(POLICY, REFERENCE)
            draws.use(rolled.draws)
            metrics |= _rollout_metrics(rolled, parts) | ages_of(rolled.groups, step, setup.backend.staleness)
            adapted = {name: value for name, value in asdict(algorithm).items() if value != knobs[name]}
            state = {"draws": draws.first, "used_ahead": draws.used, "adapted": adapted, "inputs": context.state}
            state |= {"unbounded": setup.environment.reward.unbounded, "curriculum": {**parts.curriculum.state}}
            session.finish_step(metrics, samples_of(rolled.sampled, per_group=1), state=state)
            session.until_stopped(partial(rollouts.trained, step + 1))  # the engine may take the new weights
            setup.renew_seats(step + 1)
            session.evaluate(examine)
        complete = session.stopped or session.step == config.steps
        if complete and (said := heldout.none_is_best(config, session.directory.checkpoints)):
            session.progress.say(said)
    before, after = heldout.held_out(row for row in session.rows if not heldout.past_budget(row, config.kl_budget))
    return RLResult(*session.ended, bool(session.stopped), before, after)


def _rollouts(
    config: RL, algorithm: OnlineAlgorithm, parts: "_Parts", session: Session, draws: Draws
) -> Rollouts[tuple[Rolled, inputs.Columns]]:
    """Samples the groups of a step, with the columns of inputs that sample, too."""
    setup = parts.setup

    def accepts(rewards: Sequence[float]) -> bool:
        return algorithm.accepts(torch.tensor(rewards)) and pstdev(rewards) >= config.min_reward_std

    def shaped(group: Group, seed: int) -> Group:
        group = shortened(group, config.length_penalty, setup.longest)
        return controls.rewards_permuted(group, seed) if config.reward_control else group

    def with_columns(rolled: Rolled, mine: Sampler) -> tuple[Rolled, inputs.Columns]:
        context = inputs.Context(mine.greedy_rewards, partial(mine.state_values, draw=rolled.draws[-1] + 1))
        return rolled, inputs.columns_of(algorithm.inputs, rolled.groups, context, samples=True)

    tokens = session.progress.tokens if not setup.backend.staleness else None
    own = {"accepts": accepts, "shaped": shaped, "max_refills": config.max_refills, "others": parts.others}
    sampler = setup.sampler(config, tokens, algorithm.least_group)
    return Rollouts(replace(sampler, curriculum=parts.curriculum, **own), draws, with_columns)


@dataclass(frozen=True)
class _Parts:
    setup: Setup
    teachers: Teachers
    pretraining: list[str]
    model: str  # where the policy was loaded from
    notes: tuple[str, ...]  # messages to the user
    curriculum: Curriculum
    others: Mapping[str, Scheduler]  # who samples besides the policy, by the option that names the model


def _prepare(config: RL, algorithm: OnlineAlgorithm, cluster: ClusterOptions, where: RunOptions) -> _Parts:
    """Load all parts and validate all options, before anything is written."""
    resume = where.get("resume")
    check_algorithm(config, algorithm, cluster)
    config = replace(config, precision=precision_of(config.precision, resume))
    saved = began_from(config.model, resume)
    most = config.microbatch_tokens
    teachers = find_teachers(config.teacher, config.teacher_prompt, saved.where, microbatch_tokens=most)
    prover = find_prover(config, saved.where)
    make_learner = partial(_learner, config, algorithm, teachers.models)
    load = partial(online_backend, config, saved.where, make_learner, cluster, where.get("learner"))
    pretraining = pretraining_texts(config) if algorithm.extra_losses else []
    group_sizes: list[tuple[int, str]] = []  # that rewards must be able to score, too
    if inputs.declared(algorithm, inputs.GreedyReward):
        group_sizes.append((1, f"the most likely one, which {config.algorithm} compares with,"))
    if states := inputs.declared(algorithm, inputs.StateValues):
        group_sizes.append((states.samples, "`continuations`"))
    setup = set_up(config, saved.where, load, group_sizes=group_sizes, cluster=cluster, teachers=teachers)
    notes = (*saved.notes(), *setup.notes, *unreached(config.warmup_steps, config.steps))
    if config.reward_control:
        notes = (*notes, f"{controls.SHUFFLED} the rewards of each group (logged are the true ones)")
    known = {"judged": bool(setup.environment.outcome), "ahead": setup.backend.staleness > 0}
    curriculum = curriculum_for(config.curriculum, setup.tasks, config.steps * config.prompts_per_step, **known)
    teachers = replace(teachers, chat=setup.backend.chat, most=min(most, setup.backend.context))
    others, cost = load_prover(config, algorithm, prover, setup.model_folders)
    return _Parts(setup, teachers, pretraining, saved.where, (*notes, *cost), curriculum, others)


def _learner(
    config: RL, algorithm: OnlineAlgorithm, teachers: Mapping[str, Teacher], policy: Policy, ranks: Ranks
) -> Learner:
    """The learner of a policy: with the reference, teachers and trained models that the algorithm declares."""
    model, renewed = policy.model, config.ref_sync_every > 0
    references: dict[str, Reference] = {part: teacher.load(model) for part, teacher in teachers.items()}
    if inputs.declared(algorithm, inputs.ReferenceLogprobs):
        references[REFERENCE] = reference_for(model, renewed=renewed)
    if leaves_start(config):
        stays = references.get(REFERENCE) if not renewed else None
        references[START] = stays or reference_for(model)
    beside = models_beside(config, algorithm, model)
    return learner_for(config, model, policy.save, beside=beside, references=references, renewed=renewed, ranks=ranks)


def _examine(config: RL, parts: _Parts, session: Session) -> dict[str, float]:
    """Evaluate the policy on the held-out tasks, with its KL to the initial policy or the teachers."""
    groups, found = heldout.examined(parts.setup, config, session.progress.tokens)
    session.log_heldout(groups)
    learner = parts.setup.backend.learner
    if parts.teachers.parts:
        found |= {heldout.PREFIX + TEACHER_KL: distance(groups, teacher_logprobs(groups, learner, parts.teachers))}
    if leaves_start(config):
        said = learner.logprobs(examples_in(groups), START)
        found |= {heldout.PREFIX + heldout.KL: distance(groups, said)}
    return found


def _update(
    config: RL, algorithm: OnlineAlgorithm, parts: _Parts, session: Session, seed: int | None
) -> tuple[list[Loss[Any]], list[tuple[inputs.PretrainingNLL, Batch]], dict[str, float]]:
    """The losses of a step, batches of auxiliary losses, and learning rates; in warmup without the policy's."""
    warming, rates = session.step < warmup_of(algorithm), rates_beside(config, algorithm)
    beside = losses_beside(algorithm, config.temperature, alone=warming)
    if warming:
        return [*beside], [], rates
    backend = parts.setup.backend
    cap = config.tis_cap if config.tis_cap is not None else TIS_CAP if backend.staleness else 0.0
    words = (config.importance, config.importance_level, config.importance_floor)
    loss = PolicyLoss(algorithm, config.temperature, 0.0 if algorithm.corrects else cap, *words)
    words = (config, parts.pretraining, backend.chat, backend.context, session.step)
    texts = [(extra, supervised_batch(pretraining_examples(*words), seed=seed)) for extra in algorithm.extra_losses]
    return [loss, *beside], texts, {POLICY: session.lr, **rates}


def _auxiliary_losses(learner: Learner, texts: Sequence[tuple[inputs.PretrainingNLL, Batch]]) -> dict[str, float]:
    """Accumulate the gradients of auxiliary losses; returns the unweighted losses."""
    losses = [learner.forward_backward(text, NLL(extra.weight))["loss"] / extra.weight for extra, text in texts]
    return {"pretraining_loss": sum(losses)} if losses else {}


def _rollout_metrics(rolled: Rolled, parts: _Parts) -> dict[str, float]:
    """Metrics of the step's rollouts, of which the curriculum learns; of all groups, discarded ones and the engine."""
    setup = parts.setup
    found = rollout_metrics(rolled.sampled, setup.environment.outcome) | lost_metrics(rolled.failed)
    found |= {"groups/thrown_away": rolled.thrown_away, **({"groups/lost": rolled.lost} if rolled.lost else {})}
    found |= {} if rolled.evicted is None else {"groups/evicted": rolled.evicted}
    learned = parts.curriculum.note(solved_of(rolled.sampled, setup.environment.outcome))
    return found | learned | dict(setup.backend.metrics())


def _training(config: RL, algorithm: OnlineAlgorithm, parts: _Parts, settings: Mapping[str, Any]) -> Training:
    return heldout.online_training(
        config,
        parts.setup,
        steps=config.steps,
        model=parts.model,
        settings=settings,
        may_differ=MAY_DIFFER,
        notes=parts.notes,
        kl_budget=config.kl_budget,
        delay=warmup_of(algorithm),
    )
