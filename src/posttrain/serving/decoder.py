"""Sampling from adapters and from the base, all in one batch, by the embedded engine.

A request joins the batch at the next step, whatever it samples from and by which tokens it ends
(`models/mixed_adapters.py`). Up to `ADAPTERS` adapters are in memory, those that were used last.
"""

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from posttrain.data.packing import PackedRow
from posttrain.engine.transformers import TransformersDecoding, TransformersEngine
from posttrain.models.language_model import LanguageModel
from posttrain.models.mixed_adapters import LowRank
from posttrain.serving.base import Adapter, Base
from posttrain.serving.datum import MISSING, PromptLogprobs, Sampled
from posttrain.types import Completion, Request, StopReason

ADAPTERS = 16  # that are kept in memory, and so the most of a batch
ROWS = 256  # tokens whose whole distributions exist at once


class Weights(NamedTuple):
    """An adapter's weights."""

    adapter: Adapter
    tensors: Mapping[str, Tensor]


Samples = tuple[list[Sampled], PromptLogprobs | None]
Done = Callable[[Samples | Exception], None]


@dataclass(frozen=True)
class Job:
    """A request for samples of one prompt.

    Attributes:
        weights: name of the adapter's weights; "" for the base.
        requests: one for each sample.
        stop_ids: the tokens that end a sample.
        stop_strings: texts that do.
        prompt_logprobs: whether those of the prompt are asked for.
        top: number of most likely tokens at each place of the prompt.
        done: gets the samples, or the error.
    """

    weights: str
    requests: Sequence[Request]
    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...]
    prompt_logprobs: bool
    top: int
    done: Done


@dataclass
class _Running:
    job: Job
    prompt: PromptLogprobs | None
    completions: dict[int, Completion] = field(default_factory=dict[int, Completion])


