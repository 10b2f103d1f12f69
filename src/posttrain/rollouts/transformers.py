"""The embedded engine: decodes in this process, with the policy's own weights, so nothing has to be synchronised.

A prompt is computed once for all its completions. A sequence that has finished leaves the batch at once and another
takes its place. How many are decoded together is bounded by the memory of their keys and values.
"""

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain

import torch
from torch import Tensor

from posttrain import fast_paths
from posttrain.models.host_memory import HEAP
from posttrain.models.language_model import LanguageModel
from posttrain.models.packed_weights import packed_weights
from posttrain.rollouts.engine import refuse_unanswerable
from posttrain.rollouts.kv_cache import KeyValueCache, Prefill, bytes_per_token
from posttrain.rollouts.sampling import draw, uniforms
from posttrain.types import Completion, Request, Sampling, StopReason

PACK_FROM = 8  # new tokens from which packed weights pay
PREFILL_TOKENS = 1024  # of different prompts computed in one forward pass, those of waiting sequences included


@dataclass
class _Prompt:
    """A prompt that has been computed: its keys and values inside a prefilled row, and its last hidden state."""

    prefill: Prefill
    start: int
    last_hidden: Tensor  # [D]


@dataclass
class _Running:
    """One sequence that is being decoded; its place in the engine's list is its slot in the cache."""

    index: int
    request: Request
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])

    @property
    def length(self) -> int:
        return len(self.request.token_ids) + len(self.token_ids)


class TransformersEngine:
    """Samples from a `LanguageModel`. Conforms to `types.Engine`."""

    def __init__(
        self, model: LanguageModel, stop_ids: frozenset[int], *, max_sequences: int = 128, cache_gb: float = 1.5
    ) -> None:
        self._model = model
        self._stop_ids = stop_ids
        self._max_sequences = max_sequences
        self._cache_bytes = int(cache_gb * 2**30)

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], on_tokens: Callable[[int], None] | None = None) -> list[Completion]:
        """One completion per request, in order.

        Raises:
            UserError: a prompt is empty, or leaves no room in the model's context.
        """
        refuse_unanswerable(requests, self._model.context, self._model.name)
        done: dict[int, Completion] = {}
        by_settings: dict[tuple[float, int, float], list[int]] = {}
        for index, request in enumerate(requests):
            s = request.sampling
            by_settings.setdefault((s.temperature, s.top_k, s.top_p), []).append(index)
        # packing costs about as much as it saves in eight steps
        pack = fast_paths.on("packed weights") and any(r.sampling.max_new_tokens > PACK_FROM for r in requests)
        with packed_weights(self._model.network) if pack else contextlib.nullcontext():
            for indices in by_settings.values():
                done |= _Decoding(self._model, self._stop_ids, self._slots(requests), requests, indices).run(on_tokens)
        HEAP.settle()
        return [done[index] for index in range(len(requests))]

    def _slots(self, requests: Sequence[Request]) -> int:
        longest = _longest(self._model, requests)
        fits = self._cache_bytes // (longest * bytes_per_token(self._model.network.config, self._model.dtype))
        return max(1, min(self._max_sequences, len(requests), fits))


def _longest(model: LanguageModel, requests: Sequence[Request]) -> int:
    return max(min(len(r.token_ids) + r.sampling.max_new_tokens, model.context) for r in requests)


