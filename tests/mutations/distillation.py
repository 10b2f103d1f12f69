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
        Mutation("algorithms/gkd.py", old, new, "algorithms/test_online.py")
        for old, new in [
            ("beta: float = 0.5", "beta: float = 0.1"),
            ("TeacherDistributions(self.beta, self.top_k)", "TeacherDistributions(self.beta, 0)"),
            ("if not 0 <= self.beta <= 1:", "if not 0 <= self.beta:"),
            ("if self.top_k < 0:", "if False:"),
            ("self.reward_coefficient * rollout", "-self.reward_coefficient * rollout"),
            ("            enough_rows(self, rollout)\n", ""),
            ("tokens.divergence_N + found.loss_N", "found.loss_N"),
            ("tokens.divergence_N + found.loss_N", "tokens.divergence_N - found.loss_N"),
            ('if "taught_B" not in rollout.more:', "if False:"),
            ("if tokens.divergence_N is None:", "if False:"),
            ("        return False\n", "        return True\n"),
        ]
    ),
    *(
        Mutation("objectives/kl.py", old, new, "objectives/test_kl.py")
        for old, new in [
            ("math.log(beta), student_NK + math.log1p(-beta)", "math.log1p(-beta), student_NK + math.log(beta)"),
            ("return beta * teacher_N + (1 - beta)", "return (1 - beta) * teacher_N + beta"),
            ("    if beta == 0:\n        return (teacher", "    if beta == 1:\n        return (teacher"),
            ("(student_NK.exp() * (student_NK - mixed_NK))", "(teacher_NK.exp() * (student_NK - mixed_NK))"),
            ("    teacher_NK = teacher_NK.detach()\n", ""),
        ]
    ),
    *(
        Mutation("training/teacher.py", old, new, "training/test_teacher_divergence.py")
        for old, new in [
            ("return torch.cat(found)[torch.tensor(places).argsort()]", "return torch.cat(found)"),
            ('"temperature": heat[at] if isinstance(heat, Tensor) else heat', '"temperature": temperature'),
            ('"top_k": need.top_k', '"top_k": 0'),
            ("beta=need.beta", "beta=0.5"),
            ("branch if 0 < self.most < size_of(shown) else shown", "shown"),
            ("if best.reward > row.reward and", "if best.reward >= row.reward and"),
            ("max(group.by_seat[row.seat], key", "max(group.rows, key"),
            ("self.shown(group.task, said)", "self.shown(group.task)"),
            ("(*its, *branch.prefix[len(own) :])", "(*own, *branch.prefix[len(own) :])"),
            ("known = {**said, **task.metadata,", "known = {**task.metadata, **said,"),
            ("(group.task.prompt if missing else self.shown(group.task, said))", "(self.shown(group.task, said))"),
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
