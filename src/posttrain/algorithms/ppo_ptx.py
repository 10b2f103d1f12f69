"""PPO-ptx: PPO that goes on learning pretraining text, so that what the model knew is not lost.

Ouyang et al. 2022, InstructGPT, eq. 2 (https://arxiv.org/abs/2203.02155).

    objective = E_(x, y) ~ pi [ r(x, y) - beta log( pi(y | x) / pi_ref(y | x) ) ] + gamma E_x ~ D_pretrain [ log pi(x) ]

The first part is PPO's, the second a likelihood of text from --pretraining-dataset: `--pretraining-per-step` texts in
each update, whose loss is the mean over their tokens, weighted by gamma.

Published settings (appendix C.4): gamma 27.8, beta 0.02, clip 0.2, eight times as many pretraining examples as
episodes, learning rate 9e-6.

What to know about it:
- Both gradients are added up before they are clipped: with gamma 27.8 most of a clipped gradient is the text's.
- The text is drawn anew in each step, and is not what prompts are drawn from.
- The paper's aim: public benchmarks that fall under PPO alone (the alignment tax) fall less.

No tool of today has it by this name; TRL's and OpenRLHF's PPO take a pretraining loss if they are given data.
"""

from dataclasses import dataclass
from typing import ClassVar

from posttrain.algorithms.algorithm import positive
from posttrain.algorithms.inputs import PretrainingNLL
from posttrain.algorithms.ppo import PPO


@dataclass(frozen=True)
class PPOPtx(PPO):
    """Hyperparameters of PPO-ptx; an `ActorCritic`."""

    kl_coefficient: float = 0.02
    """Weight of the KL to the reference policy in the reward (beta); 0: none, and no reference is needed."""

    pretraining_coefficient: float = 27.8
    """Weight of the loss on pretraining text (gamma)."""

    paper: ClassVar[str] = "2203.02155"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "pretraining_coefficient")

    @property
    def extra_losses(self) -> tuple[PretrainingNLL, ...]:
        """The text's."""
        return (PretrainingNLL(self.pretraining_coefficient),)
