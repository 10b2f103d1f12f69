"""Faults of the equations."""

from tests.mutations import Mutation

MUTATIONS = [
    # policy
    *(
        Mutation("objectives/policy.py", old, new, "objectives/test_policy.py")
        for old, new in [
            ("unclipped = -ratio * advantages", "unclipped = ratio * advantages"),
            ("clipped = -ratio.clamp", "clipped = ratio.clamp"),
            ("torch.maximum(unclipped, clipped)", "torch.minimum(unclipped, clipped)"),
            ("ratio.clamp(1.0 - clip_low", "ratio.clamp(1.0 - clip_high"),
            ("1.0 + clip_high) * advantages", "1.0 + clip_low) * advantages"),
            ("(clipped > unclipped)", "(clipped >= unclipped)"),
            ("(clipped > unclipped)", "(clipped != unclipped)"),
            (
                "advantages.detach()\n    ratio = torch.exp(logprobs - old_logprobs.detach())\n    unclipped",
                "advantages * 1.0\n    ratio = torch.exp(logprobs - old_logprobs.detach())\n    unclipped",
            ),
            ("old_logprobs.detach())\n    unclipped", "old_logprobs)\n    unclipped"),
            ("logprobs - old_logprobs.detach())\n    unclipped", "old_logprobs.detach() - logprobs)\n    unclipped"),
            ("clipped), ratio.detach(),", "clipped), ratio,"),
            ('    require_one_shape("clipped_surrogate"', '    dict(name="clipped_surrogate"'),
        ]
    ),
    # off-policy
    *(
        Mutation("objectives/off_policy.py", old, new, "objectives/test_off_policy.py")
        for old, new in [
            (
                "return -torch.exp(logprobs - sampling_logprobs.detach())",
                "return torch.exp(logprobs - sampling_logprobs.detach())",
            ),
            (
                "return -torch.exp(logprobs - sampling_logprobs.detach())",
                "return -torch.exp(logprobs - sampling_logprobs)",
            ),
            ("sampling_logprobs.detach()) * advantages.detach()", "sampling_logprobs.detach()) * advantages"),
            (
                "torch.exp(logprobs.detach() - sampling_logprobs.detach())",
                "torch.exp(logprobs - sampling_logprobs.detach())",
            ),
            ("ratio.clamp(lowest, highest) * advantages.detach() * logprobs", "ratio * advantages.detach() * logprobs"),
            ("-ratio.clamp(lowest, highest) * advantages.detach() *", "-ratio.clamp(lowest, highest) * advantages *"),
            ("0.5 * beta", "beta"),
            ("- advantages.detach() * logprobs", "+ advantages.detach() * logprobs"),
            ("(counted_N != 0)", "(counted_N == counted_N)"),
            ("fixed_N = logprobs_N.detach()", "fixed_N = logprobs_N"),
            (".clamp(min=1.0)\n    ratio_N", "\n    ratio_N"),
            ("torch.maximum(-ratio_N", "torch.minimum(-ratio_N"),
            ("mean_B[row_N] + logprobs_N - fixed_N", "mean_B[row_N]"),
        ]
    ),
    # shapes
    Mutation("objectives/shapes.py", "> 1:", "> 2:", "objectives/test_shapes.py"),
    # advantages
    *(
        Mutation("objectives/advantages.py", old, new, "objectives/test_advantages.py")
        for old, new in [
            ("(rewards_PG - rewards_PG.mean(", "(rewards_PG + rewards_PG.mean("),
            ("rewards_PG - rewards_PG.mean(dim=-1, keepdim=True)", "rewards_PG - rewards_PG.mean()"),
            (".masked_fill(equal, 0.0)", ""),
            (".all(dim=-1, keepdim=True)", ".any(dim=-1, keepdim=True)"),
            ("centred * (size / (size - 1))", "centred * ((size - 1) / size)"),
            ("centred * (size / (size - 1))", "centred"),
            ("rewards_PG.shape[-1] - ddof)", "rewards_PG.shape[-1])"),
            ("ddof: int = 1", "ddof: int = 0"),
            ("epsilon: float = 1e-4, ddof", "epsilon: float = 1e-2, ddof"),
            ("std + epsilon)", "std)"),
            ("centred / torch.where(", "centred * torch.where("),
            ("- ddof)).sqrt()", "- ddof))"),
            ("torch.where(std == 0, torch.ones_like(std), std + epsilon)", "(std + epsilon)"),
            ("shape[-1] < 2", "shape[-1] < 1"),
        ]
    ),
    # kl
    *(
        Mutation("objectives/kl.py", old, new, "objectives/test_kl.py")
        for old, new in [
            ("return logprobs - reference_logprobs.detach()", "return reference_logprobs.detach() - logprobs"),
            ("return logprobs - reference_logprobs.detach()", "return logprobs - reference_logprobs"),
            ("return logprobs - reference_logprobs.detach()", "return logprobs.detach() - reference_logprobs.detach()"),
            ("0.5 * _log_ratio", "_log_ratio"),
            (".square()", ".abs()"),
            ("torch.expm1(-log_ratio) + log_ratio", "torch.expm1(log_ratio) - log_ratio"),
            ("torch.expm1(-log_ratio) + log_ratio", "torch.expm1(-log_ratio) - log_ratio"),
            ("torch.expm1(-log_ratio) + log_ratio", "torch.exp(-log_ratio) + log_ratio"),
            ("torch.expm1(-log_ratio) + log_ratio", "torch.exp(-log_ratio) - 1 + log_ratio"),
            ('"k2": k2, "k3": k3', '"k2": k3, "k3": k2'),
            ("    require_one_shape(where,", "    dict(name=where,"),
        ]
    ),
    *(
        Mutation("objectives/off_policy.py", old, new, "objectives/test_off_policy.py")
        for old, new in [
            ("(p > q) & (apart > highest)", "apart > highest"),
            ("(p < q) & (apart > lowest)", "(p < q) & (apart > highest)"),
            ("q * (sampling_logprobs - logprobs).detach() + (1 - q) * rest", "(1 - q) * rest"),
            ('if level == "mean":', "if False:"),
            ("(weight_N > highest) | (weight_N < lowest)", "weight_N > highest"),
            ("weight_N.masked_fill(outside_N, 0.0) if masked", "weight_N.masked_fill(outside_N, 1.0) if masked"),
        ]
    ),
    *(
        Mutation("objectives/advantages.py", old, new, "objectives/test_outcomes.py algorithms/test_online.py")
        for old, new in [
            ("(count_P - 1)", "count_P"),
            (".masked_fill(least_P >= most_P, 0.0)", ""),
            ("math.comb(wrong - 1, k - 1)", "math.comb(wrong - 1, k)"),
            ("failed_P - others_P)", "-others_P)"),
            ("(failed_P * (1 - failed_P)).sqrt()", "failed_P"),
            ("centred_PG / torch.where(mean_P > 0, mean_P, 1.0)", "centred_PG"),
            ("(advantages_N - advantages_N.mean())", "advantages_N"),
        ]
    ),
    *(
        Mutation("objectives/policy.py", old, new, "objectives/test_surrogates.py")
        for old, new in [
            (
                "torch.where(advantages > 0, tau_positive, tau_negative)",
                "torch.where(advantages < 0, tau_positive, tau_negative)",
            ),
            ("4.0 / tau * torch", "4.0 * torch"),
            ("clamp(-clip_low, clip_high)", "clamp(-clip_high, clip_low)"),
            ("torch.where(advantages_N < 0, torch.maximum", "torch.where(advantages_N > 0, torch.maximum"),
            ("sequence_sum(kept_N, row_N, rows) / length_B", "sequence_sum(kept_N, row_N, rows)"),
        ]
    ),
    Mutation(
        "objectives/likelihood.py", "logprobs.detach().exp() *", "logprobs.exp() *", "objectives/test_likelihood.py"
    ),
    # likelihood
    Mutation("objectives/likelihood.py", "return -logprobs", "return logprobs", "objectives/test_likelihood.py"),
    # reduce
    *(
        Mutation("objectives/reduce.py", old, new, "objectives/test_reduce.py")
        for old, new in [
            ("return values_N.sum() / _positive(denominator)", "return values_N.mean() / _positive(denominator)"),
            ("return values_N.sum() / _positive(denominator)", "return values_N.mean()"),
            ("return values_N.sum() / _positive(denominator)", "return values_N.sum() * _positive(denominator)"),
            ("(values_N / length_N).sum() / _positive(denominator)", "(values_N / length_N).mean()"),
            ("(values_N / length_N).sum()", "values_N.sum()"),
            ("(values_N / length_N)", "(values_N * length_N)"),
            ("(values_N / length_N)", "(values_N / length_N.double())"),
            ("(values_N / length_N)", "(values_N / len(values_N))"),
            ("mask_BT.nonzero()[:, 0]", "mask_BT.nonzero()[:, 1]"),
            ("not denominator > 0", "denominator < 0"),
            ("not denominator > 0", "denominator <= 0"),
            ('    require_one_shape("sequence_mean"', '    dict(name="sequence_mean"'),
        ]
    ),
    *(
        Mutation("objectives/advantages.py", old, new, "objectives/test_advantages.py")
        for old, new in [
            ("[other == bucket for other in buckets]", "[True for other in buckets]"),
            ("0.0 if alone else", "members if alone else"),
            ("if len(buckets) != len(rewards_R):", "if False:"),
            ("(values_N - values_N.mean())", "values_N"),
            ("if values_N.numel() < 2 or", "if"),
        ]
    ),
    *(
        Mutation("objectives/policy.py", old, new, "objectives/test_policy.py")
        for old, new in [
            ("    if by_length:\n", "    if True:\n"),
            ("logprobs_N - old_N.detach(), row_N, rows", "old_N.detach() - logprobs_N, row_N, rows"),
            ("clipped_surrogate(log_ratio_N, nothing_N", "clipped_surrogate(log_ratio_N.detach(), nothing_N"),
            (
                "advantages_N=advantages_N, row_N=row_N)\n    rows",
                "advantages_N=advantages_N)\n    rows",
            ),
        ]
    ),
    *(
        Mutation("objectives/values.py", old, new, "objectives/test_values.py")
        for old, new in [
            ("values[n] += discounts[n] * values[n + 1]", "values[n] += values[n + 1]"),
            ("if rows[n] == rows[n + 1]:", "if True:"),
            ("range(len(values) - 2, -1, -1)", "range(len(values) - 1)"),
            ("torch.as_tensor(discount, dtype=torch.float64)", "torch.as_tensor(discount)"),
            ("last_N[:-1] = row_N[1:] != row_N[:-1]", "last_N[:-1] = False"),
            (".masked_fill(last_of_rows(row_N), 0.0)\n    return returns(rewards_N", "\n    return returns(rewards_N"),
            ("rewards_N + discount * ahead_N - values_N", "rewards_N + ahead_N - values_N"),
            ("rewards_N + discount * ahead_N - values_N", "rewards_N + discount * ahead_N"),
            ("discount=discount * lam)", "discount=lam)"),
            ("(1 - 1 / (alpha * row_N", "(1 - alpha / (row_N"),
            (".clamp(min=0.0)", ""),
            ("if not alpha > 0:", "if False:"),
            ("rewards_N, values_N.roll(-1)) - values_N", "rewards_N, values_N.roll(-1))"),
            ("discount=within_N.double())", "discount=1.0)"),
            (".clamp(-clip, clip)", ".clamp(max=clip)"),
            ("torch.maximum(free, held)", "torch.minimum(free, held)"),
            ("0.5 * torch.maximum(free, held)", "torch.maximum(free, held)"),
            ("old_values.detach(), returns.detach()", "old_values, returns"),
            ("((held > free) & beyond)", "(held > free)"),
            ("(returns - values).var(correction=0)", "values.var(correction=0)"),
            (" if spread > 1e-12 else 0.0", " if spread else 0.0"),
        ]
    ),
    *(
        Mutation("objectives/shaping.py", old, new, "objectives/test_shaping.py")
        for old, new in [
            ("lengths_PG.double() / longest * solved_P1", "lengths_PG.double() / longest"),
            ("lengths_PG.double() / longest * solved_P1", "lengths_PG.double() * solved_P1"),
            ("(rewards_PG > 0).double()", "(rewards_PG >= 0).double()"),
            (".clamp(min=1 / rewards_PG.shape[-1])", ""),
            (".mean(dim=-1, keepdim=True).clamp", ".mean().clamp"),
            ("    if longest < 1:\n", "    if False:\n"),
            ("return -((", "return (("),
            ("(longest - buffer)) / buffer", "longest) / buffer"),
            (".clamp(0.0, 1.0)", ".clamp(min=0.0)"),
            (".clamp(0.0, 1.0)", ".clamp(max=1.0)"),
            ("if not 1 <= buffer <= longest:", "if not 0 <= buffer <= longest:"),
        ]
    ),
    *(
        Mutation("objectives/pairwise.py", old, new, "objectives/test_pairwise.py")
        for old, new in [
            ("h_B = chosen_B - rejected_B", "h_B = rejected_B - chosen_B"),
            ("h_B = h_B - margin_B", "h_B = h_B + margin_B"),
            ("-(1 - label_smoothing) * logsigmoid(h_B)", "-logsigmoid(h_B)"),
            ("label_smoothing * logsigmoid(-h_B)", "label_smoothing * logsigmoid(h_B)"),
            ("if not 0 <= label_smoothing < 0.5:", "if not 0 <= label_smoothing <= 0.5:"),
            ("(one_B > other_B)", "(one_B >= other_B)"),
            ("0.5 * (one_B == other_B)", "0.0 * (one_B == other_B)"),
            ('    require_one_shape("wins", one_B=one_B, other_B=other_B)\n', ""),
            ("return beta * (logprob_B - reference_B)", "return logprob_B - reference_B"),
            ("return beta * (logprob_B - reference_B)", "return beta * (reference_B - logprob_B)"),
            ('    require_one_shape("implicit_reward", logprob_B=logprob_B, reference_B=reference_B)\n', ""),
            ('    require_one_shape("bradley_terry", chosen_B=chosen_B, rejected_B=rejected_B)\n', ""),
            ("(value_B - target).square()", "(value_B - target).abs()"),
            ("(value_B - target).square()", "(value_B + target).square()"),
            ("mean_logprob_B.clamp(max=-1e-7)", "mean_logprob_B"),
            ("torch.log(-torch.expm1(below_B))", "torch.log(1 - torch.exp(below_B))"),
            ("return below_B - torch.log", "return below_B + torch.log"),
            ("(good_B, point - reward_B, reward_B - point)", "(good_B, reward_B - point, point - reward_B)"),
            ("(good_B, good * loss_B, bad * loss_B)", "(good_B, bad * loss_B, good * loss_B)"),
            ('    require_one_shape("prospect", reward_B=reward_B, good_B=good_B)\n', ""),
        ]
    ),
    *(
        Mutation("objectives/reduce.py", old, new, "objectives/test_reduce.py")
        for old, new in [
            ("values_N.new_zeros(sequences)", "values_N.new_ones(sequences)"),
            (".index_add(0, row_N, values_N)", ".index_copy(0, row_N, values_N)"),
            ("return values_B.sum() / _positive(denominator)", "return values_B.mean()"),
        ]
    ),
]
