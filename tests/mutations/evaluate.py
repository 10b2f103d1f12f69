"""Faults of evaluating and trying a model: other tasks or draws, the wrong checkpoint, what is counted and shown."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("recipes/evaluate.py", old, new, "recipes/test_evaluate.py")
        for old, new in [
            ("both = not self.greedy and self.samples is None", "both = True"),
            ("both = not self.greedy and self.samples is None", "both = False"),
            ("if both or self.greedy:", "if both:"),
            ("if both or self.samples is not None:", "if both:"),
            ('found["greedy"] = (1, 0.0)', 'found["greedy"] = (1, 1.0)'),
            ("parts.tasks[first : first + at_once],", "parts.tasks[:at_once],"),
            ('seed_for(config.seed, "evaluation", first)', 'seed_for(config.seed, "evaluation")'),
            ('seed_for(config.seed, "evaluation", first)', 'seed_for("evaluation", first)'),
            ("_answers(some, title", "_answers(groups, title"),
            ("greedy=temperature == 0)", "greedy=False)"),
            ("                policy = _load(config, saved)", "                policy = _load(config, parts.model)"),
            ("self.model.over(self.baseline)\n", "self.baseline.over(self.model)\n"),
            ("result.model.over(result.baseline)", "result.baseline.over(result.model)"),
            ("numbers(self.model.headline) |", "numbers((self.model.greedy or self.model.headline)) |"),
            ("unparsed=scores[outcome].unparsed", "unparsed=False"),
            ("tokens=len(trajectory.logprobs)", "tokens=len(trajectory.token_ids)"),
            ('"heldout" if gym else', '"train" if gym else'),
            ("else part)", "else None)"),
            ("if not config.exclude:", "if True:"),
            ("            kept,\n            saved.where,", "            tasks,\n            saved.where,"),
            ("if low > 0 else", "if low < 0 else"),
            ("if high < 0 else", "if high < -9 else"),
            ("if temperature <= 0:", "if temperature < 0:"),
            ("if answers < 1 or config.max_new_tokens < 1:", "if answers < 1:"),
        ]
    ),
    *(
        Mutation("evaluation/intervals.py", old, new, "evaluation/test_intervals.py")
        for old, new in [
            ("found.ci95 if k == 1 else mean_interval", "mean_interval"),
            ("round(rate * size)", "int(rate * size)"),
            ("round(rate * size), k)", "round(rate * size), 1)"),
            ("_common(_by_task(before, k), _by_task(after, k))", "_common(_by_task(before, 1), _by_task(after, 1))"),
            ("fmean(rates_after) - fmean(rates_before)", "fmean(rates_before) - fmean(rates_after)"),
            (
                "paired_difference_interval(rates_before, rates_after)",
                "paired_difference_interval(rates_after, rates_before)",
            ),
            ("if task in after]", "]"),
            ("seen[group.task.id] += 1", "pass"),
            ("if not rates or ", "if "),
            ("(before.greedy, before.measure) != (after.greedy, after.measure)", "before.measure != after.measure"),
        ]
    ),
    *(
        Mutation("evaluation/examination.py", old, new, "evaluation/test_examination.py")
        for old, new in [
            ('{"sampled": self.sampled, "greedy": self.greedy}', '{"greedy": self.greedy, "sampled": self.sampled}'),
            ("difference(before.answers[decoding], found)", "difference(found, before.answers[decoding])"),
            ('"unparsed": found.unparsed,\n        "truncated"', '"unparsed": found.truncated,\n        "truncated"'),
            (
                '"truncated": found.truncated,\n                "tokens"',
                '"truncated": found.unparsed,\n                "tokens"',
            ),
            (
                "size, most = found.samples_per_task, max(found.pass_at, default=1)",
                "size, most = found.samples_per_task, min(found.pass_at, default=1)",
            ),
            ("if not self.answers:", "if False:"),
        ]
    ),
    *(
        Mutation("training/resolve_model.py", old, new, "training/test_resolve_model.py")
        for old, new in [
            ("!= began != now.where and not _is_the_same(now.where, run):", "!= began and False:"),
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
            ("run.rglob(file)", "run.glob(file)"),
            ('if "prompt_template" not in trained:', "if False:"),
            ("if trained.get(key) != value", "if trained.get(key) == value"),
            ("contextlib.suppress(OSError, ValueError)", "contextlib.suppress(OSError)"),
            ("contextlib.suppress(OSError, ValueError)", "contextlib.suppress(ValueError)"),
        ]
    ),
    *(
        Mutation("rollouts/prompt_filter.py", old, new, "rollouts/test_prompt_filter.py")
        for old, new in [
            ("context - 1 if max_prompt_tokens is None", "context if max_prompt_tokens is None"),
            ("min(context - 1, max_prompt_tokens)", "max_prompt_tokens"),
            (")) <= most:", ")) < most:"),
            ("elif max_prompt_tokens is None:", "elif False:"),
            ("if not kept:", "if False:"),
        ]
    ),
    *(
        Mutation("recipes/generate.py", old, new, "recipes/test_generate.py")
        for old, new in [
            ("Sampling(config.max_new_tokens, 0.0)", "Sampling(config.max_new_tokens, 0.0, config.top_k)"),
            ("config.temperature, config.top_k, config.top_p)\n\n", "config.temperature, config.top_k)\n\n"),
            ("seed_for(config.seed, i, j)", "seed_for(config.seed, i)"),
            ("seed_for(config.seed, i, j)", "seed_for(i, j)"),
            ("for _ in range(config.n)]\n    replies", "]\n    replies"),
            ("None if replies else config.system", "config.system"),
            ("None if replies else config.system", "None"),
            ("self.seconds if self.seconds > 0", "1.0 if self.seconds > 0"),
            ("sum(done.logprobs)", "done.logprobs[0]"),
            ("        if not line.strip():\n            break", "        if not line.strip():\n            continue"),
            ("found += [printable(reply.text),", "found += [reply.text,"),
            ("() if self.shown else self.replies", "self.replies"),
            (
                "        fitting(tasks, saved.where, title=saved.title, chat_template=config.chat_template)",
                "        pass",
            ),
            ("if prompt.strip()]", "]"),
            ("if len(given) > 1:", "if False:"),
            ("config.top_k >= 0 and", ""),
            ("0 < config.top_p <= 1", "config.top_p <= 1"),
        ]
    ),
    Mutation(
        "report/markup.py",
        "c.isprintable() or c in",
        "c.isprintable() or c in '\\r' or c in",
        "recipes/test_generate.py",
    ),
]
