"""Faults of the algorithms: a knob that reaches the wrong place, a term of the wrong sign, a wrong reduction."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("algorithms/grpo.py", old, new, "algorithms/test_grpo.py")
        for old, new in [
            ("clip_low=self.clip_low", "clip_low=self.clip_high"),
            ("clip_high=self.clip_high", "clip_high=self.clip_low"),
            ("surrogate.loss + self.kl_coefficient * kl_N", "surrogate.loss - self.kl_coefficient * kl_N"),
            ("surrogate.loss + self.kl_coefficient * kl_N", "surrogate.loss + kl_N"),
            ("surrogate.loss + self.kl_coefficient * kl_N", "surrogate.loss + self.kl_coefficient * kl_N.detach()"),
            ("kl.ESTIMATORS[self.kl_estimator](", "kl.k3("),
            ("(logprobs_N, reference_N)", "(logprobs_N, old_N)"),
            ("(logprobs_N, reference_N)", "(reference_N, logprobs_N)"),
            ("kl_N.detach()}", "kl_N}"),
            ("return self.kl_coefficient > 0", "return self.kl_coefficient >= 0"),
            ("self.needs_reference or bool(", "bool("),
            (".advantages_PG != 0).any()", ".advantages_PG != 0).all()"),
            (".advantages_PG != 0).any()", ".advantages_PG > 1).any()"),
            ("epsilon=self.std_epsilon", "epsilon=0.0"),
            ("denominator=sequences", "denominator=tokens"),
            ("reduce.sequence_mean(values_N, row_N, denominator=sequences)", "reduce.token_mean(values_N, tokens)"),
            ("(advantages_PG == 0).all(dim=-1)", "(advantages_PG == 0).any(dim=-1)"),
            ("(advantages_PG == 0).all(dim=-1)", "(advantages_PG != 0).all(dim=-1)"),
            ("rewards_PG.std(dim=-1).mean()", "rewards_PG.std()"),
            ("if size < 2:", "if size < 1:"),
            ("value >= 0", "value > -1"),
            ("math.isfinite(value) and ", ""),
            ("if self.kl_estimator not in kl.ESTIMATORS", "if not self.kl_estimator"),
            ("kl_coefficient: float = 0.04", "kl_coefficient: float = 0.4"),
            ("clip_high: float = 0.2", "clip_high: float = 0.28"),
            ('kl_estimator: str = "k3"', 'kl_estimator: str = "k2"'),
            (
                "        if reference_N is None:\n",
                "        reference_N = old_N if reference_N is None else reference_N\n        if False:\n",
            ),
        ]
    ),
    *(
        Mutation("algorithms/catalogue.py", old, new, "algorithms/test_catalogue.py")
        for old, new in [
            ("if algorithm.needs_reference else ()", "if not algorithm.needs_reference else ()"),
            ("reversed(algorithm.__mro__)", "algorithm.__mro__"),
            ("field.default", "field.name"),
        ]
    ),
    *(
        Mutation("algorithms/dpo.py", old, new, "algorithms/test_dpo.py")
        for old, new in [
            ("zip((chosen, rejected), reference, strict=True)", "zip((rejected, chosen), reference, strict=True)"),
            (
                "zip((chosen, rejected), reference, strict=True)",
                "zip((chosen, rejected), reference[::-1], strict=True)",
            ),
            ("implicit_reward(policy.logprob_B, anchor.logprob_B, self.beta)", "policy.logprob_B - anchor.logprob_B"),
            ("label_smoothing=self.label_smoothing), metrics)", "), metrics)"),
            ("(chosen_B > rejected_B)", "(chosen_B >= rejected_B)"),
            ("(chosen_B - rejected_B).detach()", "(chosen_B - rejected_B)"),
            ("self.beta > 0", "self.beta >= 0"),
            ("math.isfinite(self.beta) and ", ""),
            ("self.label_smoothing < 0.5", "self.label_smoothing <= 0.5"),
            ("beta: float = 0.1", "beta: float = 0.5"),
        ]
    ),
    *(
        Mutation("algorithms/__init__.py", old, new, "algorithms/test_registry.py")
        for old, new in [
            ("    if name in ALGORITHMS:\n", "    if False:\n"),
            ('unknown("algorithm", name, among)', 'unknown("algorithm", name, ALGORITHMS)'),
        ]
    ),
]
