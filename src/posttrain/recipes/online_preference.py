"""Online preference optimisation: sample, rank by a reward, make pairs, update.

    posttrain online-preference --dataset gym:chain_sum
    posttrain online-preference --rounds 5 --updates-per-round 8 --warmup-steps 0 --dataset train.jsonl --reward numbers

Online DPO is the limit of one update a round (Guo et al. 2024, https://arxiv.org/abs/2402.04792), iterated DPO has many
(Xiong et al. 2023, https://arxiv.org/abs/2312.11456; Dong et al. 2024, https://arxiv.org/abs/2405.07863). The pairs are
the tokens that were sampled, never encoded again. A round is a step of the run: its checkpoints lie between rounds.
Not supported: algorithms for single responses (KTO).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Unpack

from posttrain.algorithms.algorithm import PreferenceAlgorithm, UnpairedAlgorithm
from posttrain.algorithms.inputs import ReferenceLogprobs, declared
from posttrain.bindings.algorithm import check_pairing
from posttrain.bindings.backend import online_backend
from posttrain.bindings.cluster_options import ONE_PROCESS, ClusterOptions
from posttrain.bindings.heldout import HeldOut, HeldOutReward, examined, held_out, online_training
from posttrain.bindings.sampling import Setup, set_up
from posttrain.data import Pair, batch_indices, seed_for
from posttrain.engine.policy import Policy
from posttrain.episodes.metrics import lost_metrics, rollout_metrics
from posttrain.models.reference import reference_for
from posttrain.options.online import OnlinePreference
from posttrain.options.option import as_written
from posttrain.planning.plan import plan_online_preference as dry_run  # noqa: F401
from posttrain.runs.result import RunResult
from posttrain.runs.resuming import restarted
from posttrain.runs.run import samples_of
from posttrain.runs.session import open_session
from posttrain.runs.training import RunOptions, Training
from posttrain.training.learner import POLICY, REFERENCE, Learner
from posttrain.training.local_learner import learner_for
from posttrain.training.preference import OfPairs, examples_of, pairs_of
from posttrain.training.ranks import Ranks
from posttrain.training.resolve_model import SavedModel, began_from, precision_of
from posttrain.training.schedule import unreached

PreferenceOptimizer = PreferenceAlgorithm | UnpairedAlgorithm


@dataclass(frozen=True)
class OnlinePreferenceResult(RunResult):
    """The results of a run; its steps are rounds."""

    before: HeldOut | HeldOutReward | None  # if there are held-out tasks
    after: HeldOut | HeldOutReward | None


@restarted
def run(
    config: OnlinePreference,
    algorithm: PreferenceOptimizer,
    cluster: ClusterOptions = ONE_PROCESS,
    **where: Unpack[RunOptions],
) -> OnlinePreferenceResult:
    """Train a policy in a new run directory, or resume the run in `resume`."""
    pairwise = check_pairing(config, algorithm)
    exact = replace(config, precision=precision_of(config.precision, where.get("resume")))
    saved = began_from(config.model, where.get("resume"))
    build = partial(_learner, exact, algorithm)
    load = partial(online_backend, exact, saved.where, build, cluster, where.get("learner"))
    setup = set_up(exact, saved.where, load, together=2, cluster=cluster)
    learner = setup.backend.learner
    objective = OfPairs(pairwise, learner)
    settings = as_written(config) | {"knobs": asdict(algorithm), **setup.backend.settings}

    def examine() -> dict[str, float]:
        groups, found = examined(setup, config, session.progress.tokens)
        session.log_heldout(groups)
        return found

    with (
        setup.backend.stack,
        open_session("online-preference", settings, _training(config, setup, settings, saved), **where) as session,
        setup.open_in(session.directory.path),
    ):
        setup.environment.reward.restore(session.state.get("unbounded", {}))
        sampler = setup.sampler(config, session.progress.tokens)
        session.evaluate(examine)
        told = False
        for step in session.steps():
            with session.rollout():
                rolled = sampler.roll_out(step)
            pairs = pairs_of(rolled.groups, config.pairing, margin=config.margin)
            metrics: dict[str, float] = {}
            with session.update(examples_of(pairs)):
                for update, chosen in enumerate(_batches(config, pairs, step)):
                    batch = objective.batch(chosen, seed=seed_for(config.seed, "dropout", step, update))
                    found = learner.forward_backward(batch, objective.loss) | learner.optim_step({POLICY: session.lr})
                    for name, value in found.items():
                        metrics[name] = metrics.get(name, 0.0) + value / config.updates_per_round
                if config.ref_sync_every and (step + 1) % config.ref_sync_every == 0:
                    learner.copy(POLICY, REFERENCE)
            if not pairs and not told:
                told = True
                session.progress.say(
                    "no pairs in this round: no prompt has completions that earned enough more than others"
                )
            metrics |= {f"pairs/{name}": metrics.pop(name) for name in ("accuracy", "margin") if name in metrics}
            metrics |= rollout_metrics(rolled.sampled, setup.environment.outcome) | {"pairs/made": len(pairs)}
            metrics |= lost_metrics(rolled.failed) | dict(setup.backend.metrics())
            state = {"unbounded": setup.environment.reward.unbounded}
            session.finish_step(metrics, samples_of(rolled.sampled, per_group=1), state=state)
            session.evaluate(examine)
    return OnlinePreferenceResult(*session.ended, *held_out(session.rows))


def _batches(config: OnlinePreference, pairs: list[Pair], step: int) -> list[list[Pair]]:
    """The batch of each update of a round; empty if there are no pairs."""
    if not pairs:
        return []
    size, seed = min(config.pairs_per_step, len(pairs)), seed_for(config.seed, "round", step)
    updates = range(config.updates_per_round)
    return [[pairs[i] for i in batch_indices(len(pairs), size, update, seed)] for update in updates]


def _learner(config: OnlinePreference, algorithm: PreferenceOptimizer, policy: Policy, ranks: Ranks) -> Learner:
    """The learner of a policy, with a reference if the algorithm declares one."""
    renewed = config.ref_sync_every > 0
    compared = declared(algorithm, ReferenceLogprobs) is not None
    references = {REFERENCE: reference_for(policy.model, renewed=renewed)} if compared else {}
    return learner_for(config, policy.model, policy.save, references=references, renewed=renewed, ranks=ranks)


def _training(config: OnlinePreference, setup: Setup, settings: Mapping[str, Any], saved: SavedModel) -> Training:
    return online_training(
        config,
        setup,
        steps=config.rounds,
        model=saved.where,
        settings=settings,
        may_differ=("rounds", "iterate", "stop_after"),  # `iterate`: its name in older runs
        notes=(*saved.notes(), *setup.notes, *unreached(config.warmup_steps, config.rounds)),
        counted="rounds",
    )
