"""Faults of rollouts: a seed shared, a token encoded again, a cache read past its end, a failure that is swallowed."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("rollouts/engine.py", old, new, "rollouts/test_transformers.py rollouts/test_engine.py")
        for old, new in [
            ("if length >= context:", "if length > context:"),
            ("    if not length:\n", "    if False:\n"),
        ]
    ),
    *(
        Mutation("rollouts/weight_channel.py", old, new, "rollouts/test_weight_channel.py")
        for old, new in [
            ("detach().cpu().contiguous()", "detach().cpu().T"),
            ("zlib.crc32(data, zlib.crc32(about))), about", "zlib.crc32(data)), about"),
            ("if not hmac.compare_digest(_read(connection, _KEY_BYTES), key):", "if False:"),
            ("        connection.sendall(_HEADER.pack(0, 0, 0))\n", ""),
            ("if zlib.crc32(_bytes_of(data), zlib.crc32(about)) != checksum:", "if False:"),
            ("if about_bytes > _MOST:", "if False:"),
            ("except (ValueError, TypeError, KeyError, RuntimeError)", "except ValueError"),
            ("                if header != _WAITING:\n", "                if True:\n"),
            ("self._over or len(self._here) > number, ALIVE_S)", "self._over or len(self._here) > number)"),
            ("    while done < len(data):\n", "    if done < len(data):\n"),
            (
                "            self._here.append((name, weight))\n            self._changed.notify_all()",
                "            self._here.append((name, weight))",
            ),
            ("            self._over = True\n", ""),
            ("            self._whole = True\n", ""),
            ("        if not self._whole:\n", "        if False:\n"),
            ("        if not part:\n            raise", "        if not part:\n            break\n            raise"),
            ("except OSError as error:", "except TimeoutError as error:"),
            ("server.shutdown(socket.SHUT_RDWR)", "pass"),
        ]
    ),
    *(
        Mutation("rollouts/policy_seat.py", old, new, "rollouts/test_monte_carlo_values.py")
        for old, new in [
            ("context_ids = (*context_ids, *opening)", "context_ids = (*context_ids,)"),
            ("(*opening, *done.token_ids)", "(*done.token_ids,)"),
            ("() if self.turns else self._opening", "self._opening"),
            ("self._sampling.max_new_tokens - len(opening)", "self._sampling.max_new_tokens"),
        ]
    ),
    *(
        Mutation("rollouts/episodes.py", old, new, "rollouts/test_monte_carlo_values.py")
        for old, new in [
            ("seeds[number], openings[number])", "seeds[number], ())"),
            ("(*self.opening, *_after_prompt", "(*(), *_after_prompt"),
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
            ("steps += [steps[-1]] * (len(row.trajectory.logprobs) - len(tokens))", "pass"),
            ("wanted[p, tokens[:start]]", "wanted[p, tokens[: begins[0]]]"),
            ("return starts[: states.most]", "return starts"),
            ("chat.decode(tokens[n - 1 : n])", "chat.decode(tokens[n : n + 1])"),
            ("    if states.step_tokens:\n", "    if False:\n"),
        ]
    ),
    *(
        Mutation("rollouts/episodes.py", old, new, "rollouts/test_episodes.py")
        for old, new in [
            ("number, seeds[number], openings", "number, seeds[0], openings"),
            ("seed, players = seed_for(self.seed, name)", "seed, players = self.seed"),
            ("            asks.leave()\n", "            pass\n"),
            ("    asks.enter(len(tasks))\n", ""),
            ("        if not turns:\n", "        if False:\n"),
            ("reward=environment.reward.total(own)", "reward=0.0"),
            ('seed_for(seed, "completion", p, g)', 'seed_for(seed, "completion", g)'),
            ('seed_for(seed, "completion", p, g)', 'seed_for(seed, "completion", p)'),
            ('seed_for(seed, "completion", p, g)', 'seed_for(seed, "completion", len(tasks), p, g)'),
            ("found[p * completions_per_prompt : (p + 1)", "found[p : (p + 1)"),
            ("self.view += [*messages, reply.message]", "self.view += [reply.message]"),
            ("        self.stop_reason = reply.stop_reason\n", ""),
            ("        if number and not turn.restarts:\n", "        if not turn.restarts:\n"),
        ]
    ),
    *(
        Mutation("rollouts/metrics.py", old, new, "rollouts/test_metrics.py")
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
            ("        dropped[:, 0] = False", "        pass"),
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
            ("room = rounded(longest)", "room = longest"),
            (
                "room = rounded(longest)\n        for kept in (self._keys, self._values):",
                "room = rounded(longest)\n        for kept in (self._keys,):",
            ),
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
            ("if sequence.token_ids[-1] in sequence.stop_ids:", "if False:"),
            (">= sequence.request.sampling.max_new_tokens", "> sequence.request.sampling.max_new_tokens"),
            (
                "if sequence.length >= self._model.context else None",
                "if sequence.length > self._model.context else None",
            ),
            ("[len(s.token_ids) for s in some]", "[0 for s in some]"),
            ("[s.request.seed for s in some]", "[i for i, s in enumerate(some)]"),
            ("hidden[last - 1]", "hidden[last - 2]"),
            ("_Prompt(plan, end - len(prompt[0]),", "_Prompt(plan, 0,"),
            ("positions = [s.length - 1 for s in self._running]", "positions = [s.length for s in self._running]"),
            ("self._cache.move(len(self._running), slot, last.length - 1)", "pass"),
            ("temperature=temperature, top_k", "temperature=1.0, top_k"),
            ("top_p=top_p)", "top_p=1.0)"),
            ("top_k=top_k,", "top_k=0,"),
            ("        if self._on_tokens is not None:\n            self._on_tokens(sampled)\n", ""),
            ("        if not self._wanted[prompt]:\n", "        if True:\n"),
            (
                "return sampling.temperature, sampling.top_k, sampling.top_p",
                "return 1.0, sampling.top_k, sampling.top_p",
            ),
            ("if len(by_settings) == 1 else logits[self._tensor(places)]", "if True else logits"),
        ]
    ),
    *(
        Mutation("rollouts/transformers.py", old, new, "rollouts/test_mixed_adapters.py")
        for old, new in [
            ("return self.request.token_ids, self.adapter", "return self.request.token_ids, None"),
            ("if sequence.token_ids[-1] in sequence.stop_ids:", "if sequence.token_ids[-1] in self._stop_ids:"),
            ("self._stop_ids if stop_ids is None else stop_ids", "stop_ids or self._stop_ids"),
            ("[s.adapter for s in self._running]", "[s.adapter for s in reversed(self._running)]"),
            ("[s.adapter for s in self._running]", "[self._running[0].adapter] * count"),
            ("self._model.placed(adapters, new)", "self._model.placed(adapters[::-1], new)"),
            ("self._model.placed(adapters, new)", "self._model.placed([adapters[0]] * len(new), new)"),
            ("self._model.placed(adapters, new)", "self._model.placed(adapters, [len(p) for p in texts])"),
            ("known * self._token_bytes, sequence.adapter)", "known * self._token_bytes)"),
            ("self._prefixes.longest(*prompt)", "self._prefixes.longest(prompt[0])"),
        ]
    ),
    *(
        Mutation("rollouts/prefix_cache.py", old, new, "rollouts/test_prefix_cache.py")
        for old, new in [
            ("entry.adapter is adapter and ", ""),
            ("entry.adapter is adapter", "entry.adapter == adapter"),
            ("_Entry(token_ids, stored, size, adapter)", "_Entry(token_ids, stored, size, None)"),
            ("known = self._find(token_ids, adapter)", "known = self._find(token_ids, None)"),
        ]
    ),
    *(
        Mutation("rollouts/sampler.py", old, new, "rollouts/test_sampler.py")
        for old, new in [
            ("[group for group in found if not group.lost]", "found"),
            ("if found and not whole and draws[-1] == 0:", "if False:"),
            ("if found and not whole and draws[-1] == 0:", "if found and not whole:"),
            ("len(sampled) - len(kept) - lost", "len(sampled) - len(kept)"),
            ("len(sampled) - len(kept) - lost", "len(sampled) - len(groups) - lost"),
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
        Mutation("rollouts/metrics.py", old, new, "rollouts/test_metrics.py")
        for old, new in [
            ("for row in rows if not math.isnan(row.reward)]", "for row in rows]"),
            ("1 - len(rewards) / len(scores)", "len(rewards) / len(scores)"),
            ("if part[outcome].applicable]", "]"),
            ("if part[name].applicable]", "]"),
        ]
    ),
    Mutation("rollouts/hacking_signals.py", "if not group.lost]", "]", "rollouts/test_hacking_signals.py"),
    *(
        Mutation("rollouts/two_replies.py", old, new, "rollouts/test_two_replies.py")
        for old, new in [
            ("(self.talkers[0], self.talkers[-1])", "(self.talkers[0], self.talkers[0])"),
            ("range(TRIES)", "range(1)"),
            ("(turn and _stands(replies)):", "False:"),
            ("bool(said.strip()) and all", "all"),
            ("and all(said != text for text, _, _ in before)", ""),
            ("not replies[draw][0].strip():", "False:"),
            ("str(done.stop_reason)", "'stop'"),
            ("except TemplateError as problem:", "except KeyError as problem:"),
            ("            if room < 1:\n", "            if room < 0:\n"),
            ("min(room, self.sampling.max_new_tokens)", "self.sampling.max_new_tokens"),
            ("seed_for(number, draw, turn)", "seed_for(number, 0, turn)"),
            ("seed_for(number, draw, turn)", "seed_for(number, draw, 0)"),
            ('.replace("\\0", "\\N{REPLACEMENT CHARACTER}")', ""),
            ("replies[draw:] = [", "replies[draw:draw] = ["),
        ]
    ),
    *(
        Mutation("rollouts/prompt_filter.py", old, new, "rollouts/test_prompt_filter.py")
        for old, new in [
            ("context - 1 if max_prompt_tokens is None", "context if max_prompt_tokens is None"),
            ("min(context - 1, max_prompt_tokens)", "max_prompt_tokens"),
            (")) <= most:", ")) < most:"),
            ("elif max_prompt_tokens is None:", "elif False:"),
            ("if not kept:", "if False:"),
        ]
    ),
    Mutation(
        "rollouts/kv_cache.py",
        "weights_of(scores, bias, scoring.cap, sinks)",
        "weights_of(scores, bias, None, sinks)",
        "models/test_families.py",
    ),
    Mutation(
        "rollouts/kv_cache.py",
        "weights_of(scores, bias, scoring.cap, sinks)",
        "weights_of(scores, bias, scoring.cap, None)",
        "models/test_families.py",
    ),
]
