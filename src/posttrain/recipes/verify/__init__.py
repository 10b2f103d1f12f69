"""The correctness contract, measured on your model and machine.

    posttrain verify
    posttrain verify --model OWNER/NAME --precision bfloat16
    posttrain verify --without all
    posttrain verify --trainers 2 --samplers 2

Eleven items, one function each, on short inputs: about two minutes for a model of 135M parameters on two CPU cores, and
up to 24 bytes of memory per parameter; with `--trainers` a twelfth, on a cluster. `item.py` says how far each may be
off, and why.
"""

from collections.abc import Callable, Mapping
from functools import partial

from posttrain import fast_paths
from posttrain.bindings.cluster_options import ONE_PROCESS, ClusterOptions, check_cluster
from posttrain.engine.policy import load_policy
from posttrain.errors import PosttrainError, UserError, as_typed
from posttrain.options.evaluation import Verify
from posttrain.recipes.verify.engines import arrivals, first_update, processes
from posttrain.recipes.verify.failures import failures, lost_episodes
from posttrain.recipes.verify.item import Item
from posttrain.recipes.verify.numerics import gradients, logprobs
from posttrain.recipes.verify.resume import resume
from posttrain.recipes.verify.subject import Subject
from posttrain.recipes.verify.tokens import loss_mask, same_tokens, trained_once
from posttrain.recipes.verify.updates import weight_update
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
    """Check every item; one that fails does not keep the others from being checked.

    With trainer processes, also that they and the samplers compute what one process does.

    Raises:
        UserError: the options are wrong, or the model cannot be loaded.
    """
    if not 1 <= config.prompts <= 4 or config.completions_per_prompt < 2 or config.max_new_tokens < 2:
        raise UserError("verify needs --prompts of 1 to 4, --completions-per-prompt and --max-new-tokens of 2 or more")
    if config.temperature <= 0 or config.lora_rank < 1 or config.resume_steps < 4:
        raise UserError("verify needs a --temperature above 0, a --lora-rank of 1 or more, --resume-steps of 4 or more")
    check_cluster(cluster)
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
