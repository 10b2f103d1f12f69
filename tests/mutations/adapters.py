"""Faults of adapters: a scale, a norm, a mask that is not by place, a reference that drops, a ratio of two dropouts."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("setup/lora_options.py", old, new, "setup/test_lora_options.py")
        for old, new in [
            ('"--lora-dora": options.lora_dora,', ""),
            ("if not 0 <= dropout < 1:", "if not 0 <= dropout <= 1:"),
            ("if alpha is not None and not 0 < alpha < math.inf:", "if alpha is not None and alpha < 0:"),
            ("    need_peft()\n", ""),
        ]
    ),
    *(
        Mutation("models/lora_config.py", old, new, "models/test_adapters.py")
        for old, new in [
            ("math.sqrt(self.rank) if self.rslora else self.rank", "self.rank"),
            ("return SCALE * root if", "return root if"),
            ('path.endswith(f".{typed}")', "path.endswith(typed)"),
            ("if is_linear(module) and module is not head}", "if is_linear(module)}"),
            ("if set(found) <= set(inside(network, trained)):", "if set(found) <= set(trained):"),
            ("        if not found:\n", "        if False:\n"),
        ]
    ),
    *(
        Mutation("models/lora.py", old, new, "models/test_adapters.py")
        for old, new in [
            ("use_rslora=lora.rslora", "use_rslora=False"),
            ("use_dora=lora.dora", "use_dora=False"),
            ("target_modules=targets or ", "target_modules="),
            ("modules_to_save=trained or None", "modules_to_save=None"),
            ("[*inside(model.network, trained), ", "["),
            ("ensure_weight_tying=bool(trained) and tied", "ensure_weight_tying=False and tied"),
            ("        _refuse_other_kinds(folder)\n", ""),
            ("    _refuse_ends(folder, model.network)\n", ""),
            ("told[:300]", "told[:30]"),
        ]
    ),
    *(
        Mutation("models/merging.py", old, new, "models/test_adapters.py")
        for old, new in [
            (' or ".original_module." in name', ""),
            ("layer.lora_magnitude_vector[adapter].weight / torch", "torch"),
            ("torch.linalg.norm(outputs, dim=1)", "torch.linalg.norm(weight, dim=1)"),
            ('.replace(".modules_to_save.default.", ".")', ""),
        ]
    ),
    Mutation("models/merging.py", "narrow_(rounded, _merged(", "rounded.copy_(_merged(", "models/test_lora.py"),
    *(
        Mutation("models/dropout.py", old, new, "models/test_dropout.py")
        for old, new in [
            ("_digest(self._seed, layer, key)", "_digest(self._seed, key)"),
            ("_digest(self._seed, layer, key)", "_digest(layer, key)"),
            ("_digest(self._seed, layer, key)", "_digest(self._seed, layer)"),
            ("return found.div_(share)", "return found"),
            ('_digest("example", next(examples))', '_digest("example", at)'),
            ("            layer.training = on", "            pass"),
            ("self._seed, self._segments = before", "self._seed = before[0]"),
            ("        finally:\n", "        except KeyError:\n"),
            ("1 - self.p, x)", "self.p, x)"),
        ]
    ),
    *(
        Mutation(
            "models/reference.py",
            f"self._as_it_was(), self._model.dropping(None):\n            {then}",
            f"self._as_it_was():\n            {then}",
            "models/test_dropout.py",
        )
        for then in ("return self", "return Predictions")
    ),
    Mutation("training/policy.py", "    with model.dropping(None):\n", "    if True:\n", "training/test_policy.py"),
    *(
        Mutation(
            f"recipes/{file}.py", 'seed_for(config.seed, "dropout", step', "None and (step", "recipes/test_adapters.py"
        )
        for file in ("sft", "preference", "reward_model", "rl", "online_preference")
    ),
    *(
        Mutation("models/adapter_footprint.py", old, new, "models/test_adapter_footprint.py")
        for old, new in [
            ("8 * size.inputs if lora.dropout", "4 * size.inputs if lora.dropout"),
            ("(8 if lora.dropout else itemsize + 4)", "(itemsize + 4)"),
            (" - frozen)) + copies", ")) + copies"),
            ("min(size.inputs, shared)", "size.inputs"),
            (" + (self.outputs if self.lora.dora else 0)", ""),
            (" and path not in left", ""),
            ("kept = {id(p): p for", "kept = {(path, p): p for"),
        ]
    ),
    *(
        Mutation("recipes/export.py", old, new, "recipes/test_export.py")
        for old, new in [
            ('    checking.refuse_far("the merged model", exact, rounded=False)\n', ""),
            ('    checking.refuse_far("the copied model", written, rounded=False)\n', ""),
        ]
    ),
    Mutation("export/checking.py", "if not value <= limit:", "if value > limit:", "recipes/test_export.py"),
    Mutation(
        "export/folder.py",
        "        shutil.rmtree(scratch, ignore_errors=True)\n",
        "        pass\n",
        "recipes/test_export.py",
    ),
    Mutation("export/folder.py", '*TRAINING, "."', '"."', "recipes/test_export.py"),
    Mutation("data/digests.py", 'part.rpartition("=")[0] or part', "part", "data/test_digests.py"),
]
