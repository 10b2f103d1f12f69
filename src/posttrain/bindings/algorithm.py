"""What an online algorithm needs of the options of its run, by the inputs that it declares."""

from posttrain.algorithms.algorithm import OnlineAlgorithm, PreferenceAlgorithm, UnpairedAlgorithm, enough
from posttrain.algorithms.inputs import (
    GreedyReward,
    NamedScores,
    ProverValues,
    ReferenceLogprobs,
    StateValues,
    StepRewards,
    TeacherLogprobs,
    declared,
    trained,
)
from posttrain.bindings.backend import lora_of
from posttrain.bindings.cluster_options import ClusterOptions
from posttrain.bindings.judges import PAST, named_models
from posttrain.bindings.sampling import PIPELINED
from posttrain.errors import UserError
from posttrain.options.online import RL, OnlinePreference


def check_algorithm(config: RL, algorithm: OnlineAlgorithm, cluster: ClusterOptions) -> None:
    """Check that the options are those that the algorithm needs, and that groups are large enough for it."""
    enough(algorithm, config.completions_per_prompt)
    staleness = getattr(cluster, "max_staleness", 0)
    lora_of(config)  # its package is asked for before anything is loaded
    if algorithm.corrects and config.tis_cap:
        raise UserError(f"{config.algorithm} compares with the sampler itself; leave out `tis_cap`")
    weighted = config.tis_cap if config.tis_cap is not None else staleness
    if any(map(config.says, ("importance", "importance_level", "importance_floor"))):
        if algorithm.corrects or not weighted:
            raise UserError("`importance`, its level and its floor are of importance weights; pass `tis_cap=2` too")
        if config.tis_cap is not None and config.importance_floor > config.tis_cap:
            raise UserError(
                f"`importance_floor` is at most `tis_cap`, {config.tis_cap:g}; got {config.importance_floor:g}"
            )
    if staleness and config.tis_cap == 0 and not algorithm.corrects:
        raise UserError("`max_staleness` needs importance weights, or learning may collapse; pass `tis_cap=2`")
    if staleness and config.schedule == PIPELINED:
        raise UserError('`max_staleness` samples the next step while one is scored; leave out `schedule="pipelined"`')
    if getattr(cluster, "evict_stale", False) and config.schedule == "lockstep":
        raise UserError('`evict_stale` samples continuously; leave out `schedule="lockstep"`')
    players = named_models("seats", config.seats).values()
    if cluster.trainers and any(isinstance(player, str) and player.startswith(PAST) for player in players):
        raise UserError("an earlier policy plays where the policy is trained in one process; leave out `trainers`")
    for part, need in trained(algorithm).items():
        if need.warmup_steps >= config.steps:
            raise UserError(
                f"{part} warmup covers all {config.steps} steps, so the policy is never updated; type `steps` above "
                f"{need.warmup_steps}, or a smaller `{part}_warmup_steps`"
            )
    reads = any(need.head or need.lr is None for need in trained(algorithm).values())
    if not reads and (config.says("critic") or config.says("critic_lr")):
        raise UserError(f"{config.algorithm} has no critic; leave out `critic` and `critic_lr`")
    if bool(config.teacher) != (declared(algorithm, TeacherLogprobs) is not None):
        raise UserError(
            f"{config.algorithm} has no teacher with these hyperparameters; leave out `teacher`, or type "
            '`algorithm="opd"`'
            if config.teacher
            else f"{config.algorithm} needs a teacher; pass `teacher`, a model with the policy's tokenizer"
        )
    if bool(config.prover) != (declared(algorithm, ProverValues) is not None):
        raise UserError(
            f'{config.algorithm} has no prover; leave out `prover`, or type `algorithm="pav"`'
            if config.prover
            else f"{config.algorithm} needs a prover; pass `prover`, another model with the policy's tokenizer"
        )
    if config.teacher_prompt and not config.teacher:
        raise UserError('`teacher_prompt` is what a teacher sees; pass `teacher` too, such as `teacher="policy"`')
    _check_reference(config, algorithm)
    _check_control(config, algorithm)
    if config.length_penalty and any(declared(algorithm, kind) for kind in (GreedyReward, StateValues, NamedScores)):
        raise UserError(f"the baseline of {config.algorithm} has no length penalty; leave out `length_penalty`")
    if bool(config.pretraining_dataset) != bool(algorithm.extra_losses):
        raise UserError(
            f"{config.algorithm} needs a pretraining corpus; pass `pretraining_dataset`"
            if algorithm.extra_losses
            else f"{config.algorithm} has no pretraining loss; leave out `pretraining_dataset`, or use ppo-ptx"
        )


def _check_control(config: RL, algorithm: OnlineAlgorithm) -> None:
    """Refuse a control in which something else than the rewards of a group still says what is right."""
    told = next(filter(None, (declared(algorithm, one) for one in (StateValues, StepRewards, TeacherLogprobs))), None)
    if config.reward_control and told:
        raise UserError(
            f"`reward_control` permutes rewards of completions, and {config.algorithm} also learns from "
            f"{told.title}; leave it out"
        )
    if config.reward_control and config.completions_per_prompt < 2:
        raise UserError("`reward_control` permutes rewards within groups; type `completions_per_prompt=2` or more")


def check_pairing(config: OnlinePreference, algorithm: PreferenceAlgorithm | UnpairedAlgorithm) -> PreferenceAlgorithm:
    """The same of online-preference, whose algorithm learns from pairs, and is returned."""
    if isinstance(algorithm, UnpairedAlgorithm):
        raise UserError(
            f'{config.algorithm} is unpaired, and online-preference trains on pairs; type `algorithm="dpo"`'
        )
    _check_reference(config, algorithm)
    lora_of(config)
    return algorithm


def _check_reference(config: RL | OnlinePreference, algorithm: OnlineAlgorithm | PreferenceAlgorithm) -> None:
    if config.ref_sync_every and not declared(algorithm, ReferenceLogprobs):
        raise UserError(
            f"{config.algorithm} has no reference model with these hyperparameters; leave out `ref_sync_every`"
        )


def leaves_start(config: RL) -> bool:
    """Whether evaluations measure the KL to the initial policy."""
    return bool(config.gold or config.gold_model or config.kl_budget)


def warmup_of(algorithm: OnlineAlgorithm) -> int:
    """Critic warmup: initial steps in which only models beside the policy are updated."""
    return max((need.warmup_steps for need in trained(algorithm).values()), default=0)
