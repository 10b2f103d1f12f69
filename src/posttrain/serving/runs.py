"""The models of clients: what each was asked, in order, and how it comes back after the server was killed.

A request is on disk before it is accepted, and its result before it is told. The state (weights and moments) is saved
after optimiser steps and loads. Whatever was done since the last save is computed again when the model is needed, from
the requests, with the same bits; what was never done is done then.

A request that is told as failed has no effect, neither at once nor when others are computed again; except that a step
whose gradient is not finite discards it.
"""

import contextlib
import json
import math
import shutil
import threading
import time
from collections.abc import Generator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.errors import CheckpointError, PosttrainError, UserError, described
from posttrain.serving import checkpoints
from posttrain.serving.access import IDLE_SECONDS, OVERHEAD
from posttrain.serving.base import Adapter
from posttrain.serving.files import read_json, tidy, write_json
from posttrain.serving.guard import Pending
from posttrain.serving.operations import CHANGES, ENDS, OPERATIONS, STATE, Slices, unloaded
from posttrain.serving.run import FAILED, Entry, Record, Run
from posttrain.serving.together import Asked, JointPass
from posttrain.serving.trainer import NotFinite, Trainer, finished
from posttrain.training import checkpoint

if TYPE_CHECKING:
    from posttrain.serving.services import Services

ERROR = "error"  # kind of a result that is one: JSON with the text and whose fault it is
AHEAD = 4096  # requests of a model that may wait for an earlier one
Computed = tuple[Entry, Entry]  # a request that was computed with others, and its result