class _Decoding:
    """One batch of requests with the same sampling settings, from prefill to the last stop token."""

    def __init__(
        self,
        model: LanguageModel,
        stop_ids: frozenset[int],
        slots: int,
        requests: Sequence[Request],
        indices: Sequence[int],
    ) -> None:
        self._model, self._stop_ids, self._slots = model, stop_ids, slots
        self._settings: Sampling = requests[indices[0]].sampling
        # requests of one prompt follow each other, so that few prompts are held at a time
        first_seen = {r: i for i, r in reversed(list(enumerate(requests[i].token_ids for i in indices)))}
        order = sorted(indices, key=lambda i: first_seen[requests[i].token_ids])
        self._waiting = deque(_Running(i, requests[i]) for i in order)
        self._wanted = Counter(requests[i].token_ids for i in indices)
        self._prompts: dict[tuple[int, ...], _Prompt] = {}
        self._cache = KeyValueCache(model.network.config, slots, model.dtype, model.device)
        self._running: list[_Running] = []
        self._done: dict[int, Completion] = {}

    def run(self, on_tokens: Callable[[int], None] | None) -> dict[int, Completion]:
        """Completions by the index of their request."""
        while self._waiting or self._running:
            free = self._slots - len(self._running)
            # a prefill for every single place that comes free would cost more than the place is worth
            if self._waiting and free >= min(len(self._waiting), max(1, self._slots // 8)):
                sampled = self._admit(free)
            else:
                sampled = self._decode()
            if on_tokens is not None:
                on_tokens(sampled)
        return self._done

    def _admit(self, places: int) -> int:
        """Start as many waiting sequences as there are places, and draw their first tokens."""
        new = [self._waiting.popleft() for _ in range(min(places, len(self._waiting)))]
        for sequence in new:
            if sequence.request.token_ids not in self._prompts:
                self._prefill(self._prompts_ahead(new))
        hidden: list[Tensor] = []
        for sequence in new:
            prompt_ids = sequence.request.token_ids
            prompt = self._prompts[prompt_ids]
            self._cache.load_prompt(len(self._running), prompt.prefill, prompt.start, len(prompt_ids))
            self._running.append(sequence)
            hidden.append(prompt.last_hidden)
            self._wanted[prompt_ids] -= 1
            if not self._wanted[prompt_ids]:
                del self._prompts[prompt_ids]
        self._extend(self._running[-len(new) :], torch.stack(hidden))
        return len(new)

    def _prompts_ahead(self, new: Sequence[_Running]) -> list[tuple[int, ...]]:
        """The next prompts to compute: at least one, and as many of the waiting ones as fill a forward pass."""
        ahead = dict.fromkeys(s.request.token_ids for s in chain(new, self._waiting))
        missing = [prompt for prompt in ahead if prompt not in self._prompts and self._wanted[prompt]]
        ends = accumulate(len(prompt) for prompt in missing)
        return [
            prompt for i, (prompt, end) in enumerate(zip(missing, ends, strict=True)) if not i or end <= PREFILL_TOKENS
        ]

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> None:
        prefill = Prefill([len(p) for p in prompts], self._model.device)
        ids = self._tensor([t for p in prompts for t in p])
        positions = self._tensor([i for p in prompts for i in range(len(p))])
        hidden = self._model.hidden(ids[None], positions[None], prefill)[0]
        for prompt, end in zip(prompts, accumulate(len(p) for p in prompts), strict=True):
            self._prompts[prompt] = _Prompt(prefill, end - len(prompt), hidden[end - 1])

    def _decode(self) -> int:
        """One step: feed the last token of every running sequence, draw the next."""
        positions = [s.length - 1 for s in self._running]
        self._cache.set_positions(positions)
        ids = self._tensor([s.token_ids[-1] for s in self._running])
        hidden = self._model.hidden(ids[:, None], self._tensor(positions)[:, None], self._cache)[:, 0]
        count = len(self._running)
        self._extend(list(self._running), hidden)
        return count

    def _extend(self, sequences: Sequence[_Running], hidden: Tensor) -> None:
        """Draw one token for each sequence from its hidden state [B, D], and let go of those that are done."""
        noise = uniforms([s.request.seed for s in sequences], [len(s.token_ids) for s in sequences])
        settings = self._settings
        drawn = draw(
            self._model.logits(hidden),
            torch.from_numpy(noise).to(self._model.device),
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
        )
        for sequence, token, logprob in zip(sequences, drawn.tokens.tolist(), drawn.logprobs.tolist(), strict=True):
            sequence.token_ids.append(token)
            sequence.logprobs.append(logprob)
        for slot in reversed(range(len(self._running))):
            reason = self._stop_reason(self._running[slot])
            if reason is not None:
                self._finish(slot, reason)

    def _stop_reason(self, sequence: _Running) -> StopReason | None:
        if sequence.token_ids[-1] in self._stop_ids:
            return StopReason.STOP
        if len(sequence.token_ids) >= sequence.request.sampling.max_new_tokens:
            return StopReason.LENGTH
        return StopReason.CONTEXT if sequence.length >= self._model.context else None

    def _finish(self, slot: int, reason: StopReason) -> None:
        """Record a completion; the last running sequence moves into its slot, so that none is empty."""
        sequence = self._running[slot]
        self._done[sequence.index] = Completion(tuple(sequence.token_ids), tuple(sequence.logprobs), reason)
        last = self._running.pop()
        if last is not sequence:
            self._running[slot] = last
            self._cache.move(len(self._running), slot, last.length - 1)

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._model.device)
