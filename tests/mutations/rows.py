"""Faults of rows: what is compared with what, and where a row is cut into branches."""

from tests.mutations import Mutation

ROLLOUT, ONLINE = "algorithms/test_rollout.py", "algorithms/test_online.py"
BRANCHES, DYNAMIC = "training/test_branches.py", "episodes/test_sampler.py"

_FAULTS = {
    ("algorithms/rollout.py", ROLLOUT): [
        ("zip(plain.tolist(), self.seats, strict=True)", "zip(plain.tolist(), self.group_R.tolist(), strict=True)"),
        ("members.setdefault(key, [])", "members.setdefault(key[1], [])"),
        ("by_size.setdefault(len(rows), [])", "by_size.setdefault(len(by_size), [])"),
        ("found_R[rows_PG] = of_groups(values_R[rows_PG])", "found_R[rows_PG] = of_groups(values_R)[rows_PG]"),
        ("found_R[rows_PG] = of_groups(values_R[rows_PG])", "found_R[rows_PG] = of_groups(values_R[rows_PG].T).T"),
        ("torch.cat([of_groups(values_R[rows_PG])", "torch.cat([of_groups(values_R[rows_PG.T])"),
        ("minlength=len(self.rewards_R)", "minlength=0"),
        ("torch.where(last_of_rows(self.row_N), self.per_token(values_R), 0.0)", "self.per_token(values_R)"),
    ],
    ("algorithms/rollout.py", ONLINE): [
        ("values_R[self.row_N]", "values_R.flip(0)[self.row_N]"),
        ("kl.k1(self.sampler_N, self.reference_N)", "kl.k1(self.reference_N, self.sampler_N)"),
        ("kl.k1(self.sampler_N", "kl.k3(self.sampler_N"),
        ("if self.seat_R is None else self.seat_R", ""),
    ],
    ("algorithms/algorithm.py", "algorithms/test_grpo.py"): [
        ("    enough(algorithm, max(sizes))\n", ""),
        ("    if min(sizes) < algorithm.least_group:\n", "    if False:\n"),
    ],
    ("algorithms/algorithm.py", "algorithms/test_online.py algorithms/test_opd.py"): [
        ("token_mean(values_N, counts.tokens)", "token_mean(values_N, counts.sequences)"),
    ],
    ("algorithms/gspo.py", BRANCHES): [
        ("*tokens[:4]", "*tokens[:3], 0 * tokens.branch_N"),
    ],
    ("training/policy.py", BRANCHES): [
        (
            "for row in group.rows for branch in row.trajectory.branches]",
            "for row in group.rows for branch in row.trajectory.branches[-1:]]",
        ),
        ("rollout.per_token(rollout.lengths_R)", "torch.ones_like(rollout.row_N)"),
        ("rows = len(rollout.rewards_R)", "rows = len(lengths)"),
        (
            "[[next(numbers) for row in group.rows for _ in row.trajectory.branches]",
            "[[next(numbers) for row in group.rows]",
        ),
        ("torch.repeat_interleave(torch.arange(len(groups)), sizes)", "torch.arange(int(sizes.sum()))"),
        ("torch.tensor([seats[row.seat] for row in rows])", "torch.tensor([0 for row in rows])"),
        (
            "enumerate(dict.fromkeys(row.seat for row in rows))",
            "enumerate(reversed([row.seat for row in groups[0].rows]))",
        ),
        ("torch.tensor([row.seat == seat for row in group.rows])", "torch.tensor([True for row in group.rows])"),
        ("gone / sum(len(group.rows) for group in groups)", "gone / len(branches_in(groups))"),
        (
            'batch.present("length", row, branch_N)\n        return Share(algorithm',
            "branch_N.bincount()[branch_N]\n        return Share(algorithm",
        ),
        ("                branch_N,\n                level=", "                0 * branch_N,\n                level="),
    ],
    ("objectives/values.py", BRANCHES): [
        ("if rows[n] == rows[n + 1]:", "if False:"),
    ],
}

MUTATIONS = [Mutation(file, old, new, tests) for (file, tests), pairs in _FAULTS.items() for old, new in pairs]
