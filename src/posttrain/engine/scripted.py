"""A scripted engine, for tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from posttrain.engine.engine import BatchEngine, Decode, cut_at_stop
from posttrain.types import Completion, Request, StopReason


@dataclass
class ScriptedEngine(BatchEngine):
    """Answers with token ids of `script`, cut as a model would be, with a constant logprob; records the requests."""

    script: Callable[[Request], Sequence[int]]
    stop_ids: frozenset[int]
    logprob: float = -1.0
    asked: list[list[Request]] = field(default_factory=list[list[Request]])
    decode: Decode | None = None

    def generate(self, requests: Sequence[Request], on_tokens: Callable[[int], None] | None = None) -> list[Completion]:
        """One scripted completion per request."""
        self.asked.append(list(requests))
        completions = [self._complete(request) for request in requests]
        if on_tokens is not None:
            on_tokens(sum(len(c.token_ids) for c in completions))
        return completions

    def _complete(self, request: Request) -> Completion:
        tokens = tuple(self.script(request))[: request.sampling.max_new_tokens]
        reason = StopReason.STOP if tokens[-1] in self.stop_ids else StopReason.LENGTH
        done = Completion(tokens, (self.logprob,) * len(tokens), reason)
        return cut_at_stop(done, request.sampling.stop, self.decode) if self.decode else done