class Decoder:
    """Samples in steps, in the thread of the worker; `add` may be called from any thread."""

    def __init__(self, base: Base, load: Callable[[str], Weights], *, max_sequences: int, cache_gb: float) -> None:
        self._base, self._load, self._model = base, load, base.mixed()
        self._engine = TransformersEngine(
            self._model,
            base.stop_ids,
            max_sequences=max_sequences,
            cache_gb=cache_gb,
            decode=lambda ids: str(base.tokenizer.decode(list(ids))),
        )
        self._queue: deque[Job] = deque()
        # of a batch that failed: one adapter after another, to see whose fault it is
        self._apart: deque[Job] = deque()
        self._adapters: dict[str, LowRank] = {}  # the one that was used last is the last
        self._decoding: TransformersDecoding | None = None
        self._open = contextlib.ExitStack()
        self._numbers = count()
        self._running: dict[int, tuple[_Running, int]] = {}
        self._used: Counter[str] = Counter()  # the requests under way by what they sample from

    @property
    def busy(self) -> bool:
        """Whether a request waits or is under way."""
        return bool(self._queue or self._apart or self._running)

    def add(self, job: Job) -> None:
        """Answer a request."""
        self._queue.append(job)

    def step(self) -> None:
        """Begin what can begin, and sample a token of each sequence. Never raises."""
        waiting = self._apart or self._queue
        while waiting and self._may_join(waiting[0]):
            self._admit(waiting.popleft())
        if self._running:
            try:
                assert self._decoding is not None
                done = self._decoding.step()
            except Exception as error:
                self._fail(error)
                return
            for number, completion in done.items():
                self._finish(number, completion)
        if not self._running:
            self._close()

    def _may_join(self, job: Job) -> bool:
        together = self._used.keys() | {job.weights}
        return len(together) == 1 if self._apart else len(together - {""}) <= ADAPTERS

    def _admit(self, job: Job) -> None:
        try:
            adapter = self._adapter(job.weights) if job.weights else None
            if self._decoding is None:
                self._decoding = self._open.enter_context(self._engine.open())
            tokens = job.requests[0].token_ids
            prompt = None
            if job.prompt_logprobs or job.top:
                with torch.no_grad(), self._model.placed([adapter], [len(tokens)]):
                    prompt = prompt_logprobs(self._model, tokens, job.top)
            running = _Running(job, prompt)
            numbers = [next(self._numbers) for _ in job.requests]
            for number, request in zip(numbers, job.requests, strict=True):
                self._decoding.add(number, request, stop_ids=job.stop_ids, adapter=adapter)
        except Exception as error:
            job.done(error)
            return
        self._running |= {number: (running, place) for place, number in enumerate(numbers)}
        self._used[job.weights] += 1

    def _adapter(self, weights: str) -> LowRank:
        """The adapter of this name, in place of the one that was not used for longest."""
        found = self._adapters.pop(weights, None)
        if found is None:
            loaded, mixed = self._load(weights), self._model.mixed
            assert mixed is not None
            idle = [name for name in self._adapters if name not in self._used]
            for name in idle[: len(self._adapters) + 1 - ADAPTERS]:
                del self._adapters[name]
            found = mixed.adapter(loaded.tensors, loaded.adapter.scale)
        self._adapters[weights] = found
        return found

    def _finish(self, number: int, completion: Completion) -> None:
        running, place = self._running.pop(number)
        running.completions[place] = completion
        job = running.job
        if len(running.completions) == len(job.requests):
            self._used -= Counter([job.weights])
            try:
                samples = [self._sampled(running.completions[place], job) for place in range(len(job.requests))]
            except Exception as error:
                job.done(error)
            else:
                job.done((samples, running.prompt))

    def _sampled(self, completion: Completion, job: Job) -> Sampled:
        """A completion up to its first stop string, if it has one."""
        tokens, stopped = completion.token_ids, completion.stop_reason is StopReason.STOP
        end = first_stop(tokens, job.stop_strings, lambda ids: str(self._base.tokenizer.decode(list(ids))))
        if end is not None:
            tokens, stopped = tokens[:end], True
        return Sampled(tokens, completion.logprobs[: len(tokens)], stopped)

    def _fail(self, error: Exception) -> None:
        """End the batch. Requests of one adapter get the error; those of several begin again, one adapter at a time."""
        failed = list({id(running): running.job for running, _ in self._running.values()}.values())
        several = len(self._used) > 1
        self._running, self._used = {}, Counter()
        self._close()
        if several:
            self._apart.extend(failed)
            return
        for job in failed:
            job.done(error)

    def _close(self) -> None:
        self._decoding = None
        stack, self._open = self._open, contextlib.ExitStack()
        stack.close()


def first_stop(tokens: Sequence[int], stops: Sequence[str], decode: Callable[[Sequence[int]], str]) -> int | None:
    """The number of tokens up to the one that completes the first stop string; None if there is none."""
    if not stops or not any(stop in decode(tokens) for stop in stops):
        return None
    low, high = 1, len(tokens)
    while low < high:  # the text of more tokens contains what that of fewer does
        middle = (low + high) // 2
        if any(stop in decode(tokens[:middle]) for stop in stops):
            high = middle
        else:
            low = middle + 1
    return low


@torch.no_grad()
def prompt_logprobs(model: LanguageModel, tokens: Sequence[int], top: int) -> PromptLogprobs:
    """Logprobs of a prompt's tokens, in nats, at temperature 1, and of the `top` most likely at each place."""
    row = PackedRow()
    row.token_ids, row.positions = list(tokens), list(range(len(tokens)))
    row.families, row.examples = [(len(tokens), [])], []
    states = model.states(row)[:-1]
    own, ids, logprobs = [np.full(1, np.nan)], [np.zeros((1, top))], [np.full((1, top), MISSING)]
    following = model.ids(tokens[1:])
    for states_N, next_N in zip(states.split(ROWS), following.split(ROWS), strict=True):
        all_NV = model.logits(states_N).float().log_softmax(dim=1)
        own.append(all_NV.gather(1, next_N[:, None])[:, 0].cpu().numpy())
        if top:
            best = all_NV.topk(top, dim=1)
            ids.append(best.indices.cpu().numpy())
            logprobs.append(best.values.cpu().numpy())
    return PromptLogprobs(
        np.concatenate(own),
        np.concatenate(ids) if top else None,
        np.concatenate(logprobs) if top else None,
    )
