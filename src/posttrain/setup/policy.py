"""The policy that a recipe trains, from its options."""

from typing import Any

from posttrain.options.groups import TrainingOptions
from posttrain.rollouts.policy import Policy, load_policy
from posttrain.setup.lora_options import lora_of


def trained_policy(options: TrainingOptions, where: str, **sampling: Any) -> Policy:
    """Load the policy in the folder `where` for training by the options; `sampling` as in `load_policy`."""
    lora, seed = lora_of(options), options.seed
    return load_policy(
        where,
        precision=options.precision,
        chat_template=options.chat_template,
        template_args=options.template_args,
        lora=lora,
        seed=seed,
        **sampling,
    )
