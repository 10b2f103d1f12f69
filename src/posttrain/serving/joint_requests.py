"""Which requests of several models are computed in one pass, and what they are answered.

Of each model the next request alone, so that the order of its requests stays as it is.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from posttrain.models.language_model import LanguageModel
from posttrain.serving.journal import Entry
from posttrain.serving.operations import Batch, Context, answer_of, operation_of, read_batch
from posttrain.serving.run import Run
from posttrain.serving.together import Member, all_or_none, forward_backward_together
from posttrain.serving.trainer import Trainer


class Asked(NamedTuple):
    """A request for a gradient or a loss, read."""

    run: Run
    seq: int
    request: Entry
    batch: Batch


class JointPass:
    """Computes requests of several models in one pass. Its network is made when it is first needed."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @cached_property
    def _model(self) -> LanguageModel:
        return self._context.base.mixed()

    def compatible(self, run: Run, others: Sequence[Run], *, load: Callable[[Run], Trainer]) -> list[Asked]:
        """A model's next request and those of others that may be computed with it; empty if there are none.

        The others are models in memory, so that none is loaded for it, and none of them makes room for another.
        """
        waiting = [other for other in others if other.queued]
        first = self._next(run) if waiting else None
        if first is None:
            return []
        load(run)  # first, for others may make room for it
        found, room = [first], self._context.microbatch_tokens - first.batch.tokens
        for other in waiting:
            asked = self._next(other) if room > 0 and other.trainer is not None else None
            if asked is not None and asked.batch.tokens <= room:
                found.append(asked)
                room -= asked.batch.tokens
        return found if len(found) > 1 else []

    def _next(self, run: Run) -> Asked | None:
        """The request that comes next for a model, if it is one that may be computed with others."""
        with run.lock:
            seq = next(iter(run.queued), None)
        if seq is None or run.record.ended or run.apart or run.busy:
            return None
        try:
            if not operation_of(run.journal.kind(seq)).joint:
                return None
            request = run.journal.request(seq)
            return Asked(run, seq, request, read_batch(request.body, self._context))
        except Exception:  # such as a mistake of the client's, which is told in its own turn
            return None

    def answers(self, asked: Sequence[tuple[Trainer, Asked]]) -> list[Entry]:
        """The answer to each. If it raises, every gradient is what it was."""
        members = [
            Member(trainer, each.run.adapter.scale, each.batch.data, each.batch.loss, each.batch.backward)
            for trainer, each in asked
        ]
        with all_or_none(members):  # also if an answer cannot be made
            outputs = forward_backward_together(self._model, members, microbatch_tokens=self._context.microbatch_tokens)
            return [answer_of(output) for output in outputs]
