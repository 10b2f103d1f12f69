"""The embedded engine: samples in-process from the policy's own weights.

Shared prefill: a prompt is computed once for all its completions. Prefix caching: finished sequences leave their KV
cache, and a prompt with a cached prefix computes only the rest. Continuous batching: a finished sequence frees its slot
for another at once; the number of slots is bounded by the memory of the KV cache. In a network with
`mixed` adapters each sequence has its own, or none.
"""

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice

import torch
from torch import Tensor

from posttrain import fast_paths
from posttrain.data.packing import Example, pack, size_of
from posttrain.engine.engine import Decode, DecodingEngine, completes, refuse_unanswerable
from posttrain.engine.kv_cache import Continued, KeyValueCache, Prefill, PrefixCache, Stored, bytes_per_token, rounded
from posttrain.engine.sampling import draw, uniforms
from posttrain.models.fused import packed_weights
from posttrain.models.host_memory import HEAP
from posttrain.models.language_model import LanguageModel
from posttrain.models.mixed_adapters import LowRank
from posttrain.types import Completion, Request, StopReason

PACK_FROM = 8  # new tokens from which packed weights pay
PREFILL_TOKENS = 1024  # of different prompts computed in one forward pass, those of waiting sequences included

Settings = tuple[float, int, float]
Prompt = tuple[tuple[int, ...], LowRank | None]  # its tokens, and under which adapter its keys and values are


@dataclass
class _Prompt:
    """A prefilled prompt: its keys and values inside a packed row, and its last hidden state."""

    prefill: Prefill | Continued
    start: int
    last_hidden: Tensor  # [D]


@dataclass
class _Running:
    """A sequence being decoded; its index in the engine's list is its slot in the KV cache."""

    number: int
    request: Request
    stop_ids: frozenset[int]
    adapter: LowRank | None
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    renewed: bool = False  # whether it has keys and values of earlier weights

    @property
    def length(self) -> int:
        return len(self.request.token_ids) + len(self.token_ids)

    @property
    def prompt(self) -> Prompt:
        return self.request.token_ids, self.adapter

    @property
    def settings(self) -> Settings:
        sampling = self.request.sampling
        return sampling.temperature, sampling.top_k, sampling.top_p


class TransformersEngine(DecodingEngine):
    """Samples from a `LanguageModel`; with `decode`, until a stop string occurs."""

    short_steps = False  # whether a step prefills few prompts, and a token of all that run follows before the next

    def __init__(
        self,
        model: LanguageModel,
        stop_ids: frozenset[int],
        *,
        max_sequences: int = 128,
        cache_gb: float = 1.5,
        decode: Decode | None = None,
    ) -> None:
        self.model, self.stop_ids, self.decode, self.max_sequences = model, stop_ids, decode, max_sequences
        self.cache_bytes = int(cache_gb * 2**30)

    @contextlib.contextmanager
    def open(
        self, on_tokens: Callable[[int], None] | None = None, *, turns: bool = False
    ) -> Iterator["TransformersDecoding"]:
        """Open a decoding with the current weights. They may be packed, and must not change while it is open."""
        with contextlib.ExitStack() as packed:
            decoding = TransformersDecoding(self, on_tokens, turns, packed)
            try:
                yield decoding
            finally:
                decoding.release()  # the caller still references it when the heap is settled
        HEAP.settle()


