"""Faults of the server: a sum that is a mean, an order, a check that is left out, a state that is not saved."""

from tests.mutations import Mutation

MUTATIONS = [
    *(
        Mutation("server/losses.py", old, new, "server/test_losses.py")
        for old, new in [
            ("return loss_N.sum()", "return loss_N.mean()"),
            ('columns["weights"] * loss_N if', "loss_N if"),
            ('1 - config["clip_low_threshold"], config', '1 - config["clip_high_threshold"], config'),
            ('config["clip_high_threshold"] - 1', 'config["clip_high_threshold"]'),
            ('"clip_low_threshold": 0.8', '"clip_low_threshold": 0.9'),
            ('"clip_high_threshold": 1.2}', '"clip_high_threshold": 1.3}'),
            ('{"beta": 0.05}', '{"beta": 0.5}'),
            ('beta=config["beta"]', "beta=0.05"),
            ('columns["advantages"] != 0', 'columns["advantages"] >= 0'),
            ("if self.kind.silent_at_zero:", "if False:"),
            ('loss_N = loss_N * columns["weights"]', "loss_N = loss_N"),
            ("of_tokens is not cross_entropy and", "of_tokens is cross_entropy and"),
            ("and value >= 0 for value", "for value"),
        ]
    ),
    Mutation(
        "server/sampling_routes.py",
        "served.decoder.add(job) ",
        "served.worker.submit(lambda: served.decoder.add(job)) ",
        "server/test_sdk.py::test_requests_that_come_during_a_step_begin_together",
    ),
    *(
        Mutation("server/trainer.py", old, new, "server/test_trainer.py")
        for old, new in [
            ("row.rows += [number] * targets.size", "row.rows += [0] * targets.size"),
            ("at += prefix + sum(lengths)", "at += sum(lengths)"),
            ("initial=at + prefix)", "initial=at)"),
            ("[*range(at, at + prefix), *range", "[*range(at + prefix, at + 2 * prefix), *range"),
            ("np.repeat(places, targets.size // len(places))", "np.tile(places, targets.size // len(places))"),
            ("most = min(len(a), len(b)) - 1", "most = min(len(a), len(b))"),
            ("if common < SHARED or", "if common < 0 or"),
            ('"betas": (adam.beta1, adam.beta2)', '"betas": (adam.beta2, adam.beta1)'),
            ('"eps": adam.eps, ', ""),
            (', "weight_decay": adam.weight_decay}', "}"),
            ("adam.grad_clip_norm or math.inf", "math.inf"),
            ("adam.grad_clip_norm or math.inf", "adam.grad_clip_norm"),
            ("        self.optimizer.discard()\n", ""),
            ("        self.optimizer.adam.state.clear()\n", ""),
            ("        if optimizer:\n", "        if True:\n"),
            ("                master.grad = grad\n", "                pass\n"),
            ("is None else master.grad.clone()", "is None else master.grad"),
            ("        if backward:\n", "        if True:\n"),
            ("data[number].columns[name].ravel() for number in row.examples", "d.columns[name].ravel() for d in data"),
            ("if self.beta1 >= 1 or self.beta2 >= 1:", "if self.beta1 > 1:"),
            ("value >= 0 for value in", "True for value in"),
        ]
    ),
    *(
        Mutation(f"server/{file}", old, new, f"server/test_{test}.py")
        for file, test, old, new in [
            ("together.py", "together", "self.owners[row.examples[number]]", "-1 - self.owners[row.examples[number]]"),
            (
                "together.py",
                "together",
                "each.trainer.model.trainable()), each.scale)",
                "each.trainer.model.trainable()), 1.0)",
            ),
            ("together.py", "together", '"owners": joined.owners, ', ""),
            (
                "together.py",
                "together",
                "pack(joined.examples, most, owners=joined.owners)",
                "pack(joined.examples, most)",
            ),
            ("together.py", "together", "stack.enter_context(member.trainer.all_or_nothing())", "pass"),
            ("together.py", "together", "[number - first for number in row.rows[", "[0 for number in row.rows["),
            ("together.py", "together", "self.losses[owner] += share.item()", "self.losses[owner] = share.item()"),
            ("together.py", "together", "        _refuse_infinite(members, list(found.values()))\n", ""),
            ("together.py", "together", "*(output.loss for output in outputs)", ""),
            ("together.py", "together", "            placement.close()", "            pass"),
            ("together.py", "together", "            at += size\n", ""),
            ("together.py", "together", "if len(some) == 1:", "if False:"),
            ("joint_requests.py", "joint_requests", "other.trainer is not None", "True"),
            ("joint_requests.py", "joint_requests", " or run.apart", ""),
            ("runs.py", "joint_requests", "run.apart = not math.isfinite(run.trainer.optimizer.grad_norm())", "pass"),
            ("together.py", "together", "if not read or not all(", "if not all("),
            ("joint_requests.py", "joint_requests", "asked.batch.tokens <= room", "True"),
            ("joint_requests.py", "joint_requests", "        load(run)", "        pass"),
            ("joint_requests.py", "joint_requests", "next(iter(run.queued), None)", "next(reversed(run.queued), None)"),
            ("joint_requests.py", "joint_requests", "with all_or_none(members):", "if True:"),
            ("runs.py", "joint_requests", "computed[1] if computed else self", "self"),
            ("runs.py", "joint_requests", "        if seq not in run.queued:\n", "        if False:\n"),
            ("runs.py", "joint_requests", "[(each.run, each.seq, None) for each in asked] or", ""),
        ]
    ),
    Mutation("training/optimizer.py", "if norm > most:", "if norm > self._max_grad_norm:", "server/test_trainer.py"),
    *(
        Mutation("server/datum.py", old, new, "server/test_trainer.py")
        for old, new in [
            ("not 0 < length <= context", "not 0 <= length <= context"),
            ("not 0 < length <= context", "not 0 < length < context"),
            ("max(tokens) < vocabulary", "max(tokens) <= vocabulary"),
            ("min(tokens) >= 0 and ", ""),
            ("if column.shape != shape:", "if False:"),
            ("if not np.isfinite(column).all():", "if False:"),
            ("if total > most_tokens:", "if total > 2 * most_tokens:"),
            ("sum(datum.targets.size for datum in data)", "0"),
            ("if datum.columns.keys() != data[0].columns.keys():", "if False:"),
        ]
    ),
    *(
        Mutation("server/decoder.py", old, new, "server/test_decoder.py")
        for old, new in [
            ("self._adapter(job.weights) if job.weights else None", "None"),
            ("self._model.placed([adapter], [len(tokens)])", "self._model.placed([None], [len(tokens)])"),
            ("stop_ids=job.stop_ids, ", ""),
            ("adapter=adapter)", "adapter=None)"),
            ("len(together) == 1 if self._apart", "True if self._apart"),
            ('(together - {""}) <= ADAPTERS', "(together) <= ADAPTERS"),
            ('(together - {""}) <= ADAPTERS', '(together - {""}) <= ADAPTERS + 1'),
            ("self._adapters.pop(weights, None)", "self._adapters.get(weights)"),
            ("len(self._adapters) + 1 - ADAPTERS", "len(self._adapters) - ADAPTERS"),
            ("for name in self._adapters if name not in self._used]", "for name in self._adapters]"),
            ("        self._adapters[weights] = found\n", ""),
            ("            self._used -= Counter([job.weights])\n", ""),
            ("self._running, self._used = {}, Counter()\n", "self._running = {}\n"),
            ("        if several:\n", "        if False:\n"),
            ("waiting = self._apart or self._queue", "waiting = self._queue"),
            ("high = middle\n", "high = middle - 1\n"),
            ("states = model.states(row)[:-1]", "states = model.states(row)[1:]"),
            ("for job in failed:", "for job in []:"),
        ]
    ),
    Mutation("server/base.py", "return ALPHA / self.rank", "return ALPHA", "server/test_decoder.py"),
    *(
        Mutation("server/runs.py", old, new, "server/test_restart.py")
        for old, new in [
            ("if seq >= run.next and seq not in run.waiting:", "if True:"),
            ("                    run.journal.accept(seq, request)\n", "                    pass\n"),
            ("elif operation.state or operation.gradient:", "elif operation.state:"),
            ("elif operation.state or operation.gradient:", "elif operation.gradient:"),
            ("if run.saved < seq <= run.executed:", "if seq <= run.executed:"),
            ("if run.saved < seq <= run.executed:", "if run.saved < seq < run.executed:"),
            ("                trainer.restore(state.path)\n", "                pass\n"),
            ("                other.trainer = None\n", "                pass\n"),
            ("if seq > run.executed}", "if seq > run.executed + 1}"),
            ("                self._futures.open(request_id)\n", ""),
            ("        while run.next in run.waiting:\n", "        if run.next in run.waiting:\n"),
        ]
    ),
    Mutation("server/worker.py", "self._do(task)", "task()", "server/test_worker.py"),
    Mutation("server/worker.py", "self._do(self._sampling.step)", "self._sampling.step()", "server/test_worker.py"),
    *(
        Mutation(f"server/{file}", old, new, "server/test_failures.py")
        for file, old, new in [
            ("runs.py", "        run.trainer = None  # memory is ahead of the disk\n", ""),
            ("runs.py", "the disk\n        run.journal.fail(seq)\n", "the disk\n"),
            (
                "runs.py",
                "        except Exception as error:\n            self",
                "        except ZeroDivisionError as error:\n            self",
            ),
            ("runs.py", " or self._is_saved(run, seq):", ":"),
            ("runs.py", "not (operation.state or operation.gradient or operation.ends) or", "False or"),
            ("runs.py", ", *run.journal.failed()]", "]"),
            ("runs.py", "(SERVER_FAILED if seq in run.journal.failed() else None)", "None"),
            ("runs.py", "run.trainer = None  # some weights may have", "pass  # some weights may have"),
            ("runs.py", "if result is not None and result.kind == ERROR:", "if False:"),
            ("runs.py", "                trainer.optimizer.discard()", "                pass"),
            (
                "runs.py",
                "            except OSError as error:  # such",
                "            except ZeroDivisionError as error:  # such",
            ),
            ("runs.py", " or operation.ends) or", ") or"),
            ("runs.py", "if seq == ended.unloaded else None", "if False else None"),
            ("runs.py", "None if operation.ends else self._loaded(run)", "self._loaded(run)"),
            (
                "runs.py",
                "for seq, counts in run.waiting.items():\n                    self",
                "for seq, counts in []:\n                    self",
            ),
            (
                "runs.py",
                "            if run.record.ended:\n                result",
                "            if False:\n                result",
            ),
            ("runs.py", 'found["owner"] == owner and ', ""),
            ("checkpoints.py", "        raise NotSaved(str(error)) from error", "        raise"),
        ]
    ),
    *(
        Mutation("server/operations.py", old, new, "server/test_sdk.py server/test_restart.py")
        for old, new in [
            ("loss, not request.forward_only)", "loss, True)"),
            ('optimizer=asked["optimizer"])', "optimizer=True)"),
            (" - {(address.kind, address.name)}", ""),
            ('found.about["adapter"]).shape != model.adapter.shape', 'found.about["adapter"]).shape == 0'),
        ]
    ),
    *(
        Mutation(f"server/{file}", old, new, "server/test_guard.py")
        for file, old, new in [
            ("operations.py", 'if record and record["owner"] == owner else None', "if record else None"),
            ("runs.py", "run.record.owner != owner or ", ""),
            ("samplers.py", 'or found["owner"] != owner:', "and True:"),
            ("sessions.py", 'or found["owner"] != owner:', "and True:"),
            ("keys.py", "found | {name: _digest(secret)}", "found | {name: secret}"),
            ("keys.py", "if not secret.startswith(PREFIX):", "if False:"),
            ("keys.py", "self._needed or found is not None", "found is not None"),
            ("keys.py", "self._needed or found is not None", "bool(found)"),
            ("guard.py", "self._waiting[owner] = waiting + amount", "self._waiting[owner] = waiting + 1"),
            (
                "guard.py",
                "if waiting and waiting + amount > share * self._most",
                "if waiting + amount > share * self._most",
            ),
            (
                "runs.py",
                "            self._backlog.leave(run.record.owner, counts)  # first",
                "            pass  # first",
            ),
            ("runs.py", "                    self._backlog.leave(record.owner, counts)\n", ""),
            ("runs.py", "if record.base_model == self.base.name:", "if True:"),
            ("runs.py", "share=1.0 if seq == run.next else 0.5", "share=1.0"),
            ("runs.py", "0 if operation_of(request.kind).ends else", ""),
            ("runs.py", "        tidy(folder)\n", ""),
            ("operations.py", "for kind in checkpoints.KINDS for", "for kind in [address.kind] for"),
            ("training_routes.py", "contextlib.suppress(CheckpointError)", "contextlib.suppress(KeyError)"),
            ("files.py", ".{secrets.token_hex(4)}", ""),
            ("files.py", "        new.unlink(missing_ok=True)\n", ""),
            ("bodies.py", "if 0 < value < LEAST_TEMPERATURE:", "if False:"),
            ("guard.py", 'if b"origin" in headers:', "if False:"),
            ("guard.py", "if self._read > self._limits.body_bytes:", "if False:"),
            ("guard.py", 'if name in ("localhost", *names):', "if True:"),
            ("wire.py", "if len(found) > most_bytes:", "if False:"),
            ("files.py", "if not _NAME.fullmatch(name):", "if not _NAME.match(name):"),
            ("samplers.py", "found[:-kept]", "found[:0]"),
            ("runs.py", "len(mine) - most + 1)", "len(mine) - most)"),
        ]
    ),
    *(
        Mutation("server/checkpoints.py", old, new, "server/test_checkpoints.py")
        for old, new in [
            ('checked_name(parts[2], "a checkpoint")', "parts[2]"),
            ("checked_model(parts[0])", "parts[0]"),
            ("_MODEL.fullmatch", "_MODEL.match"),
            ("if not overwrite and (found := read(root)) is not None:", "if (found := None):"),
            ('found.about.get("request") == about["request"]', "False"),
            ('"request" in about and ', ""),
            ("< time.time()", "< 0"),
            ("if ttl_seconds is not None and ttl_seconds <= 0:", "if False:"),
            ("            shutil.rmtree(root, ignore_errors=True)\n", "            pass\n"),
            ("if not _gone(root)]", "]"),
            ("    for folder in found:\n        shutil.rmtree(folder)\n", "    shutil.rmtree(root)\n"),
            ("replaced at this moment\n        return False", "replaced at this moment\n        return True"),
        ]
    ),
    *(
        Mutation("server/wire.py", old, new, "server/test_wire.py")
        for old, new in [
            ("> COLUMNS * most_tokens:", "> 10 * COLUMNS * most_tokens:"),
            ("math.prod(tensor.shape)", "tensor.shape[0]"),
            ("crow[0] == 0 and ", ""),
            ("(counts >= 0).all() and ", ""),
            ("(col >= 0) & ", ""),
            ("& (col < shape[1])", ""),
            ("STOP_REASON_STOP if each.stopped", "STOP_REASON_STOP if not each.stopped"),
            ("prompt is not None and with_own:", "prompt is not None:"),
            ("np.cumsum([0, *", "np.cumsum([*"),
        ]
    ),
]
