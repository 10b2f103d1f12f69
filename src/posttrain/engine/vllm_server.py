"""A vLLM server as engine, started by `START`, and `posttrain rl --engine http://localhost:8000`.

The server's environment needs posttrain as well. In its development mode anyone who can reach the port can change the
weights: keep it inside a trusted network. Whenever the policy's weights have changed they are sent, from memory to
memory, with a new version; a reply sampled from another version is an error.
"""

import contextlib
import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from posttrain.background import in_time
from posttrain.data.order import seed_for
from posttrain.engine.engine import Decode, DecodingEngine, cut_at_stop, refuse_unanswerable
from posttrain.engine.vllm import completion, sampling_settings, weight_versions
from posttrain.engine.weight_channel import offered
from posttrain.errors import EngineError, UserError, foreign, moved_to
from posttrain.models.language_model import LanguageModel
from posttrain.types import Completion, Decoding, Request, StopReason

START = (
    "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs --tokens-only "
    "--worker-extension-cls posttrain.engine.vllm_worker.WeightReceiver"
)
TIMEOUT = 600.0  # seconds for one answer
STEP_S = 0.1  # that a step waits for an answer
SLICE = 64  # tokens of a call, of requests with stop strings


class VLLMServer(DecodingEngine):
    """Samples by the vLLM server at `url`, from the weights that `model` has now, or raises `EngineError`.

    A server that is started with --tokens-only has no tokenizer and knows no stop strings. Requests that have some are
    sampled in slices, and the text of each is read here with `decode`.
    """

    def __init__(
        self,
        model: LanguageModel,
        stop_ids: frozenset[int],
        *,
        url: str,
        max_sequences: int = 256,
        decode: Decode | None = None,
    ) -> None:
        self._model, self._stop_ids, self._url, self._decode = model, stop_ids, url.rstrip("/"), decode
        self._room = threading.Semaphore(max_sequences)
        self._dropped: set[Future[Completion]] = set()  # answers of the server that nobody waits for
        config = self._ask("/server_info?config_format=json")["vllm_config"]["model_config"]
        if config["logprobs_mode"] != "processed_logprobs":
            raise UserError(
                f"the server at {url} has --logprobs-mode {config['logprobs_mode']}: its logprobs leave out the "
                f"temperature; start it with: {START}"
            )
        ours, theirs = (str(dtype).removeprefix("torch.") for dtype in (model.dtype, config["dtype"]))
        if ours != theirs:
            raise UserError(
                f"the server at {url} computes in {theirs} and the policy in {ours}; start the one with "
                f'--dtype {ours}, or the other with `precision="{theirs}"`'
            )
        self._context = min(model.context, config["max_model_len"])
        self._pushed: tuple[int, ...] = ()
        self._version = ""

    @contextlib.contextmanager
    def open(self, on_tokens: Callable[[int], None] | None = None, *, turns: bool = False) -> Iterator[Decoding]:
        """As in `types.Engine`; the server caches prefixes with and without `turns`."""
        if (now := weight_versions(self._model)) != self._pushed:
            self._push()
            self._pushed = now
        decoding = _Decoding(self, on_tokens)
        try:
            yield decoding
        finally:
            decoding.close()

    def _asked(self, request: Request) -> Future[Completion]:
        """The answer to a request, of a daemon thread: what the server is slow with keeps no program from ending."""
        answer = Future[Completion]()

        def work() -> None:
            with self._room:
                if answer.set_running_or_notify_cancel():
                    try:
                        answer.set_result(self._until_stop(request))
                    except BaseException as error:
                        answer.set_exception(error)

        threading.Thread(target=work, name="vLLM request", daemon=True).start()
        return answer

    def _until_stop(self, request: Request) -> Completion:
        """What is sampled up to a stop string, slice after slice; the server keeps the keys of those before."""
        stops = request.sampling.stop
        if not stops or self._decode is None:
            return self._sample(request)
        whole = Completion((), (), StopReason.LENGTH)
        while whole.stop_reason is StopReason.LENGTH and (
            left := request.sampling.max_new_tokens - len(whole.token_ids)
        ):
            part = replace(
                request,
                token_ids=(*request.token_ids, *whole.token_ids),
                sampling=replace(request.sampling, max_new_tokens=min(left, SLICE)),
                seed=seed_for(request.seed, "slice", len(whole.token_ids)) if whole.token_ids else request.seed,
            )
            if len(part.token_ids) >= self._context:
                return replace(whole, stop_reason=StopReason.CONTEXT)
            done = self._sample(part)
            ids, logprobs = whole.token_ids + done.token_ids, whole.logprobs + done.logprobs
            whole = cut_at_stop(replace(done, token_ids=ids, logprobs=logprobs), stops, self._decode)
        return whole

    def _sample(self, request: Request) -> Completion:
        settings = sampling_settings(request, self._stop_ids, self._context)
        body = {"token_ids": request.token_ids, "sampling_params": settings}
        answer = self._ask("/inference/v1/generate", body)
        said = answer["choices"][0]
        used = {span["version"] for span in said["weight_versions"] or ()}
        if used != {self._version}:
            raise EngineError(
                f"the server at {self._url} sampled from the weights {', '.join(sorted(used)) or 'of no version'}, not "
                f"from the policy's ({self._version}); was it started again, or does somebody else train with it?"
            )
        if request.scored_from:
            places = list(zip(request.token_ids, answer["prompt_logprobs"], strict=True))[request.scored_from :]
            found = tuple(place[str(token)]["logprob"] for token, place in places)
            return Completion((), (), StopReason.LENGTH, scored=found)
        logprobs = [token["logprob"] for token in said["logprobs"]["content"]]
        return completion(request, said["token_ids"], logprobs, self._stop_ids)

    def _push(self) -> None:
        """Send the policy's weights, with a version that no other trainer uses.

        Requests that were cancelled are sampled to their end first: vLLM drops no cached keys while any are in use.
        """
        wait(self._dropped)
        self._dropped.clear()
        expected = sum(1 for _ in self._model.weights())
        where = urlsplit(self._url)
        with socket.create_connection((where.hostname or "", where.port or 80), timeout=10) as connection:
            host = connection.getsockname()[0]  # of this machine, on the way to the server
        with offered(self._model.weights, host) as (port, key):
            call = {"method": "receive_weights", "args": [host, str(port), key]}
            found = self._ask("/collective_rpc", call)["results"]
        if any(result != {"weights": expected} for result in found):
            raise EngineError(f"the server at {self._url} took {found} of {expected} weights")
        if (self._ask("/reset_prefix_cache", {}) or {}).get("success") is False:
            raise EngineError(
                f"the server at {self._url} keeps keys of the old weights, for it samples for somebody else; give it "
                "to this run alone"
            )
        self._version = uuid4().hex
        self._ask("/update_weight_version", {"new_version": self._version})

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """GET, or POST where there is a body; the answer's JSON."""
        data = None if body is None else json.dumps(body).encode()
        call = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})

        def answered() -> tuple[bytes, str]:
            with urllib.request.urlopen(call, timeout=TIMEOUT) as answer:
                return answer.read(), answer.url

        try:
            text, there = in_time(TIMEOUT, answered)
        except urllib.error.HTTPError as error:
            said = foreign(error.read(500).decode(errors="replace"))
            raise EngineError(
                f"the server at {self._url} answered {path} with {error.code}: {said}; it is started with: {START}"
            ) from error
        except TimeoutError as error:
            raise EngineError(f"the server at {self._url} has not answered {path} within {TIMEOUT:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"no server at {self._url} ({error}); start one with: {START}") from error
        if there != call.full_url:  # urllib has followed it, and would leave out the body of what is sent
            raise EngineError(
                f"the server at {self._url} redirects to {moved_to(call.full_url, there)}; redirects are not followed: "
                "name the server itself with `engine=URL`"
            )
        return json.loads(text) if text else None


@dataclass
class _Decoding:
    """Conforms to `types.Decoding`; what is cancelled when the server has it is sampled to the end, and dropped."""

    of: VLLMServer
    on_tokens: Callable[[int], None] | None
    _running: dict[int, Future[Completion]] = field(default_factory=dict[int, "Future[Completion]"])

    def add(self, number: int, request: Request) -> None:
        refuse_unanswerable(number, request, self.of._context, self.of._model.name)
        self._running[number] = self.of._asked(request)

    def cancel(self, number: int) -> None:
        answer = self._running.pop(number, None)
        if answer is not None and not (answer.cancel() or answer.done()):
            self.of._dropped.add(answer)

    def step(self) -> dict[int, Completion]:
        wait(self._running.values(), STEP_S, FIRST_COMPLETED)
        answered = [number for number, answer in self._running.items() if answer.done()]
        done = {number: self._running.pop(number).result() for number in answered}
        if self.on_tokens is not None:
            for completion in done.values():
                self.on_tokens(len(completion.token_ids))
        return done

    def close(self) -> None:
        for number in list(self._running):
            self.cancel(number)
