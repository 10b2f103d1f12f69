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
            ("tokens * (shape.layers * layer", "tokens * (layer"),
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
        Mutation("training/plan.py", old, new, "training/test_plan.py")
        for old, new in [
            ("self.prompt_tokens + self.group * self.completion_tokens", "self.group * self.completion_tokens"),
            ("self.group * self.completion_tokens)", "self.completion_tokens)"),
            ("math.ceil(self.tokens / self.microbatch_tokens)", "self.tokens // self.microbatch_tokens"),
            ("not self.lora_rank and self.itemsize < 4", "self.itemsize < 4"),
            ("not self.lora_rank and self.itemsize < 4", "not self.lora_rank"),
            ("if self.reference and not self.lora_rank:", "if self.reference:"),
            ('{"Adam state": 8 * trained}', '{"Adam state": 4 * trained}'),
            ('kept["adapter"] = 4 * trained', 'kept["adapter"] = 2 * trained'),
            ("full=not training.lora_rank", "full=True"),
            (', "float32 gradients": 4 * trained}', "}"),
            ("    if not training.copies_masters:\n", "    if True:\n"),
            ("min(load.microbatch_tokens, load.tokens)", "load.microbatch_tokens"),
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
            ("model + 12 * training", "model + 8 * training"),
            ("4 * training.trainable if alone else", "training.trainable if alone else"),
            ("alone = training.lora_rank and training.head", "alone = training.lora_rank"),
            ('"merged weights": training.shape.parameters * training.itemsize', '"merged weights": 0'),
            ("read = training.reads * load", "read = load"),
            ("trained = self.networks * self.trainable", "trained = self.trainable"),
            ("self.networks * self.shape.parameters", "self.shape.parameters"),
            ("4 * training.networks * training.trainable", "4 * training.trainable"),
            ("return training.networks * saved_bytes", "return saved_bytes"),
            ("12 * training.networks * training.trainable", "12 * training.trainable"),
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
        Mutation("training/plan_result.py", old, new, "recipes/test_plan.py")
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
        Mutation("recipes/plan/work.py", old, new, "recipes/test_plan.py")
        for old, new in [
            ("reference=algorithm.needs_reference", "reference=False"),
            ("if length <= config.max_prompt_tokens]", "]"),
            ("    enough(algorithm, config.completions_per_prompt)", "    pass"),
            ("math.ceil(config.epochs * rows / config.examples_per_step)", "int(config.epochs)"),
            ("math.ceil(config.epochs * rows / config.pairs_per_step)", "int(config.epochs)"),
            ("longest = load(*max(sizes, key=sum))", "longest = load(*min(sizes, key=sum))"),
            ("load(*(sum(column) / len(sizes) for", "load(*(max(column) for"),
            ("algorithm.needs_reference and not needs_only_logprobs", "needs_only_logprobs"),
            ("head=not scored", "head=True"),
            ("Load(config.pairs_per_step, 2,", "Load(config.pairs_per_step, 1,"),
            ("updates=config.updates_per_step", "updates=1"),
            ('critic=config.critic == "own"', "critic=True"),
            ("if config.critic != PlanRL.critic and not", "if not"),
            ("if config.pretraining_dataset and not", "if not"),
            ("shape.context, config.microbatch_tokens)", "shape.context)"),
            ("_greedy(algorithm, longest), *_continued(algorithm, longest)", "greedy, *continued"),
            ("(replace(load, group=1),)", "(load,)"),
            ("math.ceil(load.completion_tokens / max(1, states.step_tokens))", "states.most"),
            ("load.sequences * (steps - 1)", "load.sequences * steps"),
            ("prompt, completion = load.prompt_tokens + done,", "prompt, completion = load.prompt_tokens,"),
            ("load.completion_tokens - done\n", "load.completion_tokens\n"),
            ("return replace(load, group=states.samples), later", "return (later,)"),
            ("sum(min(length, most) for length in lengths)", "sum(lengths)"),
        ]
    ),
    *(
        Mutation("recipes/plan/__init__.py", old, new, "recipes/test_plan.py")
        for old, new in [
            ("(config.keep_last + 2)", "config.keep_last"),
            ('"" if training.lora_rank else ", or train', '", or train'),
            ("if training.lora_rank and not training.head and", "if training.lora_rank and"),
            ("available_bytes() + libraries", "available_bytes()"),
            ("beside | dict(phase.parts)", "dict(phase.parts)"),
            ("if longest > load.microbatch_tokens:", "if False:"),
            ("if longest > context:", "if longest > 2 * context:"),
            ("if disk > free:", "if False:"),
            ("speed, updates=work.updates)", "speed, updates=1)"),
            ("work.reference, device", "False, device"),
            ("work.reads, work.critic", "work.reads, False"),
            ("(work.longest, *work.longest_beside) if work.cache", "(work.longest,) if work.cache"),
            ("decoded_together(training, longest,", "decoded_together(training, work.longest,"),
            ("plan.what_to_change(training, computed,", "plan.what_to_change(training, work.longest,"),
            ("if together not in speeds:", "if True:"),
            ("work.updates * work.text.tokens", "work.text.tokens"),
            ("updates=work.updates) + text", "updates=work.updates)"),
        ]
    ),
    *(
        Mutation("recipes/plan/speed.py", old, new, "recipes/test_plan.py")
        for old, new in [
            ("max(0.0, longer - shorter) / PROBE_STEPS", "longer / PROBE_STEPS"),
            ("return Speed(trained / tokens,", "return Speed(trained,"),
            ("updated / trainable)", "updated)"),
            ("load.group if prompt else load.sequences)", "load.sequences)"),
            ("load.prompts if prompt else 1)", "1)"),
            ("(FEW, many), shape.layers", "(many, FEW), shape.layers"),
            ("many = min(MANY, shape.layers)", "many = MANY"),
            ("if many == shape.layers:", "if False:"),
            ("_probed(training, load, dtype, device, FEW,", "_probed(training, load, dtype, device, many,"),
        ]
    ),
    *(
        Mutation("models/probe.py", old, new, "models/test_probe.py")
        for old, new in [
            ("text.num_hidden_layers = layers", "pass"),
            ("min(times[1:])", "min(times)"),
            ("min(times[1:])", "max(times[1:])"),
            ("2 * size**3", "size**3"),
            ("range(repeats + 1)", "range(repeats)"),
        ]
    ),
    *(
        Mutation("monitoring/memory.py", old, new, "monitoring/test_memory.py")
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
