"""Sampling from adapters and from the base, all in one batch, by the embedded engine.

A request joins the batch at the next step, whatever it samples from and by which tokens it ends
(`models/mixed_adapters.py`); which ones do is for the scheduler to say (`engine/scheduler.py`). Up to `ADAPTERS`
adapters are in memory, those that were used last.

Shape letters: N tokens of a prompt, K most likely ones at each place.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from posttrain.data.packing import PackedRow
from posttrain.engine.client import Client
from posttrain.engine.scheduler import Scheduler
from posttrain.engine.transformers import TransformersEngine
from posttrain.models.language_model import LanguageModel
from posttrain.models.mixed_adapters import LowRank
from posttrain.serving.base import Adapter, Base
from posttrain.types import Completion, Request

ADAPTERS = 16  # that are kept in memory, and so the most of a batch
ROWS = 256  # tokens whose whole distributions exist at once
MISSING = -99999.0  # logprob of a place that has none, among the most likely tokens


class Weights(NamedTuple):
    """An adapter's weights."""

    adapter: Adapter
    tensors: Mapping[str, Tensor]


class PromptLogprobs(NamedTuple):
    """Of a prompt: the logprob of each token, and of the most likely ones at its place, [N] and [N, K].

    The first token has none: nan, and `MISSING` for token 0.
    """

    own: np.ndarray
    top_tokens: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None


Samples = tuple[list[Completion], PromptLogprobs | None]
Done = Callable[[Samples | Exception], None]


@dataclass(frozen=True)
class Job:
    """A request for samples of one prompt."""

    weights: str  # name of the adapter's weights; "" for the base
    requests: Sequence[Request]  # one for each sample
    stop_ids: frozenset[int]  # the tokens that end a sample
    prompt_logprobs: bool  # whether those of the prompt are asked for
    top: int  # number of most likely tokens at each place of the prompt
    done: Done  # gets the samples, or the error
    key: str = ""  # whose request it is


class Decoder:
    """Samples in steps, in the thread of the worker; `add` may be called from any thread. Keys get slots by turns.

    `load` gives an adapter's weights by their name; up to `adapters` of them are in memory, and so in a batch.
    """

    def __init__(
        self,
        base: Base,
        load: Callable[[str], Weights],
        *,
        max_sequences: int,
        cache_gb: float,
        adapters: int = ADAPTERS,
    ) -> None:
        self._base, self._load, self._model, self._most = base, load, base.mixed(), adapters
        engine = TransformersEngine(
            self._model,
            base.stop_ids,
            max_sequences=max_sequences,
            cache_gb=cache_gb,
            decode=lambda ids: str(base.tokenizer.decode(list(ids))),
        )
        engine.short_steps = True
        self._scheduler = Scheduler(engine, slots=max_sequences, sources=adapters)
        self._clients: dict[str, Client] = {}  # by key
        self._adapters: dict[str, LowRank] = {}  # the one that was used last is the last

    @property
    def busy(self) -> bool:
        """Whether a request waits or is under way."""
        return self._scheduler.busy

    def step(self) -> None:
        """Begin what can begin, and sample a token of each sequence. Never raises."""
        self._scheduler.step()

    def add(self, job: Job) -> None:
        """Answer a request."""
        client = self._clients.setdefault(job.key, Client(self._scheduler, key=job.key))
        prompt: list[PromptLogprobs] = []
        more = partial(self._more, job, prompt)
        asked = [client.ask(request, source=job.weights, more=more) for request in job.requests]
        heard = count(1)

        def hear(future: "Future[Completion]") -> None:
            if not future.cancelled() and future.exception() is not None:
                for other in asked:
                    other.cancel()
            if next(heard) == len(asked):
                try:
                    found = [each.result() for each in asked if not each.cancelled()], prompt[0] if prompt else None
                except Exception as error:
                    found = error
                job.done(found)

        for future in asked:
            future.add_done_callback(hear)

    def _more(self, job: Job, prompt: list[PromptLogprobs]) -> Mapping[str, Any]:
        """What the decoding needs to know of a request of the job; its prompt's logprobs are computed once."""
        adapter = self._adapter(job.weights) if job.weights else None
        if (job.prompt_logprobs or job.top) and not prompt:
            tokens = job.requests[0].token_ids
            with torch.no_grad(), self._model.placed([adapter], [len(tokens)]):
                prompt.append(prompt_logprobs(self._model, tokens, job.top))
        return {"stop_ids": job.stop_ids, "adapter": adapter}

    def _adapter(self, weights: str) -> LowRank:
        """The adapter of this name, in place of the one that was not used for longest."""
        found = self._adapters.pop(weights, None)
        if found is None:
            loaded, mixed = self._load(weights), self._model.mixed
            assert mixed is not None
            idle = [name for name in self._adapters if name not in self._scheduler.sources]
            for name in idle[: len(self._adapters) + 1 - self._most]:
                del self._adapters[name]
            found = mixed.adapter(loaded.tensors, loaded.adapter.scale)
        self._adapters[weights] = found
        return found


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
    of_top = (np.concatenate(ids), np.concatenate(logprobs)) if top else ()
    return PromptLogprobs(np.concatenate(own), *of_top)
