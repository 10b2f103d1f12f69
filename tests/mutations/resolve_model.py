"""Faults of naming a model: the wrong checkpoint, what a folder is taken for, what it was trained with."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("training/resolve_model.py", old, new, "training/test_resolve_model.py")
        for old, new in [
            ("!= began != now.where and not same(now.where):", "!= began and False:"),
            ("if began and Path(began).is_dir():", "if False:"),
            ("    if began and os.path.abspath(now.where)", "    if False and os.path.abspath(now.where)"),
            ("and not path.exists() and (", "and ("),
            ("if name not in PACKAGED and not", "if not"),
            ("_runs_in(path.parent)", "[]"),
            ("checkpoint.best(root) or checkpoint.latest(root)", "checkpoint.latest(root)"),
            ("checkpoint.best(root) or checkpoint.latest(root)", "checkpoint.best(root)"),
            ("str(checkpoint.load(path).path)", "str(path)"),
            ("run if _is_run(run) else None", "run"),
            (" and not any((path / file).exists() for file in _MODEL_FILES)", ""),
            ("path, found.skipped)", "path)"),
            (".expanduser()", ""),
            ("path.rglob(kind)", "path.glob(kind)"),
            ('if "prompt_template" not in trained:', "if False:"),
            ("if trained.get(key) != value", "if trained.get(key) == value"),
            ("contextlib.suppress(OSError, ValueError)", "contextlib.suppress(OSError)"),
            ("contextlib.suppress(OSError, ValueError)", "contextlib.suppress(ValueError)"),
        ]
    ),
]
