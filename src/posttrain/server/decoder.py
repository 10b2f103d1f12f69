"""Sampling from adapters and from the base, by the embedded engine.

Requests are answered in the order in which they came. Those of one adapter with the same stop tokens share a batch,
which further ones join while nothing else waits before them; then the next adapter's weights are put in place. An
adapter on all of a batch at once (as S-LoRA does, arXiv 2311.03285) is not built.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from posttrain.data.packing import PackedRow
from posttrain.models.language_model import LanguageModel
from posttrain.rollouts.transformers import TransformersEngine
from posttrain.server.base import Adapter, Base
from posttrain.server.datum import MISSING, PromptLogprobs, Sampled
from posttrain.types import Completion, Decoding, Request, StopReason

TREES = 4  # networks for adapters of different shapes that are kept
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

    @property
    def batch(self) -> tuple[str, frozenset[int]]:
        """What requests of one batch have in common."""
        return self.weights, self.stop_ids


@dataclass
class _Running:
    job: Job
    prompt: PromptLogprobs | None
    completions: dict[int, Completion] = field(default_factory=dict[int, Completion])


class Decoder:
    """Conforms to `worker.Steps`; `add` may be called from any thread."""

    def __init__(self, base: Base, load: Callable[[str], Weights], *, max_sequences: int, cache_gb: float) -> None:
        self._base, self._load = base, load
        self._settings: dict[str, Any] = {"max_sequences": max_sequences, "cache_gb": cache_gb}
        self._queue: deque[Job] = deque()
        self._trees: dict[tuple[int, bool, bool], tuple[LanguageModel, str]] = {}
        self._batch: tuple[str, frozenset[int]] | None = None
        self._model = base.model
        self._decoding: Decoding | None = None
        self._open = contextlib.ExitStack()
        self._numbers = count()
        self._running: dict[int, tuple[_Running, int]] = {}

    @property
    def busy(self) -> bool:
        """Whether a request waits or is under way."""
        return bool(self._queue or self._decoding)

    def add(self, job: Job) -> None:
        """Answer a request."""
        self._queue.append(job)

    def step(self) -> None:
        """Begin what can begin, and sample a token of each sequence."""
        if self._decoding is None and not self._begin():
            return
        while self._queue and self._queue[0].batch == self._batch:
            self._admit(self._queue.popleft())
        if self._running:
            try:
                assert self._decoding is not None
                done = self._decoding.step()
            except Exception as error:
                self._fail(error)
                return
            for number, completion in done.items():
                self._finish(number, completion)
        if not self._running and (not self._queue or self._queue[0].batch != self._batch):
            self._close()

    def _begin(self) -> bool:
        """Put the weights of the first request in place, and open a decoding."""
        if not self._queue:
            return False
        first = self._queue[0]
        try:
            self._model = self._network(first.weights)
            engine = TransformersEngine(self._model, first.stop_ids, **self._settings)
            self._decoding = self._open.enter_context(engine.open())
        except Exception as error:
            self._queue.popleft().done(error)
            return False
        self._batch = first.batch
        return True

    def _network(self, weights: str) -> LanguageModel:
        """The network that has these weights now."""
        if not weights:
            return self._base.model
        for shape, (model, name) in self._trees.items():
            if name == weights:
                self._trees[shape] = self._trees.pop(shape)
                return model
        found = self._load(weights)
        shape = found.adapter.shape
        model = self._trees.pop(shape)[0] if shape in self._trees else self._base.adapted(found.adapter)
        while len(self._trees) >= TREES:
            del self._trees[next(iter(self._trees))]
        with torch.no_grad():
            for name, parameter in model.trainable():
                parameter.copy_(found.tensors[name])
        self._trees[shape] = model, weights
        return model

    def _admit(self, job: Job) -> None:
        assert self._decoding is not None
        try:
            asked = job.prompt_logprobs or job.top
            prompt = prompt_logprobs(self._model, job.requests[0].token_ids, job.top) if asked else None
            running = _Running(job, prompt)
            numbers = [next(self._numbers) for _ in job.requests]
            for number, request in zip(numbers, job.requests, strict=True):
                self._decoding.add(number, request)
        except Exception as error:
            job.done(error)
            return
        self._running |= {number: (running, place) for place, number in enumerate(numbers)}

    def _finish(self, number: int, completion: Completion) -> None:
        running, place = self._running.pop(number)
        running.completions[place] = completion
        job = running.job
        if len(running.completions) == len(job.requests):
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
        """End the batch, all of whose requests get the error."""
        failed = {id(running): running.job for running, _ in self._running.values()}
        self._running = {}
        self._close()
        for job in failed.values():
            job.done(error)

    def _close(self) -> None:
        self._decoding, self._batch = None, None
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
