"""Faults of the training step: a gradient lost, doubled or clipped wrongly, a ratio against the wrong policy."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("training/policy.py", old, new, "training/test_policy.py training/test_actor_critic.py")
        for old, new in [
            ("prompt = branch.turns[0].context_ids", "prompt = branch.turns[-1].context_ids"),
            ("branch.sampled[len(prompt) :],", "(True,) * (len(branch.token_ids) - len(prompt)),"),
        ]
    ),
    *(
        Mutation("algorithms/inputs.py", old, new, tests)
        for tests, pairs in [
            (
                "training/test_inputs.py planning/test_plan.py",
                [
                    ('"greedy_R": torch.tensor(', '"greedy_R": 0 * torch.tensor('),
                    ("by_seat[row.seat] for", "next(iter(by_seat.values())) for"),
                    ("(replace(step, group=1),)", "(step,)"),
                ],
            ),
            (
                "training/test_inputs.py",
                [
                    ('str(group.task.metadata.get("kind", ""))', old)
                    for old in ('str(group.task.metadata.get("kind"))', 'group.task.metadata.get("kind", "")')
                ],
            ),
            (
                "training/test_inputs.py planning/test_plan.py",
                [
                    ("[state.values for state in states]", "[state.values[::-1] for state in states]"),
                    (
                        "for state in states for step in state.steps",
                        "for state in states[::-1] for step in state.steps",
                    ),
                    ("math.ceil(step.completion_tokens / max(1, self.step_tokens))", "self.most"),
                    ("step.sequences * (steps - 1)", "step.sequences * steps"),
                    ("prompt, completion = step.prompt_tokens + done,", "prompt, completion = step.prompt_tokens,"),
                    ("step.completion_tokens - done\n", "step.completion_tokens\n"),
                    ("return replace(step, group=self.samples), later", "return (later,)"),
                ],
            ),
            (
                "training/test_inputs.py planning/test_plan.py",
                [
                    (" if need.sampled == samples else {}", ""),
                    (" if groups else ()", ""),
                    ("found |= need.of", "found = need.of"),
                ],
            ),
        ]
        for old, new in pairs
    ),
    *(
        Mutation("training/host_sums.py", old, new, "training/test_host_sums.py")
        for old, new in [
            ("            if first:\n", "            if False:\n"),
            ("                add_(total, copy)", "                total.copy_(copy)"),
            ("start + number * size", "start"),
            ("            each.result()\n", "            pass\n"),
            (
                "            except BaseException:\n                self._free.put(buffer)\n                raise",
                "            except ZeroDivisionError:\n                raise",
            ),
            (
                "        finally:\n            self._free.put(buffer)\n\n    def _add",
                "        finally:\n            pass\n\n    def _add",
            ),
            ("        total.zero_()\n", "        pass\n"),
            ("part.reshape(-1).split(size)", "part.reshape(-1)[:size].split(size)"),
        ]
    ),
    *(
        Mutation("training/optimizer.py", old, new, "training/test_optimizer.py")
        for old, new in [
            ('"weight_decay": self._weight_decay}', '"weight_decay": 0.0}'),
            ("torch.autograd.graph.increment_version(mine)", "pass"),
            ('"weight_decay": 0.0}', '"weight_decay": self._weight_decay}'),
            ("return nn.Parameter(found if found.dtype in WIDE else found.float())", "return weight"),
            ("if weight.dtype in WIDE and (", "if False and ("),
            ("kept.copy_(part)", "kept.copy_(1.01 * part)"),
            ("            vars(self).pop(made, None)\n", "            pass\n"),
            ("            add_(kept, part)\n", "            kept.copy_(part)\n"),
            (
                "            add_(kept, part)\n",
                "            add_(kept, part.to_dense() if part.is_sparse else -part)\n",
            ),
            ("kept.zero_().add_(part)", "kept.add_(part)"),
            ("        weight.grad = None\n        first =", "        first ="),
            ("                handle.remove()\n", "                pass\n"),
            ("if master.grad is not None and master.grad.is_sparse:", "if False:"),
            ("if norm > self.max_grad_norm:", "if norm < self.max_grad_norm:"),
            ("master.grad *= self.max_grad_norm / norm", "master.grad *= self.max_grad_norm / norm**2"),
            (
                "master.grad *= self.max_grad_norm / norm",
                "master.grad.clamp_(-self.max_grad_norm, self.max_grad_norm)",
            ),
            ("if not math.isfinite(norm):", "if math.isnan(norm):"),
            ("if not math.isfinite(norm):", "if math.isinf(norm):"),
            ("            self.discard()\n            raise", "            raise"),
            ('group["lr"] = lr', 'group["lr"] = 0.1 * lr'),
            ("        self.discard()\n        self.publish()", "        self.publish()"),
            ("        self.discard()\n        self.publish()", "        self.discard()"),
            ("        HEAP.settle()\n        return norm\n", "        return min(norm, self.max_grad_norm)\n"),
            (
                "            master.copy_(self._shards.shard_like(tensors[name], master))\n        self.publish()",
                "            master.copy_(self._shards.shard_like(tensors[name], master))",
            ),
            ("if not named:", "if False:"),
            ("lr=0.0, betas=self._betas, eps=self._eps", "lr=0.0, eps=self._eps"),
            ("lr=0.0, betas=self._betas, eps=self._eps", "lr=0.0, betas=self._betas"),
        ]
    ),
    Mutation("training/optimizer.py", "if here != there:", "if False:", "training/test_resuming.py"),
    *(
        Mutation("training/schedule.py", old, new, "training/test_schedule.py")
        for old, new in [
            ("if warmup < steps or", "if warmup <= steps or"),
            ("in (None, self.steps) or not self.delay < done < self.steps", "in (None, self.steps)"),
            ("before in (None, self.steps) or", "before is None or"),
            ("self._of(before)(done - 1)", "self._of(before)(done)"),
            ("self._of(steps)(done)", "self._of(before)(done)"),
            ('        if self.decay == "constant":\n', "        if False:\n"),
            ("peak * (step + 1) / warmup", "peak * step / warmup"),
            ("if step < warmup:", "if step <= warmup:"),
            ("(step - warmup) / max(1, steps - warmup)", "step / max(1, steps)"),
            ("(step - warmup) / max(1, steps - warmup)", "(step - warmup + 1) / max(1, steps - warmup)"),
            ("progress: 1.0 - progress", "progress: 1.0"),
            ("0.5 * (1.0 + math.cos(math.pi * progress))", "math.cos(0.5 * math.pi * progress)"),
            ("progress: 1.0,", "progress: 0.5,"),
            ("if decay not in SCHEDULES:", "if False:"),
        ]
    ),
    *(
        Mutation("training/supervised.py", old, new, "training/test_supervised.py")
        for old, new in [
            ("weight * reduce.token_mean", "reduce.token_mean"),
        ]
    ),
    Mutation(
        "training/learner.py",
        "sum(sum(example.learned) for",
        "sum(len(example.learned) for",
        "training/test_supervised.py",
    ),
    *(
        Mutation("training/microbatch.py", old, new, tests)
        for old, new, tests in [
            ("                each.discard()\n", "                pass\n", "training/test_microbatch.py"),
            ("if not math.isfinite(value):", "if False:", "training/test_policy.py"),
            (
                "            stack.enter_context(each.collecting())\n",
                "            pass\n",
                "training/test_supervised.py",
            ),
            ("        total += value\n", "        total = value\n", "training/test_supervised.py"),
            ("{numbers}", "{[*losses]}", "training/test_policy.py"),
        ]
    ),
    *(
        Mutation("training/unpaired.py", old, new, "training/test_unpaired.py")
        for old, new in [
            ("others[number % len(others)]", "others[0]"),
            ("[*prompts[1:], prompts[0]]", "prompts"),
            ("    if len(prompts) < 2:\n        return []\n", ""),
            ("other.continuation[:room], other.learned[:room]", "other.continuation, other.learned"),
            ("longest = max(", "longest = min("),
            ("reference=anchor, divergence=divergence", "reference=anchor, divergence=0.0"),
        ]
    ),
    *(
        Mutation("training/unpaired.py", old, new, "training/test_pairwise.py training/test_unpaired.py")
        for old, new in [
            ("torch.ones_like(logprobs_N)", "logprobs_N"),
            ("sequence_sum(divergence_N, row_N, len(place))", "sequence_sum(logprobs_N, row_N, len(place))"),
            ("[place[number] for number in row.rows]", "[place[row.rows[0]] for _ in row.rows]"),
            ("{number: e for e, number", "{number: 0 for e, number"),
            ("(sequence_sum(x_N, row_N, len(place)) for", "(sequence_sum(x_N, row_N, len(place)) / 2 for"),
        ]
    ),
    *(
        Mutation("training/preference.py", old, new, "training/test_pairwise.py")
        for old, new in [
            ("token_divergence(states, model.head, given, head,", "token_divergence(states, head, given, head,"),
            ("_both(responses_of(anchor_N, row))", "_both(responses_of(policy_N, row))"),
            ("_both(responses_of(policy_N, row, divergence_N))", "_both(responses_of(policy_N, row, -divergence_N))"),
        ]
    ),
    Mutation(
        "training/learner.py",
        "            if numbers.numel():\n",
        "            if True:\n",
        "training/test_unpaired.py",
    ),
    *(
        Mutation("training/policy.py", old, new, "training/test_policy.py training/test_beside.py")
        for old, new in [
            ("not (algorithm.silent_at_zero and fast_paths", "not (fast_paths"),
            ("numbers_N.split(lengths)", "numbers_N.flip(0).split(lengths)"),
            ("Counts(rows, sum(lengths), longest)", "Counts(rows, len(lengths), longest)"),
            ("everything = models or not", "everything = not"),
        ]
    ),
    *(
        Mutation(
            "training/policy.py",
            old,
            new,
            "training/test_policy.py",
        )
        for old, new in [
            ("rewards_R[own_R] -= weight", "rewards_R[own_R] += weight"),
            ("    if not weight:\n", "    if True:\n"),
        ]
    ),
    Mutation(
        "training/policy.py",
        "rollout.kl_N().sum().item() / rows",
        "rollout.kl_N().mean().item()",
        "training/test_policy.py",
    ),
    *(
        Mutation("training/policy.py", old, new, "training/test_policy.py")
        for old, new in [
            ('"logprob_gap": gap_N.abs()', '"logprob_gap": gap_N'),
            (
                "Share(algorithm.reduce(loss_N, length_N, batch.counts)",
                "Share(algorithm.reduce(loss_N, length_N, batch.counts._replace(sequences=len(batch.examples)))",
            ),
            ('"product" if algorithm.sequence_ratio else "token"', '"token"'),
        ]
    ),
    *(
        Mutation("training/policy.py", old, new, "training/test_actor_critic.py")
        for old, new in [
            ("entropy_gradient=algorithm.needs_entropy", "entropy_gradient=False"),
        ]
    ),
    *(
        Mutation("algorithms/inputs.py", old, new, "training/test_actor_critic.py")
        for old, new in [
            ("critic.critic_loss(tokens.values_N", "critic.critic_loss(-tokens.values_N"),
        ]
    ),
    *(
        Mutation("training/local_learner.py", old, new, "training/test_resuming.py")
        for old, new in [
            ("                self._save_model(folder)\n", "                pass\n"),
            (
                "optimizer.load_masters(self._shards.load(folder / (prefix_of(part) + MASTERS), masters))\n",
                "pass\n",
            ),
            ("        restore_optimizer(optimizer.adam", "        print(optimizer.adam"),
            (
                "(prefix_of(part) + MASTERS), masters, writes=",
                "(prefix_of(part) + MASTERS), {n: m.bfloat16().float() for n, m in masters.items()}, writes=",
            ),
        ]
    ),
    *(
        Mutation("training/learner.py", old, new, "training/test_policy.py training/test_pairwise.py")
        for old, new in [
            ('f"{name}/max": values.max().item()', 'f"{name}/max": values.min().item()'),
            ('f"{name}/mean": values.mean().item()', 'f"{name}/mean": values.median().item()'),
            ("found[name] = values.mean().item()", "found[name] = values.sum().item()"),
        ]
    ),
    *(
        Mutation("training/preference.py", old, new, "training/test_pairwise.py")
        for old, new in [
            ("algorithm.loss(*policy, reference=anchor)", "algorithm.loss(*policy[::-1], reference=anchor)"),
            ("algorithm.loss(*policy, reference=anchor)", "algorithm.loss(*policy, reference=anchor[::-1])"),
            ('"logprob/rejected": rejected.logprob_B', '"logprob/rejected": chosen.logprob_B'),
            ('"length/rejected": rejected.length_B', '"length/rejected": chosen.length_B'),
        ]
    ),
    *(
        Mutation("training/preference.py", old, new, "training/test_cached_reference.py")
        for old, new in [
            ("enumerate(batches, 1)", "enumerate(batches)"),
        ]
    ),
    *(
        Mutation("training/preference.py", old, new, "training/test_pairing.py")
        for old, new in [
            ("if apart > 0 and apart >= margin:", "if apart >= margin:"),
            ("apart >= margin:", "apart > margin:"),
            ("(i, j) if rewards[i] > rewards[j] else (j, i)", "(i, j)"),
            ("max(places, key=lambda i: rewards[i])", "min(places, key=lambda i: rewards[i])"),
            ("Pair(examples[chosen], examples[rejected])", "Pair(examples[rejected], examples[chosen])"),
            ("(row.seat, tuple(example.prefix))", "(row.seat, ())"),
            ("(row.seat, tuple(example.prefix))", '("", tuple(example.prefix))'),
        ]
    ),
]
