"""The engine interface, and its conformance kit.

The interface is `types.Engine`: requests in, completions out, in one batch or by continuous batching. An engine that
passes can be used for training.
"""

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from posttrain.errors import UserError
from posttrain.types import Completion, Decoding, Engine, Request, Sampling, StopReason


def refuse_unanswerable(number: int, request: Request, context: int, name: str) -> None:
    """Raise `UserError` for a prompt without tokens, or one that fills the `context` of the model called `name`."""
    length = len(request.token_ids)
    if not length:
        raise UserError(f"request {number} has an empty prompt; there is nothing to continue")
    if length >= context:
        raise UserError(
            f"prompt {number} has {length} tokens, but {name} holds {context}, at least one of them new; "
            "shorten the prompt or filter with `max_prompt_tokens`"
        )


Decode = Callable[[Sequence[int]], str]
"""Sampled tokens to their text, in which stop strings are looked for (`ChatFormat.decode`)."""


def first_stop(token_ids: Sequence[int], stops: Sequence[str], decode: Decode) -> int | None:
    """The number of tokens up to the one that completes the first stop string; None if there is none.

    Example:
        >>> first_stop([60, 47, 97, 62, 98], ["</a>"], lambda ids: bytes(ids).decode())
        4
    """

    def said(count: int) -> bool:
        text = decode(token_ids[:count])
        return any(stop in text for stop in stops)

    if not stops or not said(len(token_ids)):
        return None
    return bisect_left(range(len(token_ids)), True, lo=1, key=said)  # more tokens say what fewer do


def completes(token_ids: Sequence[int], stops: Sequence[str], decode: Decode) -> bool:
    """Whether a stop string is in the text; it is looked for in that of the last tokens, as each is sampled."""
    if not stops:
        return False
    recent = decode(token_ids[-max(len(stop.encode()) + _SILENT for stop in stops) :])  # a token has a byte or more
    return any(stop in recent for stop in stops) and first_stop(token_ids, stops, decode) is not None


def cut_at_stop(done: Completion, stops: Sequence[str], decode: Decode) -> Completion:
    """A completion up to its first stop string, for engines that sample on."""
    end = first_stop(done.token_ids, stops, decode)
    if end is None:
        return done
    versions = tuple((first, version) for first, version in done.versions if first < end)
    ids, logprobs = done.token_ids[:end], done.logprobs[:end]
    return replace(done, token_ids=ids, logprobs=logprobs, stop_reason=StopReason.STOP, versions=versions)


_SILENT = 4  # tokens without text that may be among those of a stop string


def finish_all(decoding: Decoding, requests: Sequence[Request]) -> list[Completion]:
    """Add requests to a decoding that has none, and sample until all are done."""
    for number, request in enumerate(requests):
        decoding.add(number, request)
    done: dict[int, Completion] = {}
    while len(done) < len(requests):
        done |= decoding.step()
    return [done[number] for number in range(len(requests))]


class DecodingEngine:
    """An engine with continuous batching: a subclass has `open`."""

    def generate(
        self: Engine, requests: Sequence[Request], on_tokens: Callable[[int], None] | None = None
    ) -> list[Completion]:
        """One completion per request, in order; raises `UserError` as `Decoding.add`."""
        with self.open(on_tokens) as decoding:
            return finish_all(decoding, requests)


class BatchEngine:
    """An engine that only answers batches: a subclass has `generate`."""

    @contextlib.contextmanager
    def open(
        self: Engine, on_tokens: Callable[[int], None] | None = None, *, turns: bool = False
    ) -> Iterator[Decoding]:
        """As in `types.Engine`: a step answers all that was added since the last."""
        yield Batches(self.generate, on_tokens)


@dataclass
class Batches:
    """The `Decoding` of a `BatchEngine`: nothing joins a running batch; what is cancelled there is sampled on."""

    generate: Callable[[Sequence[Request], Callable[[int], None] | None], list[Completion]]
    on_tokens: Callable[[int], None] | None = None
    _waiting: dict[int, Request] = field(default_factory=dict[int, Request])

    def add(self, number: int, request: Request) -> None:
        """See `types.Decoding`; what cannot be answered is refused in `step`."""
        self._waiting[number] = request

    def cancel(self, number: int) -> None:
        """See `types.Decoding`."""
        self._waiting.pop(number, None)

    def step(self) -> dict[int, Completion]:
        """See `types.Decoding`."""
        if not self._waiting:
            return {}
        waiting, self._waiting = self._waiting, {}
        return dict(zip(waiting, self.generate(list(waiting.values()), self.on_tokens), strict=True))


@dataclass(frozen=True)
class Subject:
    """An engine, with properties of its model."""

    engine: Engine
    # of a request and sampled tokens: what the model itself gives them under the request's settings
    own_logprobs: Callable[[Request, Sequence[int]], Sequence[float]]
    stop_ids: frozenset[int]
    context: int
    prompts: Sequence[tuple[int, ...]]  # at least two, of different lengths
    tolerance: float = 1e-4  # of logprobs, in nats; an engine in bfloat16 needs more
    exact_tokens: bool = True  # whether a request's tokens must not change with the batch; rounding may in bfloat16
    decode: Decode | None = None  # by which it looks for stop strings; None: it leaves them out


