"""Faults of a run's session: a step lost or done twice, a signal that waits, an evaluation that is forgotten."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("runs/session.py", old, new, "runs/test_session.py")
        for old, new in [
            ("return self._rate(self.step)", "return self._rate(self.step + 1)"),
            ("if self._due or (", "if ("),
            (
                "        if self.step:\n            self.finished = self.finished",
                "        if False:\n            self.finished = self.finished",
            ),
            ("self.finished = self.finished or self._evaluations.finished(self.rows)\n\n", "pass\n\n"),
            ("and not self._stop.requested and not", "and not"),
            (
                'self.progress.phase("rollout") as self._phase, self._stop.cancellable():',
                'self.progress.phase("rollout") as self._phase:',
            ),
            ('self.progress.phase("evaluation"), self._stop.cancellable():', 'self.progress.phase("evaluation"):'),
            ("for example in examples), True", "for example in examples), False"),
            ("dict(state or {}), False", "dict(state or {}), self._updating"),
            ("= dict(state or {}), False", "= {}, False"),
            ("self.step % when.every == 0)", "self.step % when.every == 1)"),
            ("or (when.last and last)", ""),
            ("(training.evaluations.first and self.step == 0)", "training.evaluations.first"),
            ("self._waiting is not None or (training", "(training"),
            ("self._evaluations.score(metrics) if evaluation else None", "None"),
            ("score if score is not None and math.isfinite(score) else None", "score"),
            ("elif step % self._save_every == 0 or", "elif"),
            ("0 or evaluation:", "0:"),
            ("            self._log(0, found)\n", ""),
            ("        self.directory.log_samples(step, done.samples)\n", ""),
            ("if self._updating:\n", "if False:\n"),
            ("elif self._tried < self.step == self._written:", "elif False:"),
            ("        self._tried = self.step\n", ""),
            ("except (Exception, SystemExit) as error:", "except Exception as error:"),
            ("found.step - (_OWED in found.state)", "found.step"),
            ("found.step - (_OWED in found.state)", "-1"),
            ("    trained.restore(found.path)\n", ""),
            ("    if found is None:\n", "    if False:\n"),
            ("for line in found.skipped)", "for line in ())"),
            ("            session.keep()\n        if", "            pass\n        if"),
            ("            session.keep()\n            call(", "            call("),
            ("            error.add_note(", "            str("),
        ]
    ),
    *(
        Mutation("runs/early_stopping.py", old, new, "runs/test_session.py")
        for old, new in [("max(found[-patience:]) <= max", "max(found[-patience:]) < max"), ("patience > 0 and ", "")]
    ),
    *(
        Mutation("runs/interrupt.py", old, new, "runs/test_session.py")
        for old, new in [
            ("class Stopped(KeyboardInterrupt)", "class Stopped(Exception)"),
            ("        self._cancellable = True\n", ""),
        ]
    ),
    Mutation("runs/interrupt.py", "        if self.requested:\n", "        if False:\n", "runs/test_interrupt.py"),
    *(
        Mutation("runs/session.py", old, new, "runs/test_callback.py")
        for old, new in [
            ('            call(callbacks, "on_run_start", session)\n', ""),
            ('            call(callbacks, "on_run_end", session)\n', ""),
            ('        call(self._callbacks, "on_step", self, step, metrics)\n', ""),
            ('        call(self._callbacks, "on_checkpoint", self, self.step, folder)\n', ""),
            ('        call(self._callbacks, "on_evaluation", self, self.step, found)\n', ""),
            ('            call(self._callbacks, "on_evaluation", self, 0, found)\n', ""),
            ('        self.finished = why or "a callback said so"\n', "        pass\n"),
            ('why or "a callback said so"', "why"),
            ("            with contextlib.suppress(Stopped):\n", "            if True:\n"),
        ]
    ),
    Mutation(
        "runs/session.py", '"interrupted" if session.interrupted else "finished"', '"failed"', "runs/test_trackers.py"
    ),
    *(
        Mutation("runs/callback.py", old, new, "runs/test_callback.py")
        for old, new in [
            ("except PosttrainError:", "except Exception:"),
            ("any(hasattr(kind, event)", "True or any(hasattr(kind, event)"),
            ("if not isinstance(kind, type):", "if False:"),
            (
                "except (Exception, SystemExit) as error:\n            where",
                "except Exception as error:\n            where",
            ),
        ]
    ),
    *(
        Mutation("runs/trackers/__init__.py", old, new, "runs/test_trackers.py")
        for old, new in [
            ('ids.get(tracker, "")', '""'),
            (" if tracker != TENSORBOARD]", "]"),
            ("            ids[tracker] = identity\n", ""),
            ("        with lock:", "        if True:"),
            ("    if names:\n        write()\n", ""),
            ('or kept.get("name") or', "or"),
            ("name not in (TENSORBOARD, *TRACKERS)", "False"),
        ]
    ),
    *(
        Mutation("runs/trackers/tracker.py", old, new, "runs/test_trackers.py")
        for old, new in [
            ("            del waiting[0]\n", "            waiting.clear()\n"),
            ("            if not self._complained:\n", "            if True:\n"),
            ("self._thread.join(wait_s)", "self._thread.join()"),
            ("        if self._tracker is None:\n", "        if False:\n"),
            ("self._tracker.finish(status) if self._tracker else None", "None"),
            ("            waiting.append(row)\n", "            waiting[:] = [row]\n"),
        ]
    ),
    *(
        Mutation("runs/trackers/wandb.py", old, new, "runs/test_trackers.py")
        for old, new in [
            ("            id=identity,\n", ""),
            ('{"step": step, **metrics}', "dict(metrics)"),
            ("tags=list(run.tags)", "tags=[]"),
        ]
    ),
    *(
        Mutation("runs/trackers/mlflow.py", old, new, "runs/test_trackers.py")
        for old, new in [
            ("        if run.identity:\n", "        if False:\n"),
            ("        if not self._id:\n", "        if True:\n"),
            ("metrics=found[at : at + _AT_ONCE]", "metrics=found[:1]"),
            ("float(value), now, step)", "float(value), now, 0)"),
        ]
    ),
    *(
        Mutation("runs/trackers/trackio.py", old, new, "runs/test_trackers.py")
        for old, new in [('"allow" if run.identity else "never"', '"never"'), ("step=step", "step=0")]
    ),
    *(
        Mutation("runs/inputs.py", old, new, "runs/test_inputs.py")
        for old, new in [
            ("for name in (*SOURCES, *CODE):", "for name in SOURCES:"),
            ("for name in (*SOURCES, *CODE):", "for name in CODE:"),
            ("return {name: text for name, text in found.items() if _MARK in text}", "return found"),
            ("before.keys() | now.keys()", "before.keys() & now.keys()"),
            ("for name in others if name not in accepted]", "for name in ()]"),
            ("_digests(before.get(name)) != _digests(now.get(name))]", "True]"),
            ("for name in NAMING if name in options}", "for name in NAMING}"),
            ('part.strip("-")', "part"),
            ('for option in ("gold_model", "teacher")', 'for option in ("teacher",)'),
            ('for option in ("gold_model", "teacher")', 'for option in ("gold_model",)'),
            ("for file in (path, *imported(path)):\n            ", "for file in (path,):\n            "),
            ("for folder in folders if _there(", "for folder in folders[:1] if _there("),
            ("for folder in folders if _there(", "for folder in () if _there("),
            ("str(copy / Path(path).name) if copy else", "str(copy / Path(path).name) if False else"),
            ("        waiting.remove(copy)\n", "        pass\n"),
            ("starts[-1].get(", "starts[0].get("),
            ("len(words) == 1 and name not in SPLIT else", "len(words) == 1 else"),
            ("    if name not in SPLIT and (there", "    if False and (there"),
            ("    if name not in SPLIT and (there", "    if (there"),
            ("path.parents[node.level - 1] if node.level else root", "root"),
            ("for end in range(1, len(names) + 1):", "for end in (len(names),):"),
            ("candidate.is_relative_to(path.parent) and ", ""),
            ("file.relative_to(root).as_posix()", "file.name"),
            ('(one.rglob("*") if one.is_dir() else [one])', "[one]"),
            ("waiting.append(candidate)", "pass"),
            ('if name in ("reward", "gold", "environment"):', "if False:"),
            ("or (glob.has_magic(path) and", "or (False and"),
            ("[path, *imported(path)]", "[path]"),
            ("[len(word), *(place", "[*(place"),
        ]
    ),
    *(
        Mutation("runs/session.py", old, new, "runs/test_inputs.py")
        for old, new in [
            ("refuse_changes(before, now, accepts) if before else []", "[]"),
            ("may_differ=(*may_differ, *by_digest)", "may_differ=may_differ"),
            ('{"accepted": changed} if changed else {}', "{}"),
            ("    keep_code(settings, directory.path)\n", ""),
            ('"folder": os.getcwd(), ', ""),
        ]
    ),
    *(
        Mutation("training/saved.py", old, new, "training/test_saved.py")
        for old, new in [
            ("!= now.where and not _is_the_same(now.where, run)", "!= now.where"),
            (" or _is_another(now, began, run):", ":"),
            ("    if os.path.isabs(began) and not Path(now.where).is_dir():\n", "    if False:\n"),
            ("(gone if os.path.isabs(began) else error)", "error"),
            (' | (about.get("resumed") or [{}])[-1]', ""),
            ("return not same_run and Path", "return Path"),
        ]
    ),
    *(
        Mutation("data/digests.py", old, new, "runs/test_inputs.py training/test_saved.py")
        for old, new in [("found.update(file.read(_PIECE))", "pass"), ("* number // (_PIECES - 1)", "* 0")]
    ),
    *(
        Mutation("training/schedule.py", old, new, "training/test_schedule.py")
        for old, new in [
            ("past = max(0, step - self.delay)", "past = step"),
            ("past, steps=self.steps - self.delay", "past, steps=self.steps"),
            ("done - self.delay,", "done,"),
            ("before - self.delay,", "before,"),
        ]
    ),
    *(
        Mutation("user_code.py", old, new, "rewards/test_custom.py rewards/test_trl.py runs/test_callback.py")
        for old, new in [
            ("if name in sys.modules:", "if False:"),
            ('b"\\0" + location.read_bytes()', 'b"\\0"'),
            ("sys.path.insert(0, str(location.parent))", "sys.path.insert(0, '')"),
            ("except (Exception, SystemExit) as error:", "except Exception as error:"),
        ]
    ),
]
