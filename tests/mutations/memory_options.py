"""Faults of what saves memory: gradient checkpointing, and Adam's moments in 8 bits."""

from tests.mutations import Mutation

COMMANDS = "recipes/test_memory_options.py"

MUTATIONS = [
    *(
        Mutation("models/gradient_checkpointing.py", old, new, "models/test_gradient_checkpointing.py")
        for old, new in [
            ("    if not torch.is_grad_enabled():\n", "    if True:\n"),
            ("dropout.as_now()", "contextlib.nullcontext()"),
            ("use_reentrant=False", "use_reentrant=False, preserve_rng_state=False"),
            ("use_reentrant=False", "use_reentrant=True"),
            ("    if not torch.is_grad_enabled():\n", "    if False:\n"),
            ("    if not layers:\n", "    if False:\n"),
            ("    for layer in layers:\n", "    for layer in layers[:1]:\n"),
        ]
    ),
    *(
        Mutation("models/blockwise.py", old, new, "models/test_blockwise.py")
        for old, new in [
            ("torch.maximum(largest, -blocks.amin(1)) if signed else largest", "largest"),
            ("torch.maximum(largest, -blocks.amin(1)) if signed else largest", "largest.amax().expand(len(largest))"),
            (".clamp_min_(torch.finfo(torch.float32).tiny)", ".clamp_min_(1e-3)"),
            ("share > midpoints", "share >= midpoints"),
            ("        midpoints[0] = 0.0", "        pass"),
            ("    if not signed:\n        midpoints", "    if True:\n        midpoints"),
            ("(found[1:] + found[:-1]) / 2", "found[:-1].clone()"),
            ("0.1 + 0.9 * (part + 0.5)", "0.1 + 0.9 * part"),
            ("0.1 + 0.9 * (part + 0.5)", "0.1 + 1.0 * (part + 0.5)"),
            ("(1 if signed else 2)", "1"),
            ("2 ** (DECADES - 1 - decade)", "2 ** (DECADES - decade)"),
            ("DECADES = 7", "DECADES = 6"),
            ("10.0**-decade *", "2.0**-decade *"),
            ("middles + [-middle for middle in middles if signed]", "middles"),
            ("BLOCK = 256", "BLOCK = 2048"),
            ("tensor.numel() >= LEAST", "tensor.numel() > LEAST"),
            ("tensor.dim() >= 2 and ", ""),
            (" and tensor.is_contiguous()", ""),
            ("lower_of_bin.index_select(0, _bin(share))", "lower_of_bin.index_select(0, _bin(share.abs()))"),
            (".mul_(scales_K[:, None])", ""),
        ]
    ),
    *(
        Mutation("training/blockwise_adam.py", old, new, "training/test_blockwise_adam.py")
        for old, new in [
            ('"exp_avg_sq": False}', '"exp_avg_sq": True}'),
            ("if id(p) not in wide and worth", "if worth"),
            ('state["step"] += 1', "pass"),
            ('{"step": state["step"].clone(), **wide}', '{"step": state["step"], **wide}'),
            ("            codes[name].copy_(new_codes)\n", ""),
            ("            scales[name].copy_(new_scales)\n", ""),
            ("split(rows) for name in MOMENTS", "split(rows + 1) for name in MOMENTS"),
            ('beta2=group["betas"][1]', 'beta2=group["betas"][0]'),
            ('weight_decay=group["weight_decay"]', "weight_decay=0.0"),
            ('eps=group["eps"]', "eps=1e-3"),
        ]
    ),
    *(
        Mutation("training/optimizer.py", old, new, "training/test_blockwise_adam.py")
        for old, new in [
            ("if p is embedding]", "if False]"),
            ("full = [m for m, p in", "full = [p for m, p in"),
            ("if moment_bits == 8:", "if moment_bits == 4:"),
            ("moment_bits=OPTIMIZERS[options.optim]", "moment_bits=32"),
            ("and not any(map(made.adam.quantizes, made.masters))", "and False"),
        ]
    ),
    *(
        Mutation("training/optimizer_state.py", old, new, "training/test_blockwise_adam.py")
        for old, new in [
            ("if key.removesuffix(SCALES) in MOMENTS and quantized", "if False and quantized"),
            ("[blocks_of(parameter.numel())] if key", "list(tensor.shape) if key"),
        ]
    ),
    *(
        Mutation(file, "    if config.gradient_checkpointing:\n", "    if False:\n", COMMANDS)
        for file in (
            "recipes/sft.py",
            "recipes/preference.py",
            "recipes/reward_model.py",
            "recipes/reward_attributes/__init__.py",
        )
    ),
    Mutation("setup/sampling.py", "    if options.gradient_checkpointing:\n", "    if False:\n", COMMANDS),
    Mutation("training/critic.py", "        moment_bits=OPTIMIZERS[options.optim],\n", "", COMMANDS),
    Mutation("training/critic.py", "        embedding=made.embedding,\n", "", COMMANDS),
    Mutation(
        "setup/training_options.py",
        "if settings.optim not in OPTIMIZERS:",
        "if False:",
        "setup/test_training_options.py",
    ),
]
