"""Faults of reward models: what they learn by, how they are judged, and what their scores mean afterwards."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("objectives/debias.py", old, new, "objectives/test_debias.py")
        for old, new in [
            ("(chosen_B + rejected_B).square()", "(chosen_B - rejected_B).square()"),
            ("(chosen_B + rejected_B).square()", "(chosen_B + rejected_B.detach()).square()"),
            ("first_E - first_E.mean()", "first_E"),
            ("second_E - second_E.mean()", "second_E"),
            ("spread.sqrt()", "spread"),
            ("    if spread == 0:\n", "    if False:\n"),
            ("(quality_E, tokens_E).abs() - ", "(quality_E, tokens_E) - "),
            ("(quality_E, tokens_E).abs() - ", "(quality_E, tokens_E).abs() + "),
            ("(first_D * second_D).sum().abs()", "(first_D * second_D).abs().sum()"),
            ("(first_D * second_D).sum().abs() /", "(first_D * second_D).sum() /"),
            (" / (first_D.square().sum() * second_D.square().sum()).sqrt()", ""),
        ]
    ),
    *(
        Mutation("training/reward.py", old, new, "training/test_reward.py")
        for old, new in [
            ("(quality_E + length_E)[:, None], pairs", "quality_E[:, None], pairs"),
            ("torch.autograd.grad(ranked + loss.length * apart,", "torch.autograd.grad(ranked + apart,"),
            ("loss.margin * pairs.strength_B", "loss.margin + 0 * pairs.strength_B"),
            ("label_smoothing=loss.label_smoothing", "label_smoothing=0.0"),
            ("cost_BH + loss.center_rewards * centring(", "cost_BH + centring("),
            ("(cost_BH * pairs.weight_BH).mean(1)", "(cost_BH * pairs.weight_BH).sum(1)"),
            ("(cost_BH * pairs.weight_BH).mean(1)", "cost_BH.mean(1)"),
            ("strength, 1 / len(unit.pairs), unit.bag", "strength, 1.0, unit.bag"),
            ("strength, 1 / len(unit.pairs), unit.bag", "strength, 1 / len(unit.pairs), ()"),
            ("place[start + chosen], place[start + rejected]", "place[start + rejected], place[start + chosen]"),
            (
                "scores_EH.mean(1)[pairs.chosen_B], scores_EH.mean(1)",
                "scores_EH[:, 0][pairs.chosen_B], scores_EH.mean(1)",
            ),
        ]
    ),
    *(
        Mutation("rollouts/scorer.py", old, new, "training/test_reward.py")
        for old, new in [
            (
                "{i: tuple(scores) for i, scores in zip(row.examples,",
                "{i: tuple(scores) for i, scores in zip(range(99),",
            ),
        ]
    ),
    *(
        Mutation("models/heads.py", old, new, "models/test_heads.py")
        for old, new in [
            ("self.head) - torch.tensor(self.zeros,", "self.head) + torch.tensor(self.zeros,"),
            ("(*self.zeros, 0.0)", "(*self.zeros, 1.0)"),
            ('[("length_head", self.length_head)]', "[]"),
            ("(old + new) / temperature", "(old + new)"),
            ("(old + new) / temperature", "new / temperature"),
            ("self.head.detach().float() / temperature", "self.head.detach().float()"),
            ("_draw(row, seed + 1)", "_draw(row, seed)"),
            ("            config.num_labels = members or 1\n", "            config.num_labels = 1\n"),
            ("str(label).startswith(MEMBER)", "str(label)"),
            ("if members not in (0, config.num_labels):", "if False:"),
            ("weights = self.body.whole()", "weights = network.state_dict()"),
            ("lora.add_adapter(body, adapter, seed=seed, whole=ROWS)", "lora.add_adapter(body, adapter, whole=ROWS)"),
            ("lora.add_adapter(body, adapter, seed=seed, whole=ROWS)", "lora.add_adapter(body, adapter, seed=seed)"),
        ]
    ),
    Mutation("recipes/reward_model.py", "        adapter=lora_of(config),\n", "", "recipes/test_reward_model.py"),
    Mutation("models/heads.py", "        elif trained:\n", "        elif False:\n", "recipes/test_reward_model.py"),
    *(
        Mutation("evaluation/pairs.py", old, new, "evaluation/test_pairs.py")
        for old, new in [
            ("fmean(self.chosen) - fmean(self.rejected)", "max(self.chosen) - max(self.rejected)"),
            ("return pstdev(a - b for", "return pstdev(a + b for"),
            ("(self.margin > 0) + 0.5 * (self.margin == 0)", "float(self.margin >= 0)"),
            (" if len(names) > 1 else {}", ""),
            ("_softplus(-pair.margin / temperature)", "_softplus(pair.margin / temperature)"),
            ("_softplus(-pair.margin / temperature)", "_softplus(-pair.margin)"),
            ("min(BINS - 1, int(", "max(0, int("),
            ("_sure(pair, temperature) - 0.5) * 2 * BINS", "_sure(pair, temperature) - 0.5) * BINS"),
            ("fmean(p.right for p in one)", "one[0].right"),
            ("b.pairs * abs(b.right - b.confidence)", "b.pairs * (b.right - b.confidence)"),
            ("_sigmoid(-pair.margin * math.exp(middle))", "_sigmoid(-pair.margin)"),
            ("doubt = 1 / (len(pairs) + 2)", "doubt = 0.0"),
            ("doubt = 1 / (len(pairs) + 2)", "doubt = 0.1"),
            ("if slope < 0 else (low, middle)", "if slope > 0 else (low, middle)"),
            ("return math.exp(-(low + high) / 2)", "return math.exp((low + high) / 2)"),
            ("map(fit_temperature, halves[::-1])", "map(fit_temperature, halves)"),
            ("    if not all(halves):\n", "    if False:\n"),
            ("sum(m * m for m in margins)", "len(margins)"),
            ("/ spread if spread else None", "/ spread if spread else 0.0"),
            ("if p.chosen_tokens > p.rejected_tokens", "if p.chosen_tokens >= p.rejected_tokens"),
            ("bisect_left(right, w) + bisect_right(right, w)", "2 * bisect_right(right, w)"),
            ("found.setdefault(pair.prompt, [])", "found.setdefault(len(found), [])"),
            ("for outcome in (0.0, 1.0))", "for outcome in (1.0, 0.0))"),
            ("abs(pair.margin) / temperature", "pair.margin / temperature"),
            ("max(x, 0.0) + math.log1p(math.exp(-abs(x)))", "math.log1p(math.exp(x))"),
        ]
    ),
    *(
        Mutation("evaluation/pairs.py", old, new, "recipes/test_reward_model.py")
        for old, new in [
            ("said[better], said[worse]", "said[worse], said[better]"),
            ("chosen_tokens, rejected_tokens, prompt=number", "prompt=number"),
        ]
    ),
    *(
        Mutation("data/preferences.py", old, new, "data/test_preferences.py")
        for old, new in [
            ('for field in ("strength", "margin") if', 'for field in ("strength",) if'),
            ("isinstance(value, bool) or not isinstance(value, int | float) or not 0", "not 0"),
            ("not 0 <= value < math.inf", "not value < math.inf"),
            (
                "(said.index(chosen), said.index(rejected), strength)",
                "(0, said.index(rejected), strength)",
            ),
            ("(one.prompt, one.opening, one.partial))", "one.prompt)"),
            ('for field in ("subset", "category") if', 'for field in ("category", "subset", "id") if'),
        ]
    ),
    *(
        Mutation("recipes/reward_model.py", old, new, "recipes/test_reward_model.py")
        for old, new in [
            ("        pairs = replace(pairs, learned=_in_bags(", "        replace(pairs, learned=_in_bags("),
            ("members=config.ensemble if config.ensemble > 1 else 0", "members=config.ensemble"),
            ("_calibration(scored) if config.calibrate else None", "_calibration(scored)"),
            ("tuple(fmean(scores) for scores in members)", "tuple(0.0 for scores in members)"),
            ("    if config.length_debias and config.ensemble > 1:\n", "    if False:\n"),
            ("        if model.members > 1:\n            raise", "        if False:\n            raise"),
            ("if len(strengths) > 1 and not config.margin:", "if len(strengths) > 1:"),
            ("if config.margin and len(strengths) == 1:", "if config.margin:"),
            ("RewardLoss(config.label_smoothing, config.margin, ", "RewardLoss(config.label_smoothing, 0.0, "),
            ('seed_for(seed, "bag", number)', "None"),
        ]
    ),
    *(
        Mutation("recipes/evaluate_reward/__init__.py", old, new, "recipes/test_reward_model.py")
        for old, new in [
            ("if one.prompt not in met", "if one.prompt in met"),
            ("sum(length > most for", "sum(length > config.max_tokens for"),
            ("replace(pair, category=one.category)", "pair"),
            ("                scorer = _load(config, saved)\n", "                pass\n"),
            (
                "completion=preference.opening + preference.responses[1].text",
                "completion=preference.opening + preference.responses[0].text",
            ),
            ('"rejected": fmean(scored.rejected)', '"rejected": fmean(scored.chosen)'),
            ("    if not rankings:\n", "    if False:\n"),
        ]
    ),
    Mutation(
        "recipes/evaluate_reward/result.py",
        "fmean(after) - fmean(before)",
        "fmean(before) - fmean(after)",
        "recipes/test_reward_model.py",
    ),
    Mutation(
        "data/packing.py",
        "return len(example.prefix) + len(example.continuation)",
        "return len(example.continuation)",
        "recipes/test_pairs.py",
    ),
    *(
        Mutation("rewards/learned.py", old, new, "rewards/test_learned.py")
        for old, new in [
            ("min(scores),", "max(scores),"),
            ("- penalty * pvariance(scores)", "- pvariance(scores)"),
            ("- penalty * pvariance(scores)", "+ penalty * pvariance(scores)"),
            ("COMBINATIONS[self.use](scores, self.penalty)", 'COMBINATIONS["mean"](scores, self.penalty)'),
            ("pvariance(scores) ** 0.5", "pvariance(scores)"),
            ("if self._last[0] != asked:", "if True:"),
            ("if self._last[0] != asked:", "if not self._last[0]:"),
            ("        with self._lock:\n", "        if True:\n"),
            ("len(found) != len(episodes) or not", "not"),
            (" or not all(len(scores) for scores in found)", ""),
            ("if not 0 <= self.penalty < math.inf:", "if False:"),
        ]
    ),
    *(
        Mutation("rewards/combine.py", old, new, "rewards/test_learned.py")
        for old, new in [
            ('math.inf if getattr(reward, "patient", False) else self.timeout_s', "self.timeout_s"),
        ]
    ),
    *(
        Mutation("rollouts/hacking_signals.py", old, new, "rollouts/test_hacking_signals.py")
        for old, new in [
            ("text[:BEGINNING]", "text"),
            ('.replace("\\u2019", "\'")', ""),
            (
                "zip(turn.token_ids, turn.token_ids[1:], strict=False)",
                "zip(turn.token_ids, turn.token_ids, strict=False)",
            ),
            ("reward - fmean(earned)", "reward"),
            ("count - fmean(tokens)", "count"),
            ("if spread > 1e-9 else None", "if spread > 1e-9 else 0.0"),
            ("re.MULTILINE", "0"),
            ("    re.IGNORECASE,\n", ""),
        ]
    ),
    *(
        Mutation("rollouts/metrics.py", old, new, "rollouts/test_metrics.py")
        for old, new in [("(_solved(scores, outcome) if outcome else {})", "_solved(scores, outcome or 'learned')")]
    ),
    *(
        Mutation("report/overoptimization.py", old, new, "report/test_overoptimization.py")
        for old, new in [
            ("even = tenths(points)", "even = points"),
            ("min(PARTS - 1, int(PARTS * point.distance / far)) if far else 0", "min(PARTS - 1, int(point.distance))"),
            ("for point in sorted(points):", "for point in points:"),
            ("Point(*map(fmean, zip(*part,", "Point(*map(max, zip(*part,"),
            ('self.beta * (math.log(d) if self.form == "rl" else d)', "self.beta * d"),
            ("self.alpha / self.beta - 1", "self.alpha / self.beta"),
            ("self.alpha / (2 * self.beta)", "self.alpha / self.beta"),
            ("return max(0.0, self.alpha / (2", "return (self.alpha / (2"),
            ("math.sqrt(fmean(p.distance**2 for p in read))", "fmean(p.distance for p in read)"),
            ("in zip(*runs, strict=True)", "in zip(*runs)"),
            ("        if self.beta <= 0:\n            return None\n", ""),
            ("math.sqrt(max(0.0, row", "(max(0.0, row"),
            ('row["evaluation/gold"] - first["evaluation/gold"]', 'row["evaluation/gold"]'),
            ('row["evaluation/reward"] - first["evaluation/reward"]', 'row["evaluation/reward"]'),
            ("strict=True) if d > 0]", "strict=True)]"),
            ("if len(used) < FEWEST:", "if len(used) < 2:"),
            ("if determinant <= 1e-9 * xx * yy:", "if False:"),
            ("(yy * xr - xy * yr) / determinant", "xr / xx"),
            ("(xx * yr - xy * xr) / determinant", "yr / yy"),
            ("math.sqrt(_dot(residuals, residuals) / len(residuals))", "math.sqrt(_dot(residuals, residuals))"),
            ("by_distance = sorted(points)", "by_distance = list(points)"),
            ("math.log(n) - (n - 1) / n", "math.log(n)"),
            ("math.comb(below, n - 1)", "math.comb(below, n)"),
            ("math.fsum(chances[first : last + 1])", "(last + 1 - first) * chances[first]"),
            ("key=lambda i: proxy[i])  # the worst", "key=lambda i: -proxy[i])  # the worst"),
            ("key=lambda point: point.gold", "key=lambda point: point.proxy"),
        ]
    ),
    *(
        Mutation(file, old, new, "recipes/test_rl_reward_model.py")
        for file, old, new in [
            (
                "environments/gold_rewards.py",
                "((reward, 0.0) for reward, _ in named)",
                "((reward, 1.0) for reward, _ in named)",
            ),
            (
                "environments/gold_rewards.py",
                "{reward.name: weight for reward, weight in named}",
                "{r.name: 1.0 for r, _ in named}",
            ),
            (
                "environments/gold_rewards.py",
                "(LearnedReward(ask, use=use, penalty=penalty), 1.0)",
                "(LearnedReward(ask), 1.0)",
            ),
            ("environments/gold_rewards.py", "(Disagreement(ask), 0.0)", "(Disagreement(ask), 1.0)"),
            (
                "environments/gold_rewards.py",
                "ScoredEnvironment(Weighted(parts), played), ScoredEnvironment(both, played)",
                "ScoredEnvironment(both, played), ScoredEnvironment(both, played)",
            ),
            ("training/policy_batch.py", "sum(branch.logprobs) - sum(before)", "sum(before) - sum(branch.logprobs)"),
            ("training/policy_batch.py", "return gone / ", "return 0 * gone / "),
            ("rollouts/scorer.py", "if len(prompt) + len(said) + len(self.tail) > self.most:", "if False:"),
            ("rollouts/scorer.py", "        if self.tail:\n", "        if False:\n"),
            ("rollouts/scorer.py", "        except TemplateError:\n", "        except ZeroDivisionError:\n"),
            ("rollouts/scorer.py", "takewhile(lambda token: token not in self.chat.stop_ids, ids)", "ids"),
            ("setup/sampling.py", "    if longest > scorer.most:\n", "    if False:\n"),
            ("setup/sampling.py", 'if use != "mean" and unknown:', "if False:"),
            ("rollouts/scorer.py", "stops[-1] + 1 :", "stops[0] + 1 :"),
            ("recipes/rl.py", "goodness(row, config.kl_budget, chosen_by", "goodness(row, 0.0, chosen_by"),
            ("recipes/rl.py", "if not past_budget(row, config.kl_budget))", ")"),
            ("recipes/rl.py", "if rows and past_budget(rows[-1], config.kl_budget):", "if False:"),
        ]
    ),
    *(
        Mutation("data/preferences.py", old, new, "data/test_preferences.py")
        for old, new in [
            ("if size_of(example) <= longest]", "if size_of(example) < longest]"),
            ("if a in at and b in at)", "if a in at or b in at)"),
            ("pairs, ranked.bag) if pairs else None", "pairs) if pairs else None"),
        ]
    ),
    *(
        Mutation("report/checks.py", old, new, "report/test_checks.py")
        for old, new in [
            ("if len(gold) < 3 or", "if"),
            ("proxy[-1] <= proxy[best] or lost", "lost"),
            ("max(limits.gold_lost * gained, noise)", "noise"),
            ("max(limits.gold_lost * gained, noise)", "limits.gold_lost * gained"),
            ("key=lambda i: gold[i])", "key=lambda i: proxy[i])"),
        ]
    ),
    *(
        Mutation("report/reward_gains.py", old, new, "report/test_reward_gains.py")
        for old, new in [
            ('self.after["reward"] - self.before["reward"]', 'self.after["reward"]'),
            ("for end in (0, -1))", "for end in (-1, -1))"),
            ("for end in (0, -1))", "for end in (-1, 0))"),
            ('if a["prompt"] == b["prompt"] and', "if"),
            (' and b["reward"] is not None', ""),
            (' and a["reward"] is not None', ""),
            ("if one.by > 0)", ")"),
            ("key=lambda one: -one.by", "key=lambda one: one.by"),
            (")[:most]", ")"),
        ]
    ),
    Mutation(
        "runs/run_directory.py",
        "        jsonl.truncate(self.path / HELDOUT, step)\n",
        "",
        "report/test_reward_gains.py",
    ),
    Mutation(
        "report/run_report.py",
        "        *_rise(run),\n",
        "",
        "report/test_reward_gains.py",
    ),
    Mutation(
        "session/session.py",
        "        self.directory.log_heldout(self.step, samples_of(groups, per_group=1))\n",
        "        pass\n",
        "recipes/test_rl_reward_model.py",
    ),
    *(
        Mutation("training/adversarial.py", old, new, "recipes/test_best_of_n.py")
        for old, new in [
            ("key=lambda place: golds[place])", "key=lambda place: -golds[place])"),
            ("golds[better] > golds[liked] and", ""),
            ("and group.rewards[better] < group.rewards[liked]):", "):"),
            (
                "and group.rewards[better] < group.rewards[liked]):",
                "and group.rewards[better] <= group.rewards[liked]):",
            ),
            ('"chosen": group.trajectories[better].text', '"chosen": group.trajectories[liked].text'),
            ("if found.stop_reason is StopReason.STOP]", "]"),
            ("if group.trajectories[place].text != group.trajectories[liked].text]", "if place != liked]"),
            ('seed_for(seed, "to people", group.task.id)', "None"),
            ("group.rewards[liked] - group.rewards[other]", "group.rewards[liked]"),
        ]
    ),
    *(
        Mutation("evaluation/ties.py", old, new, "evaluation/test_ties.py")
        for old, new in [
            ("float(pair.margin > epsilon)", "float(pair.margin >= epsilon)"),
            ("float(abs(tie.margin) <= epsilon)", "float(abs(tie.margin) < epsilon)"),
            ("float(abs(tie.margin) <= epsilon)", "float(tie.margin <= epsilon)"),
            ("zip(halves, halves[::-1], strict=True)", "zip(halves, halves, strict=True)"),
            ("    if not all(some for half in halves for some in half):\n        halves = [(pairs, ties)]\n", ""),
            ("float(pair.margin > 0)", "1.0"),
            ("float(tie.margin == 0)", "1.0"),
            ("- missed[bisect_right(margins, up_to)]", "- missed[bisect_left(margins, (epsilon,))]"),
            ("met[bisect_right(sizes, up_to)]", "met[bisect_left(sizes, (epsilon,))]"),
            ("(abs(tie.margin), 1 / of_prompt[tie.prompt])", "(abs(tie.margin), 1.0)"),
            ("sorted((pair.margin, 1 /", "sorted((abs(pair.margin), 1 /"),
            ("sorted({0.0, *(size for size, _ in sizes)})", "sorted({0.0, *(size for size, _ in sizes)})[::-1]"),
            (
                "2 * len(sizes) - bisect_left(sizes, m) - bisect_right(sizes, m)",
                "2 * (len(sizes) - bisect_left(sizes, m))",
            ),
            ("/ (2 * len(sizes) * len(ties))", "/ (len(sizes) * len(ties))"),
            ("right.setdefault(tie.prompt, [])", "right.setdefault(-1, [])"),
            ("    if not pairs or not ties:\n", "    if False:\n"),
        ]
    ),
    *(
        Mutation("recipes/evaluate_reward/__init__.py", old, new, "recipes/test_reward_model.py")
        for old, new in [
            ("if pair[1].prompt < len(rankings)]", "]"),
            ("(p.prompt < decided) == known]", "True]"),
            ("found.append(_by_prompt(judged, everything))", "found.append(judged)"),
            ("config.ties, ties=True)", "config.ties)"),
            ("everything = [*rankings, *equal]", "everything = rankings"),
        ]
    ),
    *(
        Mutation("annotation/training_rows.py", old, new, "annotation/test_training_rows.py")
        for old, new in [
            ("if odds.neither > max(odds.first, odds.second)}", "}"),
            ("if odds.neither > max(odds.first, odds.second)}", "if odds.verdict == 0}"),
            ("sorted(set(group) - set(one.failed))", "sorted(set(group))"),
            ("in equal or one.item in told.decided:", "in equal:"),
            ('_two(told, one, first, second) | {"tie": True}', "_two(told, one, first, second)"),
        ]
    ),
    *(
        Mutation("data/preferences.py", old, new, "annotation/test_training_rows.py")
        for old, new in [
            ("if tied != ties:", "if ties and not tied:"),
            ("if tied != ties:", "if tied and not ties:"),
            (
                '        if typed(row.fields.get("tie")) is True:\n            raise',
                "        if False:\n            raise",
            ),
        ]
    ),
    *(
        Mutation("recipes/best_of_n.py", old, new, "recipes/test_best_of_n.py")
        for old, new in [
            ("key=lambda place: -group.rewards[place]", "key=lambda place: group.rewards[place]"),
            ("group.rewards[place] >= least", "group.rewards[place] > least"),
            ("if whole and (least", "if (least"),
            ("return list(texts.values())[:keep]", "return list(texts.values())"),
            ("seen.without += not places", "seen.without += bool(places)"),
            ("[t.stop_reason is StopReason.STOP for t", "[t.stop_reason is not StopReason.STOP for t"),
            ("seen.whole[-1].count(False)", "seen.whole[-1].count(True)"),
            ("zip(self.whole, self.rewards, strict=True)", "zip(self.rewards, self.rewards, strict=True)"),
            ("enumerate(sorted(set(said)))", "enumerate(set(said))"),
            ("range(most.bit_length()))", "range(most.bit_length() - 1))"),
            ("most.bit_length())), most}", "most.bit_length()))}"),
            ("order, self.rewards, repeat(n)", "order, self.rewards, repeat(1)"),
            ("order, self.golds, repeat(n)", "self.golds, self.golds, repeat(n)"),
            (
                "start : start + TOGETHER],\n            replace(",
                "start : start + TOGETHER - 1],\n            replace(",
            ),
            ("            seen.add(part)\n            best", "            best"),
            ("        seen.add(_Seen(**part))\n", ""),
            ("range(done, every, TOGETHER)", "range(0, every, TOGETHER)"),
            ("            parts.add(asdict(part))\n", ""),
            ("    parts.remove()\n", ""),
            ("task.id, task.prompt, task.answer", "task.id"),
            ("if key not in left_out}", 'if key in ("model",)}'),
            ('"reward": group.rewards[place]', '"reward": group.rewards[0]'),
            ("in group.scores[place].items()", "in group.scores[0].items()"),
            ('seed_for(config.seed, "best-of-n", start)', "config.seed"),
            ("return jsonl.new_file(config.output)", "return Path(config.output)"),
        ]
    ),
    *(
        Mutation("runs/resumable_output.py", old, new, "runs/test_resumable_output.py")
        for old, new in [
            ("            jsonl.truncate(self.path, 2**63)  #", "            pass  #"),
            ("            if old != about:\n", "            if False:\n"),
            ("if not isinstance(old, dict) or old.get(key) != about[key]]", "]"),
            ("row[_PART] for row in rows[1:]", "row[_PART] for row in rows[2:]"),
            ("            if not rows:\n", "            if False:\n"),
            ("        self.path.unlink()\n", ""),
            ('{"step": len(self.done), _PART: part}', '{"step": 0, _PART: part}'),
            ("        except OSError as problem:\n", "        except ZeroDivisionError as problem:\n"),
        ]
    ),
    Mutation(
        "setup/heldout.py",
        "[weight * scores[name].total for",
        "[scores[name].total for",
        "recipes/test_rl_reward_model.py",
    ),
    *(
        Mutation("setup/heldout.py", old, new, "setup/test_heldout.py")
        for old, new in [
            ("patience > 0 and ", ""),
            ("0 < kl_budget < metrics", "kl_budget < metrics"),
            ("0 < kl_budget < metrics", "0 < kl_budget <= metrics"),
            ("    if past_budget(metrics, kl_budget):\n        return None\n", ""),
            ("max(found[-patience:]) <= max(found[:-patience])", "found[-1] < max(found[:-1])"),
            ('BY = (GOLD, "accuracy", "reward")', 'BY = ("accuracy", "reward", GOLD)'),
        ]
    ),
]
