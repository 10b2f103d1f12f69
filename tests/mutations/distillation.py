"""Faults of distillation and of self-play: a wrong sign, an average that forgets, a teacher that is not compared."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("algorithms/opd.py", old, new, "algorithms/test_opd.py algorithms/test_online.py")
        for old, new in [
            ("kl.k1(rollout.sampler_N, rollout.teacher_N)", "kl.k1(rollout.teacher_N, rollout.sampler_N)"),
            ("kl.k1(rollout.sampler_N, rollout.teacher_N)", "kl.k3(rollout.sampler_N, rollout.teacher_N)"),
            ("kl.k1(rollout.sampler_N, rollout.teacher_N)", "kl.k1(rollout.sampler_N, rollout.reference_N)"),
            ("advantages_N, metrics = -kl_N", "advantages_N, metrics = kl_N.mean() - kl_N"),
            ("kl_N.mean().item()", "kl_N.sum().item()"),
            ("advantages_N + self.reward_coefficient *", "advantages_N - self.reward_coefficient *"),
            ("advantages_N + self.reward_coefficient * rollout", "advantages_N + rollout"),
            ("rollout.compare(rollout.rewards_R, leave_one_out)", "rollout.rewards_R - rollout.rewards_R.mean()"),
            ("clip_high=self.clip", "clip_high=9.0"),
            ("clip_low=self.clip", "clip_low=1.0"),
            ("return 2 if self.reward_coefficient else 1", "return 1"),
            ("return 2 if self.reward_coefficient else 1", "return 2"),
            ("            enough_rows(self, rollout)\n", ""),
            ('positive(self, "reward_coefficient", "clip", or_zero=True)', "pass"),
            ("if rollout.teacher_N is None or", "if"),
            ("reward_coefficient: float = 0.0", "reward_coefficient: float = 1.0"),
        ]
    ),
    *(
        Mutation("algorithms/rae.py", old, new, "algorithms/test_rae.py algorithms/test_online.py")
        for old, new in [
            ("return rollout.baselines_R", "return rollout.baselines_R.mean()"),
            ("return rollout.baselines_R", "return -rollout.baselines_R"),
            ("SeatBaselines(self.baseline_decay)", "SeatBaselines(0.95)"),
            ("(*super().inputs, SeatBaselines(self.baseline_decay))", "(SeatBaselines(self.baseline_decay),)"),
            ("if not 0 < self.baseline_decay < 1:", "if not 0 <= self.baseline_decay <= 1:"),
            ("        super().__post_init__()\n", ""),
            ("kl_coefficient: float = 0.0", "kl_coefficient: float = 0.05"),
            ("decay: float = 0.95", "decay: float = 0.9"),
            ('"baseline/min": low, "baseline/max": high', '"baseline/min": high, "baseline/max": low'),
        ]
    ),
    *(
        Mutation("objectives/advantages.py", old, new, "objectives/test_advantages.py")
        for old, new in [
            (
                "decay * after.get(key, 0.0) + (1 - decay) * earned",
                "(1 - decay) * after.get(key, 0.0) + decay * earned",
            ),
            ("after.get(key, 0.0) + (1", "after.get(key, earned) + (1"),
            ("after.get(key, 0.0) + (1", "before.get(key, 0.0) + (1"),
            ("after, baselines = dict(before), ", "after, baselines = before, "),
            ("after, baselines = dict(before), ", "after, baselines = {}, "),
            (
                "        after[key] = decay * after.get(key, 0.0) + (1 - decay) * earned\n"
                "        baselines.append(after[key])\n",
                "        baselines.append(after.get(key, 0.0))\n"
                "        after[key] = decay * after.get(key, 0.0) + (1 - decay) * earned\n",
            ),
        ]
    ),
    *(
        Mutation("algorithms/inputs.py", old, new, "training/test_inputs.py")
        for old, new in [
            (' {row.seat}" for group', '" for group'),
            ("{group.task.metadata.get('kind', '')} ", " "),
            ("found_R, context.state[BASELINES] =", "found_R, _ ="),
            ("context.state.get(BASELINES, {})", "{}"),
            ("decay=self.decay", "decay=0.95"),
        ]
    ),
    Mutation("training/policy.py", "part, temperature=temperature", "part", "training/test_inputs.py"),
    Mutation(
        "training/policy.py",
        "for number in numbers], part,",
        'for number in numbers], "reference",',
        "training/test_inputs.py",
    ),
    *(
        Mutation("training/teacher.py", old, new, "training/test_teacher.py")
        for old, new in [
            ("mine.get(token) != its.get(token)", "token not in its"),
            ("{*mine, *its}", "mine"),
            ("teacher.vocabulary < student.vocabulary", "teacher.vocabulary < 1"),
            ("teacher.vocabulary < student.vocabulary", "teacher.vocabulary != student.vocabulary"),
            ("if teacher.context < longest:", "if teacher.context < student.context:"),
            ("if teacher.context < longest:", "if False:"),
            ("dtype=policy.dtype", "dtype=torch.float32"),
        ]
    ),
]
