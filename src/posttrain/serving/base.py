"""The base model that all clients share, the adapters that are put on it, and sampling from all in one batch.

A request joins the batch at the next step, whatever it samples from and by which tokens it ends
(`models/mixed_adapters.py`); which ones do is for the scheduler to say (`engine/scheduler.py`). Up to `ADAPTERS`
adapters are in memory, those that were used last.

Shape letters: N tokens of a prompt, K most likely ones at each place.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from posttrain.data.packing import PackedRow
from posttrain.data.tokenizer import ChatTokenizer
from posttrain.engine.client import Client
from posttrain.engine.scheduler import Scheduler
from posttrain.engine.transformers import TransformersEngine
from posttrain.errors import UserError
from posttrain.models.language_model import LanguageModel, with_shared_weights
from posttrain.models.lora import Lora, add_adapter
from posttrain.models.mixed_adapters import LowRank, MixedAdapters, is_linear
from posttrain.types import Completion, Request

ALPHA = 32.0  # of every rank, so that one learning rate serves all: Schulman et al. 2025, "LoRA Without Regret"
ADAPTERS = 16  # that are kept in memory, and so the most of a batch
ROWS = 256  # tokens whose whole distributions exist at once
MISSING = -99999.0  # logprob of a place that has none, among the most likely tokens


@dataclass(frozen=True)
class Adapter:
    """A client's LoRA configuration."""

    rank: int  # of A and B
    seed: int = 0  # of A
    train_mlp: bool = True  # whether the linear layers of MLPs have one
    train_attn: bool = True  # whether those of attention have one
    train_unembed: bool = True  # kept and reported; the head never has one

    def __post_init__(self) -> None:
        if not (self.train_mlp or self.train_attn):
            raise UserError("an adapter needs train_mlp or train_attn; the head alone cannot have one here")

    @property
    def shape(self) -> tuple[int, bool, bool]:
        """What decides the names and shapes of its weights."""
        return self.rank, self.train_mlp, self.train_attn

    @property
    def scale(self) -> float:
        """By which B A x is multiplied."""
        return ALPHA / self.rank


@dataclass(frozen=True)
class Base:
    """The base model."""

    model: LanguageModel  # its weights, frozen
    name: str  # by which clients ask for it, and find its tokenizer
    tokenizer: ChatTokenizer  # for stop strings alone
    stop_ids: frozenset[int]  # the tokens that end a turn

    @property
    def vocabulary(self) -> int:
        """The number of token ids that the model reads."""
        return len(self.model.embedding)

    def adapted(self, adapter: Adapter) -> LanguageModel:
        """A network over the base's weights with a fresh adapter."""
        lora = Lora(adapter.rank, ALPHA, targets=self._targets(adapter))
        return add_adapter(with_shared_weights(self.model), lora, seed=adapter.seed)

    def mixed(self) -> LanguageModel:
        """A network over the base's weights in which each token has an adapter of its own."""
        shared = with_shared_weights(self.model)
        return replace(shared, mixed=MixedAdapters(shared.network))

    def _targets(self, adapter: Adapter) -> tuple[str, ...]:
        """The linear layers of attention or MLPs by the last two parts of their names; none for both."""
        if adapter.train_mlp and adapter.train_attn:
            return ()
        paths = [name for name, module in self.model.network.named_modules() if is_linear(module)]
        attention = {name for name in paths if "attn" in name or "attention" in name}
        head: Any = self.model.network.get_output_embeddings()
        others = {name for name in paths if self.model.network.get_submodule(name) is not head} - attention
        chosen = {".".join(name.split(".")[-2:]) for name in (attention if adapter.train_attn else others)}
        if not chosen:
            part = "attention" if adapter.train_attn else "MLPs"
            raise UserError(f"'{self.name}' has no linear layers in {part}; train both")
        return tuple(sorted(chosen))


class Weights(NamedTuple):
    """An adapter's weights."""

    adapter: Adapter
    tensors: Mapping[str, Tensor]


class PromptLogprobs(NamedTuple):
    """Logprobs of a prompt: of each token [N], and of the likeliest there [N, K]; nan and `MISSING` of the first."""

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
    """Samples in steps, in the thread of the worker; `add` may be called from any. Keys get slots by turns."""

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
