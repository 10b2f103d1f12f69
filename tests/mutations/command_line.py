"""Faults of fine-tuning and of the command line: what is learned, held out, resumed, read in which order, and said."""

from tests.mutations import Mutation

INPUTS = "session/test_inputs.py::test_a_run_goes_on_elsewhere_after_its_reward_was_mended"
JUDGES = "recipes/test_judges.py::test_a_changed_prompt_is_noticed_and_the_runs_own_copy_is_found"
DRY_RUN = "planning/test_plan.py::test_a_dry_run_names_flags_in_notes_and_warnings"
EVALUATE = "recipes/test_evaluate.py::test_what_a_run_was_trained_with_is_noted"
NOBODY = "annotation/app/test_conversations.py::test_nobody_replies_where_no_model_is_served"

MUTATIONS = [
    *(
        Mutation("setup/feedback_session.py", old, new, "recipes/test_pairs.py recipes/test_reward_model.py")
        for old, new in [
            ("held, held, score, patience", "False, held, score, patience"),
            ("held, held, score, patience", "held, False, score, patience"),
            ("patience(options.stop_after, score)", "patience(0, score)"),
            ("save_every=options.save_every", "save_every=100"),
            ('("steps", "epochs", "stop_after")', '("steps",)'),
            ('row.get("evaluation/accuracy")', 'row.get("evaluation/loss")'),
            ("        prepare=prepare,\n", ""),
        ]
    ),
    *(
        Mutation("recipes/sft.py", old, new, "recipes/test_sft.py")
        for old, new in [
            ("else -loss", "else loss"),
            ("held, held, score, pat", "False, held, score, pat"),
            ("held, held, score, pat", "held, False, score, pat"),
            ("patience(config.stop_after, score)", "patience(0, score)"),
            ("losses[0], losses[-1])", "losses[-1], losses[0])"),
            ("config.examples_per_step, step, config.seed)", "config.examples_per_step, 0, config.seed)"),
            ("config.examples_per_step, step, config.seed)", "config.examples_per_step, step, 0)"),
            ("min(config.max_tokens, context)", "config.max_tokens"),
            ("math.ceil(config.epochs", "math.floor(config.epochs"),
            ("if len(examples) < config.examples_per_step:", "if len(examples) <= config.examples_per_step:"),
            ("(lambda: tasks(config.eval_dataset)) if config.eval_dataset else None", "None"),
            ("        share=config.eval_share,\n", "        share=0.0,\n"),
            ("if len(example.continuation) <= longest]", "if len(example.continuation) < longest]"),
            ("len(found) - len(kept)", "len(kept)"),
            ('if train_on == "last"', 'if train_on == "all"'),
        ]
    ),
    *(
        Mutation("recipes/preference.py", old, new, "recipes/test_pairs.py")
        for old, new in [
            ("step in range(units.steps)), heldout)", "step in range(units.steps)), [])"),
            ("config.pairs_per_step, step, config.seed)", "config.pairs_per_step, 0, config.seed)"),
        ]
    ),
    *(
        Mutation("data/tokenizer.py", old, new, "recipes/test_pairs.py")
        for old, new in [
            ("padding_beside(tokenizer, ends)\n    tokenizer", "next(iter(ends))\n    tokenizer"),
            ("    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(padding)\n", ""),
        ]
    ),
    Mutation("setup/training_options.py", "    lora_of(settings)\n", "", "setup/test_training_options.py"),
    Mutation("setup/pair_options.py", ", *counts)", ")", "recipes/test_reward_model.py"),
    Mutation("setup/pair_options.py", ", *zero_or_more)", ",)", "recipes/test_reward_model.py"),
    *(
        Mutation("recipes/reward_model.py", old, new, "recipes/test_pairs.py")
        for old, new in [
            ("                parts.calibration = None\n", ""),
            ("config.pairs_per_step, step, config.seed)", "config.pairs_per_step, 0, config.seed)"),
            ("if not 0 <= config.label_smoothing < 0.5:", "if False:"),
        ]
    ),
    Mutation(
        "session/result.py", "found[0] if rows and rows[0]", "found[-1] if rows and rows[0]", "recipes/test_pairs.py"
    ),
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
            ("if len(learned) < options.pairs_per_step:", "if len(learned) <= options.pairs_per_step:"),
            ("math.ceil(options.epochs", "math.floor(options.epochs"),
            ("len(sides.learned) - len(learned)", "0"),
            ("        if found.left_out:\n", "        if False:\n"),
            ("(lambda: tasks(options.eval_dataset)) if options.eval_dataset else None", "None"),
            (
                "max(map(size_of, kind.sequences(unit))) <= longest for",
                "min(map(size_of, kind.sequences(unit))) <= longest for",
            ),
            ("lambda sequences: max(map(size_of, sequences))", "lambda sequences: sum(map(size_of, sequences))"),
        ]
    ),
    *(Mutation("training/learner.py", old, new, "recipes/test_pairs.py") for old, new in []),
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
        Mutation("session/failure.py", old, new, "session/test_failure.py")
        for old, new in [
            ("[*example.prefix, *example.continuation]", "[*example.continuation]"),
            ("    except OSError as error:  # such as a full disk\n", "    except ValueError as error:\n"),
            ("except TrainingError as error:", "except Exception as error:"),
            (
                "    except CheckpointError as error:\n        return str(error)",
                "    except CheckpointError:\n        raise",
            ),
        ]
    ),
    *(
        Mutation(file, old, new, "test_usage.py")
        for file, old, new in [
            ("usage.py", "for owner in form.__mro__:", "for owner in reversed(form.__mro__):"),
            ("usage.py", " if name not in listed]", "]"),
            ("usage.py", "TOPICS.index(topic) if topic in TOPICS else len(TOPICS)", "-len(topic)"),
            ("usage.py", 'r"(?<=[.;]) "', 'r"(?<=[.]) "'),
            ("usage.py", "if len(first) <= room else", "if len(first) < room else"),
            ("usage.py", "| dict(said)\n    return [", "\n    return ["),
            ("usage.py", "(_defaults(section.form) | dict(said)).items()", "_defaults(section.form).items()"),
            ("usage.py", "len(lines[-1]) + len(knob) <= width", "True"),
            ("usage.py", " - sum(map(len, topics.values()))", ""),
            ("usage.py", "value is None or value is False or", "value is None or not value or"),
            ("usage.py", "texts.get(name) or _annotated(kinds[name])", 'texts.get(name, "")'),
            ("usage.py", "room = WIDTH - len(lead)", "room = width - len(lead)"),
            ("docstrings.py", "reversed(form.__mro__)", "form.__mro__"),
            ("cli.py", '"HELP": {"run": often}', '"HELP": {}'),
            ("options.py", "args=words", "args=list(argv)"),
        ]
    ),
    *(
        Mutation("options.py", old, new, "test_options.py")
        for old, new in [
            ("return [section.form(**_values(part))", "return [part"),
            ("found.append({})", "found.append(dict(file))"),
            ("{k: v for k, v in file.items() if k not in tables}", "file"),
            ("not isinstance(value, bool):\n            return float(value)", "True:\n            return float(value)"),
            ("return float(value)", "return value"),
            ("return Path(value)", "return value"),
            ("type(value) is option:", "isinstance(value, option):"),
            ("if get_origin(option) is Literal and value in inner:", "if get_origin(option) is Literal:"),
            ('name.removeprefix("no_") in switches:', "name in options:"),
            ("            if equals:\n", "            if False:\n"),
            ('or waiting[0].startswith("--"):', "or False:"),
            ("if option is types.NoneType:", "if False:"),
            ("found = text if equals else following", "found = following"),
            ('if flag == f"--{name}":', 'if flag.startswith(f"--{name}"):'),
        ]
    ),
    *(
        Mutation("cli.py", old, new, " ".join(f"test_cli.py::test_{name}" for name in tests.split()))
        for old, new, tests in [
            ("_with_notes(error), error.exit_code, words)", "_with_notes(error), 1, words)", "exit_codes"),
            ("' '.join(message.split())", "message", "exit_codes"),
            ('startswith("posttrain"):', 'startswith("x"):', "exit_codes"),
            (
                'os.environ["GOMP_SPINCOUNT"] = SPINCOUNT',
                "pass",
                "threads_that_wait_for_each_other_soon_sleep_unless_told_otherwise",
            ),
            ("traceback.print_exc()", "pass", "debug_shows_the_traceback"),
            ("except BrokenPipeError:", "except ZeroDivisionError:", "a_reader_that_has_heard_enough_is_no_error"),
            (
                'given(argv, "algorithm") or file.get("algorithm")',
                'file.get("algorithm")',
                "a_mistake_is_one_line_and_exit_code_2",
            ),
            ('table="knobs"', "table=None", "rl_its_knobs_and_its_repetition"),
            ("if config and resume:", "if False:", "a_mistake_is_one_line_and_exit_code_2"),
            ('if (meant := _meant(run)) not in ("", name):', "if False:", "sft_resumed"),
            ('if getattr(shared, "resume", None) and', "if False and", "sft_resumed"),
            ("relocated(_renamed(command, run.config), run", "relocated({}, run", "sft_resumed"),
            (
                'for key in ("output", "resume", "quiet") if',
                'for key in ("output", "resume") if',
                "sft_its_run_its_report_and_its_repetition",
            ),
            (
                "return 128 + signal.Signals[cause]",
                "return 1",
                "a_run_stopped_before_its_first_step_cannot_be_gone_on_with",
            ),
            ("if result.steps:", "if True:", "a_run_stopped_before_its_first_step_cannot_be_gone_on_with"),
            ("shlex.quote(str(result.run))", "result.run", "a_stopped_run_says_how_to_go_on"),
            (
                "_stopped(name, result) or command.code(result)",
                "_stopped(name, result)",
                "verify_fails_where_an_item_does",
            ),
        ]
    ),
    *(
        Mutation(file, old, new, "recipes/test_online_preference.py recipes/test_reward_attributes.py")
        for file, old, new in [
            ("cli.py", "was.command == run.command and was.option in run.config", "was.command == run.command"),
            ("cli.py", "was.command == run.command and was.option in run.config", "False"),
            ("cli.py", " or former.option in file):", "):"),
            ("cli.py", "return {former.now: value, **found} if former.now else found", "return found"),
            ("runs/run_directory.py", "command = command or run.command", "command = run.command"),
            ("recipes/online_preference.py", '("rounds", "iterate", "stop_after",', '("rounds", "stop_after",'),
        ]
    ),
    *(
        Mutation("errors.py", old, new, "test_errors.py")
        for old, new in [
            ("(?<!`)`([a-z]", "`([a-z]"),
            ("))?`(?!`)", "))?`"),
            ("(?:=([^`]+))?", "(?:=(.+))?"),
            ('found[1].replace("_", "-")', "found[1]"),
            ('("no-" if value == "False" else "")', '""'),
            ("quoted[2] if quoted else value", "value"),
            ("_QUOTED.fullmatch(value)", "_QUOTED.match(value)"),
            ("if isinstance(error, PosttrainError) else foreign(str(error))", ""),
            ("str(error) if isinstance(error, PosttrainError) else foreign(str(error))", "foreign(str(error))"),
            ("foreign((str(error).strip().splitlines()", "((str(error).strip().splitlines()"),
            ("or [type(error).__name__])[0]", "or [''])[0]"),
        ]
    ),
    *(
        Mutation("errors.py", "(str(error).strip().splitlines() or [type(error).__name__])[0]", "str(error)", tests)
        for tests in ("models/test_load.py", "models/test_packaged.py")
    ),
    *(
        Mutation(file, old, new, tests)
        for file, old, new, tests in [
            ("cli.py", "says or as_typed(str(error))", "says or str(error)", "test_flags.py"),
            ("cli.py", "*map(as_typed, notes)", "*notes", "test_bad_input.py::test_no_disk_space_at_a_checkpoint"),
            ("cli.py", 'f"{as_typed(str(error))}; to go', 'f"{error}; to go', INPUTS),
            ("cli.py", "(error.names).replace('_', '-')", "(error.names)", JUDGES),
            (
                "cli.py",
                'print(as_typed("\\n".join(plan.lines())))',
                'print("\\n".join(plan.lines()))',
                DRY_RUN,
            ),
            ("cli.py", "[as_typed(line) for line in found[key]]", "found[key]", DRY_RUN),
            ("session/progress.py", "Text(as_typed(line))", "Text(line)", "session/test_progress.py"),
            ("session/progress.py", "Text(as_typed(message))", "Text(message)", "session/test_progress.py"),
            ("report/run_report.py", "as_typed(finding.advice)", "finding.advice", "report/test_run_report.py"),
            ("report/run_report.py", "as_typed(finding.evidence)", "finding.evidence", "report/test_run_report.py"),
            ("report/run_report.py", "as_typed(value) if", "value if", "report/test_run_report.py"),
            ("runs/run_directory.py", "return as_typed(f", "return (f", "runs/test_run_directory.py"),
            ("recipes/convert.py", "[as_typed(line) for line in found]", "found", "test_flags.py"),
            ("recipes/generate.py", "{as_typed(note)}", "{note}", "test_flags.py"),
            ("recipes/generate.py", "[as_typed(note) for", "[note for", "test_flags.py"),
            ("recipes/best_of_n.py", "{as_typed(note)}", "{note}", "test_flags.py"),
            ("recipes/best_of_n.py", "[as_typed(note) for", "[note for", "test_flags.py"),
            ("recipes/verify/__init__.py", "as_typed(str(error))", "str(error)", "test_flags.py"),
            ("recipes/data_show/__init__.py", "as_typed(reason)", "reason", "recipes/test_data_show.py"),
            ("recipes/evaluate.py", "{as_typed(note)}", "{note}", EVALUATE),
            ("recipes/evaluate.py", "[as_typed(note) for", "[note for", EVALUATE),
            (
                "annotation/app/security.py",
                "as_typed(words)",
                "words",
                "annotation/app/test_security.py::test_other_names_than_ours_are_not_served",
            ),
            ("annotation/app/main.py", "as_typed(str(error))", "str(error)", NOBODY),
            ("annotation/app/conversations.py", "return as_typed(", "return (", NOBODY),
        ]
    ),
    *(
        Mutation("commands.py", old, new, f"test_cli.py::test_{tests}")
        for old, new, tests in [
            (
                "all(item.passed for item in items)",
                "any(item.passed for item in items)",
                "verify_fails_where_an_item_does",
            ),
            ("if result.steps else found", "", "a_run_stopped_before_its_first_step_cannot_be_gone_on_with"),
            ('f"{field.name}_ci95": value.ci95', "", "rl_reports_accuracies_with_intervals"),
        ]
    ),
]
