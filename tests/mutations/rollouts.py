"""Faults of rollouts: a seed shared, a token encoded again, a cache read past its end, a failure that is swallowed."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("rollouts/engine.py", old, new, "rollouts/test_transformers.py rollouts/test_engine.py")
        for old, new in [
            ("if length >= context:", "if length > context:"),
            ("        if not length:\n", "        if False:\n"),
        ]
    ),
    *(
        Mutation("rollouts/weight_channel.py", old, new, "rollouts/test_weight_channel.py")
        for old, new in [
            (".contiguous()})", "})"),
            ("if not hmac.compare_digest(_read(connection, _KEY_BYTES), key):", "if False:"),
            ("            connection.sendall(_LENGTH.pack(0))\n", ""),
            ("    while len(parts) < length:\n", "    if len(parts) < length:\n"),
            ("        if not part:\n            raise", "        if not part:\n            break\n            raise"),
            ("except OSError as error:", "except TimeoutError as error:"),
            ("server.shutdown(socket.SHUT_RDWR)", "pass"),
        ]
    ),
    *(
        Mutation("rollouts/episodes.py", old, new, "rollouts/test_monte_carlo_values.py")
        for old, new in [
            ("context_ids = (*context_ids, *opening)", "context_ids = (*context_ids,)"),
            ("(*opening, *done.token_ids)", "(*done.token_ids,)"),
            ("() if self.turns else self._opening", "self._opening"),
            ("self._sampling.max_new_tokens - len(opening)", "self._sampling.max_new_tokens"),
            ("zip(tasks, seeds, openings, strict=True)", "zip(tasks, seeds, [()] * len(tasks), strict=True)"),
        ]
    ),
    *(
        Mutation("rollouts/monte_carlo_values.py", old, new, "rollouts/test_monte_carlo_values.py")
        for old, new in [
            ("sum(earned) / len(earned)", "sum(earned)"),
            ("sum(earned) / len(earned)", "max(earned)"),
            ('seed_for(seed, "continuation", n, k)', 'seed_for(seed, "continuation", n)'),
            ('seed_for(seed, "continuation", n, k)', 'seed_for(seed, "continuation", k)'),
            ("sum(start <= n for start in begins) - 1", "sum(start < n for start in begins)"),
            ("steps += [steps[-1]] * (len(trajectory.logprobs) - len(tokens))", "pass"),
            ("wanted[p, tokens[:start]]", "wanted[p, tokens[: begins[0]]]"),
            ("return starts[: states.most]", "return starts"),
            ("chat.decode(tokens[n - 1 : n])", "chat.decode(tokens[n : n + 1])"),
            ("    if states.step_tokens:\n", "    if False:\n"),
        ]
    ),
    *(
        Mutation("rollouts/episodes.py", old, new, "rollouts/test_episodes.py")
        for old, new in [
            ("len(self._waiting) < self.live:", "len(self._waiting) > self.live:"),
            ("or len(self._waiting) < self.live:", "or False:"),
            ("        self.live -= 1\n", "        pass\n"),
            (
                "                future.set_exception(error)\n            return\n",
                "                break\n            raise error\n",
            ),
            ("zip(waiting, completions, strict=True)", "zip(waiting, completions[::-1], strict=True)"),
            ("for request, _ in waiting], self.on_tokens)", "for request, _ in waiting])"),
            ("self.turns[-1].token_ids[-1] in self._chat.stop_ids", "True"),
            (
                "self._chat.followup_ids(self._history, messages, stopped=stopped)",
                "self._chat.prompt_ids([*self._history, *messages])",
            ),
            ("Request(so_far + context_ids, sampling", "Request(context_ids, sampling"),
            ('seed_for(self._seed, "turn", len(self.turns))', "self._seed"),
            ("[*messages, reply]", "[reply]"),
            ("(*opening, *done.token_ids)", "(*opening, *done.token_ids[:-2])"),
            (
                "Turn(tuple(context_ids), done.token_ids, done.logprobs",
                "Turn(tuple(context_ids), tuple(self._chat.tokenizer.encode(text)), done.logprobs",
            ),
            ("sampling, seed_for(seed, name), opening", "sampling, seed, opening"),
            ("        batcher.leave()  # one", "        # one"),
            ("stop_reason=turns[-1].stop_reason", "stop_reason=turns[0].stop_reason"),
            ("        if not turns:\n", "        if False:\n"),
            ("environment.total(part) for part in parts", "0.0 for part in parts"),
            ('seed_for(seed, "completion", p, g)', 'seed_for(seed, "completion", g)'),
            ('seed_for(seed, "completion", p, g)', 'seed_for(seed, "completion", p)'),
            ('seed_for(seed, "completion", p, g)', 'seed_for(seed, "completion", len(tasks), p, g)'),
            ("played[p * completions_per_prompt : (p + 1)", "played[p : (p + 1)"),
            (
                "        return asyncio.run(_awake(coroutine))\n    with",
                "        pass\n    return asyncio.run(_awake(coroutine))\n    with",
            ),
        ]
    ),
    *(
        Mutation("rollouts/measures.py", old, new, "rollouts/test_measures.py")
        for old, new in [
            ("pstdev(rewards)", "stdev(rewards)"),
            ("import fmean, pstdev", "import fmean, stdev as pstdev"),
            (">= SOLVED", "> 0"),
            ("score.unparsed for", "(score.value == 0) for"),
            ("lengths = [len(t.logprobs)", "lengths = [len(t.token_ids)"),
            ("is not StopReason.STOP", "is StopReason.LENGTH"),
            (
                "for turn in t.turns for i in turn.token_ids]",
                "for turn in t.turns for i in turn.context_ids + turn.token_ids]",
            ),
            ("1 - len(set(grams)) / len(grams)", "len(set(grams)) / len(grams)"),
            ("n: int = 4", "n: int = 3"),
            ('"tokens": sum(lengths)', '"tokens": len(lengths)'),
        ]
    ),
    *(
        Mutation("rollouts/sampling.py", old, new, "rollouts/test_sampling.py")
        for old, new in [
            ("logits = logits / temperature", "logits = logits * temperature"),
            ("torch.cat([d.tokens for d in drawn])", "torch.cat([d.tokens for d in reversed(drawn)])"),
            ("torch.cat([d.logprobs for d in drawn])", "torch.cat([d.logprobs for d in reversed(drawn)])"),
            ("uniform_B.split(rows), strict=True", "[uniform_B[:rows]] * len(uniform_B), strict=False"),
            ("right=True)", "right=False)"),
            ("- peak - total.log()", "- peak"),
            ("- peak - total.log()", "- peak + total.log()"),
            ("dropped[:, top_k:] = True", "dropped[:, top_k + 1 :] = True"),
            ("probs.cumsum(dim=1) - probs >= top_p", "probs.cumsum(dim=1) >= top_p"),
            ("probs.cumsum(dim=1) - probs >= top_p", "probs.cumsum(dim=1) - probs > top_p + 0.05"),
            ("scatter(1, order, dropped)", "scatter(1, order, ~dropped)"),
            ("if not torch.isfinite(total).all():", "if False:"),
            ("torch.nextafter(total, torch.zeros_like(total))", "2 * total"),
            ("(salt + np.uint64(1)) * _GAMMA", "np.uint64(1) * _GAMMA"),
            ("            x = x ^ (x >> np.uint64(31))\n", "            x = x & np.uint64(0xFFFFFFFF)\n"),
            ("tokens = logits.argmax(dim=1)", "tokens = logits.argmin(dim=1)"),
            ("- torch.logsumexp(logits, dim=1)", ""),
        ]
    ),
    *(
        Mutation("rollouts/kv_cache.py", old, new, "rollouts/test_transformers.py")
        for old, new in [
            ("new[:, :, both:] = 0", "pass"),
            ("new[:, :, :both] = old[:, :, :both]", "pass"),
            ("if length > self._room:", "if False:"),
            ("if not 0 <= self._room - longest < 2 * STEP:", "if not -2 <= self._room - longest < 2 * STEP:"),
            ("room = -(-longest // STEP) * STEP", "room = longest"),
            ("for kept in (self._keys, self._values):", "for kept in (self._keys,):"),
            ("part = slice(start, start + length)", "part = slice(0, length)"),
            ("kept[target, :, :length] = kept[source, :, :length]", "pass"),
            ("hidden = self._distance_BT < 0", "hidden = self._distance_BT < -1"),
            ("hidden = self._distance_BT < 0", "hidden = self._distance_BT <= 0"),
            ("weights_of(scores, bias,", "weights_of(scores, 0 * bias.nan_to_num(neginf=0.0),"),
            ("grouped = (query * scoring.scale)", "grouped = query"),
            ("longest = max(positions, default=-1) + 1", "longest = max(positions, default=-1)"),
        ]
    ),
    *(
        Mutation("rollouts/transformers.py", old, new, "rollouts/test_transformers.py rollouts/test_engine.py")
        for old, new in [
            ("if sequence.token_ids[-1] in self._stop_ids:", "if False:"),
            (">= sequence.request.sampling.max_new_tokens", "> sequence.request.sampling.max_new_tokens"),
            (
                "if sequence.length >= self._model.context else None",
                "if sequence.length > self._model.context else None",
            ),
            ("[len(s.token_ids) for s in sequences]", "[0 for s in sequences]"),
            ("[s.request.seed for s in sequences]", "[i for i, s in enumerate(sequences)]"),
            ("hidden[end - 1]", "hidden[end - 2]"),
            ("positions = [s.length - 1 for s in self._running]", "positions = [s.length for s in self._running]"),
            ("self._cache.move(len(self._running), slot, last.length - 1)", "pass"),
            ("temperature=settings.temperature", "temperature=1.0"),
            ("top_p=settings.top_p", "top_p=1.0"),
            ("            if on_tokens is not None:\n                on_tokens(sampled)\n", ""),
            ("setdefault((s.temperature, s.top_k, s.top_p), [])", "setdefault((s.top_k, s.top_p), [])"),
            (
                "            if not self._wanted[prompt_ids]:\n                del self._prompts[prompt_ids]\n",
                "            del self._prompts[prompt_ids]\n",
            ),
        ]
    ),
    *(
        Mutation("rollouts/sampler.py", old, new, "rollouts/test_sampler.py")
        for old, new in [
            ("[group for group in found if not group.lost]", "found"),
            ("if not whole and draw + drawn == 0:", "if False:"),
            ("if not whole and draw + drawn == 0:", "if not whole:"),
            ("len(sampled) - len(groups) - lost", "len(sampled) - len(groups)"),
            ("lost += len(found) - len(whole)", "pass"),
            ("if lost := [group for group in found if group.lost]:", "if lost := []:"),
        ]
    ),
    *(
        Mutation("rollouts/monte_carlo_values.py", old, new, "rollouts/test_sampler.py")
        for old, new in [
            ("if not math.isnan(reward)]", "]"),
            ("len(earned)", "states.samples"),
            ("if not earned:", "if False:"),
        ]
    ),
    *(
        Mutation("rollouts/measures.py", old, new, "rollouts/test_measures.py")
        for old, new in [
            ("for reward in group.rewards if not math.isnan(reward)]", "for reward in group.rewards]"),
            ("1 - len(rewards) / len(scores)", "len(rewards) / len(scores)"),
            ("if part[outcome].applicable]", "]"),
            ("if part[name].applicable]", "]"),
        ]
    ),
    Mutation("rollouts/signals.py", "if not group.lost]", "]", "rollouts/test_signals.py"),
    Mutation(
        "rollouts/episodes.py",
        "(*opening, *trajectory",
        "(*trajectory",
        "rollouts/test_episodes.py rollouts/test_monte_carlo_values.py",
    ),
    Mutation("rollouts/episodes.py", "len(turns[0].context_ids) :]", "0:]", "rollouts/test_episodes.py"),
    Mutation(
        "types.py",
        "any(map(math.isnan, self.rewards))",
        "all(map(math.isnan, self.rewards))",
        "rollouts/test_sampler.py",
    ),
]
