"""The policy that a recipe trains, from its options."""

from typing import Any, Protocol

from posttrain.rollouts.policy import Policy, load_policy
from posttrain.setup.lora_options import LoraOptions, lora_of


class Trained(LoraOptions, Protocol):
    """The options of a policy that is trained."""

    @property
    def precision(self) -> str: ...  # noqa: D102
    @property
    def chat_template(self) -> str: ...  # noqa: D102
    @property
    def seed(self) -> int: ...  # noqa: D102


def trained_policy(options: Trained, where: str, **sampling: Any) -> Policy:
    """Load the policy in the folder `where` for training by the options; `sampling` as in `load_policy`."""
    lora, seed = lora_of(options), options.seed
    return load_policy(
        where, precision=options.precision, chat_template=options.chat_template, lora=lora, seed=seed, **sampling
    )