def check_engine(subject: Subject) -> list[str]:
    """Violations, one line each; an empty list means that the engine conforms."""
    failures = _answers(subject)
    if failures:  # malformed answers cannot be inspected
        return failures
    checks = (_seeds, _greedy, _full_context, _refusals, _progress, _arrivals, _turns, _stops, _scored)
    return [line for check in checks for line in check(subject)]


SETTINGS = (
    Sampling(8),
    Sampling(8, temperature=0.7),
    Sampling(8, temperature=1.5),
    Sampling(8, temperature=0.9, top_k=5),
    Sampling(8, top_p=0.8),
    Sampling(5, temperature=0.0),
)


def _requests(subject: Subject, sampling: Sampling, seeds: int = 3) -> list[Request]:
    return [Request(prompt, sampling, seed) for prompt in subject.prompts for seed in range(seeds)]


def _answers(subject: Subject) -> list[str]:
    """One completion per request, in order, with the right reason for its end, and the model's own logprobs."""
    failures: list[str] = []
    for sampling in SETTINGS:
        requests = _requests(subject, sampling)
        completions = subject.engine.generate(requests)
        if len(completions) != len(requests):
            return [f"{len(requests)} requests got {len(completions)} completions"]
        pairs = list(zip(requests, completions, strict=True))
        if faults := [f"{sampling}: {fault}" for request, done in pairs for fault in _faults(subject, request, done)]:
            failures += faults
            continue
        own = [subject.own_logprobs(request, done.token_ids) for request, done in pairs]
        both = [
            (a, b) for done, of in zip(completions, own, strict=True) for a, b in zip(done.logprobs, of, strict=True)
        ]
        if (gap := max(abs(a - b) for a, b in both)) > subject.tolerance:
            failures.append(
                f"{sampling}: logprobs differ from the model's own by {gap:.2e}, bound {subject.tolerance:.0e}"
            )
    return failures


def _faults(subject: Subject, request: Request, completion: Completion) -> list[str]:
    tokens, reason = completion.token_ids, completion.stop_reason
    faults: list[str] = []
    if len(tokens) != len(completion.logprobs):
        faults.append(f"{len(tokens)} tokens have {len(completion.logprobs)} logprobs")
    if any(value > 0 for value in completion.logprobs):
        faults.append("a logprob is above 0")
    if any(token in subject.stop_ids for token in tokens[:-1]):
        faults.append("it went on after a stop token")
    stopped = bool(tokens) and tokens[-1] in subject.stop_ids
    full = len(request.token_ids) + len(tokens) >= subject.context
    limit = len(tokens) == request.sampling.max_new_tokens
    expected = StopReason.STOP if stopped else StopReason.LENGTH if limit else StopReason.CONTEXT if full else None
    if reason is not expected:
        faults.append(f"it ended by '{reason}' after {len(tokens)} tokens; expected '{expected}'")
    return faults


def _seeds(subject: Subject) -> list[str]:
    """A request's random numbers depend only on its seed."""
    failures: list[str] = []
    requests = _requests(subject, Sampling(8), seeds=6)
    together = subject.engine.generate(requests)
    if subject.exact_tokens:
        alone = [subject.engine.generate([request])[0] for request in requests]
        backwards = subject.engine.generate(requests[::-1])[::-1]
        for name, other in (("alone", alone), ("in another order", backwards)):
            if any(a.token_ids != b.token_ids for a, b in zip(together, other, strict=True)):
                failures.append(f"the same request draws other tokens {name} than in the batch")
    of_first = {completion.token_ids for request, completion in zip(requests, together, strict=True)
                if request.token_ids == subject.prompts[0]}  # fmt: skip
    if len(of_first) < 2:
        failures.append("six seeds drew the same completion six times")
    twins = subject.engine.generate([requests[0], requests[0]])
    if twins[0].token_ids != twins[1].token_ids:
        failures.append("two requests with one seed drew different tokens")
    return failures


def _greedy(subject: Subject) -> list[str]:
    prompt = subject.prompts[0]
    first, second = subject.engine.generate([Request(prompt, Sampling(6, temperature=0.0), seed) for seed in (1, 2)])
    return [] if first.token_ids == second.token_ids else ["greedy completions depend on the seed"]


def _full_context(subject: Subject) -> list[str]:
    """A prompt that leaves room for two tokens ends when they are used."""
    prompt = (subject.prompts[0] * subject.context)[: subject.context - 2]
    (completion,) = subject.engine.generate([Request(prompt, Sampling(8))])
    if completion.stop_reason is StopReason.STOP:
        return []
    if completion.stop_reason is not StopReason.CONTEXT or len(completion.token_ids) != 2:
        return [f"with room for 2 tokens it gave {len(completion.token_ids)} and ended by '{completion.stop_reason}'"]
    return []


