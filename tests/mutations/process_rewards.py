"""Faults of process rewards: a span at the wrong token, paid twice or not at all, or left out of a total."""

from tests.mutations import Mutation

SPANS, TOKENS = "rewards/test_spans.py", "episodes/test_step_rewards.py"
STEPS, PROCESS, INPUTS = "objectives/test_steps.py", "algorithms/test_process_rewards.py", "training/test_inputs.py"

_FAULTS = {
    ("objectives/shaping.py", STEPS): [
        ("(rewards_R - paid_R)", "(rewards_R + paid_R)"),
        (".round(decimals=DECIMALS)", ""),
        ("rewards_R.where(paid_R == 0,", "rewards_R.where(paid_R == 9,"),
        ("return returns(normalised_N, row_N)", "return returns(normalised_N, 0 * row_N)"),
        ("return returns(normalised_N, row_N)", "return normalised_N"),
    ],
    ("objectives/reward_models.py", STEPS): [
        ("right_S * softplus(-logits_S)", "right_S * softplus(logits_S)"),
        ("(1 - right_S) * softplus(logits_S)", "(1 - right_S) * softplus(-logits_S)"),
        ("right_S = right_S.to(logits_S.dtype)", "right_S = right_S.round().to(logits_S.dtype)"),
        ('    require_one_shape("step_correctness"', '    dict(name="step_correctness"'),
    ],
    ("objectives/reward_models.py", "objectives/test_implicit_reward.py"): [
        ("beta * (logprobs_N - reference_N.detach())", "logprobs_N - reference_N.detach()"),
        ("logprobs_N - reference_N.detach()", "logprobs_N - reference_N"),
        ("labels_N.detach() * reward_N", "labels_N * reward_N"),
        ("softplus(reward_N) - ", "softplus(-reward_N) - "),
        ("row_N, rows)[row_N]\n    return softplus", "0 * row_N, rows)[row_N]\n    return softplus"),
    ],
    ("algorithms/rollout.py", PROCESS): [
        (
            "return self._steps()[0] + self.at_end(self.outcome_R)",
            "return self._steps()[0] + self.at_end(self.rewards_R)",
        ),
        ("return self._steps()[0] + self.at_end(self.outcome_R)", "return self.at_end(self.rewards_R)"),
        ("torch.tensor(self.seats)[row_S]", "None"),
        ("self.group_R[row_S], torch", "0 * self.group_R[row_S], torch"),
        ("row_S = self.row_N[end_N]", "row_S = self.row_N[steps_N != 0]"),
        ("if of_PS.shape[-1] > 1 else torch.zeros_like(of_PS)", "if of_PS.shape[-1] > 1 else of_PS"),
        ("if self.step_rewards_N is None or", "if False or"),
    ],
    ("algorithms/grpo.py", PROCESS): [
        ("rollout.outcome_R if self.process_rewards else rewards_R", "rewards_R"),
        ("advantages_N + steps_N, size_R", "steps_N, size_R"),
        ("advantages_N + steps_N, size_R", "advantages_N, size_R"),
        ("size_R + rollout.per_row(steps_N.abs())", "size_R"),
        ("(*reference, StepRewards()) if self.process_rewards else reference", "reference"),
        ("if self.process_rewards and not self.token_advantages:", "if False:"),
        ("rollout.steps / len(rewards_R)", "rollout.steps"),
    ],
    ("algorithms/gspo.py", PROCESS): [("    token_advantages = False\n", "")],
    ("algorithms/grpo_bucketed.py", PROCESS): [("    token_advantages = False\n", "")],
    ("algorithms/vineppo.py", PROCESS): [("    token_advantages = False\n", "")],
    ("algorithms/ppo.py", PROCESS): [
        (
            "rollout.paid_N if self.process_rewards else rollout.at_end(rollout.rewards_R)",
            "rollout.at_end(rollout.rewards_R)",
        ),
        ("(StepRewards(),) if self.process_rewards else ()", "()"),
    ],
    ("training/reward.py", "training/test_reward.py"): [
        ("cost_S.sum() / batch.counts.tokens", "cost_S.mean()"),
        ("sum(len(unit.right) for unit in units)", "len(units)"),
        ("(logits_S > 0) == (right_S", "(logits_S < 0) == (right_S"),
    ],
    ("algorithms/inputs.py", INPUTS): [
        ("[token in paid for", "[bool(paid.get(token)) for"),
        ("paid.get(token, 0.0) for", "paid.get(token + 1, 0.0) for"),
    ],
}

MUTATIONS = [Mutation(file, old, new, tests) for (file, tests), faults in _FAULTS.items() for old, new in faults]
