"""The correctness contract, measured on your model and machine.

    posttrain verify
    posttrain verify --model OWNER/NAME --precision bfloat16
    posttrain verify --without all
    posttrain verify --trainers 2 --samplers 2
    posttrain verify --import rollouts.jsonl

Eleven items, one function each, on short inputs: about two minutes for a model of 135M parameters on two CPU cores, and
up to 24 bytes of memory per parameter; with `--trainers` a twelfth, on a cluster. Beside each stands how far it may be
off, and why. With `--import` the rollouts of another trainer are checked instead, without a model.
"""

from collections.abc import Callable, Mapping
from functools import partial

from posttrain import fast_paths
from posttrain.bindings.cluster_options import ONE_PROCESS, ClusterOptions, check_cluster
from posttrain.engine.policy import load_policy
from posttrain.errors import PosttrainError, UserError, as_typed
from posttrain.options.evaluation import Verify
from posttrain.recipes.verify.engines import arrivals, first_update, processes, weight_update
from posttrain.recipes.verify.failures import failures, lost_episodes, resume
from posttrain.recipes.verify.imported import verify_dump
from posttrain.recipes.verify.numerics import gradients, logprobs
from posttrain.recipes.verify.subject import Item, Subject
from posttrain.recipes.verify.tokens import loss_mask, same_tokens, trained_once
from posttrain.runs.progress import Progress

__all__ = ["ITEMS", "Item", "Verify", "run"]


ITEMS: Mapping[str, Callable[[Subject], Item]] = {
    "logprobs": logprobs,
    "gradients": gradients,
    "loss mask": loss_mask,
    "first update": first_update,
    "same tokens": same_tokens,
    "failures": failures,
    "lost episodes": lost_episodes,
    "trained once": trained_once,
    "arrivals": arrivals,
    "resume": resume,
    "weight update": weight_update,  # the last, for it changes the weights
}
"""The items by name, in the order in which they are checked."""


def run(config: Verify, cluster: ClusterOptions = ONE_PROCESS, *, quiet: bool = False) -> list[Item]:
    """Check every item, with trainer processes also theirs; one that fails keeps no other from being checked."""
    check_cluster(cluster)
    if config.import_:
        if cluster.trainers:
            raise UserError("`import_` checks rollouts without a model; leave out `trainers`")
        return verify_dump(config.import_)
    checks = dict(ITEMS)
    if cluster.trainers:
        checks["processes"] = partial(processes, cluster=cluster)
    items: list[Item] = []
    with fast_paths.without(config.without), Progress("verify", len(checks), quiet=quiet) as progress:
        with progress.phase("loading"):
            subject = subject_of(config)
        for name, check in checks.items():
            with progress.phase(name):
                items.append(_checked(name, check, subject))
            progress.step(len(items))
    return items


def subject_of(config: Verify) -> Subject:
    """Load what is to be verified."""
    load = partial(load_policy, config.model, template_args=config.template_args)
    policy = load(precision=config.precision)
    exact = policy if policy.model.dtype.itemsize == 4 else load(precision="float32")
    return Subject(config, policy, exact)


def _checked(name: str, check: Callable[[Subject], Item], subject: Subject) -> Item:
    try:
        return check(subject)
    except PosttrainError as error:  # such as a chat template that cannot be trained on: the item does not hold
        return Item(name, False, None, None, as_typed(str(error)))
