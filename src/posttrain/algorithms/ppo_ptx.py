"""PPO-ptx: PPO with an auxiliary pretraining loss, to reduce forgetting.

Ouyang et al. 2022, InstructGPT, eq. 2 (https://arxiv.org/abs/2203.02155).

    objective = E_(x, y) ~ pi [ r(x, y) - beta log( pi(y | x) / pi_ref(y | x) ) ] + gamma E_x ~ D_pretrain [ log pi(x) ]

The first part is PPO's, the second the log-likelihood of text from --pretraining-dataset: `--pretraining-per-step`
texts in each update, whose NLL is averaged over their tokens and weighted by gamma.

Published settings (appendix C.4): gamma 27.8, beta 0.02, clip 0.2, eight times as many pretraining examples as
episodes, learning rate 9e-6.

What to know about it:
- Gradients are clipped after they are summed: with gamma 27.8 the pretraining loss dominates a clipped gradient.
- The text is sampled anew in each step, from a dataset separate from the prompts.
- The paper's aim: to reduce the alignment tax, the regressions of PPO on public benchmarks.

No tool has it by this name today; TRL's and OpenRLHF's PPO take a pretraining loss if given data.
"""

from dataclasses import dataclass

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

    changes = "regulariser"
    paper = "2203.02155"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "pretraining_coefficient")

    @property
    def extra_losses(self) -> tuple[PretrainingNLL, ...]:
        """The pretraining loss."""
        return (PretrainingNLL(self.pretraining_coefficient),)
