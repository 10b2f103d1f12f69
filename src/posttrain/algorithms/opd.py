"""On-policy distillation: train a student on a teacher's logprobs of the student's own samples.

Agarwal et al. 2024, GKD (https://arxiv.org/abs/2306.13649), with only the student's samples and the reverse KL; as a
policy gradient with a token's own KL as its reward: Lu and Thinking Machines Lab 2025, "On-Policy Distillation"
(https://thinkingmachines.ai/blog/on-policy-distillation/). Gu et al. 2024, MiniLLM
(https://arxiv.org/abs/2306.08543), minimise the reverse KL of whole completions.

    A_t = log pi_T(o_t | q, o_<t) - log pi_old(o_t | q, o_<t) + c (R_i - 1/(G - 1) sum_{j != i} R_j)
    w_t = pi(o_t | q, o_<t) / pi_old(o_t | q, o_<t)
    L   = -mean_t min(w_t A_t, clip(w_t, 1 - eps, 1 + eps) A_t)

over all tokens of the batch, with the teacher pi_T and the policy that sampled, pi_old, both at the sampling
temperature. With c = 0 the expected gradient at the states that the student visits is that of KL(pi || pi_T), averaged
over those states: the discount is 0, so the divergence of later tokens does not enter a token's advantage.

Published settings (the post, and its code in tinker-cookbook): c 0, discount 0, one update a batch without a clip (w is
1 then), 4 completions of each prompt, LoRA, learning rate 1e-4. eps 0.2 is PPO's, for later updates on a batch.

Not reproduced: discounts above 0; of GKD forward KL, the generalised JSD and data that the student did not sample; of
MiniLLM sampling from a mixture with the teacher, and its length normalisation.

What to know about it:
- --teacher names the teacher. It must share the policy's tokenizer: tokens are compared one by one.
- With c = 0 rewards are logged and select the best checkpoint, but do not enter the loss. Where answers cannot be
  verified, use --reward length.
- Reverse KL is mode-seeking: the student concentrates on the teacher's most likely outputs.
- The teacher's logprob of one sampled token is a noisy estimate of the KL; it needs no second distribution in memory.
- The teacher gets the prompts as rendered by the policy's chat template.
- Several teachers, --teacher "math=runs/a code=runs/b": each row's column `teacher` names its own. All are in memory.
- --teacher-prompt "{prompt} The solution is: {answer}" shows teachers more than the policy saw, behind which they read
  the same sampled tokens. With --teacher policy the policy itself teaches, as in on-policy self-distillation (Zhao et
  al. 2026, https://arxiv.org/abs/2601.18734, which compares whole distributions). It has the current weights, so that
  no second copy is in memory; for a frozen one name the model that the run begins with.
"""

from dataclasses import dataclass

from posttrain.algorithms.algorithm import Advantages, OnlineAlgorithm, TokenLoss, Tokens, enough_rows, positive
from posttrain.algorithms.inputs import Input, TeacherLogprobs
from posttrain.algorithms.rollout import Rollout
from posttrain.objectives import kl
from posttrain.objectives.advantages import leave_one_out
from posttrain.objectives.policy import clipped_surrogate


@dataclass(frozen=True)
class OPD(OnlineAlgorithm):
    """Hyperparameters of on-policy distillation; an `OnlineAlgorithm`."""

    reward_coefficient: float = 0.0
    """Weight of the reward minus its leave-one-out baseline in the advantage (c); 0: distillation only."""

    clip: float = 0.2
    """A token's ratio is clipped to [1 - clip, 1 + clip]; no effect on a batch's first update."""

    paper = "2306.13649"

    def __post_init__(self) -> None:
        positive(self, "reward_coefficient", "clip", or_zero=True)

    @property
    def least_group(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """2 if the reward coefficient is not 0."""
        return 2 if self.reward_coefficient else 1

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The teacher."""
        return (TeacherLogprobs(),)

    @property
    def silent_at_zero(self) -> bool:
        """Always: the surrogate is the only term."""
        return True

    def advantages(self, rollout: Rollout) -> Advantages:
        """The teacher's logprob of each token minus the policy's, plus the leave-one-out advantage of its row.

        Metrics: `teacher_kl`, the mean over tokens of the reverse KL estimate, in nats. Raises `ValueError` without the
        teacher's logprobs, `UserError` for groups of one where rewards are compared.
        """
        if rollout.teacher_N is None or rollout.sampler_N is None:
            raise ValueError("distillation compares with a teacher, so advantages() needs teacher_N; got None")
        kl_N = kl.k1(rollout.sampler_N, rollout.teacher_N)
        advantages_N, metrics = -kl_N, {"teacher_kl": kl_N.mean().item()}
        if self.reward_coefficient:
            enough_rows(self, rollout)
            better_R = rollout.compare(rollout.rewards_R, leave_one_out)
            advantages_N = advantages_N + self.reward_coefficient * rollout.per_token(better_R)
        return Advantages(advantages_N, metrics)

    def loss(self, tokens: Tokens) -> TokenLoss:
        """Clip the surrogate, one value per token. Metrics per token: `ratio`, `clip_fraction`."""
        found = clipped_surrogate(*tokens[:3], clip_low=self.clip, clip_high=self.clip)
        return TokenLoss(found.loss, {"ratio": found.ratio, "clip_fraction": found.clipped})