class Runs:
    """All models. Requests are accepted in any thread, and executed in the worker's."""

    def __init__(self, services: "Services") -> None:
        self._services, self._worker, self._futures = services, services.worker, services.futures
        self._joint = JointPass(services) if services.limits.batch_gradients else None
        self._backlog = Pending(services.limits.backlog_per_key)
        self._runs: dict[str, Run] = {}
        self._lock = threading.RLock()
        self._records: dict[str, Record] = {}  # of all models, the oldest first
        services.models.mkdir(parents=True, exist_ok=True)
        for path in sorted(services.models.glob("*/model.json"), key=lambda path: path.stat().st_mtime):
            about = read_json(path)
            try:
                record = Record(**{**about, "adapter": Adapter(**about["adapter"])})
            except (TypeError, KeyError, UserError):  # of another version: the folder stays, and is no model here
                continue
            self._records[record.model_id] = record
            checkpoints.tidy(path.parent)

    def create(self, model_id: str, owner: str, adapter: Adapter, first: Entry) -> str:
        """Make a model, with its first request, which has seq_id 0; the id of that. Raises as `_make_room`."""
        with self._lock:
            if model_id not in self._records:
                self._make_room(owner)
                folder = self._folder(model_id)
                for part in ("requests", "results"):
                    (folder / part).mkdir(parents=True, exist_ok=True)
                record = Record(model_id, owner, self._services.base.name, adapter)
                write_json(folder / "model.json", asdict(record))
                self._records[model_id] = record
        return self.accept(self.get(owner, model_id), 0, first)

    def _make_room(self, owner: str) -> None:
        """Raise `UserError` if the owner has as many models as may be; those without a client are ended.

        Of models that have ended, the oldest without a checkpoint are deleted.
        """
        limits = self._services.limits
        mine = [record for record in self._records.values() if record.owner == owner]
        ended = [record for record in mine if record.ended]
        surplus = len(ended) - limits.ended_per_key + 1
        for record in ended if surplus > 0 else []:
            folder = self._folder(record.model_id)
            if surplus > 0 and not checkpoints.names(folder):
                shutil.rmtree(folder, ignore_errors=True)
                del self._records[record.model_id]
                surplus -= 1
        if surplus > 0:
            raise UserError(
                f"a key may have checkpoints of {limits.ended_per_key} models that have ended; delete those of one"
            )

        def heard(record: Record) -> float:
            return self._services.sessions.heard(record.model_id.split(":")[0])

        training = sorted((record for record in mine if not record.ended), key=heard)
        for record in training[: max(0, len(training) - limits.models_per_key + 1)]:
            if heard(record) > time.time() - IDLE_SECONDS:
                raise UserError(
                    f"a key may have {limits.models_per_key} models in training; end one of your clients, or use "
                    "unload_model"
                )
            self._end(record)

    def record(self, owner: str, model_id: str) -> Record:
        """What a model is, ended or not; raises `UserError` if the owner has none of this id."""
        found = self._records.get(model_id)
        if found is None or found.owner != owner:
            raise UserError(f"there is no model '{model_id[:80]}'")
        return found

    def get(self, owner: str, model_id: str) -> Run:
        """A model that has not ended, on this base, or `UserError`; what the server before has left is done then."""
        with self._lock:
            record, name = self.record(owner, model_id), self._services.base.name
            if record.ended:
                raise UserError(f"there is no model '{model_id}'")
            if record.base_model != name:
                raise UserError(f"'{model_id}' is on '{record.base_model}', and this server has '{name}'")
            if (run := self._runs.get(model_id)) is None:
                self._runs[model_id] = run = self._opened(record)
                with run.lock:
                    self._schedule(run)
        return run

    def _opened(self, record: Record) -> Run:
        run = Run(self._folder(record.model_id), record)
        tidy(run.folder)
        if (state := checkpoint.latest(run.folder / "state")) is not None:
            run.saved = int(state.state["seq"])
            if run.result(run.saved) is None:  # killed after the one and before the other
                run.finish(run.saved, Entry(state.state["kind"], state.state["result"].encode()))
        run.executed = max([run.saved, *run.numbers("results"), *run.numbers("requests", FAILED)])
        run.next = run.executed + 1
        run.pending = {seq: 0 for seq in run.numbers("requests") if seq > run.executed}
        for seq in run.pending:
            self._futures.open(run.request_id(seq))
            if run.kind(seq) == ENDS:
                run.last = seq
        return run

    def accept(self, run: Run, seq: int, request: Entry) -> str:
        """Accept a request, once; refused if it is too far ahead, or its key has too much that is not done. Its id."""
        request_id, ends = run.request_id(seq), request.kind == ENDS
        with run.lock:
            if run.record.ended or (run.last is not None and seq >= run.last and not ends):
                raise _gone(run.record)
            if seq < 0 or seq > run.next + AHEAD:
                raise UserError(f"seq_id {seq} is not near {run.next}, which comes next for this model")
            if seq >= run.next and seq not in run.pending:
                # unload makes room; what waits for an earlier request leaves room for that one
                counts = 0 if ends else len(request.body) + OVERHEAD
                self._backlog.enter(run.record.owner, counts, share=1.0 if seq == run.next else 0.5)
                try:
                    run.accept(seq, request)
                except BaseException:
                    self._backlog.leave(run.record.owner, counts)
                    raise
                self._futures.open(request_id)
                run.pending[seq] = counts
                self._schedule(run)
        return request_id

    def unload(self, owner: str, model_id: str) -> str:
        """End a model after what it was asked; later requests are refused. Returns the id of the request."""
        run = self.get(owner, model_id)
        with run.lock:
            if run.last is None:
                self.accept(run, run.next, Entry(ENDS, b"{}"))
                run.last = run.next - 1
            return run.request_id(run.last)

    def end_session(self, owner: str, session_id: str) -> None:
        """End the models of a session once what they were asked is done. Their named checkpoints stay."""
        for record in list(self._records.values()):
            if record.model_id.startswith(f"{session_id}:") and record.owner == owner and not record.ended:
                if record.base_model == self._services.base.name:
                    self.get(owner, record.model_id)  # which does what was accepted before the server ended
                self._worker.submit(partial(self._end_with_session, record), record.client)

    def _end_with_session(self, record: Record) -> None:
        try:
            self._end(record)
        except OSError as error:  # such as a disk that is full
            self._services.report(
                f"{record.model_id} was not ended with its session: {described(error)}; it makes room for "
                "others of its key an hour after its client was last heard of"
            )

    def _schedule(self, run: Run) -> None:
        """Hand over all requests that no earlier one is missing for."""
        while run.next in run.pending:
            self._worker.submit(partial(self._execute, run, run.next), run.record.client)
            run.next += 1

    def look_for(self, owner: str, model_id: str, seq: int) -> None:
        """Have the result of a request in memory, if it is on disk; of an ended model only that of its end is."""
        request_id, record, kept = f"{model_id}:{seq}", self.record(owner, model_id), None
        if record.ended:
            kept = unloaded(model_id) if seq == record.unloaded else None
        else:
            run = self.get(owner, model_id)
            if not self._futures.known(request_id):
                kept = run.result(seq) or (SERVER_FAILED if seq in run.numbers("requests", FAILED) else None)
        if kept is not None:
            self._futures.finish(request_id, kept)

    def _end(self, record: Record, request: int | None = None) -> None:
        folder, ended = self._folder(record.model_id), replace(record, ended=True, unloaded=request)
        write_json(folder / "model.json", asdict(ended))
        self._records[record.model_id] = ended
        run = self._runs.pop(record.model_id, None)
        if run is not None:
            with run.lock:
                run.record = ended
                for seq in [seq for seq in run.pending if seq >= run.next]:  # others are told in their turn
                    self._backlog.leave(record.owner, run.pending.pop(seq))
                    self._futures.finish(run.request_id(seq), failure(_gone(record)))
        for part in ("requests", "results", "state", checkpoints.UNNAMED):
            shutil.rmtree(folder / part, ignore_errors=True)

    def _folder(self, model_id: str) -> Path:
        return self._services.models / checkpoints.folder_name(model_id)

    def _execute(self, run: Run, seq: int) -> Generator[None, None, None]:
        """Do a request, unless it was done with one of another model. In the worker's thread."""
        if seq not in run.pending:
            return
        batch = self._batch(self._joint, run) if self._joint else []
        with contextlib.ExitStack() as stack:  # each of them is told, whatever fails for another
            for each in reversed(batch):
                stack.callback(finished, self._finish(*each))
        if not batch:
            yield from self._finish(run, seq, None)

    def _batch(self, joint: JointPass, run: Run) -> list[tuple[Run, int, Computed]]:
        """What was computed in one pass: a model's next request, with those of others; empty if there was none."""
        asked: list[Asked] = []
        try:
            with self._lock:
                others = [each for each in self._runs.values() if each is not run]
            asked = joint.compatible(run, others, load=self._loaded)
            answers = joint.answers([(self._loaded(each.run), each) for each in asked]) if asked else []
            return [(each.run, each.seq, (each.request, a)) for each, a in zip(asked, answers, strict=True)]
        except Exception as error:  # it comes again where each is computed by itself, to the one at fault
            if not isinstance(error, PosttrainError):
                text = f"gradients of several models in one pass: {described(error)}; each is computed alone"
                self._services.report(text)
            for each in asked:
                each.run.apart = True  # until it has computed alone what is finite
            return []

    def _finish(self, run: Run, seq: int, computed: Computed | None) -> Generator[None, None, None]:
        """Do a request, unless it is computed, and tell the result."""
        with run.lock:
            counts = run.pending.pop(seq)
        told: Entry | None = SERVER_FAILED  # whatever fails, a client shall not wait for ever
        run.busy = True
        try:
            if run.record.ended:
                result = failure(_gone(run.record))
            else:
                result = yield from self._done(run, seq, computed)
                run.executed = seq
            if run.apart and result.kind != ERROR and run.trainer is not None:
                run.apart = not math.isfinite(run.trainer.optimizer.grad_norm())
            told = result
        except GeneratorExit:  # the server ends between two slices, and the next one does it
            told = None
            raise
        finally:
            run.busy = False
            if seq == run.last and not run.record.ended:
                run.last = None  # it could not end
            self._backlog.leave(run.record.owner, counts)  # first: who has the result may ask for as much again
            if told is not None:
                self._futures.finish(run.request_id(seq), told)

    def _done(self, run: Run, seq: int, computed: Computed | None) -> Slices:
        """Do a request, unless it is computed, and save what has changed; the result."""
        try:
            request = computed[0] if computed else run.request(seq)
        except Exception as error:
            self._failed(run, seq, error)
            with contextlib.suppress(OSError):
                run.fail(seq)
            return SERVER_FAILED
        kind = request.kind
        result = computed[1] if computed else (yield from self._attempt(run, seq, request))
        if run.record.ended:  # meanwhile
            return failure(_gone(run.record))
        try:
            if kind in STATE and result.kind != ERROR:
                run.steps += 1
                if run.steps >= self._services.limits.save_every or kind == "load":
                    assert run.trainer is not None
                    about = {"seq": seq, "kind": result.kind, "result": result.body.decode()}
                    checkpoint.save(run.folder / "state", seq, run.trainer.learner.save, about, keep_last=1)
                    run.saved, run.steps = seq, 0
                    run.prune(seq)
            if kind == ENDS and result.kind != ERROR:
                self._end(run.record, seq)  # what is told of it is in its record from now on
            else:
                run.finish(seq, result)
        except Exception as error:  # such as a disk that is full
            self._failed(run, seq, error)
            if kind in (*CHANGES, ENDS) and not self._is_saved(run, seq):  # not all is on the disk
                run.trainer = None  # memory is ahead of the disk
                run.fail(seq)
                return SERVER_FAILED
        return result

    def _failed(self, run: Run, seq: int, error: Exception) -> None:
        self._services.report(f"{run.record.model_id}, request {seq}: {described(error)}")

    def _is_saved(self, run: Run, seq: int) -> bool:
        """Whether the state on the disk contains a request, also if something failed after it was saved."""
        with contextlib.suppress(CheckpointError):  # damaged
            state = checkpoint.latest(run.folder / "state")
            if state is not None and state.state["seq"] == seq:
                run.saved, run.steps = seq, 0
                return True
        return False

    def _attempt(self, run: Run, seq: int, request: Entry) -> Slices:
        try:
            trainer: Any = None if request.kind == ENDS else self._loaded(run)  # a damaged model must end, too
            found = OPERATIONS[request.kind](trainer, request.body, run, self._services)
            return found if isinstance(found, Entry) else (yield from found)
        except Exception as error:
            if not isinstance(error, PosttrainError):
                self._failed(run, seq, error)
            if isinstance(error, NotFinite) or (request.kind in CHANGES and not isinstance(error, PosttrainError)):
                run.trainer = None  # some weights may have changed; what was done before is computed again
            return failure(error)

    def _loaded(self, run: Run) -> Trainer:
        """The model's weights and gradient, as after the last request that was done."""
        services = self._services
        if run.trainer is None:
            with self._lock:
                others = [each for each in self._runs.values() if each.trainer is not None]
            idle = [each for each in others if not each.busy]
            for other in idle[: max(0, len(others) - services.limits.models_in_memory + 1)]:
                other.trainer = None
            model = services.base.adapted(run.record.adapter)
            trainer = Trainer(model, microbatch_tokens=services.limits.microbatch_tokens)
            if (state := checkpoint.latest(run.folder / "state")) is not None:
                trainer.restore(state.path)
            for seq in run.numbers("requests"):
                if run.saved < seq <= run.executed:
                    self._again(trainer, run, seq)
            run.trainer = trainer
        with self._lock:
            if run.record.model_id in self._runs:
                self._runs[run.record.model_id] = self._runs.pop(run.record.model_id)  # the most recent last
        return run.trainer

    def _again(self, trainer: Trainer, run: Run, seq: int) -> None:
        """Do what was done before, and has changed weights, moments or gradient. What has failed might succeed now."""
        request, result = run.request(seq), run.result(seq)
        if result is not None and result.kind == ERROR:
            if request.kind == "optim_step" and json.loads(result.body)["category"] == "user":
                trainer.optimizer.discard()  # it was not finite
        elif request.kind in CHANGES:
            found = OPERATIONS[request.kind](trainer, request.body, run, self._services)
            if not isinstance(found, Entry):
                finished(found)


def _gone(record: Record) -> UserError:
    return UserError(f"there is no model '{record.model_id}' any more; it was ended")


def failure(error: Exception) -> Entry:
    """The result of a request that failed: `user`, what the client must change, or `server`."""
    return _told(str(error), "user") if isinstance(error, PosttrainError) else SERVER_FAILED


def _told(text: str, category: str) -> Entry:
    return Entry(ERROR, json.dumps({"error": text, "category": category}).encode())


SERVER_FAILED = _told("the server failed; its operator sees why", "server")
