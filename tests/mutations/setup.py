"""Faults of the option forms: a bound, a default that is forgotten, what is held out, what is never passed on."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "setup/backend.py",
        "load = partial(_loaded, where=where)  # of trainers",
        "load = partial(_loaded, where=where, engine=options.engine)  # of trainers",
        "setup/test_backend.py",
    ),
    *(
        Mutation("setup/feedback_session.py", old, new, "recipes/test_pairs.py recipes/test_reward_model.py")
        for old, new in [
            ("first, last, score, patience", "False, last, score, patience"),
            ("first, last, score, patience", "first, False, score, patience"),
            ("patience(options.stop_after, score)", "patience(0, score)"),
            ("save_every=options.save_every", "save_every=100"),
            ('("steps", "epochs", "stop_after", *MAY_DIFFER)', '("steps",)'),
            ('row.get("evaluation/accuracy",', 'row.get("evaluation/loss",'),
            ("        prepare=prepare,\n", ""),
        ]
    ),
    Mutation("setup/training_options.py", "    lora_of(settings)\n", "", "setup/test_training_options.py"),
    Mutation("setup/pair_options.py", ", *counts)", ")", "recipes/test_reward_model.py"),
    Mutation("setup/pair_options.py", ", *zero_or_more)", ",)", "recipes/test_reward_model.py"),
    *(
        Mutation("setup/pair_options.py", old, new, "recipes/test_pairs.py")
        for old, new in [
            ("options.steps < 0 or not 0 < options.epochs", "options.steps < 0 or not 0 <= options.epochs"),
        ]
    ),
    *(
        Mutation("setup/feedback.py", old, new, "recipes/test_pairs.py")
        for old, new in [
            ("min(options.max_tokens, context)", "context"),
            ("min(options.max_tokens, context)", "options.max_tokens"),
            ("if most > options.microbatch_tokens:", "if False:"),
            ("if len(learned) < per_step:", "if len(learned) <= per_step:"),
            ("math.ceil(options.epochs", "math.floor(options.epochs"),
            ("sum(map(len, usable[0])) - len(learned)", "0"),
            ("        if found.left_out:\n", "        if False:\n"),
            ("(lambda: tasks(options.eval_dataset)) if options.eval_dataset else None", "None"),
            (
                "max(map(size_of, kind.sequences(unit))) <= longest for",
                "min(map(size_of, kind.sequences(unit))) <= longest for",
            ),
            ("lambda sequences: max(map(size_of, sequences))", "lambda sequences: sum(map(size_of, sequences))"),
        ]
    ),
    *(
        Mutation("setup/training_options.py", old, new, "setup/test_training_options.py")
        for old, new in [
            ("if not least <= value", "if not least < value"),
            ("value < math.inf:", "value <= math.inf:"),
            ("if not settings.max_grad_norm > 0:", "if settings.max_grad_norm <= 0:"),
            ("if not settings.max_grad_norm > 0:", "if not settings.max_grad_norm >= 0:"),
            ('"keep_last", *counts)', '"keep_last")'),
            ("if settings.decay not in SCHEDULES:", "if False:"),
        ]
    ),
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
        Mutation("setup/heldout.py", old, new, "setup/test_heldout.py")
        for old, new in [
            ("if not any(map(math.isnan, each))", "if True"),
            ("if not by_task:", "if False:"),
            ("if scores[name].applicable]", "]"),
            ("return sum(found) if found else math.nan", "return sum(found)"),
            ("lost / len(groups)", "lost"),
        ]
    ),
]
