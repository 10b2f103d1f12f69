"""The prover of a run (`prover`): another model than the policy, which continues its completions."""

from collections.abc import MutableMapping

from posttrain.algorithms.algorithm import OnlineAlgorithm
from posttrain.algorithms.inputs import PROVER, ProverValues, declared
from posttrain.algorithms.load import Load
from posttrain.engine.policy import load_policy
from posttrain.engine.scheduler import Scheduler
from posttrain.options.online import RL
from posttrain.training.resolve_model import named
from posttrain.training.teacher import Teacher, find_model


def find_prover(config: RL, policy: str) -> Teacher | None:
    """The one that the options name, if any; no weights are read. The policy is in the folder `policy`."""
    if not config.prover:
        return None
    return find_model(PROVER, config.prover, policy, microbatch_tokens=config.microbatch_tokens)


def load_prover(
    config: RL, algorithm: OnlineAlgorithm, prover: Teacher | None, folders: MutableMapping[str, str]
) -> tuple[dict[str, Scheduler], tuple[str, ...]]:
    """What samples from it, by the option's name, and what that costs, to be told to the user.

    Its folder is added to `folders`. It never changes, and several threads may ask.
    """
    states = declared(algorithm, ProverValues)
    if prover is None or states is None:
        return {}, ()
    step = Load(config.prompts_per_step, config.completions_per_prompt, 0, config.max_new_tokens, 1)
    most = sum(load.sequences for load in states.load(step))
    said = (
        f"the prover {named(prover.typed)} samples up to {most:,} continuations a step in this process, "
        f"{most / step.sequences:.0f} for each completion; fewer `continuations` or `max_states`, or more "
        "`step_tokens`, cost less"
    )
    folders[named(prover.typed)] = prover.where
    policy = load_policy(prover.where, precision=config.precision, cache_gb=config.cache_gb)
    return {PROVER: Scheduler(policy.engine, own_thread=True)}, (said,)
