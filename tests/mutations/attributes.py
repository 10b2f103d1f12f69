"""Faults of attribute heads: what they learn, what the gate learns, and how one score is made of them."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("data/ratings.py", old, new, "data/test_ratings.py")
        for old, new in [
            ("if ratings and response.strip()", "if response.strip()"),
            ("if ratings and response.strip()", "if ratings"),
            ("        if not found:\n", "        if False:\n"),
            ("dress(prompt, system, prompt_template)", "prompt"),
            ('turns_of(row.text("prompt"))', 'row.text("prompt")'),
            ('said.get("Rating")', 'said.get("rating")'),
            ('completion.get("annotations") or {}', 'completion.get("annotations")'),
            ("as_mapping(row, said or {}, f", "as_mapping(row, said, f"),
            ('row.fields["ratings"] or {}', 'row.fields["ratings"]'),
            ('if "ratings" not in row.fields:', "if False:"),
            ('"" if row.fields.get(field) == "" else row.text(field)', "row.text(field)"),
            ('        if completion.get("response"):\n', "        if True:\n"),
            ("    except ValueError:\n        return None\n", "    except ZeroDivisionError:\n        return None\n"),
            ("if value is not None}", "}"),
            ("isinstance(value, bool) or not", "not"),
            (" or not math.isfinite(value)", ""),
            (' or "=" in name', ""),
            (" or len(name.split()) != 1", ""),
        ]
    ),
    *(
        Mutation("annotation/training_rows.py", old, new, "annotation/test_training_rows.py")
        for old, new in [
            ("[told.rulings[item]] if item in told.rulings else answers", "answers"),
            ("fmean(one[attribute] for one in scores)", "scores[0][attribute]"),
            ('yield row | {"annotators": len(answers), "item"', 'yield row | {"annotators": 1, "item"'),
            ('"item": item, "model": told.models[item][number]}', '"item": item, "model": ""}'),
        ]
    ),
    *(
        Mutation("objectives/attributes.py", old, new, "objectives/test_attributes.py")
        for old, new in [
            (".sum(1) / count_E", ".mean(1)"),
            ("count_E = known_EK.sum(1)", "count_E = known_EK.sum(1).clamp(max=1)"),
            ("    if not bool((count_E > 0).all()):\n", "    if False:\n"),
            ("rated_EK.masked_fill(~known_EK, 0.0)).square()", "rated_EK.masked_fill(~known_EK, 0.0)).abs()"),
            ("squared_EK.masked_fill(~known_EK, 0.0)", "squared_EK"),
            ("attributes_EK - attributes_EK.mean(0)", "attributes_EK"),
            ("    if spread == 0:\n", "    if False:\n"),
            ("sum(0) / spread", "sum(0) / spread.sqrt()"),
            ("    require_one_shape(", "    0 and require_one_shape("),
        ]
    ),
    *(
        Mutation("models/attributes.py", old, new, "models/test_attributes.py")
        for old, new in [
            ("nn.init.zeros_(self.outer.weight)", "pass"),
            ("add_adapter(body, adapter, seed=seed, whole=ROWS)", "add_adapter(body, adapter, whole=ROWS)"),
            ("torch.relu(", "torch.tanh("),
            ("torch.softmax(self.outer(inner), -1)", "torch.sigmoid(self.outer(inner))"),
            ("attributes_EK - attributes_EK[:, [self.apart]]", "attributes_EK + attributes_EK[:, [self.apart]]"),
            ("        if self.apart is not None:\n", "        if self.apart:\n"),
            ("return attributes_EK * attributes_EK.new_tensor(self.weights)", "return attributes_EK"),
            ("self.counted(attributes_EK)).sum(1) - self.zero", "self.counted(attributes_EK)).sum(1)"),
            ("return self.scale * (", "return ("),
            ("[start + prefix - 1] * len(members)", "[start + prefix] * len(members)"),
            ("[start + prefix - 1] * len(members)", "[start + prefix - 1]"),
            ("start += prefix + sum(members)", "start += prefix + len(members)"),
            ('        assert prefix, "a sequence', '        assert True, "a sequence'),
            ("        torch.manual_seed(seed)\n", ""),
            ("with torch.random.fork_rng(devices=[]):", "if True:"),
            ("float(through)", "float(len(weights))"),
            ("torch.tensor(weights) == 0] = -torch.inf", "torch.tensor(weights) == 0] = 0.0"),
            ("label, nn.init.zeros_,", "label, lambda rows: None,"),
            ("gate.to(body.device, wide_dtype(body.dtype))", "gate.to(body.device, body.dtype)"),
            ("if known and there != tuple(names):", "if False:"),
            ("if known and there != tuple(names):", "if there and there != tuple(names):"),
            ("    model.mixture.gate.load_state_dict(weights)\n", ""),
            ("model.units, model.mixture = units, Mixture(", "model.units, _ = units, Mixture("),
            ("model.units, model.mixture = units, Mixture(", "_, model.mixture = units, Mixture("),
            ("if not isinstance(about, Mapping) or about.keys()", "if about.keys()"),
            ('    if not said["finished"]:\n', "    if False:\n"),
            ("[ATTRIBUTE + one for one in names]", "list(names)"),
            ("sorted((config.id2label or {}).items())]", "sorted((config.id2label or {}).items())[::-1]]"),
        ]
    ),
    Mutation(
        "models/heads.py",
        "if any(str(label).startswith(ATTRIBUTE) for label in labels.values()):",
        "if False:",
        "models/test_attributes.py",
    ),
    *(
        Mutation("training/attributes.py", old, new, "training/test_attributes.py")
        for old, new in [
            ("squared_E[known_E] for name", "squared_E.nan_to_num() for name"),
            ("(one.ratings[name] - mean) / spread if", "(one.ratings[name] - mean) if"),
            ("(one.ratings[name] - mean) / spread if", "one.ratings[name] / spread if"),
            ("~rated_EK.isnan()", "rated_EK.isnan().logical_or(True)"),
            ("zip(row.examples, zip(prompts_ED", "zip(range(99), zip(prompts_ED"),
        ]
    ),
    *(
        Mutation("training/gate.py", old, new, "training/test_gate.py")
        for old, new in [
            ("(start + a, start + b, number)", "(a, b, number)"),
            ("unit.examples[0].prefix, len(numbers)", "start, len(numbers)"),
            ("1 / prompt_B.bincount()[prompt_B].to", "1 / prompt_B.bincount()[prompt_B].clamp(max=1).to"),
            ("counted_EK[chosen] - counted_EK[rejected]", "counted_EK[rejected] - counted_EK[chosen]"),
            ("counted_EK = mixture.counted(read.attributes_EK)", "counted_EK = read.attributes_EK"),
            ("read.prompts_ED[chosen]", "read.prompts_ED[: len(chosen)]"),
            ("_Learner(mixture, choices.some(~judged_B))", "_Learner(mixture, choices)"),
            ("updates = costs.index(min(costs))", "updates = LONGEST"),
            ("updates = costs.index(min(costs))", "pass"),
            ("updates = costs.index(min(costs))", "updates = costs.index(max(costs))"),
            ("(choices.prompts_BD - mean_D) / spread_D)", "choices.prompts_BD - mean_D)"),
            ("    gate.inner.weight.div_(spread_D)\n", ""),
            ("    gate.inner.bias.sub_(gate.inner.weight @ mean_D)\n", ""),
            ("copy.deepcopy(mixture.gate)", "mixture.gate"),
            ("scale=learner.log_scale.exp().item()", "scale=mixture.scale"),
            ("spread_D = spread_D.where(spread_D > 0, 1.0)", "pass"),
            ("doubt = 1 / (self._choices.weight_B.sum().item() + 2)", "doubt = 0.0"),
            ("self._choices.weight_B.sum().item() + 2", "len(self._choices.weight_B) + 2"),
            ("(cost_B * choices.weight_B).sum() / choices.weight_B.sum()", "cost_B.mean()"),
            ("self.log_scale.exp() * (self.gate", "(self.gate"),
            ("[self.gate.outer.bias, self.log_scale]", "[self.log_scale]"),
            ("batch_indices(prompts, prompts, 0, seed)", "batch_indices(prompts, prompts, 0, id(choices))"),
        ]
    ),
    *(
        Mutation("evaluation/ratings.py", old, new, "evaluation/test_ratings.py")
        for old, new in [
            ("strict=True) if name in ratings\n", "strict=True)\n"),
            ("numbers[place], ratings[name]", "numbers[0], ratings[name]"),
            ("len({a for a, _ in pairs}) > 1 and ", ""),
            (" and len({b for _, b in pairs}) > 1", ""),
        ]
    ),
    *(
        Mutation("recipes/reward_attributes/__init__.py", old, new, "recipes/test_reward_attributes.py")
        for old, new in [
            ("config.pairs_per_step, step, config.seed)", "config.pairs_per_step, 0, config.seed)"),
            ("            model.mixture = parts.begins\n", ""),
            ("finished=not (pairs or config.decorrelate)", "finished=True"),
            ("finished=not (pairs or config.decorrelate)", "finished=False"),
            (
                "model.units = units_of(list(weights), graded.learned)",
                "model.units = units_of(list(weights), rated.learned)",
            ),
            ("    rated = of_these(rated, weights.keys())\n", ""),
            ("replace(config, pairs_per_step=1, warmup_steps=0)", "config"),
            ("if config.eval_dataset and not config.dataset:", "if False:"),
            ("    if not config.ratings:\n", "    if False:\n"),
            ("width=config.gate_width", "width=7"),
        ]
    ),
    *(
        Mutation("recipes/reward_attributes/data.py", old, new, "recipes/test_reward_attributes.py")
        for old, new in [
            ("if not any(weights.values()):", "if False:"),
            ("        weights[config.decorrelate] = 0.0\n", ""),
            ("if weight or name == config.decorrelate}", "}"),
            ("        if len(set(values)) < 2:\n", "        if False:\n"),
            ("if not math.isfinite(weight):", "if weight != weight:"),
            ("        if name in said:\n", "        if False:\n"),
            ("    if config.decorrelate in said:\n", "    if False:\n"),
            ("if question_of(one.prompt) not in asked]", "]"),
            ("    if not kept:\n", "    if False:\n"),
            ("    if part is not None:\n", "    if False:\n"),
            ("replace(config, columns=config.pair_columns)", "config"),
            ("return [one for one in some if one.ratings]", "return list(some)"),
            ("dict.fromkeys(sorted(names), 1.0)", "dict.fromkeys(sorted(names)[::-1], 1.0)"),
        ]
    ),
    *(
        Mutation("recipes/reward_attributes/gating.py", old, new, "recipes/test_reward_attributes.py")
        for old, new in [
            (
                "read_all(model, sequences_of(parts.pairs.learned)",
                "read_all(model, sequences_of(parts.pairs.learned)[::-1]",
            ),
            ("seen.attributes_EK, apart)", "seen.attributes_EK, 1)"),
            ("model.mixture._replace(apart=apart, shares=left)", "model.mixture"),
            ("scale=mixture.scale / temperature", "scale=mixture.scale"),
            ("(mixture.zero + fmean(scores)) / temperature", "mixture.zero / temperature"),
            ("comparable=True", "comparable=False"),
            ("    if config.calibrate:\n", "    if True:\n"),
            ("seen.attributes_EK.T.tolist()", "(-seen.attributes_EK).T.tolist()"),
            ("[-number if weight < 0 else number for", "[number for"),
            ("if weight and rate.ci95[1] < 0.5:", "if weight and rate.ci95[0] < 0.5:"),
            (" / counts.sum(1, keepdim=True)", ""),
            ("model.mixture._replace(finished=True)", "model.mixture"),
        ]
    ),
    Mutation(
        "commands.py",
        'formerly=Former("reward-model", "ratings", "ratings"),',
        "",
        "recipes/test_reward_attributes.py",
    ),
    Mutation(
        "session/result.py",
        'if rows and rows[0].get("step") == 0 else None',
        "if rows else None",
        "recipes/test_reward_attributes.py",
    ),
    Mutation("commands.py", "if key in after\n", "\n", "recipes/test_reward_attributes.py"),
    Mutation(
        "recipes/reward_attributes/__init__.py",
        "        adapter=lora_of(config),\n",
        "",
        "recipes/test_reward_attributes.py",
    ),
    *(
        Mutation("models/attributes.py", old, new, "recipes/test_reward_attributes.py")
        for old, new in [
            ("str(folder), state_dict=self.body.whole())", "str(folder))"),
            ("add_adapter(body, adapter, seed=seed, whole=ROWS)", "add_adapter(body, adapter, seed=seed)"),
        ]
    ),
]