class TransformersDecoding:
    """Sequences under way. Conforms to `types.Decoding`, and can go on with other weights (`renew`)."""

    def __init__(
        self,
        engine: TransformersEngine,
        on_tokens: Callable[[int], None] | None,
        turns: bool,
        packed: contextlib.ExitStack,
    ) -> None:
        self._model, self._stop_ids, self._text_of = engine.model, engine.stop_ids, engine.decode
        self._max_sequences, self._cache_bytes = engine.max_sequences, engine.cache_bytes
        self._on_tokens, self._short_steps, self._packed = on_tokens, engine.short_steps, packed
        self._token_bytes = bytes_per_token(engine.model.network.config, engine.model.dtype)
        self._prefixes = PrefixCache(self._cache_bytes) if turns and fast_paths.on("prefix cache") else None
        self._scoring: list[_Running] = []
        self._waiting: deque[_Running] = deque()
        self._wanted: Counter[Prompt] = Counter()
        self._prompts: dict[Prompt, _Prompt] = {}
        self._running: list[_Running] = []
        self._done: dict[int, Completion] = {}
        self._slots, self._packing, self._cut = 0, False, False
        self.computed = 0  # tokens of prompts that went through the model

    def add(
        self,
        number: int,
        request: Request,
        *,
        stop_ids: frozenset[int] | None = None,
        adapter: LowRank | None = None,
    ) -> None:
        """See `types.Decoding`; with stop tokens other than the engine's, and under an adapter of `model.mixed`."""
        refuse_unanswerable(number, request, self._model.context, self._model.name)
        sequence = _Running(number, request, self._stop_ids if stop_ids is None else stop_ids, adapter)
        if request.scored_from:
            self._scoring.append(sequence)
            return
        self._waiting.append(sequence)
        self._wanted[sequence.prompt] += 1

    @torch.inference_mode()
    def cancel(self, number: int) -> None:
        """See `types.Decoding`."""
        self._scoring = [each for each in self._scoring if each.number != number]
        for sequence in [each for each in self._waiting if each.number == number]:
            self._waiting.remove(sequence)
            self._let_go(sequence.prompt)
        for slot in [slot for slot, each in enumerate(self._running) if each.number == number]:
            self._free(slot)

    @torch.inference_mode()
    def step(self) -> dict[int, Completion]:
        """See `types.Decoding`."""
        if self._scoring:
            return self._scored()
        if not self._waiting and not self._running:
            return {}
        if not self._running:
            self._begin()
        elif self._waiting:
            self._fit()
        free = self._slots - len(self._running)
        # a prefill for every single place that comes free would cost more than the place is worth
        worth = self._waiting and free >= min(len(self._waiting), max(1, self._slots // 8))
        if worth and not (self._cut and self._running):
            sampled = self._admit(free)
        else:
            self._cut = False
            sampled = self._decode()
        if self._on_tokens is not None:
            self._on_tokens(sampled)
        done, self._done = self._done, {}
        return done

    def _scored(self) -> dict[int, Completion]:
        """The logprobs of given tokens: requests of one adapter in packed rows, shared beginnings once."""
        found: dict[int, Completion] = {}
        scoring, self._scoring = self._scoring, []
        for adapter in {each.adapter for each in scoring}:
            mine = [each for each in scoring if each.adapter is adapter]
            texts = [(each.request.token_ids, each.request.scored_from) for each in mine]
            examples = [Example(ids[:start], ids[start:], (True,) * (len(ids) - start)) for ids, start in texts]
            logprobs: dict[int, list[float]] = {number: [] for number in range(len(mine))}
            for row in pack(examples, max(PREFILL_TOKENS, *map(size_of, examples))):
                with self._model.placed([adapter], [len(row.token_ids)]):
                    values = self._model.logprobs(row).logprobs.tolist()
                for number, value in zip(row.rows, values, strict=True):
                    logprobs[number].append(value)
            found |= {
                each.number: Completion((), (), StopReason.LENGTH, scored=tuple(logprobs[number]))
                for number, each in enumerate(mine)
            }
        return found

    def sampled(self) -> dict[int, list[int]]:
        """See `types.Decoding`."""
        return {each.number: each.token_ids for each in chain(self._waiting, self._running)}

    def renew(self) -> None:
        """Go on with the weights that are there now; running sequences keep the keys and values of the old ones."""
        self._prompts = {}
        for sequence in self._running:
            sequence.renewed = True
        if self._prefixes is not None:
            self._prefixes = PrefixCache(self._cache_bytes)
        self._packed.close()
        if self._packing:
            self._packed.enter_context(packed_weights(self._model.network))

    def release(self) -> None:
        """Free all keys and values; nothing can be sampled any more."""
        self._prompts, self._prefixes = {}, None
        vars(self).pop("_cache", None)

    def _begin(self) -> None:
        """Pack weights, order pending requests and choose the number of slots, if none is running."""
        # packing costs about as much as it saves in eight steps
        worth = any(each.request.sampling.max_new_tokens > PACK_FROM for each in self._waiting)
        if worth and not self._packing and fast_paths.on("packed weights"):
            self._packed.enter_context(packed_weights(self._model.network))
            self._packing = True
        # requests of one prompt follow each other, so that few prompts are held at a time; of several settings, those
        # of one follow each other
        first_seen: dict[Prompt, int] = {}
        settings: dict[Settings, int] = {}
        for place, each in enumerate(self._waiting):
            first_seen.setdefault(each.prompt, place)
            settings.setdefault(each.settings, place)
        order = sorted(self._waiting, key=lambda each: (settings[each.settings], first_seen[each.prompt]))
        self._waiting = deque(order)
        self._slots = self._fitting()
        self._cache = KeyValueCache(self._model.network.config, self._slots, self._model.dtype, self._model.device)

    def _fit(self) -> None:
        """Choose the number of slots again for requests that arrived during decoding.

        More, as far as memory allows; fewer where the next one is longer, which waits until few enough are running.
        """
        fitting = self._fitting()
        if fitting > self._slots or fitting < min(self._slots, len(self._running) + len(self._waiting)):
            self._slots = max(fitting, len(self._running))
            self._cache.hold(self._slots, max(each.length for each in self._running))

    def _fitting(self) -> int:
        """For how many sequences, at least one, there is memory, in order, if all take as much as the longest may."""
        tokens, longest, fitting = self._cache_bytes // self._token_bytes, 0, 0
        for each in islice(chain(self._running, self._waiting), self._max_sequences):
            most = len(each.request.token_ids) + each.request.sampling.max_new_tokens
            longest = max(longest, rounded(min(most, self._model.context)))
            if fitting and (fitting + 1) * longest > tokens:
                break
            fitting += 1
        return fitting

    def _admit(self, places: int) -> int:
        """Prefill waiting sequences into free slots, and draw their first tokens."""
        new: list[_Running] = []
        fresh: dict[Prompt, int] = {}  # the tokens of prompts to prefill
        while self._waiting and len(new) < places:
            prompt = self._waiting[0].prompt
            if prompt not in self._prompts:
                fresh[prompt] = len(prompt[0])
            if self._short_steps and new and sum(fresh.values()) > PREFILL_TOKENS:
                self._cut = True  # those that run get a token before the others are prefilled
                break
            new.append(self._waiting.popleft())
        for sequence in new:
            if sequence.prompt not in self._prompts:
                self._prefill(self._prompts_ahead(new))
        hidden: list[Tensor] = []
        for sequence in new:
            prompt = self._prompts[sequence.prompt]
            length = len(sequence.request.token_ids)
            self._cache.load_prompt(len(self._running), prompt.prefill, prompt.start, length)
            self._running.append(sequence)
            hidden.append(prompt.last_hidden)
            self._let_go(sequence.prompt)
        self._extend(self._running[-len(new) :], torch.stack(hidden))
        return len(new)

    def _let_go(self, prompt: Prompt) -> None:
        """One sequence less waits for a prompt."""
        self._wanted[prompt] -= 1
        if not self._wanted[prompt]:
            del self._wanted[prompt]
            self._prompts.pop(prompt, None)

    def _prompts_ahead(self, new: Sequence[_Running]) -> dict[Prompt, Stored | None]:
        """The next prompts to prefill, one or as many as fill a pass by uncached tokens; and their cached prefixes."""
        ahead = dict.fromkeys(s.prompt for s in chain(new, self._waiting))
        found: dict[Prompt, Stored | None] = {}
        tokens = 0
        for prompt in ahead:
            if prompt in self._prompts or not self._wanted[prompt]:
                continue
            known = self._prefixes.longest(*prompt) if self._prefixes else None
            tokens += len(prompt[0]) - (known.length if known else 0)
            if found and tokens > PREFILL_TOKENS:
                break
            found[prompt] = known
        return found

    def _prefill(self, prompts: Mapping[Prompt, Stored | None]) -> None:
        """Prefill prompts: after their cached prefixes, the others whole."""
        fresh = [prompt for prompt, known in prompts.items() if known is None]
        if fresh:
            self._compute(fresh, Prefill([len(ids) for ids, _ in fresh], self._model.device), [0] * len(fresh))
        parts = [(known, len(ids) - known.length) for (ids, _), known in prompts.items() if known]
        if parts:
            begun = [prompt for prompt, known in prompts.items() if known]
            self._compute(begun, Continued(parts, self._model.device), [known.length for known, _ in parts])

    def _compute(self, prompts: Sequence[Prompt], plan: Prefill | Continued, begun: Sequence[int]) -> None:
        """One forward pass over these prompts, each from its token number `begun` on."""
        texts, adapters = [ids for ids, _ in prompts], [adapter for _, adapter in prompts]
        ids = self._tensor([t for p, start in zip(texts, begun, strict=True) for t in p[start:]])
        positions = self._tensor([i for p, start in zip(texts, begun, strict=True) for i in range(start, len(p))])
        new = [len(p) - start for p, start in zip(texts, begun, strict=True)]
        with self._model.placed(adapters, new):
            hidden = self._model.hidden(ids[None], positions[None], plan)[0]
        self.computed += len(ids)
        whole = accumulate(len(p) for p in texts)
        for prompt, end, last in zip(prompts, whole, accumulate(new), strict=True):
            self._prompts[prompt] = _Prompt(plan, end - len(prompt[0]), hidden[last - 1])

    def _decode(self) -> int:
        """One step: feed the last token of every running sequence, draw the next."""
        positions = [s.length - 1 for s in self._running]
        self._cache.set_positions(positions)
        ids = self._tensor([s.token_ids[-1] for s in self._running])
        count = len(self._running)
        with self._model.placed([s.adapter for s in self._running], [1] * count):
            hidden = self._model.hidden(ids[:, None], self._tensor(positions)[:, None], self._cache)[:, 0]
        self._extend(list(self._running), hidden)
        return count

    def _extend(self, sequences: Sequence[_Running], hidden: Tensor) -> None:
        """Draw one token for each sequence from its hidden state [B, D], and release finished ones."""
        logits = self._model.logits(hidden)
        by_settings: dict[Settings, list[int]] = {}
        for place, sequence in enumerate(sequences):
            by_settings.setdefault(sequence.settings, []).append(place)
        for (temperature, top_k, top_p), places in by_settings.items():
            some = [sequences[place] for place in places]
            of_some = logits if len(by_settings) == 1 else logits[self._tensor(places)]
            noise = uniforms([s.request.seed for s in some], [len(s.token_ids) for s in some])
            noise_B = torch.from_numpy(noise).to(self._model.device)
            drawn = draw(of_some, noise_B, temperature=temperature, top_k=top_k, top_p=top_p)
            for sequence, token, logprob in zip(some, drawn.tokens.tolist(), drawn.logprobs.tolist(), strict=True):
                sequence.token_ids.append(token)
                sequence.logprobs.append(logprob)
        for slot in reversed(range(len(self._running))):
            reason = self._stop_reason(self._running[slot])
            if reason is not None:
                self._finish(slot, reason)

    def _stop_reason(self, sequence: _Running) -> StopReason | None:
        if sequence.token_ids[-1] in sequence.stop_ids:
            return StopReason.STOP
        if self._text_of and completes(sequence.token_ids, sequence.request.sampling.stop, self._text_of):
            return StopReason.STOP
        if len(sequence.token_ids) >= sequence.request.sampling.max_new_tokens:
            return StopReason.LENGTH
        return StopReason.CONTEXT if sequence.length >= self._model.context else None

    def _finish(self, slot: int, reason: StopReason) -> None:
        """Record a completion, and cache its keys and values if they may be reused."""
        sequence = self._running[slot]
        self._done[sequence.number] = Completion(tuple(sequence.token_ids), tuple(sequence.logprobs), reason)
        if self._prefixes is not None and not sequence.renewed:
            known = sequence.length - 1  # the last token was drawn, and never went through the model
            token_ids = (*sequence.request.token_ids, *sequence.token_ids)[:known]
            stored = self._cache.stored(slot, known)
            self._prefixes.keep(token_ids, stored, known * self._token_bytes, sequence.adapter)
        self._free(slot)

    def _free(self, slot: int) -> None:
        """Give a slot back; the last running sequence moves into it, so that none is empty."""
        last = self._running.pop()
        if slot < len(self._running):
            self._running[slot] = last
            self._cache.move(len(self._running), slot, last.length - 1)

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._model.device)
