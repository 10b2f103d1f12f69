"""Faults of what saves memory: gradient checkpointing, and Adam's moments in 8 bits."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("training/adam.py", old, new, "training/test_blockwise_adam.py")
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
            ("if p is self._wide]", "if False]"),
            ("full = [m for m, p in", "full = [p for m, p in"),
            (
                "        if self._moment_bits == 8:\n            full",
                "        if self._moment_bits == 4:\n            full",
            ),
            ("moment_bits=OPTIMIZERS[options.optim]", "moment_bits=32"),
            ("and not any(map(cast(Any, made.adam).quantizes, made.masters))", "and False"),
        ]
    ),
    *(
        Mutation("training/adam.py", old, new, "training/test_blockwise_adam.py")
        for old, new in [
            ("if key.removesuffix(SCALES) in MOMENTS and quantized", "if False and quantized"),
        ]
    ),
]
