"""Faults of the training step: a gradient lost, doubled or clipped wrongly, a ratio against the wrong policy."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("training/optimizer.py", old, new, "training/test_optimizer.py")
        for old, new in [
            ('"weight_decay": weight_decay}', '"weight_decay": 0.0}'),
            ('"weight_decay": 0.0}', '"weight_decay": weight_decay}'),
            ("p if p.dtype in wide else nn.Parameter(p.detach().float())", "p"),
            ("p if p.dtype in wide else nn.Parameter(p.detach().float())", "nn.Parameter(p.detach().float())"),
            (
                "master.grad = weight.grad.to(master.dtype)",
                "master.grad = weight.grad.bfloat16().to(master.dtype) * 1.01",
            ),
            (
                "                add_(master.grad, weight.grad)\n",
                "                master.grad = weight.grad.to(master.dtype)\n",
            ),
            ("            weight.grad = None\n", "            pass\n"),
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
                "negative_log_likelihood(found.logprobs), tokens)",
                "negative_log_likelihood(found.logprobs), len(row.rows))",
            ),
            ("negative_log_likelihood(found.logprobs), tokens)", "found.logprobs, tokens)"),
            (
                "negative_log_likelihood(found.logprobs), tokens)",
                "negative_log_likelihood(found.logprobs), len(examples))",
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
            (
                "        loss.backward()\n        optimizer.collect()\n",
                "        loss.backward()\n",
                "training/test_policy.py",
            ),
            ("        total += value\n", "        total = value\n", "training/test_supervised.py"),
            ("model.logprobs(row, temperature)", "model.logprobs(row)", "training/test_policy.py"),
            ("{row.examples}", "{row.rows}", "training/test_policy.py"),
        ]
    ),
    *(
        Mutation("training/policy.py", old, new, "training/test_policy.py")
        for old, new in [
            ("prompt = trajectory.turns[0].context_ids", "prompt = trajectory.turns[-1].context_ids"),
            ("trajectory.sampled[len(prompt) :])", "(True,) * (len(trajectory.token_ids) - len(prompt)))"),
            ("algorithm.keep(rewards_PG[p])", "True"),
            ("algorithm.keep(rewards_PG[p])", "not algorithm.keep(rewards_PG[p])"),
            ("found.advantages_PG[p].tolist()", "rewards_PG[p].tolist()"),
            ("advantages=[a for _, a in trajectories]", "advantages=[-a for _, a in trajectories]"),
            ("sequences=sum(len(g.trajectories) for g in groups)", "sequences=len(trajectories)"),
            ("for g in groups for t in g.trajectories)", "for g in groups[:1] for t in g.trajectories)"),
            ("old.setdefault(row.examples[0], found.logprobs.detach())", "found.logprobs.detach()"),
            ("old.setdefault(row.examples[0], found.logprobs.detach())", "old.setdefault(0, found.logprobs.detach())"),
            (
                "batch.advantages[r] for r in row.rows",
                "batch.advantages[i % len(batch.advantages)] for i, r in enumerate(row.rows)",
            ),
            ("reference.logprobs(row, temperature) if", "reference.logprobs(row, 1.0) if"),
            ("reference.logprobs(row, temperature) if", "old_N if"),
            ("for number in row.examples for value", "for number in row.examples[::-1] for value"),
            (
                "(old_N - torch.tensor(sampler_N, device=old_N.device)).abs()",
                "(old_N - torch.tensor(sampler_N, device=old_N.device))",
            ),
            ("sequences=batch.sequences, tokens=batch.tokens)", "sequences=len(batch.examples), tokens=batch.tokens)"),
            ("microbatch_tokens=microbatch_tokens, temperature=temperature", "microbatch_tokens=microbatch_tokens"),
            ("norm = optimizer.step(lr) if batch.examples else 0.0", "norm = optimizer.step(lr)"),
            ("for _ in range(updates):", "for _ in range(1):"),
            ("        seen = _Seen()\n", "        seen = globals().setdefault('_all', _Seen())\n"),
            ('f"{name}/max": values.max().item()', 'f"{name}/max": values.min().item()'),
            ('f"{name}/mean": values.mean().item()', 'f"{name}/mean": values.median().item()'),
            ("found[name] = values.mean().item()", "found[name] = values.sum().item()"),
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
]
