"""Faults of the training step: a gradient lost, doubled or clipped wrongly, a ratio against the wrong policy."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("training/optimizer.py", old, new, "training/test_optimizer.py")
        for old, new in [
            ('"weight_decay": weight_decay}', '"weight_decay": 0.0}'),
            ("torch.autograd.graph.increment_version(weight)", "pass"),
            ('"weight_decay": 0.0}', '"weight_decay": weight_decay}'),
            ("p if p.dtype in wide else nn.Parameter(p.detach().float())", "p"),
            ("p if p.dtype in wide else nn.Parameter(p.detach().float())", "nn.Parameter(p.detach().float())"),
            ("kept.copy_(part)", "kept.copy_(1.01 * part)"),
            ("            add_(master.grad, part)\n", "            master.grad.copy_(part)\n"),
            (
                "            add_(master.grad, part)\n",
                "            add_(master.grad, part.to_dense() if part.is_sparse else -part)\n",
            ),
            ("kept.zero_().add_(part) if", "kept.add_(part) if"),
            ("        weight.grad = None\n        assert", "        assert"),
            ("                handle.remove()\n", "                pass\n"),
            ("if master.grad is not None and master.grad.is_sparse:", "if False:"),
            ("if norm > self._max_grad_norm:", "if norm < self._max_grad_norm:"),
            ("master.grad *= self._max_grad_norm / norm", "master.grad *= self._max_grad_norm / norm**2"),
            (
                "master.grad *= self._max_grad_norm / norm",
                "master.grad.clamp_(-self._max_grad_norm, self._max_grad_norm)",
            ),
            ("if not math.isfinite(norm):", "if math.isnan(norm):"),
            ("if not math.isfinite(norm):", "if math.isinf(norm):"),
            ("            self.discard()\n            raise", "            raise"),
            ('group["lr"] = lr', 'group["lr"] = 0.1 * lr'),
            ("        self.discard()\n        self.publish()", "        self.publish()"),
            ("        self.discard()\n        self.publish()", "        self.discard()"),
            ("        return norm\n", "        return min(norm, self._max_grad_norm)\n"),
            (
                "            master.copy_(tensors[name])\n        self.publish()",
                "            master.copy_(tensors[name])",
            ),
            ("if not named:", "if False:"),
            ("betas=betas, eps=eps", "eps=eps"),
            ("betas=betas, eps=eps", "betas=betas"),
        ]
    ),
    Mutation("training/optimizer.py", "if here != there:", "if False:", "training/test_state.py"),
    *(
        Mutation("training/schedule.py", old, new, "training/test_schedule.py")
        for old, new in [
            ("if warmup < steps or", "if warmup <= steps or"),
            ("peak * (step + 1) / warmup", "peak * step / warmup"),
            ("if step < warmup:", "if step <= warmup:"),
            ("(step - warmup) / max(1, steps - warmup)", "step / max(1, steps)"),
            ("(step - warmup) / max(1, steps - warmup)", "(step - warmup + 1) / max(1, steps - warmup)"),
            ("return 1.0 - progress", "return 1.0"),
            ("0.5 * (1.0 + math.cos(math.pi * progress))", "math.cos(0.5 * math.pi * progress)"),
            ("return 1.0\n", "return 0.5\n"),
            ("if decay not in SCHEDULES:", "if False:"),
        ]
    ),
    *(
        Mutation("training/supervised.py", old, new, "training/test_supervised.py")
        for old, new in [
            (
                "negative_log_likelihood(model.logprobs(row).logprobs), tokens)",
                "negative_log_likelihood(model.logprobs(row).logprobs), len(row.rows))",
            ),
            ("negative_log_likelihood(model.logprobs(row).logprobs), tokens)", "model.logprobs(row).logprobs, tokens)"),
            (
                "negative_log_likelihood(model.logprobs(row).logprobs), tokens)",
                "negative_log_likelihood(model.logprobs(row).logprobs), len(examples))",
            ),
            ("total = sum(-model", "total = sum(model"),
            ("sum(sum(example.learned) for", "sum(len(example.learned) for"),
            ("@torch.inference_mode()\n", ""),
        ]
    ),
    *(
        Mutation("training/microbatch.py", old, new, tests)
        for old, new, tests in [
            ("            optimizer.discard()\n", "", "training/test_policy.py"),
            ("if not math.isfinite(value):", "if False:", "training/test_policy.py"),
            ("    with optimizer.collecting():\n", "    if True:\n", "training/test_supervised.py"),
            ("microbatch_tokens, together=together)", "microbatch_tokens)", "training/test_pairwise.py"),
            ("        total += value\n", "        total = value\n", "training/test_supervised.py"),
            ("{row.examples}", "{row.rows}", "training/test_policy.py"),
        ]
    ),
    *(
        Mutation("training/unpaired.py", old, new, "training/test_unpaired.py")
        for old, new in [
            ("return max(0.0, fmean(ratios))", "return fmean(ratios)"),
            ("return max(0.0, fmean(ratios)) if ratios else 0.0", "return max(0.0, fmean(ratios))"),
            ("(policy - anchor).tolist()", "(anchor - policy).tolist()"),
            ("others[number % len(others)]", "others[0]"),
            ("[*prompts[1:], prompts[0]]", "prompts"),
            ("    if len(prompts) < 2:\n        return []\n", ""),
            ("other.continuation[:room], other.learned[:room]", "other.continuation, other.learned"),
            ("longest = max(", "longest = min("),
            ("batch[number].good for number", "batch[0].good for number"),
            ("reduce.pair_mean(found.loss_B, len(batch))", "found.loss_B.mean()"),
            ('"logprob/bad": policy.logprob_B[~good_E]', '"logprob/bad": policy.logprob_B[good_E]'),
            ('"length/good": policy.length_B[good_E]', '"length/good": policy.length_B'),
            ("@torch.inference_mode()\n", ""),
            ("reference=anchor, divergence=divergence", "reference=anchor, divergence=0.0"),
        ]
    ),
    *(
        Mutation("training/responses.py", old, new, "training/test_pairwise.py training/test_unpaired.py")
        for old, new in [
            ("torch.ones_like(logprobs_N)", "logprobs_N"),
            ("sequence_sum(divergence_N, row_N, len(place))", "sequence_sum(logprobs_N, row_N, len(place))"),
            ("[place[number] for number in row.rows]", "[place[row.rows[0]] for _ in row.rows]"),
            ("{number: e for e, number", "{number: 0 for e, number"),
            ("(sequence_sum(x_N, row_N, len(place)) for", "(sequence_sum(x_N, row_N, len(place)) / 2 for"),
        ]
    ),
    *(
        Mutation("training/pairwise.py", old, new, "training/test_pairwise.py")
        for old, new in [
            ("token_divergence(states, model.head, *given)", "token_divergence(states, given.head, *given)"),
            ("_both(responses_of(anchor_N, row))", "_both(responses_of(policy_N, row))"),
            ("_both(responses_of(policy_N, row, divergence_N))", "_both(responses_of(policy_N, row, -divergence_N))"),
            ("given.states, given.head, targets", "states.detach(), given.head, targets"),
        ]
    ),
    Mutation(
        "training/means.py", "            if numbers.numel():\n", "            if True:\n", "training/test_unpaired.py"
    ),
    *(
        Mutation("training/policy.py", old, new, "training/test_policy.py")
        for old, new in [
            ("prompt = trajectory.turns[0].context_ids", "prompt = trajectory.turns[-1].context_ids"),
            ("trajectory.sampled[len(prompt) :])", "(True,) * (len(trajectory.token_ids) - len(prompt)))"),
            ("everything or any(any(advantages[number]) for number in group)", "True"),
            ("everything or any(any(advantages[number]) for number in group)", "not any(advantages[group[0]])"),
            ("not (algorithm.silent_at_zero and fast_paths", "not (fast_paths"),
            ("found.advantages_N.split(lengths.tolist())", "found.advantages_N.flip(0).split(lengths.tolist())"),
            (
                "Counts(len(trajectories), int(lengths.sum()), longest)",
                "Counts(len(kept), int(lengths.sum()), longest)",
            ),
            ("Counts(len(trajectories), int(lengths.sum()), longest)", "Counts(len(trajectories), len(kept), longest)"),
            ("[advantages[number] for number in kept]", "advantages"),
            ("if reference is not None and algorithm.needs_reference:", "if reference is not None:"),
            ("for number, part in zip(row.examples, parts, strict=True)", "for number, part in enumerate(parts)"),
            ("old.setdefault(row.examples[0], found.logprobs.detach())", "found.logprobs.detach()"),
            ("old.setdefault(row.examples[0], found.logprobs.detach())", "old.setdefault(0, found.logprobs.detach())"),
            ("_of_row(batch.advantages, row, old_N)", "_of_row(batch.advantages, row, old_N).flip(0)"),
            ("parts = reference.logprobs(row, temperature)", "parts = reference.logprobs(row, 1.0)"),
            ("None if behind is None else _of_row(behind, row, old_N)", "None if behind is None else old_N"),
            ("for number in row.examples for value", "for number in row.examples[::-1] for value"),
            (
                "(old_N - _of_row(batch.sampler_logprobs, row, old_N)).abs()",
                "old_N - _of_row(batch.sampler_logprobs, row, old_N)",
            ),
            ("values, dtype=torch.float64).to(like)", "values).to(like)"),
            (
                "algorithm.reduce(loss_N, row_N, batch.counts)",
                "algorithm.reduce(loss_N, row_N, Counts(len(batch.examples), batch.counts.tokens))",
            ),
            ("model.logprobs(row, temperature)", "model.logprobs(row)"),
            ("for _ in range(updates):", "for _ in range(1):"),
            ('extremes=("ratio", "logprob_gap")', 'extremes=("ratio",)'),
            ("{**per_token, ", "{"),
        ]
    ),
    *(
        Mutation("training/state.py", old, new, "training/test_state.py")
        for old, new in [
            ("    optimizer.load_masters(load_tensors(folder / MASTERS))\n", ""),
            ("    restore_optimizer(optimizer.adam", "    print(optimizer.adam"),
            ("        save_policy(folder)\n", ""),
            (
                "save_tensors(folder / MASTERS, masters)",
                "save_tensors(folder / MASTERS, {n: m.bfloat16().float() for n, m in masters.items()})",
            ),
            ("    if found is None:\n", "    if False:\n"),
            ("for line in found.skipped)", "for line in ())"),
        ]
    ),
    *(
        Mutation("training/means.py", old, new, "training/test_policy.py training/test_pairwise.py")
        for old, new in [
            ('f"{name}/max": values.max().item()', 'f"{name}/max": values.min().item()'),
            ('f"{name}/mean": values.mean().item()', 'f"{name}/mean": values.median().item()'),
            ("found[name] = values.mean().item()", "found[name] = values.sum().item()"),
        ]
    ),
    *(
        Mutation("training/pairwise.py", old, new, "training/test_pairwise.py")
        for old, new in [
            ("reference.logprobs(row, 1.0)", "model.logprobs(row).logprobs"),
            ("algorithm.loss(*policy, reference=anchor)", "algorithm.loss(*policy[::-1], reference=anchor)"),
            ("algorithm.loss(*policy, reference=anchor)", "algorithm.loss(*policy, reference=anchor[::-1])"),
            ("model.scores(row).view(-1, 2).unbind(1)", "model.scores(row).view(2, -1).unbind(0)"),
            ("model.scores(row).view(-1, 2).unbind(1)", "model.scores(row).view(-1, 2).flip(1).unbind(1)"),
            ("(chosen_B > rejected_B)", "(chosen_B < rejected_B)"),
            ("label_smoothing=label_smoothing), metrics)", "label_smoothing=0.0), metrics)"),
            ("reduce.pair_mean(found.loss_B, len(pairs))", "found.loss_B.mean()"),
            ('"logprob/rejected": rejected.logprob_B', '"logprob/rejected": chosen.logprob_B'),
            ('"length/rejected": rejected.length_B', '"length/rejected": chosen.length_B'),
            ("@torch.inference_mode()\n", ""),
        ]
    ),
]
