"""Faults of plans: a part that is forgotten, a byte too few, a bound on the wrong side, a measurement misread."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("models/footprint.py", old, new, "models/test_footprint.py")
        for old, new in [
            ("widths = 4 * shape.hidden", "widths = 3 * shape.hidden"),
            ("+ 2 * shape.query_width", "+ shape.query_width"),
            ("+ 2 * shape.key_width + 2 * shape.intermediate", "+ 2 * shape.key_width + 3 * shape.intermediate"),
            ("+ 2 * shape.key_width + 2 * shape.intermediate", "+ shape.key_width + 2 * shape.intermediate"),
            ("itemsize * widths + 8", "itemsize * widths"),
            ("2 * itemsize * shape.hidden + 4", "0"),
            ("return shape.layers * layer_bytes", "return layer_bytes"),
            ("return shape.layers * tokens * itemsize", "return tokens * itemsize"),
            ("8 * (parameters - quantized)", "8 * parameters"),
            ("2 * (quantized + 4 * blocks_of(quantized))", "2 * quantized + 4 * blocks_of(quantized)"),
            ("if rank * width >= LEAST", "if rank * width > 0"),
            ("if rank * width >= LEAST", "if width >= LEAST"),
            ("if p is not embedding and worth", "if worth"),
            ("rank * width * count for", "rank * width for"),
            ("learned * itemsize * shape.hidden", "0"),
            ("2 * shape.layers * shape.key_width", "shape.layers * shape.key_width"),
            ("2 * shape.layers * shape.key_width", "2 * shape.layers * shape.query_width"),
            ("(4 + itemsize) if full else 0", "4 if full else 0"),
            ("(4 + itemsize) if full else 0", "(4 + itemsize)"),
            ("max(CHUNK_BYTES, itemsize * shape.vocabulary)", "CHUNK_BYTES"),
            ("max(BLOCK, shape.vocabulary)", "BLOCK"),
            ("return chunk +", "return 2 * chunk +"),
            ("return rank * self.linear_widths", "return self.linear_widths"),
            ("and m.weight is not head]", "]"),
            ("and id(p) not in ends]", "]"),
            ("p.dim() >= 2 and", ""),
            ("p.numel() * used // experts", "p.numel()"),
            ("if lora.is_adapter(where):", "if False:"),
        ]
    ),
    *(
        Mutation("training/load.py", old, new, "planning/test_costs.py")
        for old, new in [
            ("self.prompt_tokens + self.group * self.completion_tokens", "self.group * self.completion_tokens"),
            ("self.group * self.completion_tokens)", "self.completion_tokens)"),
            ("math.ceil(self.tokens / self.microbatch_tokens)", "self.tokens // self.microbatch_tokens"),
        ]
    ),
    *(
        Mutation("planning/costs.py", old, new, "planning/test_costs.py")
        for old, new in [
            ("not self.lora_rank and self.itemsize < 4", "self.itemsize < 4"),
            ("not self.lora_rank and self.itemsize < 4", "not self.lora_rank"),
            ("if self.references and not self.lora_rank:", "if self.references:"),
            ("self.references * self.shape.parameters", "self.shape.parameters"),
            ("self.judges * self.itemsize", "self.judges"),
            ("{name: self.networks * self.moments}", "{name: self.moments}"),
            ("if self.moment_bits == 8 else 0", "if self.lora_rank else 0)"),
            ("self.shape.quantized(self.lora_rank)", "self.shape.quantized(0)"),
            ('"activations of one layer": one}', '"activations of one layer": 0}'),
            ("    if not training.checkpointing:\n", "    if True:\n"),
            ('"layer inputs": training.networks * inputs', '"layer inputs": inputs'),
            (" + end_bytes(shape, itemsize, tokens, learned)\n", "\n"),
            ("forward if training.checkpointing else 0.0", "0.0"),
            ("training.moment_bits == 8 and not training.on_gpu", "training.moment_bits == 8"),
            ("quantising * 30", "30"),
            ("        if spared >= missing:", "        if spared > 0:"),
            ('        if phase.name != "update":\n', "        if False:\n"),
            (
                "(bits, replace(training, moment_bits=8))",
                "(bits, replace(training, checkpointing=True, moment_bits=8))",
            ),
            ('kept["adapter"] = 4 * (', 'kept["adapter"] = 2 * ('),
            ("full=training.trains_head", "full=True"),
            (', "float32 gradients": 4 * trained}', "}"),
            ("    if not training.copies_masters:\n", "    if True:\n"),
            ("itemsize, min(load.microbatch_tokens, load.tokens)", "itemsize, load.microbatch_tokens"),
            ("math.ceil(tokens * load.sequences", "math.floor(tokens * load.sequences"),
            ("tokens * load.sequences * load.completion_tokens / load.tokens", "tokens"),
            ("if training.itemsize == 2 and not training.on_gpu:", "if training.itemsize == 2:"),
            ("if training.itemsize == 2 and not training.on_gpu:", "if not training.on_gpu:"),
            ("training.itemsize * (training.shape.active + head)", "training.itemsize * training.shape.active"),
            ("12 * slots", "4 * slots"),
            ("max(1, min(DECODED_TOGETHER, load.sequences,", "max(0, min(DECODED_TOGETHER, load.sequences,"),
            ("min(DECODED_TOGETHER, load.sequences,", "min(DECODED_TOGETHER,"),
            ("min(DECODED_TOGETHER, load.sequences,", "min(load.sequences,"),
            ("completion_tokens, training.shape.context)", "completion_tokens, 10**9)"),
            ("(4 * training.trainable + training.moments)", "training.moments"),
            ("4 * training.trainable if alone else", "training.trainable if alone else"),
            ("alone = training.lora_rank and training.head", "alone = training.lora_rank"),
            ('"merged weights": training.shape.parameters * training.itemsize', '"merged weights": 0'),
            ("read = training.passes * load", "read = load"),
            ("trained = self.networks * self.trainable", "trained = self.trainable"),
            ("self.networks * self.shape.parameters", "self.shape.parameters"),
            ("4 * training.networks * training.trainable", "4 * training.trainable"),
            ('"activations": training.networks * saved', '"activations": saved'),
            ("model + training.networks * (", "model + ("),
            ("read + updates * training.networks * each", "read + updates * each"),
            ("return read + updates *", "return read +"),
            ("math.ceil(load.sequences / decoded", "int(load.sequences / decoded"),
            ("load.prompts * load.prompt_tokens * speed", "load.sequences * load.prompt_tokens * speed"),
            ("min(max(0.0, layer), first / cut[0])", "max(0.0, layer)"),
            ("min(max(0.0, layer), first / cut[0])", "min(layer, first / cut[0])"),
            ("first / cut[0])", "first)"),
            ("/ (cut[1] - cut[0])", "/ cut[1]"),
            ("* (layers - cut[0])", "* layers"),
            ("forward if training.lora_rank else 2 * forward", "2 * forward"),
            ("max(slots, 16) * forward", "slots * forward"),
            ("<= 0:\n            continue", "< 0:\n            continue"),
            (" or tokens < longest:", ":"),
            ("update_phase(training, smaller).total >= missing:", "update_phase(training, smaller).total > 0:"),
            ('phase.parts["keys and values"] - missing', 'phase.parts["keys and values"]'),
            ("if not training.lora_rank:\n        return", "if True:\n        return"),
        ]
    ),
    *(
        Mutation("planning/result.py", old, new, "planning/test_plan.py")
        for old, new in [
            ("self.steps * self.longest.prompts / self.rows", "self.steps * self.longest.sequences / self.rows"),
            ("(self.sampling_seconds or 0.0) + self.update_seconds", "self.update_seconds"),
            ('"updates": self.steps * self.updates_per_step', '"updates": self.steps'),
            ("None if step is None else step * self.steps", "step"),
            ("max(phase.total for phase in self.phases)", "self.phases[0].total"),
            ('"fits": not self.warnings', '"fits": True'),
            ('*([] if self.warnings else ["It fits."])', '"It fits."'),
        ]
    ),
    *(
        Mutation("planning/work.py", old, new, "planning/test_plan.py")
        for old, new in [
            ("*max(sizes, key=sum))", "*min(sizes, key=sum))"),
            ("*(sum(column) / len(sizes) for", "*(max(column) for"),
            ("load(len(sizes) / len(families),", "load(2,"),
            ("load(max(map(len, families)),", "load(2,"),
            ("isinstance(need, kind)], load)", "True], load)"),
            ("longest_beside=sampled_besides(algorithm.inputs, work.longest)", "longest_beside=(*greedy, *continued)"),
            ("sum(need.passes for need in algorithm.inputs)", "0"),
            ("replace(one, prompts=min(pairs, most), group=2)", "replace(one, prompts=pairs, group=2)"),
            ("min(pairs, most), group=2)", "min(pairs, most))"),
            ("updates=updates, updated=(longest, expected)", "updates=updates"),
            ("updates=updates, updated=(longest, expected)", "updated=(longest, expected)"),
            ("round(sum(tokens) / len(tokens))", "max(tokens)"),
            (
                "load(max(lengths)), load(round(sum(lengths) / len(lengths)))\n    return Work(\n        command,",
                "load(min(lengths)), load(min(lengths))\n    return Work(\n        command,",
            ),
        ]
    ),
    *(
        Mutation(f"recipes/{file}.py", old, new, "planning/test_plan.py")
        for file, old, new in [
            ("rl", "references=compared + apart", "references=int(compared)"),
            ("rl", "references=compared + apart", "references=int(apart)"),
            ("rl", "        updates=config.updates_per_step,\n", ""),
            ("rl", 'critic=config.critic == "own"', "critic=False"),
            ("rl", "judges=judge_parameters(names, config.gold_model)", 'judges=judge_parameters(names, "")'),
            (
                "rl",
                "judges=judge_parameters(names, config.gold_model)",
                "judges=judge_parameters([], config.gold_model)",
            ),
            ("rl", "[min(len(model.chat.text_ids(text)), most)", "[len(model.chat.text_ids(text))"),
            ("preference", "int(compared and not may_be_remembered(algorithm))", "0"),
            ("preference", "int(compared and not may_be_remembered(algorithm))", "int(compared)"),
            ("preference", "compared * (3 if isinstance(algorithm, UnpairedAlgorithm) else 1)", "int(compared)"),
            ("reward_model", '"head": False', '"head": True'),
            ("reward_model", '"reads": int(config.length_debias > 0)', '"reads": 0'),
            ("reward_attributes/__init__", "head=False", "head=True"),
            ("online_preference", "references=int(compared)", "references=0"),
            ("online_preference", "reads=config.updates_per_round if compared else 0", "reads=int(compared)"),
            ("online_preference", "model.shape.context, together=2)", "model.shape.context)"),
        ]
    ),
    *(
        Mutation("cli.py", old, new, "planning/test_plan.py")
        for old, new in [
            ("            refuse_used(shared.output)\n", "            pass\n"),
            ("    if not shared.json:\n", "    if True:\n"),
        ]
    ),
    *(
        Mutation("planning/plan.py", old, new, "planning/test_plan.py")
        for old, new in [
            ("(config.keep_last + 2)", "config.keep_last"),
            ('"" if training.lora_rank else ", or train', '", or train'),
            ("if training.lora_rank and not training.head and", "if training.lora_rank and"),
            ("available_bytes() + libraries", "available_bytes()"),
            ("beside | dict(phase.parts)", "dict(phase.parts)"),
            ("if longest > context:", "if longest > 2 * context:"),
            ("if disk > free:", "if False:"),
            ("speed, updates=work.updates)", "speed, updates=1)"),
            ("        work.references,\n", "        0,\n"),
            ("        work.critic,\n", "        False,\n"),
            ("        OPTIMIZERS[config.optim],\n", "        32,\n"),
            ("        config.gradient_checkpointing,\n", "        False,\n"),
            ("not shape.quantized(training.lora_rank)", "not shape.quantized(0)"),
            ("        judges=work.judges,\n", ""),
            ("work.updated[0] if work.updated else work.longest", "work.longest"),
            ("work.updated[1] if work.updated else work.expected", "work.expected"),
            ("        notes=work.notes,\n", ""),
            ("(work.longest, *work.longest_beside) if work.cache", "(work.longest,) if work.cache"),
            ("decoded_together(training, longest,", "decoded_together(training, work.longest,"),
            ("costs.what_to_change(training, computed,", "costs.what_to_change(training, work.longest,"),
            ("if together not in speeds:", "if True:"),
            ("work.updates * work.text.tokens", "work.text.tokens"),
            ("updates=work.updates) + text", "updates=work.updates)"),
        ]
    ),
    *(
        Mutation("planning/speed.py", old, new, "planning/test_plan.py")
        for old, new in [
            ("max(0.0, longer - shorter) / PROBE_STEPS", "longer / PROBE_STEPS"),
            ("return Speed(trained / tokens,", "return Speed(trained,"),
            ("updated / trainable)", "updated)"),
            ("load.group if prompt else load.sequences)", "load.sequences)"),
            ("load.prompts if prompt else 1)", "1)"),
            ("(FEW, many), shape.layers", "(many, FEW), shape.layers"),
            ("many = min(MANY, shape.layers)", "many = MANY"),
            ("    if training.checkpointing:\n", "    if False:\n"),
            ("moment_bits=training.moment_bits, ", ""),
            ("if many == shape.layers:", "if False:"),
            ("_probed(training, load, dtype, device, FEW,", "_probed(training, load, dtype, device, many,"),
        ]
    ),
    *(
        Mutation("models/throughput_probe.py", old, new, "models/test_throughput_probe.py")
        for old, new in [
            ("text.num_hidden_layers = layers", "pass"),
            ("min(times[1:])", "min(times)"),
            ("min(times[1:])", "max(times[1:])"),
            ("2 * size**3", "size**3"),
            ("range(repeats + 1)", "range(repeats)"),
        ]
    ),
    *(
        Mutation("runs/memory.py", old, new, "runs/test_memory.py")
        for old, new in [
            ('["MemAvailable"].split()[0]) * 1024', '["MemAvailable"].split()[0])'),
            ('fields["MemAvailable"]', 'fields["MemFree"]'),
            ("max(0, limit - used)", "limit"),
            ("max(0, limit - used)", "limit - used"),
            ("found = min(found, max(", "found = max(found, max("),
            ('"SC_PAGE_SIZE") *', '"SC_PAGE_SIZE") +'),
        ]
    ),
]