def _refusals(subject: Subject) -> list[str]:
    failures: list[str] = []
    too_long = (subject.prompts[0] * subject.context)[: subject.context]
    for what, prompt in (("that fills the whole context", too_long), ("without tokens", ())):
        try:
            subject.engine.generate([Request(prompt, Sampling(2))])
        except UserError:
            continue
        failures.append(f"a prompt {what} was not refused")
    return failures


def _progress(subject: Subject) -> list[str]:
    counts: list[int] = []
    completions = subject.engine.generate(_requests(subject, SETTINGS[0]), counts.append)
    sampled = sum(len(c.token_ids) for c in completions)
    return [] if sum(counts) == sampled else [f"it reported {sum(counts)} tokens and sampled {sampled}"]


def _arrivals(subject: Subject) -> list[str]:
    """Requests that are added or cancelled during decoding do not change the others."""
    requests = _requests(subject, Sampling(8), seeds=4)
    together = subject.engine.generate(requests)
    done: dict[int, Completion] = {}
    with subject.engine.open() as decoding:
        for number, request in enumerate(requests):
            decoding.add(number, request)
            if number % 2:  # two at a time, with a third that is cancelled before it began, or under way
                decoding.add(-number, request)
                if number % 4 == 1:
                    decoding.cancel(-number)
                done |= decoding.step()
                decoding.cancel(-number)
        for _ in range(sum(request.sampling.max_new_tokens for request in requests) + len(requests)):
            done |= decoding.step()
    failures: list[str] = []
    if missing := [number for number in range(len(requests)) if number not in done]:
        failures.append(f"requests {missing} that came one by one were never done")
    elif subject.exact_tokens and any(done[i].token_ids != one.token_ids for i, one in enumerate(together)):
        failures.append("a request draws other tokens when others come and go while it is under way")
    return failures


def _turns(subject: Subject) -> list[str]:
    """Prefix caching does not change the completion of a prompt that extends an earlier one."""
    failures: list[str] = []
    done: dict[int, Completion] = {}
    with subject.engine.open(turns=True) as decoding:
        requests = [Request(prompt, Sampling(4), seed) for seed, prompt in enumerate(subject.prompts)]
        for _ in range(3):
            begun = len(done)
            for number, request in enumerate(requests, begun):
                decoding.add(number, request)
            while len(done) < begun + len(requests):
                done |= decoding.step()
            asked, requests = requests, []
            for number, request in enumerate(asked, begun):
                alone = subject.engine.generate([request])[0]
                if subject.exact_tokens and alone.token_ids != done[number].token_ids:
                    failures.append(f"turn {begun // len(asked) + 1} draws other tokens after its earlier turns")
                pairs = zip(alone.logprobs, done[number].logprobs, strict=False)
                if alone.token_ids == done[number].token_ids and any(
                    abs(one - other) > subject.tolerance for one, other in pairs
                ):
                    failures.append(f"turn {begun // len(asked) + 1} has other logprobs after its earlier turns")
                longer = (*request.token_ids, *done[number].token_ids, subject.prompts[0][0])
                if len(longer) < subject.context:
                    requests.append(Request(longer, Sampling(4), request.seed + 100))
    return failures


def _stops(subject: Subject) -> list[str]:
    """A stop string, which begins and ends within tokens, ends a completion with the token that completes it."""
    if subject.decode is None or not subject.exact_tokens:
        return []
    failures: list[str] = []
    for request in _requests(subject, Sampling(8)):
        whole = subject.engine.generate([request])[0]
        text = subject.decode(whole.token_ids)
        stop = text[len(text) // 3 : 2 * len(text) // 3]
        if not stop:
            continue
        stopped = replace(request, sampling=replace(request.sampling, stop=("\0never", stop)))
        (found,) = subject.engine.generate([stopped])
        expected = cut_at_stop(whole, (stop,), subject.decode)
        if (found.token_ids, found.stop_reason) != (expected.token_ids, StopReason.STOP):
            failures.append(f"it went on after the stop string {stop!r}, or ended before it: {found.stop_reason}")
    return failures


def _scored(subject: Subject) -> list[str]:
    """The logprobs of given tokens are the model's own at temperature 1; nothing is sampled for them."""
    own: list[float] = []
    requests: list[Request] = []
    for prompt, other in zip(subject.prompts, subject.prompts[1:], strict=False):
        given = Request(prompt, Sampling(len(other), temperature=1.0))
        own += subject.own_logprobs(given, other)
        requests.append(Request((*prompt, *other), Sampling(1, temperature=0.5), scored_from=len(prompt)))
    done = subject.engine.generate(requests)
    found = [value for completion in done for value in completion.scored]
    if len(found) != len(own) or any(completion.token_ids for completion in done):
        return [f"{len(own)} given tokens have {len(found)} logprobs, or others were sampled"]
    gap = max(abs(one - other) for one, other in zip(found, own, strict=True))
    return [f"logprobs of given tokens differ from the model's own by {gap:.2e}"] if gap > subject.tolerance else []
