"""Faults of packaged models: an unchecked sum, a folder half there, weights or text that come out otherwise."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("models/packaged.py", old, new, "models/test_packaged.py")
        for old, new in [
            ("if found != model.sha256:", "if False:"),
            ("if size == model.size:  #", "if True:  #"),
            ("stat.st_size != kept", "stat.st_size < 0 * kept"),
            ('!= kept["sha256"]:', '== "":'),
            ('== kept["mtime_ns"] and', "is not None and"),
            ("and stat.st_size > _SMALL", ""),
            ("and stat.st_size > _SMALL", "and False"),
            ("!= (_CONVERSION, model.sha256)", "== ()"),
            ("!= (_CONVERSION, model.sha256)", '!= (manifest["conversion"], model.sha256)'),
            ("needed = 3 * model.size", "needed = 2 * model.size"),
            ("            if not _is_whole(folder, model):\n", "            if True:\n"),
            ("        lock.acquire(blocking=False)\n", "        pass\n"),
            ('        report("waiting for another process that is pulling it", 0.0)\n', ""),
            ("        shutil.rmtree(leftover, ignore_errors=True)\n", "        pass\n"),
            ("        shutil.rmtree(work, ignore_errors=True)\n", "        pass\n"),
            (
                "        made.rename(folder)\n",
                "        shutil.copytree(made, folder)\n        made.rename(folder / 'made')\n",
            ),
            ("            folder.rename(work", "            shutil.copytree(folder, work"),
            ('"--no-deps", ', ""),
            ("max(fraction, _share(_bytes_in(work), model.size))", "_share(_bytes_in(work), model.size)"),
            ("min(fetched / size, 0.99)", "fetched / size"),
            ("        except OSError:\n            raise\n", ""),
            ("{error.strerror or first_line(error)}", "{error!r}"),
            ('return (Path(shared) if shared else Path.home() / ".cache")', 'return (Path.home() / ".cache")'),
            ("if chosen := os.environ.get", "if chosen := not os.environ.get"),
        ]
    ),
    *(
        Mutation("models/gguf.py", old, new, "models/test_gguf.py")
        for old, new in [
            ("from_config(config, dtype=torch.bfloat16)", "from_config(config, dtype=torch.float16)"),
            ("        fresh.load_state_dict(unpacked.state_dict())\n", ""),
            ("dequantize=True), dtype=torch.float32", "dequantize=True), dtype=torch.float16"),
            ("            setattr(config, field, value)\n", "            pass\n"),
            ('        vars(config).pop("_model_name_or_path", None)', "        pass"),
            ("pre_tokenizers.Digits(individual_digits=True), ", ""),
            ("individual_digits=True", "individual_digits=False"),
            ("add_prefix_space=False", "add_prefix_space=True"),
            ("        tokenizer.model_max_length = config.max_position_embeddings\n", ""),
            ("            tokenizer.init_kwargs.pop(how_it_was_loaded, None)\n", "            pass\n"),
            ("contextlib.redirect_stderr(nowhere)", "contextlib.nullcontext()"),
        ]
    ),
]
