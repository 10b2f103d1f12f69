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
            ("(tokens.logprobs_N, tokens.reference_N)", "(tokens.logprobs_N, tokens.old_N)"),
            ("(tokens.logprobs_N, tokens.reference_N)", "(tokens.reference_N, tokens.logprobs_N)"),
            ("kl_N.detach()}", "kl_N}"),
            ("reference = (ReferenceLogprobs(),) if self.kl_coefficient else ()", "reference = (ReferenceLogprobs(),)"),
            ("return not self.kl_coefficient", "return True"),
            ("rollout.per_token(advantages_R)", "rollout.per_token(rewards_R)"),
            ("epsilon=self.std_epsilon", "epsilon=0.0"),
            ("denominator=counts.sequences", "denominator=counts.tokens"),
            (
                "reduce.sequence_mean(values_N, length_N, denominator=counts.sequences)",
                "reduce.token_mean(values_N, counts.tokens)",
            ),
            ("(size_PG == 0).all(dim=-1)", "(size_PG == 0).any(dim=-1)"),
            ("(size_PG == 0).all(dim=-1)", "(size_PG != 0).all(dim=-1)"),
            ("lambda rewards_PG: rewards_PG.std(dim=-1)", "lambda rewards_PG: rewards_PG.std()[None]"),
            ("least_group = 2", "least_group = 1"),
            ("        enough_rows(self, rollout)\n", ""),
            ('positive(self, "clip_low", ', "positive(self, "),
            ("if self.kl_estimator not in kl.ESTIMATORS", "if not self.kl_estimator"),
            ("kl_coefficient: float = 0.04", "kl_coefficient: float = 0.4"),
            ("clip_high: float = 0.2", "clip_high: float = 0.28"),
            ('kl_estimator: str = "k3"', 'kl_estimator: str = "k2"'),
            (
                "        if tokens.reference_N is None:\n",
                "        if tokens.reference_N is None:\n"
                "            tokens = tokens._replace(reference_N=tokens.old_N)\n"
                "        if False:\n",
            ),
        ]
    ),
    *(
        Mutation(f"algorithms/{name}.py", old, new, "algorithms/test_online.py")
        for name, faults in {
            "dr_grpo": [
                ("mean_centred(rewards_PG)", "rewards_PG"),
                ("counts.sequences * counts.longest", "counts.tokens"),
            ],
            "dapo": [
                ("bool((rewards_G != rewards_G[0]).any())", "bool((rewards_G != rewards_G[0]).all())"),
                ("bool((rewards_G != rewards_G[0]).any())", "bool(rewards_G.any())"),
                ("rollout.rewards_R + punished_R", "rollout.rewards_R - punished_R"),
                ("rollout.rewards_R + punished_R", "rollout.rewards_R"),
                ("        if not buffer:\n", "        if True:\n"),
                ("    reduce = OnlineAlgorithm.reduce", "    pass"),
                ("clip_high: float = 0.28", "clip_high: float = 0.2"),
                ("if not 0 <= self.overlong_share <= 1:", "if self.overlong_share < 0:"),
                ("overlong_share: float = 0.2", "overlong_share: float = 0.1"),
            ],
            "gdpo": [
                ("@ rollout.weights_K", "@ torch.ones_like(rollout.weights_K)"),
                ("total_R / (total_R.std() + self.std_epsilon)", "total_R"),
                ("epsilon=self.std_epsilon)\n", "epsilon=1.0)\n"),
            ],
            "maxrl": [("by_success_rate(rewards_PG)", "rewards_PG - rewards_PG.mean(dim=-1, keepdim=True)")],
            "pass_at_k": [
                ("rewards_PG >= self.right_from, self.k", "rewards_PG >= self.right_from, 1"),
                ("rewards_PG >= self.right_from", "rewards_PG > 0"),
                ("return max(2, self.k)", "return 2"),
            ],
            "cispo": [
                ("lowest, highest = 1 - self.clip_low", "lowest, highest = 0.0"),
                ("1 + self.clip_high\n", "1 + self.clip_low\n"),
                ("    reduce = OnlineAlgorithm.reduce", "    pass"),
            ],
            "sapo": [("tau_negative=self.tau_negative", "tau_negative=self.tau_positive")],
            "gmpo": [
                ("clip_low=self.clip_low", "clip_low=self.clip_high"),
                ("sequence_ratio = True", "sequence_ratio = False"),
            ],
            "dppo": [
                ('"lowest": self.clip_low', '"lowest": self.clip_high'),
                ("divergence=self.divergence", 'divergence="tv"'),
            ],
            "clip_cov": [
                ("cov_N < self.cov_low", "cov_N < -self.cov_low"),
                ("chosen, 0.0)", "chosen, 0.5)"),
            ],
            "kl_cov": [
                ("argsort(descending=True)", "argsort()"),
                ("loss_N + penalty_N * kl", "loss_N - penalty_N * kl"),
                ("chosen, self.penalty)", "chosen, 1.0)"),
            ],
            "gspo": [
                ("by_length=True", "by_length=False"),
                ("clip_low=self.clip_low", "clip_low=self.clip_high"),
                ("clip_low: float = 3e-4", "clip_low: float = 4e-4"),
            ],
            "grpo_bucketed": [
                ("rollout.kinds_R or (", "("),
                ("epsilon=self.std_epsilon", "epsilon=1.0"),
                ("(advantages_PG == 0).all(dim=-1)", "(advantages_PG == 0).any(dim=-1) | True"),
                ("zip(kinds, rollout.seats, strict=True)", "zip(kinds, [0] * len(kinds), strict=True)"),
                ("least_group = 1", "least_group = 2"),
            ],
            "ppo": [
                ("clip_low=self.clip_low", "clip_low=self.clip_high"),
                ("rewards_N - self.kl_coefficient * kl_N", "rewards_N + self.kl_coefficient * kl_N"),
                ("rollout.at_end(rollout.rewards_R)", "rollout.per_token(rollout.rewards_R)"),
                ("discount=self.discount, lam=self.gae_lambda", "lam=self.gae_lambda"),
                ("discount=self.discount, lam=self.gae_lambda", "discount=self.discount"),
                ("return found_N, found_N + values_N", "return found_N, found_N"),
                ("batch_normalised(advantages_N, epsilon=self.std_epsilon)", "advantages_N"),
                ("found.loss + critic.loss_N", "found.loss"),
                ("loss_N - self.entropy_coefficient * tokens", "loss_N + self.entropy_coefficient * tokens"),
                ("self.value_coefficient * found.loss", "found.loss"),
                ("clip=self.value_clip", "clip=1e9"),
                ("kl_N.sum().item() / len(rollout.rewards_R)", "kl_N.mean().item()"),
                ("explained_variance(rollout.values_N, returns_N)", "explained_variance(returns_N, rollout.values_N)"),
                ("return self.entropy_coefficient > 0", "return False"),
                ("found.loss.detach()", "found.loss"),
                ("if not self.value_clip > 0:", "if False:"),
                ("        if rollout.values_N is None:\n", "        if False:\n"),
                ("            if tokens.entropy_N is None:\n", "            if False:\n"),
            ],
            "ppo_penalty": [
                ("(kl - self.kl_target)", "(self.kl_target - kl)"),
                ("(kl - self.kl_target) / self.kl_target", "(kl - self.kl_target)"),
                (", -0.2), 0.2)", ", -0.2), 2.0)"),
                (", -0.2), 0.2)", ", -2.0), 0.2)"),
                ("(1 + self.kl_gain * error)", "(1 + error)"),
                ("self.kl_gain >= 5", "self.kl_gain > 5"),
                ("kl_target: float = 6.0", "kl_target: float = 0.6"),
            ],
            "ppo_ptx": [
                ("PretrainingNLL(self.pretraining_coefficient)", "PretrainingNLL(1.0)"),
                ("pretraining_coefficient: float = 27.8", "pretraining_coefficient: float = 2.78"),
                ("kl_coefficient: float = 0.02", "kl_coefficient: float = 0.2"),
            ],
            "vapo": [
                ("(rollout.rewards_R > 0)", "(rollout.rewards_R >= 0)"),
                ("good_N / good_N.mean().clamp(min=1 / len(good_N))", "good_N"),
                (".clamp(min=1 / len(good_N))", ""),
                ("discount=self.discount, lam=lam_N)", "discount=self.discount, lam=self.gae_lambda)"),
                ("values_N + gae(", "gae("),
                ("-tokens.imitation_N * tokens.logprobs_N", "tokens.imitation_N * tokens.logprobs_N"),
                ("self.imitation_coefficient * likelihood_N", "likelihood_N"),
                ("likelihood_N.detach()}", "likelihood_N}"),
                ("length_alpha: float = 0.05", "length_alpha: float = 0.5"),
                ("critic_warmup_steps: int = 50", "critic_warmup_steps: int = 0"),
                ("        if tokens.imitation_N is None:\n", "        if False:\n"),
            ],
            "vineppo": [
                ("rollout.per_token(rollout.rewards_R))", "rollout.at_end(rollout.rewards_R) * 0)"),
                ("first_of_rows(rollout.row_N)", "rollout.step_N == 0"),
                ("batch_normalised(gains_N, epsilon=self.std_epsilon)", "gains_N"),
                ("    reduce = OnlineAlgorithm.reduce", "    pass"),
                ("self.continuations, self.step_tokens, self.max_states", "self.continuations, 0, self.max_states"),
                ("kl_coefficient: float = 1e-4", "kl_coefficient: float = 0.04"),
                ("or rollout.step_N is None:", "and rollout.step_N is None:"),
            ],
            "reinforce": [
                ("rewards_R - self.kl_coefficient * kl_R", "rewards_R + self.kl_coefficient * kl_R"),
                ("rewards_R - self.kl_coefficient * kl_R", "rewards_R - kl_R"),
                ("rewards_R - self.baseline(rewards_R, rollout)", "rewards_R"),
                ("return rewards_R.mean()", "return rollout.per_group(rewards_R, lambda x: x.mean(dim=-1)).mean()"),
                ("found.loss / size_N", "found.loss"),
                ("tokens.branch_N.bincount()[tokens.branch_N]", "tokens.branch_N.bincount().max()"),
                ("token_mean(values_N, counts.sequences)", "token_mean(values_N, counts.tokens)"),
                ("clip_low=1.0,", "clip_low=0.2,"),
                ("clip_high=math.inf,", "clip_high=0.2,"),
                ("return (ReferenceLogprobs(),) if self.kl_coefficient else ()", "return (ReferenceLogprobs(),)"),
                ("kl_R.mean().item()", "kl_R.sum().item()"),
            ],
            "rloo": [
                ("rewards_R - rollout.compare(rewards_R, leave_one_out)", "rewards_R.mean()"),
                ("clip_low=self.clip,", "clip_low=1.0,"),
                ("least_group = 2", "least_group = 1"),
                ("by_length=False", "by_length=True"),
            ],
            "remax": [
                ("return rollout.greedy_R\n", "return rollout.greedy_R.mean()\n"),
                ("(*super().inputs, GreedyReward())", "super().inputs"),
                ("kl_coefficient: float = 0.1", "kl_coefficient: float = 0.05"),
            ],
            "reinforce_pp": [
                (
                    "returns_N - self.kl_coefficient * returns(kl_N, rollout.row_N)",
                    "returns_N - self.kl_coefficient * kl_N",
                ),
                ("returns_N - self.kl_coefficient", "returns_N + self.kl_coefficient"),
                ("batch_normalised(returns_N, epsilon=self.std_epsilon)", "returns_N"),
                ("std_epsilon: float = 1e-4", "std_epsilon: float = 1e-8"),
                ("clip_low=self.clip, clip_high=self.clip", "clip_low=0.2, clip_high=0.2"),
                ("    reduce = OnlineAlgorithm.reduce", "    pass"),
            ],
        }.items()
        for old, new in faults
    ),
    *(
        Mutation(f"algorithms/{name}.py", old, new, "algorithms/test_preferences.py algorithms/test_dpo.py")
        for name, faults in {
            "dpo": [
                ("of_chosen, of_rejected = needed", "of_rejected, of_chosen = needed"),
                ("implicit_reward(chosen.logprob_B, of_chosen.logprob_B, self.beta)", "chosen.logprob_B"),
                (
                    "(rejected.logprob_B, of_rejected.logprob_B, self.beta)",
                    "(rejected.logprob_B, of_rejected.logprob_B, 1)",
                ),
                ("bradley_terry(*rewards, label_smoothing=self.label_smoothing)", "bradley_terry(*rewards)"),
                ("self.beta * chosen.logprob_B, ", "chosen.logprob_B, "),
                ("return () if self.reference_free else", "return"),
                ('positive(self, "beta")', 'positive(self, "beta", or_zero=True)'),
                ("self.label_smoothing < 0.5", "self.label_smoothing <= 0.5"),
                ("beta: float = 0.1", "beta: float = 0.5"),
            ],
            "ipo": [
                ("1 / (2 * self.beta)", "1 / self.beta"),
                ("1 / (2 * self.beta)", "2 * self.beta"),
                ("ratios[0] - ratios[1], 1", "ratios[1] - ratios[0], 1"),
                ("(policy.length_B if self.length_normalised else 1)", "(1 if self.length_normalised else 1)"),
                ("(policy.length_B if self.length_normalised else 1)", "policy.length_B"),
                ("compared(self.beta * ratios[0], self.beta * ratios[1])", "compared(ratios[0], ratios[1])"),
                ('positive(self, "beta")', 'positive(self, "beta", or_zero=True)'),
            ],
            "simpo": [
                ("* r.logprob_B / r.length_B", "* r.logprob_B"),
                ("(self.beta * r.logprob_B", "(r.logprob_B"),
                ("full_like(chosen_B, self.gamma)", "full_like(chosen_B, -self.gamma)"),
                (", margin_B=margin_B)", ")"),
                ("for r in (chosen, rejected)", "for r in (rejected, chosen)"),
                ('positive(self, "gamma", or_zero=True)', "pass"),
                ("beta: float = 2.0", "beta: float = 2.5"),
            ],
            "orpo": [
                ("imitation_B + self.odds_weight", "imitation_B - self.odds_weight"),
                ("imitation_B + self.odds_weight * bradley_terry(*odds)", "imitation_B + bradley_terry(*odds)"),
                ("return PairLoss(imitation_B + ", "return PairLoss("),
                ("(r.logprob_B / r.length_B for", "(r.logprob_B for"),
                ("negative_log_likelihood(mean_B)", "negative_log_likelihood(other_B)"),
                ("negative_log_likelihood(mean_B)", "negative_log_likelihood(chosen.logprob_B)"),
                ("log_odds(mean_B), log_odds(other_B)", "mean_B, other_B"),
                ("log_odds(mean_B), log_odds(other_B)", "log_odds(other_B), log_odds(mean_B)"),
                ("imitation_B.detach()}", "imitation_B}"),
            ],
            "dpop": [
                ("(-chosen_B).relu()", "chosen_B.relu()"),
                ("(-chosen_B).relu()", "(-rejected_B).relu()"),
                ("(-chosen_B).relu()", "-chosen_B"),
                ("(-chosen_B).relu()", "(-chosen_B).relu().detach()"),
                ("margin_B=self.penalty * lost_B", "margin_B=lost_B"),
                ("margin_B=self.penalty * lost_B", "margin_B=-self.penalty * lost_B"),
                ("lost_B.detach()}", "lost_B}"),
                ("penalty: float = 50.0", "penalty: float = 5.0"),
                ("beta: float = 0.3", "beta: float = 0.1"),
            ],
            "irpo": [
                ("found.loss_B + self.alpha", "found.loss_B - self.alpha"),
                ("self.alpha * imitation_B, ", "imitation_B, "),
                ("chosen.logprob_B / chosen.length_B", "chosen.logprob_B"),
                ("chosen.logprob_B / chosen.length_B", "rejected.logprob_B / rejected.length_B"),
                ("        super().__post_init__()\n", ""),
            ],
            "sppo": [
                ("squared_distance(won_B, self.eta / 2)", "squared_distance(won_B, self.eta)"),
                ("squared_distance(lost_B, -self.eta / 2)", "squared_distance(lost_B, self.eta / 2)"),
                (" + squared_distance(lost_B", " - squared_distance(lost_B"),
                ("compared(won_B / self.eta, lost_B / self.eta)", "compared(won_B, lost_B)"),
                ("eta: float = 1000.0", "eta: float = 1.0"),
            ],
            "tdpo": [
                ("of_chosen_B.detach() if self.stop_gradient else of_chosen_B", "of_chosen_B"),
                ("of_chosen_B.detach() if self.stop_gradient else of_chosen_B", "of_chosen_B.detach()"),
                ("(of_rejected_B - kept_B)", "(kept_B - of_rejected_B)"),
                ("(of_rejected_B - kept_B)", "(of_rejected_B.detach() - kept_B)"),
                ("self.alpha * self.beta * (", "self.alpha * ("),
                ("self.alpha * self.beta * (", "self.beta * ("),
                ("stop_gradient: bool = True", "stop_gradient: bool = False"),
                ("(*super().inputs, ReferenceDivergence())", "super().inputs"),
                ('"divergence/rejected": of_rejected_B.detach()', '"divergence/rejected": of_chosen_B.detach()'),
            ],
            "kto": [
                ("point = self.beta * divergence", "point = divergence"),
                ("point = self.beta * divergence", "point = 0.0"),
                ("good=self.good_weight, bad=self.bad_weight", "good=self.bad_weight, bad=self.good_weight"),
                ("torch.where(good_B, above_B, 1 - above_B)", "above_B"),
                ("wins(seen_B, torch.full_like(seen_B, point))", "wins(seen_B, torch.zeros_like(seen_B))"),
                ('"reward/bad": seen_B[~good_B]', '"reward/bad": seen_B[good_B]'),
                ('positive(self, "beta", "good_weight", "bad_weight")', 'positive(self, "beta", "good_weight")'),
            ],
            "step_dpo": [("beta: float = 0.5", "beta: float = 0.1")],
        }.items()
        for old, new in faults
    ),
    *(
        Mutation("algorithms/algorithm.py", old, new, "algorithms/test_preferences.py algorithms/test_dpo.py")
        for old, new in [
            ("wins(chosen_B, rejected_B)", "wins(rejected_B, chosen_B)"),
            ('"margin": chosen_B - rejected_B', '"margin": rejected_B - chosen_B'),
            ("chosen_B, rejected_B = chosen_B.detach(), rejected_B.detach()\n", "pass\n"),
            ("math.isfinite(value) and ", ""),
            ("(value > 0 or (or_zero and value == 0))", "value > 0"),
            ("    if reference is None:\n", "    if False:\n"),
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
